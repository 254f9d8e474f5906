"""The fallback: what fails on one route with an error of some kind goes through a second one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from returns.result import Failure, Success

from pipegen.core.blame import StageNote, blamed, moved, raisable
from pipegen.core.calls import Call, Steps
from pipegen.core.errors import GenerationError
from pipegen.core.joining import counted, relayed
from pipegen.core.pipe import Pipe, Rebinding, union
from pipegen.core.slots import Batch, Slot, live_rows

__all__ = ["When", "fallback"]

A = TypeVar("A")
B = TypeVar("B")

When: TypeAlias = (
    type[GenerationError] | tuple[type[GenerationError], ...] | Callable[[GenerationError], bool]
)
"""Which errors a fallback takes: a type of error, several, or a function of the error."""


def fallback(first: Pipe[A, B], second: Pipe[A, B], *, when: When) -> Pipe[A, B]:
    """Run `first`; what fails there with an error that `when` takes goes through `second`, in one
    call.

    The last error keeps its own type and the errors before it go to `.earlier`; a result says what
    was tried before in `.tried`. Requests that came in failed, and those whose error does not
    qualify, are not tried again. A second route of the same name gets another one (`hf` and
    `hf-2`), so that a result says which it came from. Raises `TypeError` for what is no pipe, and
    for a `when` that no error can meet.

    >>> from pipegen.core.errors import InvalidRequest, Timeout
    >>> from pipegen.core.pipe import each
    >>> a = each("a", lambda n: Failure(Timeout("slow")))
    ... b = each("b", lambda n: Success(n))
    >>> fallback(a, b, when=Timeout).apply((Success(1),))
    (<Success: 1>,)
    >>> fallback(a, b, when=InvalidRequest).apply((Success(1),))[0].failure().message
    'slow'
    """
    for route in (first, second):
        if not isinstance(route, Pipe):
            raise TypeError(
                f"a fallback is made of two routes or other pipes, not of {type(route).__name__}:"
                " pg.route(engine) makes a route of an engine"
            )
    kinds = when if isinstance(when, tuple) else (when,) if isinstance(when, type) else ()
    if not all(
        isinstance(kind, type) and issubclass(kind, GenerationError) for kind in kinds
    ) or not (isinstance(when, tuple) or callable(when)):
        raise TypeError(
            "when takes a type of GenerationError, a tuple of them, or a function of the error,"
            f" not {when!r:.200}"
        )
    second = (
        second.rebound(Rebinding(route=_another_name(set(first.routes))))
        if not set(first.routes).isdisjoint(second.routes)
        else second
    )
    name = f"fallback({first.name}, {second.name})"

    def qualifies(row: int, error: GenerationError) -> bool:
        if isinstance(when, (type, tuple)):
            return isinstance(error, when)
        try:
            return when(error)
        except Exception as raised:  # noqa: BLE001 - it raises again
            bug = raisable(raised)
            blamed(bug, StageNote(f"when of {name}", internal=False, row=row))
            raise bug  # noqa: B904 - it is `raised`, or has it as its cause

    def steps(batch: Batch[A]) -> Steps[B]:
        tried = yield from counted(first, batch)
        again = [
            row
            for row in live_rows(batch)
            if not isinstance(tried[row], Success) and qualifies(row, tried[row].failure())
        ]
        if not again:
            return tried

        def in_the_batch(wanted: Call) -> Call:
            return replace(wanted, rows=tuple((again[row], sample) for row, sample in wanted.rows))

        try:
            retried = yield from relayed(
                counted(second, tuple(batch[row] for row in again)), in_the_batch
            )
        except Exception as raised:
            moved(raised, again)
            raise
        out = list(tried)
        for row, slot in zip(again, retried, strict=True):
            history = tried[row].failure()
            out[row] = _remember(slot, (*history.earlier, history.with_fields(earlier=())))
        return tuple(out)

    sampling = next((part.sampling for part in (*first.parts, *second.parts) if part.closes), None)
    return Pipe(
        name,
        steps,
        first.keeps_text and second.keeps_text,
        union(first.owns, second.owns),
        internal=True,
        sampling=sampling,
        opens=sampling is not None,
        closes=sampling is not None,
        routes=first.routes + second.routes,
        among=lambda before, after: fallback(
            first.placed(before, after), second.placed(before, after), when=when
        ),
        version=(
            f"({first.stages} | {second.stages}) when"
            f" {', '.join(sorted(kind.__name__ for kind in kinds)) or getattr(when, '__qualname__', '')}"
        ),
        rebind=lambda new: fallback(first.rebound(new), second.rebound(new), when=when),
    )


def _another_name(taken: set[str]) -> Callable[[str], str]:
    """Names a route that nothing is called yet: `hf`, `hf-2`, `hf-3`."""

    def another(name: str) -> str:
        stem, dash, number = name.rpartition("-")
        base = stem if dash and stem in taken and number.isdecimal() else name
        named = next(
            named
            for named in (name, *(f"{base}-{count}" for count in range(2, len(taken) + 3)))
            if named not in taken
        )
        taken.add(named)
        return named

    return another


def _remember(slot: Slot[Any], earlier: tuple[GenerationError, ...]) -> Slot[Any]:
    """Put the errors of earlier routes into a slot's history: `.earlier` of an error, `.tried` of a
    record that has it.
    """
    if not isinstance(slot, Success):
        return Failure(slot.failure().after(earlier))
    value = slot.unwrap()
    return Success(replace(value, tried=earlier + value.tried)) if hasattr(value, "tried") else slot
