"""Tokens at which no row has to look for a stop string."""

from __future__ import annotations

import functools
from collections.abc import Collection

from pipegen.ending.detokenize import added
from pipegen.engines.tokenizer import Tokenizer


class StopSafeTokens:
    """The tokens seen so far that can complete no stop, whatever text came before, each with what
    it adds to the text: `pieces`.

    A piece completes a stop only if it contains the stop, or begins as the stop ends. That is found
    out when a token first comes, and kept for all rows with the same tokenizer and stops. Ids in
    `endings` are not stop-safe, and ids in `hidden` add nothing to the text.

    >>> from pipegen.testing.toy import ToyTokenizer
    >>> toy = ToyTokenizer(merges=("ND of", "no"))
    >>> tokens = stop_safe_tokens(toy, ("END",), frozenset(), frozenset())
    >>> [tokens.takes(token_id) for token_id in toy.encode("no D END of")]
    [True, True, False, True, True, False]
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Collection[str],
        endings: frozenset[int],
        hidden: frozenset[int],
    ) -> None:
        self.pieces: dict[int, str] = {}
        self.longest = max(map(len, stops), default=0)
        """Characters of the longest stop."""
        self._stops, self._endings, self._hidden = tuple(stops), endings, hidden
        self._last = {stop[-1] for stop in stops}
        self._ends = tuple({stop[start:] for stop in stops for start in range(len(stop))})
        self._tokenizer = tokenizer
        self._others: set[int] = set()

    def takes(self, token_id: int) -> bool:
        """Whether the token is stop-safe; if it is, `pieces` has it from now on."""
        if token_id in self.pieces:
            return True
        if token_id in self._others:
            return False
        piece = self._added(token_id)
        if piece is None:
            self._others.add(token_id)
            return False
        self.pieces[token_id] = piece
        return True

    def _added(self, token_id: int) -> str | None:
        """What a stop-safe token adds; None for any other."""
        if token_id in self._endings:
            return None
        if token_id in self._hidden or not self._stops:
            return ""
        piece = added(self._tokenizer, token_id)
        return None if piece is None or self._completes(piece) else piece

    def _completes(self, piece: str) -> bool:
        return not self._last.isdisjoint(piece) and (
            piece.startswith(self._ends) or any(stop in piece for stop in self._stops)
        )


@functools.lru_cache(maxsize=64)  # each may hold a vocabulary
def stop_safe_tokens(
    tokenizer: Tokenizer,
    stops: tuple[str, ...],
    endings: frozenset[int],
    hidden: frozenset[int],
) -> StopSafeTokens:
    """The stop-safe tokens of a tokenizer for these stops, the same object each time; `endings` are
    the ids that end a row by themselves."""
    return StopSafeTokens(tokenizer, stops, endings, hidden)
