"""One backend of a file: which engine, which model, how it is reached, and the generation options,
flat beside these.

>>> place = Place("chat.yaml")
>>> backend = backend_from(
...     {"type": "vllm", "model": "Qwen/Qwen3-4B", "base_url": None, "top_k": 50}, place
... )
>>> backend.backend, backend.settings.dialect, backend.options.top_k
('openai_server', 'vllm', 50)
>>> backend_from({"type": "hf", "model": "embedded", "temprature": 1}, place)
Traceback (most recent call last):
...
pipegen.records.fields.UnknownField: chat.yaml: temprature: type 'hf' takes no such key; did you mean 'temperature'?
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pipegen.config.config_files import Place
from pipegen.config.generation import OPTIONS_ANYWHERE, is_option, options_beside
from pipegen.config.keys import (
    KEYS,
    SYSTEM_NAMES,
    field_refusal,
    keys_of,
    legacy_key_hint,
    with_fields,
)
from pipegen.core.names import CLOSE, InvalidField, nearest
from pipegen.engines.settings import (
    BESIDE,
    SETTINGS,
    FallbackSettings,
    ModelLoadConfig,
    config_of,
    nearest_setting,
)
from pipegen.records.engine_list import BACKENDS, DIALECTS, TYPES, Dialect
from pipegen.records.fields import (
    UnknownField,
    checks_of,
    non_empty_string,
    one_of,
    record,
    taken_instead,
)
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OTHER_NAMES, SERVER_NAMES
from pipegen.records.options import option_names
from pipegen.records.request_forms import meant
from pipegen.records.secret import masked

if TYPE_CHECKING:
    from pipegen.core.pipe import Pipe
    from pipegen.drivers.route import Route
    from pipegen.records.requests import GenerationRequest
    from pipegen.records.results import GenerationResult


KEY_VARIABLES = frozenset({"VLLM_API_KEY", "SGLANG_API_KEY", "OPENAI_API_KEY"})
"""Variables that need not be set: local servers take any key, and are sent `EMPTY`."""
_PROVIDERS: Mapping[str, str] = {
    "aliyuncs.com": "QWEN_API_KEY",
    "anthropic.com": "ANTHROPIC_API_KEY",
    "bigmodel.cn": "ZAI_API_KEY",
    "cerebras.ai": "CEREBRAS_API_KEY",
    "cohere.ai": "COHERE_API_KEY CO_API_KEY",
    "cohere.com": "COHERE_API_KEY CO_API_KEY",
    "deepinfra.com": "DEEPINFRA_API_KEY DEEPINFRA_TOKEN",
    "deepseek.com": "DEEPSEEK_API_KEY",
    "fireworks.ai": "FIREWORKS_API_KEY",
    "googleapis.com": "GEMINI_API_KEY GOOGLE_API_KEY",
    "groq.com": "GROQ_API_KEY",
    "huggingface.co": "HF_TOKEN",
    "mistral.ai": "MISTRAL_API_KEY",
    "moonshot.ai": "MOONSHOT_API_KEY KIMI_API_KEY",
    "moonshot.cn": "MOONSHOT_API_KEY KIMI_API_KEY",
    "nebius.com": "NEBIUS_API_KEY",
    "nvidia.com": "NVIDIA_API_KEY",
    "openrouter.ai": "OPENROUTER_API_KEY",
    "perplexity.ai": "PERPLEXITY_API_KEY",
    "poe.com": "POE_API_KEY",
    "sambanova.ai": "SAMBANOVA_API_KEY",
    "together.xyz": "TOGETHER_API_KEY",
    "volces.com": "ARK_API_KEY",
    "x.ai": "XAI_API_KEY",
    "z.ai": "ZAI_API_KEY",
}
"""Public providers by their host, and the variables that hold their keys, with spaces between."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BARE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")


