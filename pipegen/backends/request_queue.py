"""The rows that wait for an engine: in which order they are next, and which of them together."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

from pipegen.records.messages import ImagePart
from pipegen.records.results import Encoded, ResolvedRequest
from pipegen.records.scores import ScoreInput

R = TypeVar("R")


class _RowsOfSource(Generic[R]):
    """Rows that are read together: those with equal prompts and images, which one prefill
    serves.
    """

    __slots__ = ("arrived", "key", "name", "rows", "waits")

    def __init__(self, name: Hashable, row: R, key: Any) -> None:
        self.name, self.rows, self.key, self.arrived, self.waits = name, [row], key, 0, True


_key = attrgetter("key")


class RequestQueue(Generic[R]):
    """Waiting rows, ordered by `key`, smallest first, and those with equal `source` together.

    Where rows go on coming, they are put in order in rounds. Those that come wait until fewer than
    `size` of the rows before them are left. So rows that are alike run side by side. A row with a
    large key is not passed by for ever. One behind which `overdue` others were put in order is
    next, with those that are like it.
    """

    def __init__(
        self,
        size: int,
        overdue: int,
        *,
        key: Callable[[R], Any],
        source: Callable[[R], Hashable] = id,
    ) -> None:
        self._size, self._overdue, self._key_of, self._source_of = size, overdue, key, source
        self._added, self._apart = 0, False
        self._new: list[_RowsOfSource[R]] = []
        self._sorted: list[_RowsOfSource[R]] = []
        self._named: dict[Hashable, _RowsOfSource[R]] = {}
        self._arrivals: deque[_RowsOfSource[R]] = deque()

    def __bool__(self) -> bool:
        return bool(self._sorted or self._new)

    @property
    def rows(self) -> list[R]:
        """All rows that wait."""
        return [row for source in (*self._sorted, *self._new) for row in source.rows]

    def add(self, rows: Sequence[R], *, apart: bool = False) -> None:
        """Add rows; `apart` says that equal ones are read apart."""
        self._apart = apart
        for row in rows:
            name = id(row) if apart else self._source_of(row)
            held = self._named.get(name)
            if held is not None:
                held.rows.append(row)
            else:
                self._named[name] = made = _RowsOfSource(name, row, self._key_of(row))
                self._new.append(made)

    def next(self, count: int) -> list[tuple[R, ...]]:
        """The rows of the sources that are next, at most so many sources."""
        return [tuple(source.rows) for source in self._next(count)]

    def take(self, places: Collection[int]) -> None:
        """Let sources go, by their places among those that are next."""
        if not places:
            return
        start = self._start
        for source in [
            source for place, source in enumerate(self._next(max(places) + 1)) if place in places
        ]:
            self._let_go(source)
        count = len(self._sorted)
        for index in sorted(((start + place) % count for place in places), reverse=True):
            del self._sorted[index]

    def prune(self, done: Callable[[R], bool]) -> None:
        """Drop the rows that are done."""
        rows = self.rows
        self.clear()
        self.add([row for row in rows if not done(row)], apart=self._apart)

    def clear(self) -> None:
        """Let all go."""
        for held in (self._sorted, self._new, self._named, self._arrivals):
            held.clear()

    def _let_go(self, source: _RowsOfSource[R]) -> None:
        source.waits = False
        if self._named.get(source.name) is source:
            del self._named[source.name]

    def _next(self, count: int) -> list[_RowsOfSource[R]]:
        if self._new and len(self._sorted) < self._size:
            self.put_in_order()
        start = self._start
        picked = self._sorted[start : start + count]
        return [*picked, *self._sorted[: min(start, count - len(picked))]]

    def put_in_order(self) -> None:
        """Begin a round: those that have come since are put in order too."""
        self._added += len(self._new)
        for source in self._new:
            source.arrived = self._added
        self._arrivals.extend(self._new)
        self._sorted = sorted([*self._sorted, *self._new], key=_key)
        self._new = []

    @property
    def _start(self) -> int:
        """Where the order begins: at the first, or at the one that has waited longest, where that
        is overdue.
        """
        while self._arrivals and not self._arrivals[0].waits:
            self._arrivals.popleft()
        if not self._arrivals or self._added - self._arrivals[0].arrived < self._overdue:
            return 0
        oldest = self._arrivals[0]
        place = bisect_left(self._sorted, oldest.key, key=_key)
        return next(
            index for index in range(place, len(self._sorted)) if self._sorted[index] is oldest
        )


def beginning(engine_input: Encoded | ResolvedRequest | ScoreInput) -> tuple[Any, ...]:
    """By what rows are ordered so that those whose prompts begin alike are next to each other: an
    engine's prefix cache then serves most of them.

    It is the adapter's name and the prompt's ids, or the texts of the messages, with the images where they stand (of a
    prompt's ids: where the first one stands).
    """
    if isinstance(engine_input, ScoreInput):
        engine_input = engine_input.whole
    if isinstance(engine_input, Encoded):
        prompt, adapter = engine_input.prompt, engine_input.options.adapter or ""
        if not prompt.images:
            return (adapter, prompt.token_ids)
        pairs = zip(prompt.token_ids, prompt.compact_token_ids, strict=False)
        place = next(
            (at for at, (one, other) in enumerate(pairs) if one != other),
            len(prompt.compact_token_ids),
        )
        return (
            adapter,
            prompt.token_ids[:place],
            tuple(image.digest for image in prompt.images),
            prompt.token_ids[place:],
        )
    request = engine_input.request
    parts: list[Any] = [] if request.prompt is None else [0, request.prompt]
    for message in request.messages or ():
        content = message.content or ()
        parts += (0, message.role)
        for part in (content,) if isinstance(content, str) else content:
            if not isinstance(part, ImagePart):
                parts += (0, part if isinstance(part, str) else part.text)
            elif (source := part.source) is None:
                parts += (1, b"")
            elif source.contents:
                parts += (1, b"\0".join(source.contents))
            else:
                parts += (2, source.url or source.path or "")
    return tuple(parts)
