"""The rows that wait to be read: in which order, and which of them together."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from itertools import islice

from pipegen.backends.hf.rows import HFRow, order_key

__all__ = ["Waiting"]


class _Source:
    """Rows with equal prompts and images, which one prefill serves."""

    __slots__ = ("arrived", "key", "name", "rows", "waits")

    def __init__(self, name: Hashable, row: HFRow) -> None:
        self.name, self.rows, self.key, self.arrived, self.waits = name, [row], order_key(row.cost), 0, True


def _key(source: _Source) -> tuple[int, int]:
    return source.key


class Waiting:
    """Waiting rows, the most expensive first (see `order_key`), and those with equal prompts together.

    Where rows go on coming, they are put in order in rounds: those that come wait until fewer than `size` of the rows before them are left. So rows of one
    length run side by side, and the cache is no wider than they need. A cheap row is not passed by for ever: one behind which `overdue` others were put in
    order is next, with those that are like it.
    """

    def __init__(self, size: int, overdue: int) -> None:
        self._size, self._overdue, self._added, self._apart = size, overdue, 0, False
        self._new: list[_Source] = []
        self._first: deque[_Source] = deque()
        self._sorted: list[_Source] = []
        self._named: dict[Hashable, _Source] = {}
        self._arrivals: deque[_Source] = deque()

    def __bool__(self) -> bool:
        return bool(self._first or self._sorted or self._new)

    @property
    def rows(self) -> list[HFRow]:
        """All rows that wait."""
        return [row for source in (*self._first, *self._sorted, *self._new) for row in source.rows]

    def add(self, rows: Sequence[HFRow], *, apart: bool = False) -> None:
        """Add rows; `apart` says that equal ones are read apart."""
        self._apart = apart
        for row in rows:
            name = id(row) if apart else row.source
            held = self._named.get(name)
            if held is not None:
                held.rows.append(row)
            else:
                self._named[name] = made = _Source(name, row)
                self._new.append(made)

    def add_first(self, rows: Sequence[HFRow]) -> None:
        """Add rows that are next, each alone."""
        self._first.extendleft(_Source(None, row) for row in reversed(rows))

    def next(self, count: int) -> list[tuple[HFRow, ...]]:
        """The rows of the sources that are next, at most so many sources."""
        return [tuple(source.rows) for source in self._next(count)]

    def take(self, places: Collection[int]) -> None:
        """Let sources go, by their places among those that are next."""
        if not places:
            return
        start, before = self._start, len(self._first)
        for source in [source for place, source in enumerate(self._next(max(places) + 1)) if place in places]:
            source.waits = False
            if self._named.get(source.name) is source:
                del self._named[source.name]
        if self._first:
            self._first = deque(source for place, source in enumerate(self._first) if place not in places)
        for index in sorted(((start + place - before) % len(self._sorted) for place in places if place >= before), reverse=True):
            del self._sorted[index]

    def prune(self) -> None:
        """Drop the rows that are done: their calls have left them."""
        rows, first = [row for source in (*self._sorted, *self._new) for row in source.rows], [row for source in self._first for row in source.rows]
        self.clear()
        self.add([row for row in rows if not row.done], apart=self._apart)
        self.add_first([row for row in first if not row.done])

    def clear(self) -> None:
        """Let all go."""
        for held in (self._first, self._sorted, self._new, self._named, self._arrivals):
            held.clear()

    def _next(self, count: int) -> list[_Source]:
        if self._new and len(self._sorted) < self._size:
            self._put_in_order()
        first = list(islice(self._first, count))
        count -= len(first)
        start = self._start
        picked = self._sorted[start : start + count]
        return [*first, *picked, *self._sorted[: min(start, count - len(picked))]]

    def _put_in_order(self) -> None:
        self._added += len(self._new)
        for source in self._new:
            source.arrived = self._added
        self._arrivals.extend(self._new)
        self._sorted = sorted([*self._sorted, *self._new], key=_key)
        self._new = []

    @property
    def _start(self) -> int:
        """Where the order begins: at the first, or at the one that has waited longest, where that is overdue."""
        while self._arrivals and not self._arrivals[0].waits:
            self._arrivals.popleft()
        if not self._arrivals or self._added - self._arrivals[0].arrived < self._overdue:
            return 0
        oldest = self._arrivals[0]
        place = bisect_left(self._sorted, oldest.key, key=_key)
        return next(index for index in range(place, len(self._sorted)) if self._sorted[index] is oldest)
