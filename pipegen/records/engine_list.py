"""The one list of engines: what each is called, which function of `pipegen.backends` makes it, and
what it needs.

>>> shown("vllm_chat"), shown("sglang"), shown("my_engine")
('vLLM chat server', 'SGLang', 'my_engine')
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Dialect = Literal["vllm", "sglang", "plain"]
"""Which fields a chat server takes: those of vLLM or of SGLang, or OpenAI's own alone."""


class EngineRow(NamedTuple):
    """One engine. Its key in the list is its id: in results, errors and tables."""

    title: str
    """As its maker writes it."""
    backend: str
    """The function of `pipegen.backends` that makes its route."""
    extra: str
    """The extra that installs what it needs."""
    dialect: Dialect | None = None
    """Of a chat server: which fields beyond OpenAI's own it takes."""
    known: bool = True
    """Whether pipegen knows what it makes of options and of thinking, how it counts tokens, and that
    it lists its models.
    """


ENGINE_LIST: Mapping[str, EngineRow] = {
    "hf": EngineRow("Hugging Face transformers", "hf", "hf"),
    "vllm": EngineRow("vLLM", "vllm", "vllm"),
    "vllm_server": EngineRow("vLLM server", "vllm_server", "online"),
    "sglang_server": EngineRow("SGLang server", "sglang_server", "online"),
    "vllm_chat": EngineRow("vLLM chat server", "openai_server", "online", "vllm"),
    "sglang_chat": EngineRow("SGLang chat server", "openai_server", "online", "sglang"),
    "openai_chat": EngineRow(
        "OpenAI-compatible chat server", "openai_server", "online", "plain", known=False
    ),
}
TOKEN_ENGINES = frozenset(name for name, row in ENGINE_LIST.items() if not row.dialect)
"""Engines that take and give token ids: pipegen renders, tokenizes, counts and decodes for them."""
IN_PROCESS = frozenset(name for name, row in ENGINE_LIST.items() if row.extra != "online")
"""Engines that run in this process."""
UNKNOWN_SERVERS = frozenset(name for name, row in ENGINE_LIST.items() if not row.known)
"""Engines of which pipegen does not know what they make of a request."""
BACKENDS = tuple(dict.fromkeys(row.backend for row in ENGINE_LIST.values()))
"""The functions of `pipegen.backends` that make routes; `ModelLoadConfig.backend` takes these
names.
"""
TYPES: Mapping[str, str] = {
    "hf": "Hugging Face transformers, in this process",
    "vllm": "vLLM: with `base_url` the chat route of a server, without it in this process",
    "vllm_server": "a vLLM server, by token ids",
    "sglang": "the chat route of an SGLang server",
    "sglang_server": "an SGLang server, by token ids",
    "openai": "the chat route of any server that speaks OpenAI's",
    "openai_server": "the same as `openai`",
    "chatcompletion": "the same as `openai`",
}
"""What `type` takes in files, and `--backend` of the command line."""
DIALECTS: Mapping[Dialect, str] = {
    row.dialect: name for name, row in ENGINE_LIST.items() if row.dialect
}
"""The engine behind `openai_server`, by dialect."""
_BRANDS = {
    "sglang": "SGLang",
    "openai": "OpenAI-compatible",
    "openai_server": "OpenAI-compatible server",
    "chatcompletion": "OpenAI-compatible",
}
"""Types of backends in files that are no engine's id."""


def shown(name: str) -> str:
    """The name to show for an engine's id or a type in a file. An engine of somebody's own is shown
    as it is called.
    """
    return ENGINE_LIST[name].title if name in ENGINE_LIST else _BRANDS.get(name, name)
