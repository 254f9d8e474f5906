"""The functions of toolz that pipegen uses, with types. toolz is imported when the first of them is
called: importing it costs more than pipegen.

>>> list(partition_all(2, "abc")), list(unique("abca")), dissoc({"a": 1, "b": 2}, "b")
([('a', 'b'), ('c',)], ['a', 'b', 'c'], {'a': 1})
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

__all__ = ["dissoc", "partition_all", "unique", "without_none"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


def dissoc(d: Mapping[K, V], /, *keys: K) -> dict[K, V]:
    """The entries of the mapping but those of these keys."""
    import toolz

    kept: dict[K, V] = toolz.dissoc(dict(d), *keys)
    return kept


def partition_all(n: int, seq: Iterable[T], /) -> Iterator[tuple[T, ...]]:
    """The items in tuples of `n`, the last of which may be shorter."""
    import toolz

    tuples: Any = toolz.partition_all(n, seq)
    return cast("Iterator[tuple[T, ...]]", tuples)


def unique(seq: Iterable[T], /) -> Iterator[T]:
    """The items without those that came before."""
    import toolz

    items: Iterator[T] = toolz.unique(seq)
    return items


def without_none(values: Mapping[K, V | None]) -> dict[K, V]:
    """The entries whose value is not None.

    >>> without_none({"a": 1, "b": None})
    {'a': 1}
    """
    return {key: value for key, value in values.items() if value is not None}
