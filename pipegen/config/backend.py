"""One backend of a file: which engine, which model, how it is reached, and the generation options that stand flat beside these.

>>> place = Place("chat.yaml")
>>> backend = backend_from({"type": "vllm", "model": "Qwen/Qwen3-4B", "base_url": None, "top_k": 50}, place)
>>> backend.constructor, backend.settings["dialect"], backend.options.top_k
('openai_server', 'vllm', 50)
>>> backend_from({"type": "hf", "model": "embedded", "temprature": 1}, place)
Traceback (most recent call last):
...
pipegen.fields.UnknownField: chat.yaml: temprature: type 'hf' takes no such key; did you mean 'temperature'?
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pipegen.config.files import Place
from pipegen.config.keys import ALIASES, KEYS, TYPES, keys_of
from pipegen.config.secret import Secret, expanded, provider_variables
from pipegen.fields import InvalidField, UnknownField, mapping, nearest, one_of, record, text
from pipegen.options import GROUPS, GenerationOptions, option_names, options_from

if TYPE_CHECKING:
    from pipegen.route import Route

__all__ = ["BackendConfig", "backend_from"]

_PORTS = {8000: "vllm", 30000: "sglang"}
NO_KEY = "EMPTY"
"""What is sent to a server that wants no key."""


@record
class BackendConfig:
    """A backend as a file describes it."""

    type: Annotated[str, one_of(*TYPES)]
    model: Annotated[str, text]
    constructor: str
    """The function of `pipegen.backends` that makes it."""
    settings: Annotated[Mapping[str, Any], mapping]
    """That function's arguments, without those that hold secrets."""
    secrets: tuple[tuple[str, Secret | tuple[tuple[str, Secret], ...]], ...] = ()
    """Its arguments that hold secrets: the key and the headers."""
    options: GenerationOptions

    def open(self, *, dry: bool = False) -> Route:
        """The route to it. Nothing is loaded or asked yet; raises as the constructor does.

        `dry` is for looking at what would be sent: the model has its name in the file, where a run asks the server for the name that it knows it by.
        """
        from pipegen import backends

        said = dict(self.settings)
        if dry and "base_url" in keys_of(self.constructor):
            said.setdefault("served_model_name", self.model)
        hidden = {name: held.reveal() if isinstance(held, Secret) else {key: one.reveal() for key, one in held} for name, held in self.secrets}
        made: Route = getattr(backends, self.constructor)(self.model, **said, **hidden)
        return made


def backend_from(values: Any, place: Place) -> BackendConfig:
    """The backend of plain data. Raises `InvalidField` and `UnknownField` with the place and what the key takes, or the nearest key."""
    if not isinstance(values, Mapping):
        raise InvalidField(f"{place}: takes a mapping such as {{type: hf, model: embedded}}, not {values!r:.200}")
    for name in ("type", "model"):
        if values.get(name) is None:
            raise InvalidField(f"{place}: takes {name} too")
    kind = _checked("type", values["type"], one_of(*TYPES), place)
    model = _checked("model", values["model"], text, place)
    constructor = _constructor(kind, values)
    said = {name: value for name, value in values.items() if name not in ("type", "model")}
    known = keys_of(constructor)
    options = _options({name: said.pop(name) for name in tuple(said) if name not in known and _is_option(name)}, said, place)
    settings: dict[str, Any] = {}
    for name, value in said.items():
        if name not in known:
            raise UnknownField(f"{place.at(name)}: {_unknown(name, kind, known)}")
        if value is not None:
            settings[name] = _checked(name, value, known[name].check, place)
    secrets = _secrets(settings, place) if "base_url" in known else ()
    if constructor == "openai_server":
        settings.setdefault("dialect", _dialect(kind, settings.get("base_url")))
    return BackendConfig(type=kind, model=model, constructor=constructor, settings=settings, secrets=secrets, options=options)


