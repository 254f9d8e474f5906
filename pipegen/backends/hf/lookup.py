"""Guesses at what follows a row that runs alone, so that several tokens are checked in one pass.

What followed a row's last tokens before is likely to follow again: in JSON about a text, in
quotes, in lists. (Prompt lookup, Saxena 2023,
https://github.com/apoorvumang/prompt-lookup-decoding.) One pass reads the guess, which is
longer the more of the last ones were right. Each token is chosen from its logits as without a
guess. From the first wrong one on, the rest is thrown away. So a guess changes no token, and
costs little: a pass that reads a few tokens of one row takes hardly longer than a single token.

>>> lookup = Lookup()
>>> lookup.guess([7, 8, 9, 5, 7, 8], 9)
(9, 5, 7, 8)
>>> lookup.right(1)
>>> lookup.guess([7, 8, 9, 5, 7, 8, 9, 4], 9)
()
"""

from __future__ import annotations

from collections.abc import Sequence

TOKENS = 2
"""How many tokens must have stood before, to guess what follows."""
MOST = 16
"""The longest guess."""


class Lookup:
    """Guesses for a row that runs alone: text that repeats itself, or its prompt."""

    def __init__(self) -> None:
        self._behind: dict[tuple[int, ...], int] = {}
        """Where the tokens last stood, by the place behind them."""
        self._read = TOKENS
        self._size = 4

    def guess(self, ids: Sequence[int], most: int) -> tuple[int, ...]:
        """What may follow the row's tokens, at most so many; nothing where its last ones did not
        stand before.
        """
        for end in range(self._read, len(ids)):
            self._behind[tuple(ids[end - TOKENS : end])] = end
        self._read = max(self._read, len(ids))
        position = self._behind.get(tuple(ids[-TOKENS:]))
        if position is None:
            return ()
        following = list(ids[position : position + self._size])
        while len(following) < self._size:  # what repeats goes on repeating
            following += following
        return tuple(following[: min(self._size, most)])

    def right(self, count: int) -> None:
        """Say how many tokens of the last guess were right."""
        self._size = min(2 * count + 1, MOST)
