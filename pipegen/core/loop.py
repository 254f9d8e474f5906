"""The loop: a result may send its row back with another request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from returns.result import Success

from pipegen.core.pipe import Pipe, pipe_of, placed
from pipegen.core.slots import Slot
from pipegen.core.steps import Again, Nest, Steps

__all__ = ["loop"]

A = TypeVar("A")
B = TypeVar("B")


def loop(
    pipe: Pipe[A, B],
    again: Callable[[B], A | None],
    finish: Callable[..., B],
    *,
    limit: int,
    name: str,
) -> Pipe[A, B]:
    """Run `pipe` until `again(result)` is None, at most `limit` times; `finish(results, more=...)` makes the one
    result of those of all rounds, `more` where the limit came first.

    A round that fails is the end of its row. Where requests have samples, each sample has its own rounds.

    >>> from pipegen.core.pipe import pure
    >>> double, again = pure("double", lambda n: 2 * n), lambda n: n if n < 20 else None
    >>> whole = loop(double, again, lambda results, more: results, limit=9, name="whole")
    >>> whole.apply((Success(3),))
    (<Success: (6, 12, 24)>,)
    """

    def leave(
        value: Slot[Any], notes: tuple[Any, ...], turn: int, slot: Slot[Any]
    ) -> Again | Slot[Any]:
        """A round is over; `notes` are the results of those before it."""
        if not isinstance(slot, Success):
            return slot
        results = (*notes, slot.unwrap())
        request = again(slot.unwrap())
        if request is None or len(results) == limit:
            return Success(finish(results, more=request is not None))
        return Again(Success(request), results)

    def among(before: Steps, after: Steps) -> Nest:
        return replace(nest, ways=(replace(pipe, steps=placed(pipe.steps, before, after)),))

    sampling = next((step.sampling for step in pipe.steps if step.closes), None)
    nest = Nest(
        name=name,
        ways=(pipe,),
        leave=leave,
        decides="again",
        splits=True,
        keeps_text=pipe.keeps_text,
        owns=pipe.owns,
        sampling=sampling,
        opens=sampling is not None,
        closes=sampling is not None,
        routes=pipe.routes,
        version=f"({pipe.stages}) {getattr(again, '__qualname__', '')} at most {limit}",
        rebind=lambda new: loop(pipe.rebound(new), again, finish, limit=limit, name=name),
        among=among,
    )
    return pipe_of(nest)
