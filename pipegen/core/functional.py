"""Small functions of plain values that several rooms use.

>>> list(partition_all(2, "abc")), without_none({"a": 1, "b": None})
([('a', 'b'), ('c',)], {'a': 1})
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, cast

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
