"""The keys that a backend takes in a file, besides the generation options: the settings of its
engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipegen.engines.settings import SETTINGS, fields_of
from pipegen.records.engine_list import BACKENDS
from pipegen.records.fields import Check, checks_of, help_of

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
