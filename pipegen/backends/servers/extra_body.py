"""`extra_body` of chat completions: which of its fields a dialect has.

>>> check_extra_body({"n": 2}, "plain").message
'extra_body.n is said by pipegen itself'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.backends.servers.chat_fields import REMOVED, dialects_of
from pipegen.core.errors import UnsupportedOption
from pipegen.records.engine_list import shown

__all__ = ["SERVERS", "check_extra_body"]

SERVERS = {"vllm": shown("vllm"), "sglang": shown("sglang"), "plain": "the server"}
"""What the dialects' servers are called in messages."""
SAID = ("messages", "n", "stream")
"""What `extra_body` must not change: answers are read by it."""


def check_extra_body(extra_body: Mapping[str, Any], dialect: str) -> UnsupportedOption | None:
    """The field of `extra_body` that pipegen says itself, or that this dialect does not have, and another has. A plain server may be any: it is sent
    what else stands there.

    >>> check_extra_body({"separate_reasoning": True}, "vllm").option
    'separate_reasoning'
    >>> check_extra_body({"separate_reasoning": True}, "sglang") is None, check_extra_body({"top_k": 5}, "plain") is None
    (True, True)
    """
    for name, value in extra_body.items():
        if name in SAID:
            return UnsupportedOption(f"extra_body.{name} is said by pipegen itself", option=name, hint="leave it out: requests, samples and stream(...) say it")
        if dialect == "plain" and name != "separate_reasoning":  # which has a keyword of its own, and is SGLang's
            continue
        if value is not None and name in REMOVED:
            words = f"extra_body.{name} is a field that vLLM has no more, and would ignore"
            return UnsupportedOption(words, option=name, hint="take json_schema, regex or choice, or structured_outputs as vLLM has it")
        others = [SERVERS[other] for other in dialects_of(name) if other != "plain"]
        if value is not None and others and dialect not in dialects_of(name):
            words = f"extra_body.{name} is a field of {' and '.join(others)}, and the dialect is {dialect!r}"
            return UnsupportedOption(words, option=name, hint="leave it out, or say the server's own dialect")
    return None
