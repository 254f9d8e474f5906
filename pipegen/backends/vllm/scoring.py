"""Log probabilities of given continuations on vLLM: those of the prompt's own tokens, which vLLM gives where they are asked for.

The highest log probability of each place is asked for too, so that a tie counts as greedy as it does on every engine: by its rank alone, vLLM would have
neither of two equal tokens be the first. vLLM reads the contexts of such requests again, whatever its prefix cache holds.
"""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from returns.result import Failure, Success

from pipegen.core.errors import MalformedResponse
from pipegen.core.slots import Slot
from pipegen.records.scores import Continued, TokenScores

__all__ = ["scores_of"]


def scores_of(asked: Continued, tables: Sequence[Mapping[int, Any] | None] | None) -> Slot[TokenScores]:
    """The scores of a row from vLLM's tables of its whole prompt (id -> entry); the first token has none."""
    whole, ids = asked.token_ids, asked.continuation
    if tables is None or len(tables) != len(whole):
        seen = "no" if tables is None else len(tables)
        return Failure(MalformedResponse(f"vLLM gave {seen} log probabilities of a prompt of {len(whole)} tokens"))
    logprobs: list[float] = []
    likeliest: list[tuple[int, float]] = []
    for place, token in enumerate(ids):
        table = tables[len(whole) - len(ids) + place] or {}
        if token not in table:
            return Failure(MalformedResponse(f"vLLM gave no log probability of token {place} of the continuation (id {token})"))
        own = float(table[token].logprob)
        logprobs.append(own)
        best = max(table, key=lambda other: float(table[other].logprob))
        likeliest.append((token, own) if own >= float(table[best].logprob) else (best, float(table[best].logprob)))
    return Success(TokenScores(continued=asked, logprobs=tuple(logprobs), likeliest=tuple(likeliest)))
