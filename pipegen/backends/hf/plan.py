"""Which rows ride in one batch."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["halves", "plan"]

Group = tuple[int, ...]


def plan(lengths: Sequence[int], batch_size: int) -> tuple[Group, ...]:
    """Group rows into batches of at most `batch_size`; a group holds the rows' positions.

    Rows of like length ride together, so that little is padded, and the longest go first, so that a batch too large for the memory shows at once. Rows
    of equal length keep their order. Every position stands in exactly one group.

    >>> plan([3, 9, 4], batch_size=2)
    ((1, 2), (0,))
    """
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    return tuple(tuple(order[start : start + batch_size]) for start in range(0, len(order), batch_size))


def halves(group: Sequence[int]) -> tuple[Group, ...]:
    """The two halves of a group, in order; of a single row, that row.

    >>> halves((4, 2, 7))
    ((4, 2), (7,))
    """
    middle = (len(group) + 1) // 2
    return tuple(part for part in (tuple(group[:middle]), tuple(group[middle:])) if part)
