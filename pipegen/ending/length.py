"""Whether a very long prompt can fit, before it is tokenised: a tokenizer takes over a hundred
bytes of memory for each byte of text.

Texts of up to `EXACT_BYTES` are left to the exact count. Longer ones are counted in pieces until
they exceed the limit. A cut may add a few tokens; these are subtracted, so the reported count is a
lower bound.

>>> from pipegen.testing.toy import ToyTokenizer
>>> check_length("word " * 500_000, ToyTokenizer(), 1000).message
'the prompt has at least 260096 tokens; the limit is 1000'
>>> check_length("word " * 500_000, ToyTokenizer(), 10_000_000) is None
True
"""

from __future__ import annotations

from pipegen.core.errors import PromptTooLong
from pipegen.core.foreign_calls import call_tokenizer
from pipegen.engines.tokenizer import Tokenizer

EXACT_BYTES = 2**20
UNCOUNTED_BYTES = 16 * 2**20
"""The longest prompt, in bytes, for an engine whose token limit is unknown."""
PIECE = 2**18
"""Characters tokenised at a time."""
JOIN = 2**11
"""Tokens that a cut between two pieces may add at most."""


def check_length(text: str, tokenizer: Tokenizer, limit: int | None) -> PromptTooLong | None:
    """Why the text cannot fit into `limit` tokens, or None. Without a limit: why it is too long to
    be tokenised at all.
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size <= EXACT_BYTES:
        return None
    if limit is None:
        if size <= UNCOUNTED_BYTES:
            return None
        message = (
            f"the prompt has {size} bytes, and the engine's limit of tokens is unknown; the limit"
            f" is then {UNCOUNTED_BYTES} bytes"
        )
        return PromptTooLong(message=message, hint="shorten the prompt, or set max_prompt_tokens")
    tokens = 0
    for start in range(0, len(text), PIECE):
        # half characters are rejected later
        piece = text[start : start + PIECE].encode("utf-8", "replace").decode()
        tokens += max(0, len(call_tokenizer(tokenizer.encode, piece)) - JOIN)
        if tokens > limit:
            return PromptTooLong(
                tokens,
                limit,
                message=f"the prompt has at least {tokens} tokens; the limit is {limit}",
                hint="shorten the prompt",
            )
    return None
