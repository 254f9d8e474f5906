"""Pipes: five constructors and one operator.

A `Pipe[A, B]` is frozen data: a name, and the steps that lead from a batch of A to a batch of B
(see `pipegen.core.steps`). It performs nothing. Stages are pure, and only a driver (`run`, `arun`,
`stream`, ...) performs the calls; so one definition serves sync and async.

>>> from returns.result import Failure, Success
>>> from pipegen.core.errors import InvalidRequest
>>> halve = each(
...     "halve", lambda n: Success(n // 2) if n % 2 == 0 else Failure(InvalidRequest("odd"))
... )
>>> show = pure("show", str)
>>> pipe = halve >> show
>>> pipe.name, [part.name for part in pipe.parts]
('halve >> show', ['halve', 'show'])
>>> [slot.value_or("failed") for slot in pipe.apply((Success(4), Success(3)))]
['2', 'failed']
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Self, TypeAlias, TypeVar

from returns.result import Failure, Success

from pipegen.core.backend import AnyBackend, Backend, require_backend
from pipegen.core.error_notes import named
from pipegen.core.errors import ContractError
from pipegen.core.interpreter import Row, advance
from pipegen.core.names import InvalidField, nearest
from pipegen.core.slots import Batch, Slot
from pipegen.core.steps import (
    Branch,
    Call,
    Closeable,
    EngineMap,
    EngineRequest,
    Gather,
    Program,
    Stage,
    Step,
    Steps,
    program,
    union,
)

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
# Any: pyright then takes the argument of a lambda, of which it knows nothing, for anything.
Taken = TypeVar("Taken", bound=Any)
A_contra = TypeVar("A_contra", contravariant=True)
B_co = TypeVar("B_co", covariant=True)


@dataclass(frozen=True)
class Pipe(Generic[A_contra, B_co]):
    """A named way from a batch of A to a batch of B: N slots in, N slots out, in order.

    Make one with `each`, `pure`, `call`, `fallback` or `repeat`, and join two with `>>`. As a
    context manager it releases its engines at the end.
    """

    name: str
    """The name, as errors and results show it."""
    steps: Steps = ()
    """The steps, in order."""
    owns: tuple[Closeable, ...] = ()
    """The engines that are released."""

    def __post_init__(self) -> None:
        if not isinstance(self.steps, tuple):
            raise TypeError(
                f"a pipe is made of steps, not of {type(self.steps).__name__}: "
                "each(name, stage) or pure(name, f) makes one of a function"
            )

    def __repr__(self) -> str:
        names = " >> ".join(part.name for part in self.parts)
        shown = self.name if names in (self.name, "") else f"{self.name}: {names}"
        return f"<{type(self).__name__} {shown}>"

    @cached_property
    def program(self) -> Program:
        """The steps as `pipegen.core.interpreter` does them."""
        return program(self.steps)

    @property
    def parts(self) -> tuple[AnyPipe, ...]:
        """The stages that were joined, in order, each as a pipe of its own."""
        parts: list[AnyPipe] = []
        for step in self.steps:
            if not parts or (parts[-1].name and not isinstance(step, Gather)):
                parts.append(identity())
            parts[-1] = pipe_of(*parts[-1].steps, step)
        return tuple(parts)

    @property
    def stages(self) -> str:
        """The names of its stages, with what else they do: of two pipes that differ in it, a job
        reuses no rows.
        """
        return " >> ".join(
            f"{step.name} {step.version}".strip()
            if not isinstance(step, Branch) or step.plain is None
            else step.plain
            for step in self.steps
            if step.name
        )

    @property
    def leads_on(self) -> str:
        """What leads rows with `turns` on, which is not in `stages`; empty where nothing does."""
        branches = [step for step in self.steps if isinstance(step, Branch)]
        names = [
            f"{branch.name} {branch.version}" for branch in branches if branch.plain is not None
        ]
        return " ".join(
            [*names, *(way.leads_on for branch in branches for way in branch.ways)]
        ).strip()

    @property
    def keeps_text(self) -> bool:
        """Whether it leaves the text of what goes through as it is."""
        return all(step.keeps_text for step in self.steps)

    @property
    def routes(self) -> tuple[str, ...]:
        """The names that results carry which come from here."""
        return tuple(name for step in self.steps for name in step.routes)

    @property
    def backend(self) -> AnyBackend | None:
        """What its first call calls; None where no stage of it calls an engine itself."""
        return next((step.backend for step in self.steps if isinstance(step, Call)), None)

    def __rshift__(self, then: Pipe[B_co, C]) -> Pipe[A_contra, C]:
        """Join: what this pipe returns goes into `then`. Raises `TypeError` for what is no pipe.

        Stages that follow one another and look at each row alone go row by row: a row is through
        all of them before the next one begins.
        """
        if not isinstance(then, Pipe):
            raise TypeError(
                f"a pipe is joined with a pipe, not {type(then).__name__}: "
                "each(name, stage) or pure(name, f) makes one of a function"
            )
        name = " >> ".join(name for name in (self.name, then.name) if name)
        return Pipe(name, placed((*self.steps, *then.steps)), union(self.owns, then.owns))

    def with_parts(self, parts: Iterable[AnyPipe]) -> Self:
        """The same pipe (its name, and what it owns) with other stages."""
        return self._with(tuple(step for part in parts for step in part.steps))

    def _with(self, steps: Steps) -> Self:
        return replace(self, steps=placed(steps))

    def insert(
        self, stage: AnyPipe, *, after: str | None = None, before: str | None = None
    ) -> Self:
        """The pipe with one more stage, after or before another.

        Raises `InvalidField` for a name that no stage has or that several have, and for a new one
        that is taken. `TypeError` is for no place or two.
        """
        if (after is None) == (before is None):
            raise TypeError("a stage is inserted after another or before it: give one of the two")
        index = self._index_of(before if after is None else after) + (after is not None)
        return self._edited(index, index, _pipe(stage))

    def replace(self, name: str, stage: AnyPipe) -> Self:
        """The pipe with another stage in the place of the one of that name; what the old one did
        about samples is done there. Raises as `insert` does.
        """
        index = self._index_of(name)
        new = _pipe(stage).steps
        kinds = {*map(type, new)}
        steps = [
            replace(other, honours=step.honours or name) if step.name else step
            for step in self.parts[index].steps
            if new and (step.name or type(step) not in kinds)
            for other in (new if step.name else (step,))
        ]
        return self._edited(index, index + 1, replace(stage, steps=tuple(steps)))

    def remove(self, name: str) -> Self:
        """The pipe without the stage of that name. Raises as `insert` does."""
        index = self._index_of(name)
        return self._edited(index, index + 1, identity())

    def _index_of(self, name: object) -> int:
        if not isinstance(name, str):
            raise TypeError(f"a stage is found by its name, not by {name!r:.80}")
        names = [part.name for part in self.parts]
        if names.count(name) > 1:
            raise InvalidField(
                f"{self.name!r} has {names.count(name)} stages {name!r}: edit each pipe before they are joined"
            )
        if name not in names:
            raise InvalidField(
                f"{self.name!r} has no stage {name!r}{nearest(name, names)}; it has {', '.join(names)}"
            )
        return names.index(name)

    def _edited(self, start: int, end: int, new: AnyPipe) -> Self:
        """The pipe with this one in the place of its parts from `start` to `end`."""
        before, after = self.parts[:start], self.parts[end:]
        names = {part.name for part in (*before, *after)}
        for part in new.parts:
            if part.name in names:
                raise InvalidField(
                    f"{self.name!r} has a stage {part.name!r} already: give yours another name"
                )
            names.add(part.name)
        edited = self.with_parts((*before, new, *after))
        return replace(edited, owns=union(self.owns, new.owns))

    def rebound(self, new: EngineMap) -> Self:
        """The same pipe, bound to other engines or names."""
        steps = [
            replace(other, honours=step.honours)
            for step in self.steps
            for other in ((step,) if step.rebind is None else step.rebind(new).steps)
            if other.name or step.rebind is None
        ]
        return replace(self._with(tuple(steps)), owns=union(*(step.owns for step in steps)))

    def apply(self, batch: Batch[A_contra]) -> Batch[B_co]:
        """Run a pipe that makes no calls. Raises `ContractError` if it makes one: that takes a
        driver; and `TypeError` for what is no batch of slots.
        """
        if not isinstance(batch, (tuple, list)) or not all(
            isinstance(slot, (Success, Failure)) for slot in batch
        ):
            raise TypeError(
                f"a batch is a tuple of slots, such as (pg.Success(value),), not {batch!r:.80}"
            )
        try:
            done = advance(self, [Row(index, slot) for index, slot in enumerate(batch)])
        except Exception as raised:
            named(raised, lambda row: "the batch" if row is None else f"slot {row} of the batch")
            raise
        for _, call in done.calls:
            raise ContractError(
                f"{self.name} calls the engine {call.backend.name}: use run, arun or stream"
            )
        slots: list[Slot[Any]] = [*batch]
        for row in done.ended:
            slots[row.key] = row.value
        return tuple(slots)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the engines of this pipe, as the end of its `with` block does. The next call loads
        them again.
        """
        with contextlib.ExitStack() as stack:
            for engine in self.owns:
                stack.callback(engine.close)


