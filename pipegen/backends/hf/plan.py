"""Which rows run first, and which are read together: pure functions of what the rows cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

__all__ = ["SPARE", "Cost", "group_size", "order", "plan", "restored"]

T = TypeVar("T")
Group = tuple[int, ...]

SPARE = 64
"""Padding tokens of which a pass over a few prompts does not become slower: a pass of its own would cost more."""


class Cost(NamedTuple):
    """What a row costs: the tokens of its prompt, the patches of its images, and the tokens that it may make."""

    prompt: int
    patches: int = 0
    answer: int = 0


def order(costs: Sequence[Cost]) -> Group:
    """The positions of the rows as they are to be run.

    The longest answer first, since a long row that starts last would end alone; of equal answers the longest prompt with its images first, so that
    what is too large for the memory shows at once, and neighbours are alike. Equal rows keep their order.

    >>> order([Cost(3, answer=5), Cost(9, answer=5), Cost(4, answer=8)])
    (2, 1, 0)
    """
    return tuple(sorted(range(len(costs)), key=lambda position: (-costs[position].answer, -costs[position].prompt - costs[position].patches)))


def group_size(prompts: Sequence[int], rows: int, tokens: int | None = None) -> int:
    """How many of these prompts, from the first on, are read in one pass: at least one, and at most `rows`.

    Padded to the longest of them they hold at most `tokens` tokens, and the padding is at most a quarter of the prompts, or `SPARE` tokens.

    >>> group_size([400, 390, 40, 30], rows=4), group_size([40, 30, 20], rows=4), group_size([40, 30, 20], rows=4, tokens=80)
    (2, 3, 2)
    """
    longest, whole = prompts[0], prompts[0]
    for size, prompt in enumerate(prompts[1:rows], 1):
        longest, whole = max(longest, prompt), whole + prompt
        padded = longest * (size + 1)
        if (tokens is not None and padded > tokens) or padded - whole > max(SPARE, whole // 4):
            return size
    return min(len(prompts), rows)


def plan(costs: Sequence[Cost], rows: int, tokens: int | None = None) -> tuple[Group, ...]:
    """The rows in their order, packed into groups of at most `rows` rows and `tokens` padded tokens; a group holds the rows' positions.

    Every position stands in exactly one group. A row that holds more tokens than that stands alone.

    >>> plan([Cost(3), Cost(9), Cost(4)], rows=2)
    ((1, 2), (0,))
    """
    left, groups = order(costs), []
    while left:
        size = group_size([costs[position].prompt for position in left], rows, tokens)
        groups.append(left[:size])
        left = left[size:]
    return tuple(groups)


def restored(order: Sequence[int], answers: Sequence[T]) -> list[T]:
    """Answers that came in that order, back at their positions.

    >>> restored((2, 0, 1), ["c", "a", "b"])
    ['a', 'b', 'c']
    """
    placed = dict(zip(order, answers, strict=True))
    return [placed[position] for position in range(len(order))]
