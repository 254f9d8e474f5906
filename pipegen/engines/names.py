"""The names of engines as their makers write them, for people; data keeps the ids.

>>> shown("vllm_chat"), shown("sglang"), shown("my_engine")
('vLLM chat server', 'SGLang', 'my_engine')
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NAMES", "shown"]

NAMES: Mapping[str, str] = {
    "hf": "Hugging Face transformers",
    "vllm": "vLLM",
    "vllm_server": "vLLM server",
    "vllm_chat": "vLLM chat server",
    "sglang": "SGLang",
    "sglang_server": "SGLang server",
    "sglang_chat": "SGLang chat server",
    "openai": "OpenAI-compatible",
    "openai_server": "OpenAI-compatible server",
    "openai_chat": "OpenAI-compatible chat server",
    "chatcompletion": "OpenAI-compatible",
}
"""Engines, and the types of backends in files."""


def shown(name: str) -> str:
    """The name to show for an engine's id; an engine of somebody's own is shown as it is called."""
    return NAMES.get(name, name)