AnyPipe: TypeAlias = Pipe[Any, Any]
"""A pipe of any records: its stages check what comes to them."""


def placed(steps: Steps, before: Steps = (), after: Steps = ()) -> Steps:
    """The steps, each where it stands among the others and those before and after them all."""

    def placed_at(index: int, step: Step) -> Step:
        around = (*before, *steps[:index]), (*steps[index + 1 :], *after)
        if isinstance(step, Branch):
            ways = (replace(way, steps=placed(way.steps, *around)) for way in step.ways)
            return replace(step, ways=tuple(ways))
        return step.among(*around) if isinstance(step, Call) and step.among else step

    return tuple([placed_at(index, step) for index, step in enumerate(steps)])


def pipe_of(*steps: Step) -> AnyPipe:
    """The pipe of one step, and of what belongs to it."""
    return Pipe("".join(step.name for step in steps), steps, union(*(step.owns for step in steps)))


def identity() -> Pipe[A, A]:
    """The pipe that changes nothing, and that `>>` does not show.

    >>> identity().apply((Success(1),))
    (<Success: 1>,)
    """
    return Pipe("")


def each(
    name: str,
    stage: Callable[[Taken], Slot[B]],
    *,
    catch: tuple[type[Exception], ...] = (),
    keeps_text: bool = False,
) -> Pipe[Taken, B]:
    """A stage made of a function that gives a slot.

    It is called with the value of each slot that has one. Failed slots stay as they are. The
    exceptions listed in `catch` become `StageFailed` in that slot. A `GenerationError` among them
    stays as it is. A row that is too large or nested too deep for the stage (`MemoryError`,
    `RecursionError`) is `StageFailed` too. Every other exception is a bug and raises, with a note
    that names the stage and the request.

    keeps_text: the stage, which is after the call, leaves the text of the result as it is. So the
        text can still be streamed.

    Raises `ContractError` if the stage returns anything but a `Result` with a value or a
    `GenerationError`, and if it changes the text in spite of `keeps_text`. Raises `TypeError` for
    what is no name, function or exception.

    >>> each("root", lambda n: Success(n**0.5), catch=(TypeError,)).apply((Success("x"),))[
    ...     0
    ... ].failure().stage
    'root'
    """
    do = _keeping(name, stage) if keeps_text else stage
    return row_stage(name, do, catch=catch, keeps_text=keeps_text, internal=False)


