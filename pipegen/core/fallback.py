"""What leads a row on in another pipe. The fallback: what fails on one route with an error of some
kind goes through a second one. The loop: a result may send its row back with another value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from returns.result import Failure, Success

from pipegen.core.errors import (
    GenerationError,
    UnsupportedMultimodal,
    UnsupportedOption,
    UnsupportedPlugin,
)
from pipegen.core.pipe import Pipe, pipe_of
from pipegen.core.slots import Slot
from pipegen.core.steps import Branch, EngineMap, GoOn, Notes, sampled, union

A = TypeVar("A")
B = TypeVar("B")

When: TypeAlias = (
    type[GenerationError] | tuple[type[GenerationError], ...] | Callable[[GenerationError], bool]
)
"""Which errors a fallback takes: a type of error, several, or a function of the error."""


def fallback(first: Pipe[A, B], second: Pipe[A, B], *, when: When) -> Pipe[A, B]:
    """Run `first`; what fails there with an error that `when` takes goes through `second`.

    The last error keeps its own type and the errors before it go to `.earlier`; a result says what
    was tried before in `.tried`. Requests that came in failed, and those whose error does not
    qualify, are not tried again. A second route of the same name gets another one (`hf` and
    `hf-2`), so that a result says which it came from. An empty tuple catches no error. Raises
    `TypeError` for what is no pipe, and for a `when` that is none of these.

    An image or a video that cannot be read fails its request before the first stage. With such a
    `when`, the second route gets the request with the image unread (`ImageSource.unread` says why).

    Where the first engine refuses a request, the logger `pipegen` warns, once for each type of
    error.

    >>> from pipegen.core.errors import InvalidRequest, Timeout
    >>> from pipegen.core.pipe import each
    >>> a = each("a", lambda n: Failure(Timeout("slow")))
    >>> b = each("b", lambda n: Success(n))
    >>> fallback(a, b, when=Timeout).apply((Success(1),))
    (<Success: 1>,)
    >>> fallback(a, b, when=InvalidRequest).apply((Success(1),))[0].failure().message
    'slow'
    """
    for route in (first, second):
        if not isinstance(route, Pipe):
            raise TypeError(
                f"a fallback is made of two routes or other pipes, not of {type(route).__name__}: "
                "pg.route(engine) makes a route of an engine"
            )
    kinds = when if isinstance(when, tuple) else (when,) if isinstance(when, type) else ()
    if not all(
        isinstance(kind, type) and issubclass(kind, GenerationError) for kind in kinds
    ) or not (isinstance(when, tuple) or callable(when)):
        raise TypeError(
            "when takes a type of GenerationError, a tuple of them, or a function of the error, "
            f"not {when!r:.200}"
        )
    if not set(first.routes).isdisjoint(second.routes):
        second = second.rebound(EngineMap(route=_another_name(set(first.routes))))

    def qualifies(error: GenerationError) -> bool:
        return isinstance(error, when) if isinstance(when, (type, tuple)) else bool(when(error))

    told: set[type[GenerationError]] = set()

    def tell(error: GenerationError) -> None:
        if type(error) not in told and isinstance(error, _REFUSALS):
            told.add(type(error))
            warn_of(first.name, second.name, f"{type(error).__name__}: {error.message}")

    def leave(
        value: Slot[object], notes: Notes, turn: int, slot: Slot[object]
    ) -> GoOn | Slot[object]:
        """A row has come out of a route; `notes` are the errors of the first one."""
        if turn:
            return _remember(slot, notes)
        if isinstance(slot, Success) or not qualifies(error := slot.failure()):
            return slot
        tell(error)
        return GoOn(value, (*error.earlier, error.with_fields(earlier=())))

    name = f"fallback({first.name}, {second.name})"
    shown = ", ".join(sorted(kind.__name__ for kind in kinds)) or getattr(when, "__qualname__", "")
    branch = Branch(
        name=name,
        ways=(first, second),
        leave=leave,
        decides="when",
        keeps_text=first.keeps_text and second.keeps_text,
        owns=union(first.owns, second.owns),
        routes=first.routes + second.routes,
        version=f"({first.stages} | {second.stages}) when {shown}",
        rebind=lambda new: fallback(first.rebound(new), second.rebound(new), when=when),
    )
    return pipe_of(*sampled(branch, (*first.steps, *second.steps), whole=True))


_REFUSALS = (UnsupportedMultimodal, UnsupportedOption, UnsupportedPlugin)
"""What an engine says of a request that it does not take."""


def warn_of(first: str, second: str, why: str) -> None:
    """Warn that one route answers in the place of another."""
    import logging  # a first request needs none

    logging.getLogger("pipegen").warning("%s answers in the place of %s: %s", second, first, why)


def _another_name(used_names: set[str]) -> Callable[[str], str]:
    """Names a route that nothing is called yet: `hf`, `hf-2`, `hf-3`."""

    def another(name: str) -> str:
        stem, dash, suffix = name.rpartition("-")
        base = stem if dash and stem in used_names and suffix.isdecimal() else name
        candidates = (name, *(f"{base}-{count}" for count in range(2, len(used_names) + 3)))
        free = next(candidate for candidate in candidates if candidate not in used_names)
        used_names.add(free)
        return free

    return another


def _remember(slot: Slot[Any], earlier: Notes) -> Slot[object]:
    """Put the errors of earlier routes into a slot's history: `.earlier` of an error, `.tried` of a
    record that has it.
    """
    if not isinstance(slot, Success):
        return Failure(slot.failure().after(earlier))
    value = slot.unwrap()
    return Success(replace(value, tried=earlier + value.tried)) if hasattr(value, "tried") else slot


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
