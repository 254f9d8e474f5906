"""Pipes: five constructors and one operator.

A `Pipe[A, B]` is a value: a name, and a generator function that takes a batch of A, yields the
calls it needs, and returns a batch of B. Only a driver (`run`, `arun`, `stream`) performs calls; so
a pipe is pure, and one definition serves sync and async.

>>> from returns.result import Failure, Success
>>> from pipegen.core.errors import InvalidRequest
>>> halve = each(
...     "halve", lambda n: Success(n // 2) if n % 2 == 0 else Failure(InvalidRequest(f"{n} is odd"))
... )
>>> show = pure("show", str)
>>> pipe = halve >> show
>>> pipe.name, [part.name for part in pipe.parts]
('halve >> show', ['halve', 'show'])
>>> pipe.apply((Success(4), Success(3)))
(<Success: 2>, <Failure: 3 is odd (hint: correct the request at the place that the message names)>)
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from returns.result import Failure, Success

from pipegen.core.backend import Backend, require_backend
from pipegen.core.blame import named
from pipegen.core.border import EXHAUSTED, report
from pipegen.core.calls import Call, Sampling, Steps
from pipegen.core.errors import ContractError, GenerationError, StageFailed
from pipegen.core.joining import Joined, RowStage, counted, row_by_row
from pipegen.core.names import InvalidField, nearest
from pipegen.core.slots import Batch, Slot, live, live_rows, refill

__all__ = [
    "Closes",
    "Parts",
    "Pipe",
    "Rebinding",
    "call",
    "each",
    "identity",
    "pure",
    "row_stage",
    "union",
]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
# so pyright takes the argument of a lambda, of which it knows nothing, for anything, and not for an
# object
Taken = TypeVar("Taken", bound=Any)
A_contra = TypeVar("A_contra", contravariant=True)
B_co = TypeVar("B_co", covariant=True)


class Closes(Protocol):
    """What a pipe may own."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Rebinding:
    """What the stages of a pipe are bound to instead: for each engine another one, for each route's
    name another one.
    """

    engine: Callable[[Any], Any] = lambda engine: engine
    route: Callable[[str], str] = lambda name: name


Parts: TypeAlias = "tuple[Pipe[Any, Any], ...]"
"""Stages one after another."""