def _constructor(kind: str, said: Mapping[str, Any]) -> str:
    if kind in ("openai", "chatcompletion", "sglang") or (kind == "vllm" and "base_url" in said):
        return "openai_server"
    return kind


def _dialect(kind: str, base_url: str | None) -> str:
    """Whose extensions a chat server takes: that of its type, else of the engine whose port it listens on."""
    if kind in ("vllm", "sglang"):
        return kind
    return "vllm" if base_url is None else _PORTS.get(urlsplit(base_url).port or 0, "plain")


def _checked(name: str, value: Any, check: Any, place: Place) -> Any:
    try:
        return check(value)
    except ValueError as refusal:
        raise InvalidField(f"{place.at(name)}: takes {refusal}, not {_shown(name, value)}") from None


def _shown(name: str, value: Any) -> str:
    return "what stands there" if name in ("api_key", "headers") else f"{value!r:.200}"


def _unknown(name: str, kind: str, known: Mapping[str, Any]) -> str:
    if name in KEYS and kind == "vllm":
        return "type 'vllm' takes this key " + ("only without base_url" if "base_url" in known else "only with base_url (null is the port on this machine)")
    if name in KEYS:
        takers = [other for other in TYPES if not {_constructor(other, {}), _constructor(other, {"base_url": ""})}.isdisjoint(KEYS[name].constructors)]
        return f"type {kind!r} takes no such key; {', '.join(takers)} do"
    return f"type {kind!r} takes no such key{nearest(name, ('type', 'model', *known, *option_names(), *ALIASES))}"


def _is_option(name: str) -> bool:
    return name in ALIASES or name in GROUPS or name in option_names()


def _options(said: dict[str, Any], beside: Mapping[str, Any], place: Place) -> GenerationOptions:
    """The options under pipegen's names. What a template's variables say of thinking is said by the option of that name."""
    values: dict[str, Any] = {}
    for given, value in said.items():
        name = ALIASES.get(given, given)
        if name in values:
            raise InvalidField(f"{place.at(given)}: says the same as {name}, which stands there too")
        values[name] = value
    for key, holder in (("chat_template_kwargs", values.get("template_kwargs")), ("extra_body", _inner(beside.get("extra_body"), "chat_template_kwargs"))):
        thinking = _inner(holder, "enable_thinking")
        if type(thinking) is bool:
            if values.get("enable_thinking") not in (None, thinking):
                raise InvalidField(f"{place.at(key)}: enable_thinking is {thinking} here, and {values['enable_thinking']} elsewhere")
            values["enable_thinking"] = thinking
    if isinstance(values.get("template_kwargs"), Mapping):
        values["template_kwargs"] = {name: value for name, value in values["template_kwargs"].items() if name != "enable_thinking"}
    for given in said:  # one by one: so each refusal has its place
        name = ALIASES.get(given, given)
        options_from({name: values[name]}, str(place.at(given)))
    return options_from(values, str(place))


def _inner(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _secrets(settings: dict[str, Any], place: Place) -> tuple[tuple[str, Any], ...]:
    """The key and the headers, taken out of the settings, with `${NAME}` read; the address with `${NAME}` read too."""
    if settings.get("base_url") is not None:
        settings["base_url"] = _expanded("base_url", settings["base_url"], place)
    key = _expanded("api_key", settings.pop("api_key", ""), place)
    variables = provider_variables(settings.get("base_url"))
    if not key and variables:  # a provider is sent its own key, never that of another
        key = next((os.environ[name] for name in variables if os.environ.get(name)), NO_KEY)
    headers = settings.pop("headers", {})
    shown = tuple((str(name), Secret(_expanded("headers", value, place))) for name, value in headers.items())
    return (*((("api_key", Secret(key)),) if key else ()), *((("headers", shown),) if shown else ()))


def _expanded(name: str, value: Any, place: Place) -> str:
    try:
        if not isinstance(value, str):
            raise ValueError("takes strings")
        return expanded(value)
    except ValueError as refusal:
        raise InvalidField(f"{place.at(name)}: {refusal}") from None
