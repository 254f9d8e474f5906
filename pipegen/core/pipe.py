"""Pipes: five constructors and one operator.

A `Pipe[A, B]` is a value: a name, and a generator function that takes a batch of A, yields the calls it needs, and returns a batch of B. Only a driver
(`run`, `arun`, `stream`) performs calls; so a pipe is pure, and one definition serves sync and async.

>>> from returns.result import Failure, Success
>>> from pipegen.core.errors import InvalidRequest
>>> halve = each("halve", lambda n: Success(n // 2) if n % 2 == 0 else Failure(InvalidRequest(f"{n} is odd")))
>>> show = pure("show", str)
>>> pipe = halve >> show
>>> pipe.name
'halve >> show'
>>> pipe.apply((Success(4), Success(3)))
(<Success: 2>, <Failure: 3 is odd (hint: correct the request at the place that the message names)>)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from returns.result import Failure, Success

from pipegen.core.border import EXHAUSTED, Raised, guard
from pipegen.core.errors import ContractError, GenerationError, StageFailed
from pipegen.core.slots import Batch, Slot, is_ok, live, live_rows, refill

__all__ = ["Backend", "Call", "Pipe", "Row", "Steps", "call", "each", "fallback", "identity", "pure"]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
A_contra = TypeVar("A_contra", contravariant=True)
B_co = TypeVar("B_co", covariant=True)

Row: TypeAlias = tuple[int, int]
"""A row's place: the position of its request in the batch that the driver was given, and which of its samples it is."""