@dataclass(frozen=True, slots=True)
class Pipe(Generic[A_contra, B_co]):
    """A named way from a batch of A to a batch of B: N slots in, N slots out, in order.

    Make one with `each`, `pure`, `call` or `fallback`, and join two with `>>`. As a context manager
    it releases its engines at the end. `keeps_text` says of a stage that it leaves the text of what
    goes through it as it is; `owns` are the engines that are released.
    """

    name: str
    steps: Callable[[Batch[A_contra]], Steps[B_co]]
    keeps_text: bool = True
    owns: tuple[Closes, ...] = ()
    row: Callable[[Any], Slot[Any]] | None = field(default=None, kw_only=True)
    """What a stage that looks at each row alone does to the value of a slot."""
    makes_no_calls: bool = field(default=False, kw_only=True)
    """Whether a stage that looks at the whole batch makes no calls: it may then work for requests
    that go on alone after it.
    """
    internal: bool = field(default=False, kw_only=True)
    """Whether pipegen itself made the stage: a bug in it is pipegen's, and in any other the
    user's.
    """
    takes: type[Any] = field(default=object, kw_only=True)
    """The record that a stage takes, where it takes one only."""
    backend: Backend[Any, Any] | None = field(default=None, kw_only=True)
    """What a call calls."""
    follow: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    """See `Call.follow`."""
    sampling: Sampling | None = field(default=None, kw_only=True)
    """The rule by which a stage that `opens` or `closes` honours samples."""
    opens: bool = field(default=False, kw_only=True)
    """Whether requests become rows before this stage."""
    closes: bool = field(default=False, kw_only=True)
    """Whether the rows of a request may be put together after this stage."""
    stands_for: str = field(default="", kw_only=True)
    """The name of the stage in whose place this one is."""
    cuts: bool = field(default=False, kw_only=True)
    """Whether a stage ends rows at stop strings and where plugins halt them: an engine may then end
    them early.
    """
    among: Callable[[Parts, Parts], Pipe[Any, Any]] | None = field(default=None, kw_only=True)
    """Of a stage whose work depends on the others of its pipe: the same stage among those before it
    and those after it.
    """
    routes: tuple[str, ...] = field(default=(), kw_only=True)
    """The names that results carry which come from here."""
    version: str = field(default="", kw_only=True)
    """What it does, where its name does not say it, for the keys of a job's rows."""
    rebind: Callable[[Rebinding], Pipe[Any, Any]] | None = field(default=None, kw_only=True)
    """Of a stage that is bound to an engine or a name: the same stage, bound to others."""

    def __repr__(self) -> str:
        stages = " >> ".join(part.name for part in self.parts)
        return (
            f"<{type(self).__name__} {self.name}>"
            if stages in (self.name, "")
            else f"<{type(self).__name__} {self.name}: {stages}>"
        )

    @property
    def parts(self) -> tuple[Pipe[Any, Any], ...]:
        """The stages that were joined, in order; a single stage is its own only part."""
        return self.steps.parts if isinstance(self.steps, Joined) else (self,)

    @property
    def stages(self) -> str:
        """The names of its stages, with what else they do: of two pipes that differ in it, a job
        reuses no rows.
        """
        return " >> ".join(f"{part.name} {part.version}".strip() for part in self.parts)

    def __rshift__(self, then: Pipe[B_co, C]) -> Pipe[A_contra, C]:
        """Join: what this pipe returns goes into `then`. Raises `TypeError` for what is no pipe.

        Stages that follow one another and look at each row alone go row by row: a row is through
        all of them before the next one begins.
        """
        if not isinstance(then, Pipe):
            raise TypeError(
                f"a pipe is joined with a pipe, not {type(then).__name__}: each(name, stage) or"
                " pure(name, f) makes one of a function"
            )
        name = " >> ".join(name for name in (self.name, then.name) if name)
        return Pipe(name, Joined(()), owns=union(self.owns, then.owns)).with_parts(
            (*self.parts, *then.parts)
        )

    def with_parts(
        self, parts: Iterable[Pipe[Any, Any]], before: Parts = (), after: Parts = ()
    ) -> Self:
        """The same pipe (its name, and what it owns) with other stages. It may itself stand between
        others, `before` and `after` it.
        """
        whole = tuple(part for joined in parts for part in joined.parts)
        steps = Joined(
            tuple(
                part.placed((*before, *whole[:place]), (*whole[place + 1 :], *after))
                for place, part in enumerate(whole)
            )
        )
        routes = tuple(name for part in steps.parts for name in part.routes)
        return replace(
            self,
            steps=steps,
            keeps_text=all(part.keeps_text for part in steps.parts),
            routes=routes,
        )

    def placed(self, before: Parts, after: Parts) -> Pipe[Any, Any]:
        """The same pipe where it stands between other stages."""
        if isinstance(self.steps, Joined):
            return self.with_parts(self.parts, before, after)
        return self if self.among is None else self.among(before, after)

    def insert(
        self, stage: Pipe[Any, Any], *, after: str | None = None, before: str | None = None
    ) -> Self:
        """The pipe with one more stage, after or before another.

        Raises `InvalidField` for a name that no stage has or that several have, and for a new one
        that is taken; `TypeError` for no place or two.
        """
        if (after is None) == (before is None):
            raise TypeError("a stage is inserted after another or before it: give one of the two")
        place = self._place(before if after is None else after) + (after is not None)
        return self._edited(place, place, stage, _stage_of(stage).parts)

    def replace(self, name: str, stage: Pipe[Any, Any]) -> Self:
        """The pipe with another stage in the place of the one of that name; what the old one did
        about samples is done there. Raises as `insert` does.
        """
        place = self._place(name)
        old, new = self.parts[place], _stage_of(stage).parts
        if old.sampling is not None and new:
            opened = replace(new[0], sampling=old.sampling, opens=old.opens or new[0].opens)
            new = (opened, *new[1:])
            new = (
                *new[:-1],
                replace(new[-1], sampling=old.sampling, closes=old.closes or new[-1].closes),
            )
        new = tuple(replace(part, stands_for=old.stands_for or old.name) for part in new)
        return self._edited(place, place + 1, stage, new)

    def remove(self, name: str) -> Self:
        """The pipe without the stage of that name. Raises as `insert` does."""
        place = self._place(name)
        return self._edited(place, place + 1, None, ())

    def _place(self, name: Any) -> int:
        if not isinstance(name, str):
            raise TypeError(f"a stage is found by its name, not by {name!r:.80}")
        names = [part.name for part in self.parts]
        if names.count(name) > 1:
            raise InvalidField(
                f"{self.name!r} has {names.count(name)} stages {name!r}: edit each pipe before they"
                " are joined"
            )
        if name not in names:
            raise InvalidField(
                f"{self.name!r} has no stage {name!r}{nearest(name, names)}; it has"
                f" {', '.join(names)}"
            )
        return names.index(name)

    def _edited(
        self, start: int, end: int, stage: Pipe[Any, Any] | None, new: tuple[Pipe[Any, Any], ...]
    ) -> Self:
        """The pipe with these parts in the place of those from `start` to `end`."""
        names = {part.name for part in (*self.parts[:start], *self.parts[end:])}
        for part in new:
            if part.name in names:
                raise InvalidField(
                    f"{self.name!r} has a stage {part.name!r} already: give yours another name"
                )
            names.add(part.name)
        joined: Any = self if isinstance(self.steps, Joined) else Pipe(self.name, Joined(()))
        owns = union(self.owns, () if stage is None else stage.owns)
        edited: Self = replace(
            joined.with_parts((*self.parts[:start], *new, *self.parts[end:])), owns=owns
        )
        return edited

    def rebound(self, new: Rebinding) -> Self:
        """The same pipe, bound to other engines or names."""
        if isinstance(self.steps, Joined):
            parts = tuple(part.rebound(new) for part in self.parts)
            return replace(self.with_parts(parts), owns=union(*(part.owns for part in parts)))
        return self if self.rebind is None else self.rebind(new)  # type: ignore[return-value]

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
        running = counted(self, batch)
        try:
            wanted = next(running)
        except StopIteration as done:
            returned: Batch[B_co] = done.value
            return returned
        except Exception as raised:
            named(raised, lambda row: "the batch" if row is None else f"slot {row} of the batch")
            raise
        raise ContractError(
            f"{self.name} calls the engine {wanted.backend.name}: use run, arun or stream"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.ExitStack() as stack:
            for engine in self.owns:
                stack.callback(engine.close)


def union(*owned: tuple[Closes, ...]) -> tuple[Closes, ...]:
    """What several pipes own, each once."""
    return tuple({id(engine): engine for engines in owned for engine in engines}.values())


def identity() -> Pipe[A, A]:
    """The pipe that changes nothing, and that `>>` does not show.

    >>> identity().apply((Success(1),))
    (<Success: 1>,)
    """
    return Pipe("", Joined(()))


def each(
    name: str,
    stage: Callable[[Taken], Slot[B]],
    *,
    catch: tuple[type[Exception], ...] = (),
    keeps_text: bool = False,
) -> Pipe[Taken, B]:
    """A stage made of a function that gives a slot: it is called with the value of each slot that
    has one; failed slots stay as they are.

    The exceptions listed in `catch` become `StageFailed` in that slot (a `GenerationError` among
    them stays as it is), and so does one row that is too large or nested too deep for the stage (a
    `MemoryError` or `RecursionError`); every other exception is a bug and raises, with a note that
    names the stage and the request. `keeps_text=True` says of a stage after the call that it leaves
    the text of the result as it is, so that the text can still be streamed. Raises `ContractError`
    when the stage returns something other than a `Result` with a value or a `GenerationError`, and
    `TypeError` for what is no name, function or exception.

    >>> each("root", lambda n: Success(n**0.5), catch=(TypeError,)).apply((Success("x"),))[
    ...     0
    ... ].failure().stage
    'root'
    """
    return row_stage(name, stage, catch=catch, keeps_text=keeps_text, internal=False)


def row_stage(
    name: str,
    stage: Callable[[Taken], Slot[B]],
    *,
    catch: tuple[type[Exception], ...] = (),
    keeps_text: bool = False,
    internal: bool = True,
) -> Pipe[Taken, B]:
    """As `each`, for the stages that pipegen itself makes of functions."""
    _check("each", name, stage)
    if not isinstance(catch, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in catch
    ):
        raise TypeError(
            "catch takes a tuple of exceptions that a stage may raise on bad data, such as"
            f" (ValueError,), not {catch!r:.200}"
        )

    caught = (*catch, *EXHAUSTED)

    def lifted(value: Taken) -> Slot[B]:
        try:
            slot = stage(value)
        except caught as raised:
            if isinstance(raised, GenerationError):
                return Failure(raised.with_traceback(None))
            seen = report(raised, traced=not isinstance(raised, catch))
            words = f"the stage {name!r} raised {seen.words}" if seen.incident else seen.words
            return Failure(StageFailed(words, stage=name, incident=seen.incident))
        if isinstance(slot, Success):
            return slot
        if not isinstance(slot, Failure):
            raise ContractError(
                f"stage {name!r} returned {type(slot).__name__}, not a Result: wrap it in"
                " Success(...) or Failure(...)"
            )
        if not isinstance(slot.failure(), GenerationError):
            raise ContractError(
                f"stage {name!r} failed with {type(slot.failure()).__name__}, not a GenerationError"
                f" such as StageFailed(message, stage={name!r})"
            )
        return slot

    def steps(batch: Batch[Taken]) -> Steps[B]:
        return row_by_row((RowStage(name, object, lifted, internal),), batch)
        yield  # a generator without effects

    return Pipe(name, steps, keeps_text, row=lifted, internal=internal)


def pure(name: str, f: Callable[[Taken], B], *, keeps_text: bool = False) -> Pipe[Taken, B]:
    """A stage made of a function that cannot fail, and gives a value. Otherwise as `each`. Raises
    `ContractError` when the function gives a slot.

    >>> pure("double", lambda n: 2 * n).apply((Success(2),))
    (<Success: 4>,)
    """
    _check("pure", name, f)

    def always(value: Taken) -> Slot[B]:
        made = f(value)
        if isinstance(made, (Success, Failure)):
            raise ContractError(
                f"the function {name!r} returned a Result: each({name!r}, ...) takes a function"
                " that does"
            )
        return Success(made)

    return each(name, always, keeps_text=keeps_text)


def _check(lift: str, name: Any, f: Any) -> None:
    if not isinstance(name, str) or not name or not callable(f):
        raise TypeError(
            f"a name and a function are wanted, such as {lift}('strip', strip), not {name!r:.80}"
            f" and {f!r:.80}"
        )
    if inspect.iscoroutinefunction(f):
        raise TypeError(
            f"the stage {name!r} is an async function: a stage is a plain one, and only an engine"
            " is awaited"
        )


def call(backend: Backend[A, B]) -> Pipe[A, B]:
    """One call of the engine with exactly the slots that have a value; where none has, it is not
    called. The only stage with an effect; it is named `call`.

    Raises `TypeError` for what is no engine.
    """
    require_backend("call", backend)

    def steps(batch: Batch[Any]) -> Steps[Any]:
        rows = live_rows(batch)
        return (
            refill(batch, (yield Call(backend, live(batch), tuple([(row, 0) for row in rows]))))
            if rows
            else batch
        )

    return Pipe(
        "call",
        steps,
        keeps_text=False,
        internal=True,
        backend=backend,
        rebind=lambda new: call(new.engine(backend)),
    )


def _stage_of(stage: Any) -> Pipe[Any, Any]:
    if not isinstance(stage, Pipe):
        raise TypeError(
            f"a stage is a pipe, not {type(stage).__name__}: each(name, stage) or pure(name, f)"
            " makes one of a function"
        )
    return stage
