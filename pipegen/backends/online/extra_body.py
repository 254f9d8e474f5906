"""`extra_body` of chat completions: which of its fields a dialect has.

>>> misplaced({"n": 2}, "plain").message
'extra_body.n is said by pipegen itself'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.errors import UnsupportedOption

__all__ = ["SERVERS", "misplaced"]

SERVERS = {"vllm": "vLLM", "sglang": "SGLang", "plain": "the server"}
"""What the dialects' servers are called in messages."""
ONLY: Mapping[str, tuple[str, ...]] = {
    "separate_reasoning": ("sglang",),
    "stream_reasoning": ("sglang",),
    "no_stop_trim": ("sglang",),
    "stop_regex": ("sglang",),
    "ebnf": ("sglang",),
    "regex": ("sglang",),
    "include_reasoning": ("vllm",),
    "include_stop_str_in_output": ("vllm",),
    "mm_processor_kwargs": ("vllm",),
    "return_tokens_as_token_ids": ("vllm",),
    "structured_outputs": ("vllm",),
    "return_token_ids": ("vllm", "sglang"),
    "chat_template_kwargs": ("vllm", "sglang"),
    "enable_thinking": ("vllm", "sglang"),
    "ignore_eos": ("vllm", "sglang"),
    "min_p": ("vllm", "sglang"),
    "min_tokens": ("vllm", "sglang"),
    "repetition_penalty": ("vllm", "sglang"),
    "stop_token_ids": ("vllm", "sglang"),
    "top_k": ("vllm", "sglang"),
}
"""Fields of `extra_body` that only some dialects have; any other field is sent as it is."""


SAID = ("messages", "n", "stream")
"""What `extra_body` must not change: answers are read by it."""


def misplaced(extra_body: Mapping[str, Any], dialect: str) -> UnsupportedOption | None:
    """The field of `extra_body` that pipegen says itself, or that this dialect does not have, and another has. A plain server may be any: it is sent
    what else stands there.

    >>> misplaced({"separate_reasoning": True}, "vllm").option
    'separate_reasoning'
    >>> misplaced({"separate_reasoning": True}, "sglang") is None, misplaced({"top_k": 5}, "plain") is None
    (True, True)
    """
    for name, value in extra_body.items():
        if name in SAID:
            return UnsupportedOption(f"extra_body.{name} is said by pipegen itself", option=name, hint="leave it out: requests, samples and stream(...) say it")
        if dialect == "plain" and name != "separate_reasoning":  # which has a keyword of its own, and is SGLang's
            continue
        if value is not None and dialect not in ONLY.get(name, (dialect,)):
            words = f"extra_body.{name} is a field of {' and '.join(SERVERS[other] for other in ONLY[name])}, and the dialect is {dialect!r}"
            return UnsupportedOption(words, option=name, hint="leave it out, or say the server's own dialect")
    return None