@runtime_checkable
class Backend(Protocol):
    """Performs calls: encoded prompts in, one slot of generated ids for each out."""

    @property
    def name(self) -> str: ...

    def generate(self, inputs: Sequence[Any]) -> Sequence[Slot[Any]]:
        """One slot for each input, in order. Raises `CallFailed` when the whole call failed; any other exception is a bug and comes through."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """The only effect: one call of `backend` with all live inputs. `rows` says where each input stands, as the driver counts."""

    backend: Backend
    inputs: tuple[Any, ...]
    rows: tuple[Row, ...]


Steps: TypeAlias = Generator[Call, Sequence[Slot[Any]], Batch[B]]
"""A pipe at work: yields calls, is sent their answers, returns the batch."""


@dataclass(frozen=True, slots=True)
class Pipe(Generic[A_contra, B_co]):
    """A named way from a batch of A to a batch of B: N slots in, N slots out, in order.

    `keeps_text` says that what a call streams is, unchanged, the text of the result; `owns` are the engines released when the pipe, used as a
    context manager, is left.
    """

    name: str
    steps: Callable[[Batch[A_contra]], Steps[B_co]]
    keeps_text: bool = True
    owns: tuple[contextlib.AbstractContextManager[Any], ...] = ()

    def __rshift__(self, then: Pipe[B_co, C]) -> Pipe[A_contra, C]:
        """Join: what this pipe returns goes into `then`. Raises `TypeError` for what is no pipe."""
        if not isinstance(then, Pipe):
            raise TypeError(f"a pipe is joined with a pipe, not {type(then).__name__}: each(name, stage) or pure(name, f) lifts a function")

        def steps(batch: Batch[A_contra]) -> Steps[C]:
            return (yield from then.steps((yield from self.steps(batch))))

        return Pipe(" >> ".join(name for name in (self.name, then.name) if name), steps, self.keeps_text and then.keeps_text, _union(self.owns, then.owns))

    def apply(self, batch: Batch[A_contra]) -> Batch[B_co]:
        """Run a pipe that makes no calls. Raises `ContractError` if it makes one: that takes a driver."""
        running = counted(self, batch)
        try:
            wanted = next(running)
        except StopIteration as done:
            returned: Batch[B_co] = done.value
            return returned
        raise ContractError(f"{self.name} calls the engine {wanted.backend.name}: use run, arun or stream")

    def __enter__(self) -> Pipe[A_contra, B_co]:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.ExitStack() as stack:
            for engine in self.owns:
                stack.push(engine)


def _union(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    return first + tuple(engine for engine in second if all(engine is not other for other in first))


def identity() -> Pipe[A, A]:
    """The pipe that changes nothing, and that `>>` does not show.

    >>> identity().apply((Success(1),))
    (<Success: 1>,)
    """

    def steps(batch: Batch[A]) -> Steps[A]:
        return batch
        yield  # a generator without effects

    return Pipe("", steps)


def each(name: str, stage: Callable[[A], Slot[B]], *, catch: tuple[type[Exception], ...] = (), keeps_text: bool = False) -> Pipe[A, B]:
    """Lift a stage over the slots: live ones go through it, failed ones pass.

    The exceptions listed in `catch` become `StageFailed` in that slot, and so does one row that is too large or nested too deep for the stage (a
    `MemoryError` or `RecursionError`); every other exception is a bug and raises. Raises `ContractError` when the
    stage returns something other than a `Result` with a value or a `GenerationError`, and `TypeError` for what is no name, function or exception.

    >>> each("root", lambda n: Success(n ** 0.5), catch=(TypeError,)).apply((Success("x"),))[0].failure().stage
    'root'
    """
    _named("each", name, stage)
    if not isinstance(catch, tuple) or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in catch):
        raise TypeError(f"catch takes a tuple of exceptions that a stage may raise on bad data, such as (ValueError,), not {catch!r:.200}")

    def failed(raised: Raised) -> StageFailed:
        return StageFailed(raised.words, stage=name, incident=raised.incident)

    def lifted(value: A) -> Slot[B]:
        done = guard(lambda: stage(value), failed, known=catch, only=EXHAUSTED)
        if not is_ok(done):
            return Failure(done.failure())
        slot = done.unwrap()
        if not isinstance(slot, (Success, Failure)):
            raise ContractError(f"stage {name!r} returned {type(slot).__name__}, not a Result: wrap it in Success(...) or Failure(...)")
        if isinstance(slot, Failure) and not isinstance(slot.failure(), GenerationError):
            raise ContractError(
                f"stage {name!r} failed with {type(slot.failure()).__name__}, not a GenerationError such as StageFailed(message, stage={name!r})"
            )
        return slot

    def steps(batch: Batch[A]) -> Steps[B]:
        return tuple(lifted(slot.unwrap()) if isinstance(slot, Success) else cast("Slot[B]", slot) for slot in batch)
        yield  # a generator without effects

    return Pipe(name, steps, keeps_text)


def pure(name: str, f: Callable[[A], B], *, keeps_text: bool = False) -> Pipe[A, B]:
    """Lift a total function: one that has an answer for every value. Raises `ContractError` when it returns a `Result`, as a stage does.

    >>> pure("double", lambda n: 2 * n).apply((Success(2),))
    (<Success: 4>,)
    """
    _named("pure", name, f)

    def always(value: A) -> Slot[B]:
        made = f(value)
        if isinstance(made, (Success, Failure)):
            raise ContractError(f"the function {name!r} returned a Result: each({name!r}, ...) lifts a function that does")
        return Success(made)

    return each(name, always, keeps_text=keeps_text)


def _named(lift: str, name: Any, f: Any) -> None:
    if not isinstance(name, str) or not callable(f):
        raise TypeError(f"a name and a function are wanted, such as {lift}('strip', strip), not {name!r:.80} and {f!r:.80}")


def call(backend: Backend) -> Pipe[Any, Any]:
    """One call of the engine with exactly the live inputs, none when there are none. The only constructor that yields an effect."""

    def steps(batch: Batch[Any]) -> Steps[Any]:
        rows = live_rows(batch)
        if not rows:
            return batch
        return refill(batch, (yield Call(backend, live(batch), tuple((row, 0) for row in rows))))

    return Pipe(backend.name, steps)


When: TypeAlias = type[GenerationError] | tuple[type[GenerationError], ...] | Callable[[GenerationError], bool]
"""Which errors a fallback takes: a type of error, several, or a function of the error."""


def fallback(first: Pipe[A, B], second: Pipe[A, B], *, when: When) -> Pipe[A, B]:
    """Run `first`; what fails there with an error that `when` takes goes through `second`, in one call.

    The last error keeps its own type and the errors before it go to `.earlier`; a result says what was tried before in `.tried`. Requests that came
    in failed, and those whose error does not qualify, are not tried again. Raises `TypeError` for a `when` that no error can meet.

    >>> from pipegen.core.errors import InvalidRequest, Timeout
    >>> a = each("a", lambda n: Failure(Timeout("slow"))); b = each("b", lambda n: Success(n))
    >>> fallback(a, b, when=Timeout).apply((Success(1),))
    (<Success: 1>,)
    >>> fallback(a, b, when=InvalidRequest).apply((Success(1),))[0].failure().message
    'slow'
    """
    kinds = when if isinstance(when, tuple) else (when,) if isinstance(when, type) else ()
    if not all(isinstance(kind, type) and issubclass(kind, GenerationError) for kind in kinds) or not (isinstance(when, tuple) or callable(when)):
        raise TypeError(f"when takes a type of GenerationError, a tuple of them, or a function of the error, not {when!r:.200}")
    qualifies: Callable[[GenerationError], bool] = (lambda error: isinstance(error, when)) if isinstance(when, (type, tuple)) else when

    def steps(batch: Batch[A]) -> Steps[B]:
        tried = yield from counted(first, batch)
        again = [row for row in live_rows(batch) if not isinstance(tried[row], Success) and qualifies(tried[row].failure())]
        if not again:
            return tried
        retried = yield from renumber(counted(second, tuple(batch[row] for row in again)), [(row, 0) for row in again])
        out = list(tried)
        for row, slot in zip(again, retried, strict=True):
            history = tried[row].failure()
            out[row] = _remember(slot, (*history.earlier, replace(history, earlier=())))
        return tuple(out)

    return Pipe(f"fallback({first.name}, {second.name})", steps, first.keeps_text and second.keeps_text, _union(first.owns, second.owns))


def counted(pipe: Pipe[A, B], batch: Batch[A]) -> Steps[B]:
    """The steps of a pipe, which may be anybody's. Raises `ContractError` unless it returns one slot for each that went in."""
    slots = yield from pipe.steps(batch)
    if len(slots) != len(batch):
        raise ContractError(f"{pipe.name} gave {len(slots)} slots for {len(batch)}")
    return slots


def renumber(steps: Steps[B], rows: Sequence[Row]) -> Steps[B]:
    """Let the calls of a pipe that works on a part of the batch say where their rows stand in the whole."""
    try:
        wanted = next(steps)
        while True:
            places = tuple((rows[row][0], rows[row][1] or sample) for row, sample in wanted.rows)
            wanted = steps.send((yield replace(wanted, rows=places)))
    except StopIteration as done:
        returned: Batch[B] = done.value
        return returned


def _remember(slot: Slot[Any], earlier: tuple[GenerationError, ...]) -> Slot[Any]:
    """Put the errors of earlier routes into a slot's history: `.earlier` of an error, `.tried` of a record that has it."""
    if not isinstance(slot, Success):
        return Failure(slot.failure().after(earlier))
    value = slot.unwrap()
    return Success(replace(value, tried=earlier + value.tried)) if hasattr(value, "tried") else slot
