"""The loop: a result may send its row back with another value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from returns.result import Success

from pipegen.core.pipe import Pipe, pipe_of
from pipegen.core.slots import Slot
from pipegen.core.steps import Branch, GoOn, Notes, sampled

A = TypeVar("A")
B = TypeVar("B")


def loop(
    pipe: Pipe[A, B],
    decide: Callable[[tuple[B, ...], Any], GoOn | Slot[B]],
    *,
    later: Pipe[Any, B] | None = None,
    decides: str,
    name: str,
    version: str,
    plain: Pipe[A, B] | None = None,
) -> Pipe[A, B]:
    """Run `pipe`, and then `later` (by default `pipe` again) as long as `decide(results, value)`
    says so.

    results: those of all rounds so far. value: what came into this round. `GoOn` goes on with its
    value; a slot is the end of the row. A round that fails is too. Where requests have samples, each sample has its own rounds.
    plain: the pipe that it is to rows that it never leads on, where requests tell which those are.
    decides: the function of the user's that `decide` calls, in words.

    >>> from pipegen.core.pipe import pure
    >>> def decide(results, value):
    ...     more = results[-1] < 20
    ...     return GoOn(Success(results[-1]), results) if more else Success(results)
    >>> double = pure("double", lambda n: 2 * n)
    >>> loop(double, decide, decides="decide", name="whole", version="").apply((Success(3),))
    (<Success: (6, 12, 24)>,)
    """
    ways = (pipe,) if later is None else (pipe, later)

    def leave(value: Slot[object], notes: Notes, turn: int, slot: Slot[Any]) -> GoOn | Slot[object]:
        """A round is over; `notes` are the results of those before it."""
        if not isinstance(slot, Success):
            return slot
        return decide((*notes, slot.unwrap()), value.unwrap())

    branch = Branch(
        name=name,
        ways=ways,
        leave=leave,
        decides=decides,
        splits=True,
        keeps_text=pipe.keeps_text,
        owns=pipe.owns,
        routes=pipe.routes,
        version=f"({pipe.stages}) {version}",
        plain=None if plain is None else plain.stages,
        rebind=lambda new: loop(
            pipe.rebound(new),
            decide,
            later=None if later is None else later.rebound(new),
            decides=decides,
            name=name,
            version=version,
            plain=None if plain is None else plain.rebound(new),
        ),
    )
    return pipe_of(*sampled(branch, pipe.steps, whole=False))
