"""What engines call the options that they take as they are: one table for vLLM in this process, the token servers, and chat completions.

What an engine takes in another way than under another name (stops, logprobs, the form of an answer) is in its own file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pipegen.records.options import GenerationOptions

__all__ = ["OPENAI", "PLAIN", "WIRE_NAMES", "form_of", "wire_name", "wire_options"]

OPENAI = ("max_new_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
"""The options that a plain chat server takes."""
PLAIN = (*OPENAI, "top_k", "min_p", "repetition_penalty", "min_new_tokens")
"""The options that go to an engine as they are."""
_TOKENS = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
WIRE_NAMES: Mapping[str, Mapping[str, str]] = {"vllm": _TOKENS, "sglang": {"seed": "sampling_seed"}, "chat": _TOKENS}
"""The names that differ from pipegen's: of vLLM's and of SGLang's sampling parameters, and of chat completions."""


def wire_name(option: str, wire: str) -> str:
    """What a wire calls an option.

    >>> wire_name("seed", "sglang"), wire_name("seed", "vllm")
    ('sampling_seed', 'seed')
    """
    return WIRE_NAMES[wire].get(option, option)


def wire_options(options: GenerationOptions, wire: str, taken: Collection[str] = PLAIN) -> dict[str, Any]:
    """The options that a wire takes as they are, by its names.

    >>> from pipegen.records.options import resolve
    >>> wire_options(resolve(GenerationOptions(max_new_tokens=7)), "chat", ("max_new_tokens", "top_p"))
    {'max_tokens': 7, 'top_p': 1.0}
    """
    return {wire_name(name, wire): getattr(options, name) for name in taken}


def form_of(options: GenerationOptions) -> dict[str, Any]:
    """What form the answer must have, under the option's name; empty where it is free.

    >>> form_of(GenerationOptions(structured={"choice": ("a", "b")}))
    {'choice': ['a', 'b']}
    """
    asked = options.structured
    if asked is None:
        return {}
    choice = None if asked.choice is None else list(asked.choice)
    said = {"json_schema": asked.json_schema, "regex": asked.regex, "choice": choice}
    return {name: value for name, value in said.items() if value is not None}
