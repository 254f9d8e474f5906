"""Find stop strings in a text, also in one that comes in pieces.

The stop that completes first wins, whatever the engine, its version, or how characters were grouped
into tokens. Of stops that complete at the same character, the longest wins. The text ends before
it.

>>> cut("abcSTOPdEND", ("END", "STOP"))
Cut(text='abc', stop='STOP', end=7)
>>> cut("abcd", ("abcd", "bc"))
Cut(text='a', stop='bc', end=3)
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

LONG = 32
"""A piece of more characters is hardly a token: it is searched for one stop after another, and what
it does is not remembered."""
MOVES = 2**16
"""How many moves an automaton remembers."""


class Cut(NamedTuple):
    """A text up to its first stop. `end` is the offset, in characters, just after the stop; None
    without one, as is `stop`."""

    text: str
    stop: str | None
    end: int | None


def cut(text: str, stops: Sequence[str], *, after: int = 0) -> Cut:
    """The text before the stop that completes first; a stop that completes within the first `after`
    characters does not count.

    Raises `TypeError` for a bare string or something other than strings, `ValueError` for an empty
    stop.

    >>> cut("no stop here", ("END",))
    Cut(text='no stop here', stop=None, end=None)
    >>> cut("END and END", ("END",), after=3)
    Cut(text='END and ', stop='END', end=11)
    """
    return _cut(text, _checked(stops), after)


def _cut(text: str, stops: tuple[str, ...], after: int) -> Cut:
    first: tuple[int, int, str] | None = None
    for stop in stops:
        start = text.find(stop, max(0, after + 1 - len(stop)))
        if start >= 0:
            completed = (start + len(stop), -len(stop), stop)
            first = completed if first is None else min(first, completed)
    if first is None:
        return Cut(text, None, None)
    end, _, winner = first
    return Cut(text[: end - len(winner)], winner, end)


def _checked(stops: Sequence[str]) -> tuple[str, ...]:
    """The stops as a tuple; raises as `cut` does."""
    if isinstance(stops, str):
        raise TypeError(f"stops takes a tuple of strings, not the bare string {stops!r}")
    for position, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise TypeError(f"stops takes strings, not {stop!r} at position {position}")
        if not stop:
            raise ValueError(
                f"stops takes strings that are not empty; the one at position {position} is"
            )
    return tuple(stops)


Move: TypeAlias = tuple[int, str | None, int | None]
"""The node after a piece, and the stop that completed first in it, with the characters of the piece
up to its end."""


class _Automaton(NamedTuple):
    """The automaton of Aho and Corasick ("Efficient string matching: an aid to bibliographic
    search", Communications of the ACM 18(6), 1975).

    Node 0 is the root; a node stands for a prefix of a stop, and the current node for the longest
    suffix of the text that is one.
    """

    stops: tuple[str, ...]
    longest: int
    """Characters of the longest stop."""
    children: tuple[dict[str, int], ...]
    shorter: tuple[int, ...]
    """The node of the longest proper suffix of this node that is a prefix of a stop, too."""
    stop: tuple[str | None, ...]
    """The longest stop that ends at this node."""
    held: tuple[int, ...]
    """How many characters at the end of the text may still become part of a stop."""
    moves: dict[tuple[int, str], Move]
    """Remembered: what a piece does at a node."""

    def move(self, node: int, held: str | None, piece: str) -> Move:
        """What a piece does at a node; `held` is the text that may still become part of a stop,
        where that is known.
        """
        move = self.moves.get((node, piece))
        if move is not None:
            return move
        if held is not None and len(piece) > max(LONG, self.longest):
            _, stop, end = _cut(held + piece, self.stops, len(held))
            node, _, _ = self._walked(0, piece[-self.longest :])
            return node, stop, None if end is None else end - len(held)
        if len(self.moves) >= MOVES:
            self.moves.clear()
        move = self.moves[node, piece] = self._walked(node, piece)
        return move

    def _walked(self, node: int, piece: str) -> Move:
        stop, end = None, None
        for length, character in enumerate(piece, 1):
            node = _step(self.children, self.shorter, node, character)
            if stop is None and self.stop[node] is not None:
                stop, end = self.stop[node], length
        return node, stop, end


@functools.lru_cache(maxsize=1024)
def _compile(stops: tuple[str, ...]) -> _Automaton:
    children: list[dict[str, int]] = [{}]
    shorter, depth, ends = [0], [0], [""]
    for stop in stops:
        node = 0
        for character in stop:
            if character not in children[node]:
                children[node][character] = len(children)
                children.append({})
                shorter.append(0)
                depth.append(depth[node] + 1)
                ends.append("")
            node = children[node][character]
        ends[node] = stop
    held_lengths = [0] * len(children)
    queue = deque([0])
    while queue:  # breadth first, so that shorter prefixes are ready before longer ones
        node = queue.popleft()
        ends[node] = ends[node] or ends[shorter[node]]
        held_lengths[node] = depth[node] if children[node] else held_lengths[shorter[node]]
        for character, child in children[node].items():
            shorter[child] = _step(children, shorter, shorter[node], character) if node else 0
            queue.append(child)
    longest, stop_at = max(map(len, stops)), tuple(stop or None for stop in ends)
    return _Automaton(
        stops, longest, tuple(children), tuple(shorter), stop_at, tuple(held_lengths), {}
    )


def _step(
    children: Sequence[dict[str, int]], shorter: Sequence[int], node: int, character: str
) -> int:
    while node and character not in children[node]:
        node = shorter[node]
    return children[node].get(character, 0)


class Scan(NamedTuple):
    """What one piece brought: `text` is final; `stop` is the stop that completed, `end` characters
    into the piece."""

    text: str
    stop: str | None = None
    end: int | None = None


class StopScanner:
    """`cut`, for a text that comes in pieces.

    It holds back no more text than may still become part of a stop, and takes time linear in the
    text whatever the stops. After a stop it gives out nothing more. Raises as `cut` does.

    >>> scanner = StopScanner(("abcd", "bc"))
    >>> scanner.feed("xab"), scanner.held
    (Scan(text='x', stop=None, end=None), 'ab')
    >>> scanner.feed("cd")
    Scan(text='a', stop='bc', end=1)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._automaton = _compile(_checked(stops)) if stops else None
        self._node = 0
        self.held = ""
        """The text that may still become part of a stop."""
        self.stop: str | None = None
        """The stop that completed."""

    def feed(self, piece: str, *, counts: bool = True) -> Scan:
        """The text that is final now, and the stop if one completes in this piece; with
        `counts=False` completions in it are passed over."""
        if self._automaton is None:
            return Scan(piece)
        if self.stop is not None:
            return Scan("")
        self._node, stop, end = self._automaton.move(self._node, self.held, piece)
        text = self.held + piece
        if counts and stop is not None and end is not None:
            start = len(self.held) + end - len(stop)
            self.stop, self.held = stop, ""
            return Scan(text[:start], stop, end)
        start = len(text) - self._automaton.held[self._node]
        self.held = text[start:]
        return Scan(text[:start])

    def meets(self, piece: str, *, counts: bool = True) -> str | None:
        """The stop that completes in this piece; for a scanner whose text nobody wants, so that it
        holds none back.

        >>> scanner = StopScanner(("END",))
        >>> scanner.meets("aEN"), scanner.meets("Db")
        (None, 'END')
        """
        if self._automaton is not None and self.stop is None:
            self._node, stop, _ = self._automaton.move(self._node, None, piece)
            self.stop = stop if counts else None
        return self.stop
