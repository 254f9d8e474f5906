"""What a pipe is made of: stages, calls, and pipes within a pipe. All of it is data;
`pipegen.core.interpreter` is what runs it.

A `Stage` is a pure function of the values that come to it. A `Call` is a place where an engine is
asked: a pure function too, that says what it wants. A `Branch` holds other pipes (the routes of a
fallback, the pipe of a loop), and says of what comes out of one how the row goes on.

A request becomes several rows at `Expand`, and these come together at `Gather`. `program` is the
order in which the interpreter does the steps. Between two calls each row goes its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from pipegen.core.backend import AnyBackend
from pipegen.core.errors import ContractError
from pipegen.core.slots import Slot

if TYPE_CHECKING:
    from pipegen.core.pipe import AnyPipe


RowFunction: TypeAlias = Callable[[Any], Slot[object]]
"""The function of a stage: it is called with records of its step's `takes` alone."""
Follow: TypeAlias = Callable[[Any], Any]
"""Makes, of one input of a call, what turns streamed token ids into text."""


class Closeable(Protocol):
    """What a pipe may own."""

    def close(self) -> None: ...


class EngineRequest(NamedTuple):
    """What a row wants of an engine: the only effect."""

    backend: AnyBackend
    input: object
    shown: bool = True
    """Whether the text of the answer may be the text of the result."""
    same: Hashable = None
    """Rows of one engine that want the same, which is not None, are asked once. Only scores of
    equal prompts do.
    """
    scoped: bool = False
    """Whether the backend keeps something for the row until it leaves its loop."""


@dataclass(frozen=True)
class EngineMap:
    """What the steps of a pipe are bound to instead: for each engine another one, for each route's
    name another one.
    """

    engine: Callable[[Any], Any] = lambda engine: engine
    route: Callable[[str], str] = lambda name: name


@dataclass(frozen=True, kw_only=True)
class Step:
    """What all steps have. Most have little of it."""

    name: str
    keeps_text: bool = True
    """Whether the text of what goes through is left as it is."""
    internal: bool = True
    """Whether pipegen itself made the step: a bug in it is pipegen's, and in any other the
    user's.
    """
    takes: type = object
    """The record that it takes, where it takes one only."""
    gives: type = object
    """The record that it gives, where it gives one only."""
    owns: tuple[Closeable, ...] = ()
    """The engines that are released with its pipe."""
    routes: tuple[str, ...] = ()
    """The names that results carry which come from here."""
    honours: str = ""
    """The step whose options it honours, where its own name is another."""
    version: str = ""
    """What it does, where its name does not say it, for the keys of a job's rows."""
    rebind: Callable[[EngineMap], AnyPipe] | None = None
    """Of a step that is bound to an engine or a name: the same step, bound to others."""


Steps: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, kw_only=True)
class Stage(Step):
    """A pure function of each value. It is `row`, or what `prepare` makes for all values that come at
    a time, which may do equal work once.
    """

    row: RowFunction | None = None
    catch: tuple[type[Exception], ...] = ()
    """What `row` may raise on bad data."""
    prepare: Callable[[Sequence[Any]], RowFunction] | None = None
    follow: Follow | None = None
    """Makes, for one input of the call before it, what turns streamed token ids into text."""


@dataclass(frozen=True, kw_only=True)
class PluginStage(Stage):
    """The stage `stop` or `trim`, which does what plugins ask for."""

    plugins: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Call(Step):
    """A place where an engine is asked, perhaps more than once. `ask(value, answers)` gives what
    the row wants next, or its slot once it has all answers.
    """

    keeps_text: bool = False
    backend: AnyBackend
    ask: Callable[[Any, tuple[Slot[object], ...]], EngineRequest | Slot[object]]
    among: Callable[[Steps, Steps], Step] | None = None
    """The same call among the steps before it and those after it."""


Notes: TypeAlias = tuple[Any, ...]
"""What a branch has noted of a row: the branch alone knows of what type."""


class GoOn(NamedTuple):
    """A row goes on in a branch: with this value, and what is noted until then."""

    value: Slot[object]
    notes: Notes


@dataclass(frozen=True, kw_only=True)
class Branch(Step):
    """Pipes within a pipe. A row goes through the first; `leave(value, notes, turn, slot)` says
    whether it goes on in the next (or the last, again).

    value: what came in at this turn; turn: how many turns came before it; slot: what came out.
    """

    ways: tuple[AnyPipe, ...]
    leave: Callable[[Slot[object], Notes, int, Slot[object]], GoOn | Slot[object]]
    decides: str
    """The function of the user's that `leave` asks, in words, for the note on what it raises."""
    splits: bool = False
    """Whether each sample goes its own way through it; otherwise the rows of a request come
    together at the end of each way.
    """
    plain: str | None = None
    """The stages of a row that it never leads on, where the request tells beforehand which rows
    those are: to them it adds nothing.
    """

    def way(self, turn: int) -> AnyPipe:
        return self.ways[min(turn, len(self.ways) - 1)]


