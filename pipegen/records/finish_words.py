"""What the end of an answer is called, by servers and in their files: each word with what it means.

>>> [meaning_of(word) for word in ("end_turn", "MAX_TOKENS", "content_filter", "abort", "moon")]
['stop', 'length', 'refused', 'failed', 'unknown']
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

Meaning: TypeAlias = Literal["stop", "length", "failed", "refused", "unknown"]
"""`stop` and `length` are ends of an answer. After the others there is none."""
_MEANINGS: Mapping[Meaning, str] = {
    "stop": (
        "stop stop_sequence stop_string stop_token stopped eos eos_token eot end end_of_text"
        " end_turn end_of_turn complete completed done finished tool_calls tool_call tool_use"
        " function_call"
    ),
    "length": (
        "length max_length max_tokens max_new_tokens max_output_tokens max_completion_tokens"
        " model_length token_limit length_limit context_length context_length_exceeded"
        " model_context_window_exceeded"
    ),
    "failed": (
        "error abort aborted cancel cancelled canceled fail failed failure timeout network_error"
        " server_error internal_error engine_error insufficient_system_resource"
    ),
    "refused": (
        "content_filter content_filtered content_policy_violation refusal refused safety sensitive"
        " recitation blocklist blocked prohibited_content spii image_safety moderation"
        " moderation_blocked guardrail_intervened error_toxic responsible_ai_policy_violation"
    ),
}
"""The words that servers have for the end of an answer, by what they mean; in any case, and with
the prefix of an enumeration.
"""
_BY_WORD: Mapping[str, Meaning] = {
    word.replace("_", ""): meaning for meaning, words in _MEANINGS.items() for word in words.split()
}
_CALLING = frozenset({"toolcalls", "toolcall", "tooluse", "functioncall"})
"""Those of `stop` that say that the answer calls tools."""
_UNSAID = {"", "null", "none"}
"""What some servers write while an answer goes on."""


def plain_word(word: str) -> str:
    """A word as words are compared: letters alone.

    >>> plain_word("FinishReason.MAX_TOKENS"), plain_word("maxTokens")
    ('maxtokens', 'maxtokens')
    """
    word = word.strip().casefold().rpartition(".")[2]
    return re.sub(r"[-_ ]", "", word).removeprefix("finishreason")


def word_of(reported: str | None) -> str | None:
    """The word for an end, as the server has it; None where it says none, which some servers write
    as an empty text.
    """
    return None if reported is None or reported.strip().casefold() in _UNSAID else reported


def meaning_of(word: str) -> Meaning:
    """What a server's word for the end of an answer means."""
    return _BY_WORD.get(word) or _BY_WORD.get(plain_word(word), "unknown")


def calls_tools(word: str) -> bool:
    """Whether an answer that ends with this word calls tools."""
    return plain_word(word) in _CALLING