def _keeping(name: str, stage: Callable[[Taken], Slot[B]]) -> Callable[[Taken], Slot[B]]:
    """The stage, which raises `ContractError` where it changes the text of an answer: the engine
    may have ended the row for that text, and a stream has shown it. Records of answers name the
    field that makes their text in `_text_is`.
    """

    def kept(value: Taken) -> Slot[B]:
        slot, field = stage(value), getattr(type(value), "_text_is", None)
        if field is not None and isinstance(slot, Success):
            result: object = slot.unwrap()
            is_alike = getattr(type(result), "_text_is", None) == field
            if is_alike and getattr(result, field) != getattr(value, field):
                raise ContractError(
                    f"the stage {name!r} changed {field} of {type(value).__name__}, which"
                    " keeps_text=True says it does not: leave keeps_text out"
                )
        return slot

    return kept


def row_stage(
    name: str,
    stage: Callable[[Taken], Slot[B]],
    *,
    catch: tuple[type[Exception], ...] = (),
    keeps_text: bool = False,
    **more: Any,
) -> Pipe[Taken, B]:
    """As `each`, for the stages that pipegen itself makes of functions. `more` are fields of a
    `Step`.
    """
    _check("each", name, stage)
    check_catch(catch)
    return pipe_of(Stage(name=name, row=stage, catch=catch, keeps_text=keeps_text, **more))