@dataclass(frozen=True, kw_only=True)
class Expand(Step):
    """A request becomes as many rows as it asks for, where a later step gathers these. It belongs
    to the step after it.
    """

    name: str = ""
    expand: Callable[[Any], Sequence[object]]
    """The requests of the rows."""
    whole: bool = False
    """Whether the request stays one row all the same."""


@dataclass(frozen=True, kw_only=True)
class Gather(Step):
    """Results are linked with the answers that their requests were made of. Where no later step
    expands requests, the rows of each come together. It belongs to the step before it.
    """

    name: str = ""
    answers: Callable[[Slot[object], Slot[object] | None, bool], Sequence[Slot[object]]]
    """`answers(slot, before, splits)` is the slot with the answer that its request was made of, or
    the rows that it holds.
    """
    gather: Callable[[Sequence[Slot[object]], Slot[object] | None], Slot[object]]
    """`gather(rows, request)` is the slot that holds all; `request` is None where they are no
    answers to one and the same request.
    """
    whole: bool = False
    """Whether the step before it has put rows together, which are separated again."""
    last: bool = True
    """In a program, whether no later step expands."""


class FusedStages(NamedTuple):
    """Stages one after another that each row goes through before the next one begins. Only the first
    may have a `prepare`.
    """

    stages: tuple[Stage, ...]


ProgramStep: TypeAlias = "FusedStages | Step"
"""What the interpreter does at a place."""


class Program(NamedTuple):
    """The steps of a pipe in the order in which they are done, and of each place what comes after
    it.
    """

    does: tuple[ProgramStep, ...] = ()
    keeps: tuple[bool, ...] = ()
    """Whether all steps after it keep the text."""
    follows: tuple[Follow | None, ...] = ()
    """The `follow` of the next step after it that has one."""

    def branch(self, at: int) -> Branch:
        """The branch at a place that has one."""
        return next(step for step in self.does[at:] if isinstance(step, Branch))


def program(steps: Steps) -> Program:
    """The program of these steps. Raises `ContractError` as `check_order` does."""
    check_order(steps)
    places: list[tuple[ProgramStep, bool, Follow | None]] = []
    known: tuple[bool, Follow | None] = True, None
    later = set[type[Step]]()
    for step in reversed(steps):
        place: ProgramStep = step
        here = known
        if isinstance(step, Expand):
            place = replace(step, whole=step.whole or Gather not in later)
        elif isinstance(step, Gather):
            place = replace(step, last=Expand not in later)
        elif isinstance(step, Stage):
            place = FusedStages((step,))
            after = places[0][0] if places else step
            if isinstance(after, FusedStages) and after.stages[0].prepare is None:
                _, keeps, follow = places.pop(0)
                place, here = FusedStages((step, *after.stages)), (keeps, follow)
        places.insert(0, (place, here[0], here[1]))
        follow = step.follow if isinstance(step, Stage) else None
        known = known[0] and step.keeps_text, follow or known[1]
        later.add(type(step))
    return Program(*zip(*places, strict=True))


def check_order(steps: Steps) -> None:
    """Raise `ContractError` where a step, here or within a branch, never takes what the one before
    it gives.
    """
    does = [step for step in steps if not isinstance(step, (Expand, Gather))]
    for before, step in pairwise(does):
        if not (issubclass(before.gives, step.takes) or issubclass(step.takes, before.gives)):
            raise wrong_record(step, before, before.gives)
    for way in [way for step in does if isinstance(step, Branch) for way in step.ways]:
        check_order(way.steps)


def wrong_record(step: Step, before: Step | None, kind: type) -> ContractError:
    """The error of a step that is given what it does not take. Who put the pipe together has to
    change it.
    """
    giver = "what comes before it" if before is None else f"{before.name!r} before it"
    return ContractError(
        f"the stage {step.name!r} takes {step.takes.__name__}, and {giver} gave {kind.__name__}"
    )


def sampled(branch: Branch, steps: Steps, *, whole: bool) -> Steps:
    """A branch of these steps, which honours samples if they do. Its pipes get a `whole` request, or
    each row by itself.
    """
    kinds: dict[type, Any] = {type(step): step for step in steps}
    if Expand not in kinds or Gather not in kinds:
        return (branch,)
    return replace(kinds[Expand], whole=whole), branch, replace(kinds[Gather], whole=whole)


def union(*owned: tuple[Closeable, ...]) -> tuple[Closeable, ...]:
    """What several pipes own, each once."""
    return tuple({id(engine): engine for engines in owned for engine in engines}.values())
