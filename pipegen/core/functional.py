"""Small functions of plain values that several rooms use, and functions that call others.

>>> list(partition_all(2, "abc")), without_none({"a": 1, "b": None})
([('a', 'b'), ('c',)], {'a': 1})
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import is_
from typing import Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


def partition_all(n: int, seq: Iterable[T], /) -> Iterator[tuple[T, ...]]:
    """The items in tuples of `n`, the last of which may be shorter: as in toolz, with its types."""
    import toolz

    return cast("Iterator[tuple[T, ...]]", toolz.partition_all(n, seq))


def without_none(values: Mapping[K, V | None]) -> dict[K, V]:
    """The entries whose value is not None."""
    return {key: value for key, value in values.items() if value is not None}


WORKERS = min(8, os.cpu_count() or 1)
"""Threads that work on images at a time."""


def parallel(work: Callable[[K], V], items: Sequence[K]) -> list[V]:
    """`work` of each item, in order, on a few threads: for what leaves the interpreter (reading,
    decoding and resizing images). What it raises comes through. A single item takes no thread.

    >>> parallel(len, ["a", "bcd"])
    [1, 3]
    """
    if len(items) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(WORKERS, len(items)), thread_name_prefix="pipegen") as pool:
        return list(pool.map(work, items))


class LastCallCache(Generic[P, V]):
    """What follows from objects that the rows of a batch share, worked out once: a pure function
    that gives its last answer again for as long as it is asked with the very
    same objects. Nobody may change what it gives.

    >>> lengths = LastCallCache(lambda names: sorted(map(len, names)))
    >>> names = ("bc", "a")
    >>> lengths(names), lengths(names) is lengths(names)
    ([1, 2], True)
    """

    def __init__(self, work: Callable[P, V]) -> None:
        self._work = work
        # replaced as one, since calls of several threads meet here
        self._held: tuple[tuple[object, ...], V] | None = None

    def __call__(self, *given: P.args, **named: P.kwargs) -> V:
        held = self._held
        if held is None or named or len(held[0]) != len(given) or not all(map(is_, held[0], given)):
            self._held = held = given, self._work(*given, **named)
        return held[1]
