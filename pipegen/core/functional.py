"""The functions of toolz that pipegen uses, with types, and one made of them.

>>> without_none({"a": 1, "b": None}), list(partition_all(2, "abc")), list(unique("abca"))
({'a': 1}, [('a', 'b'), ('c',)], ['a', 'b', 'c'])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["dissoc", "partition_all", "unique", "valfilter", "without_none"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

if TYPE_CHECKING:  # toolz has no types

    def dissoc(d: dict[K, V], /, *keys: K) -> dict[K, V]: ...

    def partition_all(n: int, seq: Iterable[T], /) -> Iterator[tuple[T, ...]]: ...

    def unique(seq: Iterable[T], /) -> Iterator[T]: ...

    def valfilter(predicate: Callable[[Any], bool], d: Mapping[K, Any], /) -> dict[K, Any]: ...

else:
    from toolz import dissoc, partition_all, unique, valfilter


def without_none(values: Mapping[K, V | None]) -> dict[K, V]:
    """The entries whose value is not None."""
    return valfilter(lambda value: value is not None, values)