def expanded(text: str) -> str:
    """The text with each `${NAME}` replaced by that environment variable. Raises `ValueError`,
    which names the variable, where one is not set.

    Those that name a server's own key may be missing; they are then empty.

    >>> expanded("${NO_SUCH_VARIABLE}")
    Traceback (most recent call last):
    ...
    ValueError: the environment variable NO_SUCH_VARIABLE is not set
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ and name not in KEY_VARIABLES:
            raise ValueError(f"the environment variable {name} is not set")
        return os.environ.get(name, "")

    if _BARE.fullmatch(text):
        raise ValueError("a variable of the environment is written ${NAME}")
    if "${" in _VARIABLE.sub("", text):
        raise ValueError(
            "takes ${NAME} with a name of letters, digits and underscores, and nothing else between"
            " the braces"
        )
    return _VARIABLE.sub(value, text)


def provider_variables(base_url: str | None) -> tuple[str, ...]:
    """The environment variables that hold the key of a public provider, by the server's host; none
    for any other host.

    >>> (
    ...     provider_variables("https://api.cerebras.ai/v1"),
    ...     provider_variables("https://cerebras.ai.example.org/v1"),
    ... )
    (('CEREBRAS_API_KEY',), ())
    """
    host = f".{urlsplit(base_url or '').hostname or ''}"
    return next(
        (
            tuple(names.split())
            for domain, names in _PROVIDERS.items()
            if host.endswith(f".{domain}")
        ),
        (),
    )


_PORTS = {8000: "vllm", 30000: "sglang"}
_SERVERS_OWN = frozenset(
    (
        *("best_of", "chat_template", "function_call", "random_seed", "response_format"),
        *("thinking_token_budget", "truncate_prompt_tokens"),
    )
)
"""Fields of chat servers that are named as another program names an option."""
NO_KEY = "EMPTY"
"""What is sent to a server that wants no key."""
_FALLBACK = checks_of(FallbackSettings)


@record
class BackendConfig(FallbackSettings):
    """A backend as a file describes it, with the engine that takes over for it, where there is
    one.
    """

    type: Annotated[str, one_of(*TYPES)]
    """The type, as the file writes it."""
    backend: str
    """The function of `pipegen.backends` that makes it."""
    settings: Any
    """That function's arguments, as the record of its settings; no repr shows the key and the
    headers among them.
    """
    options: GenerationOptions
    """The options that the file sets."""

    @property
    def model(self) -> str:
        """The checkpoint, or the name that the server has for it."""
        return str(self.settings.model)

    @property
    def load_config(self) -> ModelLoadConfig:
        """What the second engine is made of: the settings that every engine may have, and when it
        takes over.
        """
        return dataclasses.replace(
            config_of(self.settings, self.backend),
            fallback_backend=self.fallback_backend,
            fallback_when=self.fallback_when,
        )

    def open(self) -> Pipe[GenerationRequest, GenerationResult]:
        """The route to it, or with `fallback_backend` the fallback from it, as
        `pipegen.backends.load` makes it.

        Its options are for what requests, and the options of a run, leave open. Nothing is loaded
        or asked yet; raises as the functions of `pipegen.backends` do.
        """
        from pipegen.backends import with_fallback
        from pipegen.drivers.route import with_options

        return with_options(with_fallback(self.first, self.load_config), self.options)

    def first(self, *, dry: bool = False) -> Route:
        """The route to it alone, without the engine that takes over. Raises as `open` does.

        `dry` is for looking at what would be sent. The model then has its name in the file, where a
        run asks the server for the name that it knows it by.
        """
        from pipegen.backends import route_with

        settings = self.settings
        if dry and getattr(settings, "served_model_name", "") is None:
            settings = dataclasses.replace(settings, served_model_name=self.model)
        return route_with(self.backend, settings)


def backend_from(values: object, place: Place) -> BackendConfig:
    """The backend of plain data. Raises `InvalidField` and `UnknownField` with the place and what
    the key takes, or the nearest key.
    """
    if not isinstance(values, Mapping):
        raise InvalidField(
            f"{place}: takes a mapping such as {{type: hf, model: embedded}}, not"
            f" {type(values).__name__}"
        )
    for name in ("type", "model"):
        if values.get(name) is None:
            raise InvalidField(f"{place}: the key {name} is missing")
    kind = checked(
        "type",
        values["type"],
        one_of(*TYPES),
        place,
        "; another server that speaks OpenAI's is type openai with its base_url",
    )
    model = _expanded("model", checked("model", values["model"], non_empty_string, place), place)
    backend = _backend_of(kind, values)
    keys = keys_of(backend)
    takes_over = {
        name: checked(name, values[name], check, place)
        for name, check in _FALLBACK.items()
        if values.get(name) is not None
    }
    entries = {
        name: value for name, value in values.items() if name not in ("type", "model", *_FALLBACK)
    }
    keys = {
        name: key
        for name, key in keys.items()
        if not (entries.get(name) and entries.get(BESIDE.get(name, "")))
    }
    settings = {
        name: checked(name, value, keys[name].check, place)
        for name, value in entries.items()
        if name in keys and value is not None
    }
    fields = () if backend != "openai_server" else ("tool_choice",)  # a field of chat servers
    beside = {
        name: value
        for name, value in entries.items()
        if name not in keys and is_option(name) and name not in fields
    }
    others = {
        name: value for name, value in entries.items() if name not in keys and name not in beside
    }
    if "base_url" in keys:
        _settle_access(settings, entries, place)
        settings.setdefault("server_limit", True)
    if backend == "openai_server":
        _settle_dialect(kind, settings, place)
    for name in others:
        reason = (
            "" if name in fields else _unknown(name, kind, settings.get("dialect"), keys, values)
        )
        if reason:
            raise UnknownField(f"{place.at(name)}: {reason}")
    extra = with_fields(others, entries.get("extra_body") or {}, place)
    options, extra = options_beside(beside, extra, place, settings.get("dialect"))
    if "extra_body" in keys:
        settings["extra_body"] = extra
    engine_settings = SETTINGS[backend](model=model, **settings)
    try:
        return BackendConfig(
            type=kind, backend=backend, settings=engine_settings, options=options, **takes_over
        )
    except InvalidField as refusal:
        name, _, reason = str(refusal).removeprefix("BackendConfig.").partition(" ")
        raise InvalidField(f"{place.at(name)}: {reason}") from None


def _backend_of(kind: str, entries: Mapping[str, object]) -> str:
    return (
        kind
        if kind in BACKENDS and not (kind == "vllm" and "base_url" in entries)
        else "openai_server"
    )


def _settle_dialect(kind: str, settings: dict[str, Any], place: Place) -> None:
    """Whose extensions a chat server takes: that of its type, else what the file says, else of the
    engine whose port it listens on.
    """
    dialect, base_url = settings.get("dialect"), settings.get("base_url")
    if kind in DIALECTS:
        if dialect not in (None, kind):
            raise InvalidField(
                f"{place.at('dialect')}: type {kind!r} speaks its own dialect; take type openai for"
                " another"
            )
        settings["dialect"] = kind
    elif dialect is None:
        settings["dialect"] = (
            "vllm" if base_url is None else _PORTS.get(urlsplit(base_url).port or 0, "plain")
        )


def checked(name: str, value: Any, check: Any, place: Place, more: str = "") -> Any:
    """The value of a key. Raises `InvalidField` with its place, and with `more` to do."""
    try:
        return check(value)
    except ValueError as refusal:
        shown = (
            "the value that is set"
            if name in ("api_key", "headers", "base_url")
            else f"{masked(value)!r:.200}"
        )
        raise InvalidField(f"{place.at(name)}: {taken_instead(refusal, shown)}{more}") from None


def _unknown(
    name: str,
    kind: str,
    dialect: Dialect | None,
    keys: Mapping[str, object],
    beside: Mapping[str, object],
) -> str:
    """Why a key is not taken; empty for a field that a chat server is passed as it is."""
    if name in KEYS and kind == "vllm":
        return "type 'vllm' takes this key " + (
            "only without base_url"
            if "base_url" in keys
            else "only with base_url (null is the port on this machine)"
        )
    if name in KEYS:
        takers = [
            other
            for other in TYPES
            if not {_backend_of(other, {}), _backend_of(other, {"base_url": ""})}.isdisjoint(
                KEYS[name].takers
            )
        ]
        return f"type {kind!r} takes no such key; {', '.join(takers)} do"
    if name in ("id", "system_message"):
        return f"{name} goes beside backend, not into it"
    other = meant(name)
    if name in SYSTEM_NAMES or other == "system":
        return "system_message, beside backend, is the system message"
    why = legacy_key_hint(name, beside) or ("" if dialect is None else field_refusal(name, dialect))
    if why:
        return why
    foreign = (
        "; a field that only the server knows goes into extra_body" if "extra_body" in keys else ""
    )
    value = beside[name]
    inner = next(
        filter(OPTIONS_ANYWHERE.__contains__, value if isinstance(value, Mapping) else ()), ""
    )
    if inner:
        return f"{inner} is a key beside type and model, not within another{foreign}"
    names = ("type", "model", *_FALLBACK, *keys, *option_names(), *SERVER_NAMES)
    if dialect is not None and name in _SERVERS_OWN:
        return ""
    other = other if is_option(other) else OTHER_NAMES.get(name, "")
    other = f"; did you mean {other!r}?" if other else ""
    if dialect is None:
        near = (
            other
            or nearest_setting(name, names)
            or nearest(name, KEYS, CLOSE)
            or "; chat servers alone are passed other fields"
        )
        return f"type {kind!r} takes no such key{near}"
    near = other or nearest_setting(name, (*names, *KEYS), CLOSE)
    reason = f"type {kind!r} takes no such key{near}"
    return f"{reason}{foreign}" if near else ""


def _settle_access(settings: dict[str, Any], entries: Mapping[str, Any], place: Place) -> None:
    """The address, the model's name, the key and the headers with `${NAME}` read; a provider's own
    key where none is set.
    """
    from pipegen.backends.http.access import addresses_of

    for name in ("base_url", "served_model_name"):
        if settings.get(name) is not None:
            settings[name] = _expanded(name, settings[name], place)
    try:
        addresses_of(settings.get("base_url"), "")
    except InvalidField as refusal:
        raise InvalidField(
            f"{place.at('base_url')}: {str(refusal).removeprefix('base_url ')}"
        ) from None
    key = _expanded("api_key", entries.get("api_key") or "", place)
    variables = provider_variables(settings.get("base_url"))
    if not key and variables:  # a provider is sent its own key, never that of another
        key = next((os.environ[name] for name in variables if os.environ.get(name)), NO_KEY)
    settings["api_key"] = key or None
    settings["headers"] = {
        name: _expanded("headers", value, place)
        for name, value in (entries.get("headers") or {}).items()
    }


def _expanded(name: str, value: str, place: Place) -> str:
    try:
        return expanded(value)
    except ValueError as refusal:
        raise InvalidField(f"{place.at(name)}: {refusal}") from None
