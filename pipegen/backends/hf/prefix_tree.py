"""What was read, as a tree: sequences that begin alike have the keys and values of their common
beginning once.

A node is a run of tokens behind its parent's, with their keys and values. A token is known by its
id, and a piece of an image by the image. Where a new sequence forks within a node, the node is
split. A node is as new as the newest below it, so the oldest node is always a leaf. The end of the
conversation that was unused the longest goes first, and no node is without its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch

from pipegen.backends.hf.shared_columns import KeyValues

Run = tuple[int, int]


class Marked(NamedTuple):
    """A sequence that tells what was read: ids, and an image's mark for each of its pieces. It also
    says where its images are.
    """

    ids: tuple[Hashable, ...]
    runs: tuple[Run, ...] = ()


class Beginning(NamedTuple):
    """The beginning of a row that was read before. It has the length, and the part of each node
    with how many of its columns are meant. It also has the positions of the column behind it: None
    where no image is before it, so that they are the length.
    """

    length: int
    parts: list[tuple[KeyValues, int]]
    positions: torch.Tensor | None

    def behind(self, shared: int) -> list[tuple[list[torch.Tensor], int]]:
        """The tensors behind the first so many columns, with how many of theirs are meant."""
        rest = []
        for part, count in self.parts:
            if count > shared:
                rest.append(([tensor[:, shared:] for tensor in part.columns], count - shared))
            shared = max(0, shared - count)
        return rest


NOTHING = Beginning(0, [], None)


class _Node:
    """`part`: its keys and values, as the cache has them. `positions`: of the column behind the
    last token; None where no image is before it, or where they are not known.
    `runs`: of the images up to `end`. `ended`: whether a row ended here.
    """

    __slots__ = ("children", "end", "ended", "ids", "parent", "part", "positions", "runs")

    def __init__(
        self,
        ids: tuple[Hashable, ...],
        parent: _Node | None,
        part: KeyValues,
        positions: torch.Tensor | None,
        runs: tuple[Run, ...],
    ) -> None:
        self.ids, self.parent, self.part = ids, parent, part
        self.positions, self.runs = positions, runs
        self.end: int = len(ids) + (0 if parent is None else parent.end)
        self.children: dict[Hashable, _Node] = {}
        self.ended = False

    def readable(self, length: int) -> bool:
        """Whether the positions behind so many tokens, of which the last is in this node, are
        known: they are not within an image, or between two.
        """
        if not self._images(length):
            return True
        return self.positions is not None and length >= self.runs[-1][1]

    def positions_behind(self, length: int) -> torch.Tensor | None:
        """Those behind so many tokens, where it is readable; None where no image is before."""
        if self.positions is None or not self._images(length):
            return None
        return self.positions - (self.end - length)

    def _images(self, length: int) -> bool:
        """Whether an image begins among so many tokens."""
        return any(first < length for first, _ in self.runs)

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.part.columns)


class PrefixTree:
    """Beginnings, within `limit` bytes; what was not used for the longest time goes first. For one
    thread at a time.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.bytes = 0
        self._root = _Node((), None, KeyValues([]), None, ())
        self._nodes: dict[_Node, None] = {}
        """All of them, oldest first."""

    def length_of(self, marked: Marked) -> int:
        """How many of the first tokens are there, as far as they can be read on from. It ends
        before an image's middle and before the end of the sequence.
        """
        node, length = self._find(marked.ids, len(marked.ids) - 1)
        while (above := node.parent) is not None and not node.readable(length):
            node, length = above, above.end
        return length

    def several_of(self, marked: Marked) -> int:
        """How many of the first tokens are there and were read for several rows."""
        node, there = self._find(marked.ids, len(marked.ids) - 1)
        while (above := node.parent) is not None and not node.part.several:
            node, there = above, above.end
        return there

    def turns_of(self, marked: Marked) -> int:
        """How many rows that ended the sequence begins with, one after another."""
        node, length = self._find(marked.ids, len(marked.ids))
        above: _Node | None = node if length == node.end else node.parent
        count = 0
        while above is not None:
            count, above = count + above.ended, above.parent
        return count

    def holds(self, marked: Marked, length: int) -> bool:
        """Whether so many of the first tokens, which are there, can be read on from."""
        node, _ = self._find(marked.ids, length)
        return not length or node.readable(length)

    def beginning(self, marked: Marked, length: int) -> Beginning:
        """So many of the first tokens, which are there; they are then the newest."""
        if not length:
            return NOTHING
        node, _ = self._find(marked.ids, length)
        positions = node.positions_behind(length)
        path = self._touch(node)
        parts = [(above.part, len(above.ids)) for above in reversed(path)]
        parts[-1] = node.part, length - (node.end - len(node.ids))
        return Beginning(length, parts, positions)

    def put(
        self,
        marked: Marked,
        columns: Callable[[int, int], list[torch.Tensor]],
        positions: torch.Tensor,
        size: float,
        *,
        ended: bool = False,
    ) -> bool:
        """Keep a sequence; whether there is room for it.

        columns: gives copies of the columns between two places. positions: of the column behind
        the last. size: the bytes of a token.

        ended: whether it is a row that has ended; otherwise it was read for several rows.
        """
        ids = marked.ids
        node, there = self._find(ids, len(ids))
        for above in self._touch(node):
            above.part.several = above.part.several or not ended
        if there == len(ids):
            node.ended = node.ended or (ended and there == node.end)
            return True
        if not self._make_room(size * (len(ids) - there), node):
            return False
        if there < node.end:
            node = self._split(node, there)
        part = KeyValues(columns(there, len(ids)))
        new = _Node(ids[there:], node, part, positions, marked.runs)
        new.ended, part.several = ended, not ended
        node.children[ids[there]] = new
        self.bytes += new.bytes
        self._nodes[new] = None
        self._touch(new)
        return True

    def clear(self) -> None:
        """Let all go."""
        self._root.children.clear()
        self._nodes.clear()
        self.bytes = 0

    def _find(self, ids: tuple[Hashable, ...], most: int) -> tuple[_Node, int]:
        """The last node that the sequence leads to, and how many of the sequence's tokens are
        there.
        """
        node, there = self._root, 0
        while there < most and there == node.end:
            child = node.children.get(ids[there])
            if child is None:
                break
            node = child
            there += common(node.ids, ids[there : min(most, node.end)])
        return node, there

    def _touch(self, node: _Node) -> list[_Node]:
        """Make a node and those before it the newest; they are returned, the root left out."""
        path = []
        while node.parent is not None:
            path.append(node)
            del self._nodes[node]
            self._nodes[node] = None
            node = node.parent
        return path

    def _make_room(self, size: float, node: _Node) -> bool:
        """Let go of the oldest until so many bytes more may be kept, but of nothing that the node
        needs; whether they may.
        """
        needed = 0
        above: _Node | None = node
        while above is not None:
            needed, above = needed + above.bytes, above.parent
        if needed + size > self.limit:
            return False
        while self.bytes + size > self.limit:
            oldest = next(iter(self._nodes))
            del self._nodes[oldest]
            self.bytes -= oldest.bytes
            if oldest.parent is not None:
                del oldest.parent.children[oldest.ids[0]]
        return True

    def _split(self, node: _Node, length: int) -> _Node:
        """Make two of a node; the upper one ends behind so many tokens, and is returned. Both have
        tensors of their own, so that each can go.
        """
        parent = node.parent
        if parent is None:
            return node
        count = length - parent.end
        upper = _Node(
            node.ids[:count],
            parent,
            node.part.split(0, count),
            node.positions_behind(length) if node.readable(length) else None,
            tuple(run for run in node.runs if run[0] < length),
        )
        parent.children[node.ids[0]] = upper
        upper.children[node.ids[count]] = node
        node.ids, node.parent = node.ids[count:], upper
        node.part = node.part.split(count, None)
        self._nodes[upper] = None
        return upper


def common(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """How many tokens two sequences begin with alike.

    >>> common((1, 2, 3, 4), (1, 2, 4)), common((1, 2), (1, 2, 3))
    (2, 2)
    """
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
