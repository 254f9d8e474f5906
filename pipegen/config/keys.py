"""The keys that a backend takes in a file, besides the generation options: the settings of its
engine. A chat server is sent the others as they are, as fields of its requests.

Which fields a server has, it says itself when it is asked. Here only what cannot be meant is
refused: fields that pipegen sets, and names that are nearly those of a key or an option.

>>> with_fields({"priority": 7}, {"a": 2}, Place("chat.yaml"))
{'a': 2, 'priority': 7}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipegen.config.config_files import Place
from pipegen.config.generation import is_option
from pipegen.core.names import InvalidField
from pipegen.engines.settings import SETTINGS, fields_of
from pipegen.records.engine_list import BACKENDS, Dialect
from pipegen.records.fields import Check, checks_of, help_of
from pipegen.records.frozen import freeze

VLLM_ALONE = ("guided_grammar", "guided_whitespace_pattern")
"""Old names of fields within vLLM's `structured_outputs`."""


def never_passed_on() -> tuple[str, ...]:
    """The fields of chat requests that no file may set.

    >>> "messages" in never_passed_on(), "priority" in never_passed_on()
    (True, False)
    """
    from pipegen.backends.servers.extra_body import OWN, REMOVED

    return (*OWN, *(name for name, key in REMOVED.items() if not key and not is_option(name)))


def field_refusal(name: str, dialect: Dialect) -> str:
    """Why a field is not passed on to a chat server of this dialect; empty where it is.

    >>> field_refusal("messages", "vllm"), field_refusal("ebnf", "sglang")
    ('pipegen sets this field itself; leave it out', '')
    """
    from pipegen.backends.servers.extra_body import OWN

    if name in OWN:
        return "pipegen sets this field itself; leave it out"
    if name in never_passed_on():
        return "vLLM has no such field now: its server settles it (--structured-outputs-config)"
    if name in VLLM_ALONE and dialect != "vllm":
        return "it is a field of vLLM's chat requests; set the server's dialect"
    return ""


def with_fields(
    fields: Mapping[str, object], extra: Mapping[str, object], place: Place
) -> dict[str, Any]:
    """`extra_body` with the fields beside it. `null` says nothing. Raises `InvalidField` where the
    two contradict each other.
    """
    from pipegen.backends.servers.extra_body import REMOVED

    out = dict(extra)
    for name, value in fields.items():
        if value is None:
            continue
        try:
            freeze(value)
        except ValueError as refusal:
            raise InvalidField(f"{place.at(name)}: takes {refusal}") from None
        if name in REMOVED:
            before = out.get("structured_outputs")
            out["structured_outputs"] = {
                REMOVED[name]: value,
                **(before if isinstance(before, Mapping) else {}),
            }
            continue
        if name in extra and freeze(extra[name]) != freeze(value):
            raise InvalidField(
                f"{place.at('extra_body', name)}: {name} is {extra[name]!r:.80} here, and"
                f" {value!r:.80} elsewhere"
            )
        out[name] = value
    return out


_TOOLS, _TEAM = "pipegen has no tools of its own", "pipegen asks each model once, by itself"
_FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "cwd",
            "mcp_servers",
            "custom_tools",
            "allowed_tools",
            "exclude_tools",
            "upload_files",
            "permission_mode",
        ),
        _TOOLS,
    ),
    **dict.fromkeys(
        (
            "enable_web_search",
            "enable_code_interpreter",
            "enable_code_execution",
            "enable_mcp_command_line",
        ),
        _TOOLS,
    ),
    **dict.fromkeys(
        (
            "enable_image_generation",
            "enable_audio_generation",
            "enable_video_generation",
            "enable_file_generation",
        ),
        _TOOLS,
    ),
    "command_line_execution_mode": _TOOLS,
    **dict.fromkeys(("orchestrator", "timeout_settings", "memory", "display"), _TEAM),
    **dict.fromkeys(
        ("text", "reasoning"),
        "this is of OpenAI's Responses, and pipegen speaks Chat Completions, which takes"
        " reasoning_effort",
    ),
}
"""Keys of the original system that have nothing here to act on, and why."""


class Key(NamedTuple):
    """One key: its check, what it is for, and the functions of `pipegen.backends` that take it."""

    check: Check
    words: str
    takers: tuple[str, ...]


def keys_of(backend: str) -> Mapping[str, Key]:
    """The keys that a function of `pipegen.backends` takes: the fields of its settings.

    >>> "base_url" in keys_of("vllm_server"), "base_url" in keys_of("hf")
    (True, False)
    """
    return {name: key for name, key in KEYS.items() if backend in key.takers}


def _keys() -> Mapping[str, Key]:
    keys: dict[str, Key] = {}
    for backend in BACKENDS:
        checks, help_texts = checks_of(SETTINGS[backend]), help_of(SETTINGS[backend])
        for name in fields_of(backend):
            keys[name] = Key(
                checks[name],
                help_texts[name],
                (*(keys[name].takers if name in keys else ()), backend),
            )
    return keys


KEYS: Mapping[str, Key] = _keys()


LEGACY = tuple(_FOREIGN)
"""Keys of the original system that are not taken."""


SYSTEM_NAMES = frozenset({"system", "system_prompt", "system_prompts", "sys_prompt"})
"""What others call `system_message`."""


def legacy_key_hint(name: str, beside: Iterable[str]) -> str:
    """Why a key of the original system is not taken, with those beside it that are not either;
    empty for any other key.

    >>> legacy_key_hint("cwd", ["model", "cwd", "mcp_servers"])
    'pipegen has no tools of its own: take it out, and mcp_servers'
    """
    others = "".join(f", and {other}" for other in beside if other in _FOREIGN and other != name)
    return f"{_FOREIGN[name]}: take it out{others}" if name in _FOREIGN else ""
