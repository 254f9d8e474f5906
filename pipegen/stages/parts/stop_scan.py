"""Find stop strings in a text that comes in pieces: the Aho-Corasick automaton, run as far as the
first match that counts.

(A. V. Aho and M. J. Corasick, "Efficient string matching: an aid to bibliographic search",
Communications of the ACM 18(6), 1975.)

>>> scanner = StopScanner(("abcd", "bc"))
>>> scanner.feed("xab")
Scan(text='x', stop=None, end=None)
>>> scanner.feed("cd")
Scan(text='a', stop='bc', end=1)
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Scan", "StopScanner", "checked"]


def checked(stops: Sequence[str]) -> tuple[str, ...]:
    """The stops as a tuple. Raises `TypeError` for a bare string or something other than strings,
    `ValueError` for an empty one, with the position.
    """
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


MOVES = 2**16
"""How many moves an automaton remembers."""


class _Automaton(NamedTuple):
    """Node 0 is the root; a node stands for a prefix of a stop, and the current node for the
    longest suffix of the text that is one.
    """

    children: tuple[dict[str, int], ...]
    shorter: tuple[int, ...]
    """The node of the longest proper suffix of this node that is a prefix of a stop, too."""
    stop: tuple[str | None, ...]
    """The longest stop that ends at this node."""
    held: tuple[int, ...]
    """How many characters at the end of the text may still become part of a stop."""
    moves: dict[tuple[int, str], tuple[int, str | None]]
    """Remembered: from a node, with a piece, to the node after it, and the stop that completed
    first on the way.
    """


@functools.lru_cache(maxsize=1024)
def _compile(stops: tuple[str, ...]) -> _Automaton:
    children: list[dict[str, int]] = [{}]
    shorter, depth, found = [0], [0], [""]
    for stop in stops:
        node = 0
        for character in stop:
            if character not in children[node]:
                children[node][character] = len(children)
                children.append({})
                shorter.append(0)
                depth.append(depth[node] + 1)
                found.append("")
            node = children[node][character]
        found[node] = stop
    held = [0] * len(children)
    queue = deque([0])
    while queue:  # breadth first, so that shorter prefixes are ready before longer ones
        node = queue.popleft()
        found[node] = found[node] or found[shorter[node]]
        held[node] = depth[node] if children[node] else held[shorter[node]]
        for character, child in children[node].items():
            shorter[child] = _step(children, shorter, shorter[node], character) if node else 0
            queue.append(child)
    return _Automaton(
        tuple(children), tuple(shorter), tuple(stop or None for stop in found), tuple(held), {}
    )


def _step(
    children: Sequence[dict[str, int]], shorter: Sequence[int], node: int, character: str
) -> int:
    while node and character not in children[node]:
        node = shorter[node]
    return children[node].get(character, 0)


class Scan(NamedTuple):
    """What one piece brought: `text` is final; `stop` is the stop that completed, `end` characters
    into the piece.
    """

    text: str
    stop: str | None = None
    end: int | None = None


class StopScanner:
    """`cut`, for a text that comes in pieces: the stop that completes first wins, the longest of
    those that complete there.

    It holds back no more text than may still become part of a stop, and takes time linear in the
    text whatever the stops. After a stop it gives out nothing more. Raises as `checked` does.

    >>> scanner = StopScanner(("END",))
    >>> scanner.feed("aE"), scanner.held, scanner.feed("Eb"), scanner.finish()
    (Scan(text='a', stop=None, end=None), 'E', Scan(text='EEb', stop=None, end=None), '')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._automaton = _compile(checked(stops)) if stops else None
        self._node = 0
        self.held = ""
        """The text that may still become part of a stop."""
        self.stop: str | None = None
        """The stop that completed."""

    def feed(self, piece: str, *, counts: bool = True) -> Scan:
        """The text that is final now, and the stop if one completes in this piece; with
        `counts=False` completions in it are passed over.
        """
        if self._automaton is None:
            return Scan(piece)
        if self.stop is not None:
            return Scan("")
        children, shorter, stops, _, _ = self._automaton
        node, text = self._node, self.held + piece
        for end, character in enumerate(piece, 1):
            node = (
                children[0].get(character, 0)
                if not node
                else _step(children, shorter, node, character)
            )
            stop = stops[node]
            if stop is not None and counts:
                self.stop, kept, self.held = stop, text[: len(self.held) + end - len(stop)], ""
                return Scan(kept, stop, end)
        self._node = node
        final = len(text) - self._automaton.held[node]
        self.held = text[final:]
        return Scan(text[:final])

    def meets(self, piece: str, *, counts: bool = True) -> str | None:
        """`feed` where the text itself is not wanted: the stop that completes in this piece.

        >>> scanner = StopScanner(("END",))
        >>> scanner.meets("aEN"), scanner.meets("Db")
        (None, 'END')
        """
        if self._automaton is None or self.stop is not None:
            return None
        moves = self._automaton.moves
        move = moves.get((self._node, piece))
        if move is None:
            if len(moves) >= MOVES:
                moves.clear()
            move = moves[self._node, piece] = self._move(self._automaton, piece)
        self._node, stop = move
        if counts:
            self.stop = stop
        return self.stop

    def _move(self, automaton: _Automaton, piece: str) -> tuple[int, str | None]:
        node, met = self._node, None
        for character in piece:
            node = _step(automaton.children, automaton.shorter, node, character)
            met = met or automaton.stop[node]
        return node, met

    def finish(self) -> str:
        """The text that was held back: no stop will complete any more."""
        text, self.held, self._node = self.held, "", 0
        return text