def check_catch(catch: object) -> None:
    """Raise `TypeError` unless these are exceptions that a stage may raise."""
    if not isinstance(catch, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in catch
    ):
        raise TypeError(
            "catch takes a tuple of exceptions that a stage may raise on bad data, such as (ValueError,), "
            f"not {catch!r:.200}"
        )


def batch_stage(
    name: str, prepare: Callable[[Sequence[Taken]], Callable[[Taken], Slot[B]]], **more: Any
) -> Pipe[Taken, B]:
    """A stage of pipegen's own: `prepare` is called with the values of all rows that come at a time,
    and gives the function of each. `more` are fields of a `Step`.
    """
    return pipe_of(Stage(name=name, prepare=prepare, **more))


def pure(name: str, f: Callable[[Taken], B], *, keeps_text: bool = False) -> Pipe[Taken, B]:
    """A stage made of a function that cannot fail, and gives a value. Otherwise as `each`. Raises
    `ContractError` when the function gives a slot.

    >>> pure("double", lambda n: 2 * n).apply((Success(2),))
    (<Success: 4>,)
    """
    _check("pure", name, f)

    def always(value: Taken) -> Slot[B]:
        result = f(value)
        if isinstance(result, (Success, Failure)):
            raise ContractError(
                f"the function {name!r} returned a Result: each({name!r}, ...) takes a function that does"
            )
        return Success(result)

    return each(name, always, keeps_text=keeps_text)


def _check(lift: str, name: object, f: object) -> None:
    if not isinstance(name, str) or not name or not callable(f):
        raise TypeError(
            f"a name and a function are wanted, such as {lift}('strip', strip), not {name!r:.80} and {f!r:.80}"
        )
    if inspect.iscoroutinefunction(f):
        raise TypeError(
            f"the stage {name!r} is an async function: a stage is a plain one, and only an engine is awaited"
        )


def call(backend: Backend[A, B]) -> Pipe[A, B]:
    """One call of the engine with exactly the slots that have a value; where none has, it is not
    called. The only stage with an effect; it is named `call`.

    Raises `TypeError` for what is no engine.
    """
    require_backend("call", backend)

    def ask(value: object, answers: tuple[Slot[object], ...]) -> EngineRequest | Slot[object]:
        return answers[0] if answers else EngineRequest(backend, value)

    return pipe_of(
        Call(name="call", backend=backend, ask=ask, rebind=lambda new: call(new.engine(backend)))
    )


def _pipe(stage: object) -> AnyPipe:
    if not isinstance(stage, Pipe):
        raise TypeError(
            f"a stage is a pipe, not {type(stage).__name__}: each(name, stage) or pure(name, f) makes one of a function"
        )
    return stage
