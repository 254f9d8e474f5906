"""Small functions of plain values that several rooms use, those of toolz with their types, and work
of several items at a time.

>>> list(partition_all(2, "abc")), without_none({"a": 1, "b": None})
([('a', 'b'), ('c',)], {'a': 1})
>>> groupby(len, ["a", "bc", "d"])
{1: ['a', 'd'], 2: ['bc']}
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


def partition_all(n: int, seq: Iterable[T], /) -> Iterator[tuple[T, ...]]:
    """The items in tuples of `n`, the last of which may be shorter."""
    import toolz

    return cast("Iterator[tuple[T, ...]]", toolz.partition_all(n, seq))


def groupby(key: Callable[[T], K], seq: Iterable[T], /) -> dict[K, list[T]]:
    """The items by their keys, in the order of each key's first item."""
    import toolz

    return cast("dict[K, list[T]]", toolz.groupby(key, seq))


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
