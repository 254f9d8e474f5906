"""Rows on their way through a pipe, and the interpreter that takes them from call to call.

A `Row` is plain data: where it is, its value there, and what it needs to go on. `advance` takes
rows through the stages of a pipe up to their next calls or their ends. It does no input or output,
and no row keeps anything that is running: a row can be pickled, kept, and go on later. Only a
driver performs calls (`pipegen.drivers.drive`): it gives a row the answer
(`row.answered(slot)`), and advances it again.

Rows that are advanced together are prepared together, so equal work is done once. From there each
goes through its stages alone, up to the next ones that prepare. A failed row goes past all stages.

>>> from returns.result import Success
>>> from pipegen.core.pipe import pure
>>> done = advance(pure("double", lambda n: 2 * n) >> pure("show", str), [Row(0, Success(2))])
>>> [(row.key, row.value.unwrap()) for row in done.ended]
[(0, '4')]
"""

from __future__ import annotations

import math
import os.path
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from returns.result import Failure, Success

from pipegen.core.error_notes import StageNote, blamed, raisable
from pipegen.core.errors import ContractError, GenerationError, StageFailed
from pipegen.core.foreign_calls import EXHAUSTED, attempt, report
from pipegen.core.functional import groupby
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot, Unread
from pipegen.core.steps import (
    Branch,
    Call,
    EngineRequest,
    Expand,
    Follow,
    FusedStages,
    Gather,
    GoOn,
    Notes,
    Program,
    ProgramStep,
    RowFunction,
    Stage,
    Step,
    wrong_record,
)

if TYPE_CHECKING:
    from pipegen.core.pipe import AnyPipe


Place: TypeAlias = tuple[tuple[int, int], ...]
"""Where a row is: its turn and its place in the pipe, and in each pipe within it that it is in.
Earlier places are less than later ones.
"""
Bug: TypeAlias = Callable[["Row", Exception], object]
Stays: TypeAlias = Callable[["Row"], bool]
Going: TypeAlias = tuple[list["Row"], list[Slot[object]]]
"""Rows that go through a pipe together, and the slot of each: a `Row` is made where it stops."""


class Row(NamedTuple):
    """A row on its way."""

    key: Any
    """The request that it belongs to. Keys are numbers, or what else can be sorted."""
    value: Slot[Any]
    at: int = 0
    """Its place in the pipe's program."""
    answers: tuple[Slot[object], ...] = ()
    """What the engine has answered at the call where the row is."""
    samples: tuple[tuple[int, int], ...] = ()
    """Which sample it is, and of how many; of each of these again, where samples became several
    rows.
    """
    request: Slot[object] | None = None
    """What became the samples; None where that was several rows already."""
    before: Slot[object] | None = None
    """The answer that its request was made of."""
    turn: int = 0
    """Within a branch, how many turns came before."""
    notes: Notes = ()
    """What the branch has noted at these: the errors of a fallback, the results of a loop."""
    outer: Row | None = None
    """Within a branch, the row in the pipe around it. Its value is what came in at this turn."""

    @property
    def place(self) -> Place:
        here = ((self.turn, self.at),)
        return here if self.outer is None else self.outer.place + here

    @property
    def sample(self) -> tuple[tuple[int, int], ...]:
        """Which sample it is, and of how many, in the whole pipe and in those within it."""
        return self.samples if self.outer is None else self.outer.sample + self.samples

    def answered(self, slot: Slot[object]) -> Row:
        """The row with one more answer to its call."""
        # `_replace` takes three times as long
        return tuple.__new__(Row, (*self[:3], (*self.answers, slot), *self[4:]))


class Advanced(NamedTuple):
    """Rows that cannot go on by themselves."""

    ended: list[Row]
    calls: list[tuple[Row, EngineRequest]]
    """Rows that want an engine."""
    waiting: list[Row]
    """Rows that wait for other rows of their request: advance them again with these."""


def advance(
    pipe: AnyPipe,
    rows: Iterable[Row],
    bug: Bug | None = None,
    stays: Stays = lambda row: False,
) -> Advanced:
    """Rows through their stages, up to their next calls or their ends. A pure function, as far as
    the stages are.

    What a stage raises comes through, with a note that names the stage and the row's key. With
    `bug`, it is handed there, and the row is gone. A failed row of which `stays(row)` is true goes
    on in no other pipe of its branch: text that it has made cannot be taken back.
    """
    done = Advanced([], [], [])
    there: dict[Place, list[Row]] = {}
    for row in rows:
        there.setdefault(row.place, []).append(row)
    while there:
        place = min(there)  # so those that are late catch up, and go on together with the others
        does, first = _program(pipe, place).does, place[-1][1]
        group, at = there.pop(place), first
        going: Going = group, [row.value for row in group]
        while group and at < len(does):
            step = does[at]
            if isinstance(step, FusedStages):
                going = _alone(step, does[:at], does[at:], going, bug)
            elif isinstance(step, Expand) or (isinstance(step, Gather) and not step.last):
                going = _spread(step, going)
            elif isinstance(step, Gather):
                if there and at > first:  # others of the same requests may come here
                    break
                going = _gathered(step, at, going, done)
            elif isinstance(step, Call):
                going = _called(step, does[:at], at == first, going, done, bug)
            else:
                going = _enter(at, going, there)
            group, at = going[0], at + 1
        moved = list(map(_moved, *going, repeat(at)))
        if at < len(does):
            for row in moved:
                there.setdefault(row.place, []).append(row)
        elif len(place) == 1:
            done.ended.extend(map(_plain, moved))
        else:
            _leave(pipe, place[:-1], moved, there, bug, stays)
    return done


class Shown(NamedTuple):
    """What is known of the text that a row's call streams."""

    keeps: bool
    """Whether it is the text of the row's result, unchanged."""
    follow: Follow | None
    """What turns ids into text for it."""
    round: int | None
    """In which round of the outermost loop the row is; None outside of loops."""


def shown_text(pipe: AnyPipe, row: Row) -> Shown:
    """What is known of the text that the row's call streams."""
    if row.outer is None:
        return Shown(pipe.program.keeps[row.at], pipe.program.follows[row.at], None)
    keeps, follow, turn = shown_text(pipe, row.outer)
    program = _program(pipe, row.place)
    branch = _program(pipe, row.outer.place).branch(row.outer.at)
    if (
        branch.splits
    ):  # of a loop within a loop, no round is known to be the last before it has ended
        keeps, turn = keeps and turn is None, row.turn if turn is None else turn
    elif row.outer.samples:  # its rows are put together, and then told apart
        keeps = False
    if turn is not None and row.samples:  # what the round gives is one result
        keeps = False
    return Shown(keeps and program.keeps[row.at], program.follows[row.at] or follow, turn)


def _program(pipe: AnyPipe, place: Place) -> Program:
    """The program of the innermost pipe at this place."""
    for (_, at), (turn, _) in pairwise(place):
        pipe = pipe.program.branch(at).way(turn)
    return pipe.program


def _plain(row: Row) -> Row:
    """The row, with a request that was never read as the failure alone."""
    return row._replace(value=row.value.plain()) if type(row.value) is Unread else row


def _moved(row: Row, slot: Slot[object], at: int) -> Row:
    return tuple.__new__(Row, (row.key, slot, at, (), *row[4:]))


def _alone(
    fused: FusedStages,
    earlier: Sequence[ProgramStep],
    later: Sequence[ProgramStep],
    going: Going,
    bug: Bug | None,
) -> Going:
    """Each row through the stages at a place of the program, before the next row begins: what lies
    between two stages is gone by then.
    """
    stages = fused.stages
    does: list[RowFunction] = [_prepared(stages[0], going[1])]
    does += [stage.row for stage in stages[1:] if stage.row is not None]
    both = [*zip(stages, does, strict=True)]
    rows: list[Row] = []
    slots: list[Slot[object]] = []
    for row, entry in zip(*going, strict=True):
        slot, stage, value, before = entry, stages[0], None, None
        if type(slot) is Unread:  # which is found faster than by isinstance
            slot = _unread(row, slot, stages, later)
        try:
            for stage, do in both if isinstance(slot, Success) else ():
                value = slot.unwrap()
                if not isinstance(value, stage.takes):
                    raise _misfit(stage, before or _before(earlier), value, row)
                try:
                    slot = do(value)
                except (*stage.catch, *EXHAUSTED) as raised:
                    slot = _failed(stage.name, raised, stage.catch)
                if not isinstance(slot, Success):
                    slot = _failure(stage.name, slot)
                    break
                before = stage
        except Exception as raised:  # noqa: BLE001 - it raises again, or is handed on
            noted = raised
            if isinstance(value, stage.takes):  # otherwise it has a note
                note = StageNote(stage.name, stage.internal, _advice(stage, raised), row.key)
                noted = _noted(raised, note)
            if bug is None:
                raise noted  # noqa: B904 - it is `raised`, or has it as its cause
            bug(row, noted)
        else:
            rows.append(row)
            slots.append(slot)
    return rows, slots


def _unread(
    row: Row,
    slot: Unread[GenerationError],
    stages: Sequence[Stage],
    later: Sequence[ProgramStep],
) -> Slot[object]:
    """A request that was never read, after the stages at a place. Before a branch, pipegen's own
    stages add to it, such as options. Any other stage makes it a failure alone.
    """
    if row.outer is not None or not any(isinstance(step, Branch) for step in later):
        return slot.plain()
    value = slot.given()
    for stage in stages:
        changed = None if stage.row is None or not stage.internal else stage.row(value)
        if not isinstance(changed, Success) or type(changed.unwrap()) is not type(value):
            return slot.plain()
        value = changed.unwrap()
    return Unread(slot.failure(), lambda: value)


def guarded(
    name: str,
    stage: RowFunction,
    value: object,
    catch: tuple[type[Exception], ...] = (),
) -> Slot[object]:
    """The slot that a function gives for a value; what it raises and `catch` lists fails it, as in
    a stage.
    """
    try:
        return stage(value)
    except (*catch, *EXHAUSTED) as raised:
        return _failed(name, raised, catch)


def _failed(name: str, raised: Exception, catch: tuple[type[Exception], ...]) -> Slot[object]:
    """What a stage raised on bad data, as the error of its row."""
    if isinstance(raised, GenerationError):
        return Failure(raised.with_traceback(None))
    seen = report(raised, traced=not isinstance(raised, catch))
    message = f"the stage {name!r} raised {seen.words}" if seen.incident else seen.words
    return Failure(StageFailed(message, stage=name, incident=seen.incident))


def _failure(name: str, slot: object) -> Slot[object]:
    """What a stage returned that is no Success, with its name where it has left that out. Raises
    `ContractError` unless it has failed with an error.
    """
    if not isinstance(slot, Failure):
        raise ContractError(
            f"stage {name!r} returned {type(slot).__name__}, not a Result: wrap it in Success(...)"
            " or Failure(...)"
        )
    if not isinstance(slot.failure(), GenerationError):
        raise ContractError(
            f"stage {name!r} failed with {type(slot.failure()).__name__}, not a GenerationError"
            f" such as StageFailed(message, stage={name!r})"
        )
    error = slot.failure()
    unnamed = isinstance(error, StageFailed) and not error.stage
    return Failure(error.with_fields(stage=name)) if unnamed else slot


def _prepared(stage: Stage, slots: Sequence[Slot[object]]) -> RowFunction:
    """The function of a stage, for these rows together; where that cannot be made, for each row
    alone, since the bug is of one of them. A stage that no row reaches is not prepared.
    """
    if stage.prepare is None:
        return stage.row  # type: ignore[return-value]  # these have one
    prepare = stage.prepare
    live = [slot.unwrap() for slot in slots if isinstance(slot, Success)]
    values = [value for value in live if isinstance(value, stage.takes)]

    def alone(value: object) -> Slot[object]:
        return prepare([value])(value)

    # what raises here raises again, for its row
    return attempt(lambda: prepare(values)).value_or(alone) if values else alone


def _before(program: Sequence[ProgramStep]) -> Step | None:
    """What gave the values that come out of this part of a program; None where they came into
    it.
    """
    for step in reversed(program):
        if isinstance(step, (FusedStages, Call)):
            return step.stages[-1] if isinstance(step, FusedStages) else step
    return None


def _misfit(step: Step, before: Step | None, value: object, row: Row) -> ContractError:
    """The error of a row whose value the step does not take. It is the fault of a user's stage that
    gave it, else of who put this step there.
    """
    wrong = wrong_record(step, before, type(value))
    giver = step if before is None or before.internal else before
    blamed(wrong, StageNote(giver.name, internal=False, row=row.key))
    return wrong


_MISTAKES = (
    ContractError,
    InvalidField,
    AttributeError,
    NameError,
    ImportError,
    NotImplementedError,
)
"""What code raises that is wrong, whatever the data."""


def _advice(stage: Stage, raised: Exception) -> str:
    """How a request of which a stage raised this can fail alone; empty where the stage has to be
    corrected.
    """
    if stage.internal or isinstance(raised, _MISTAKES) or _is_misfit(raised):
        return ""
    kind = type(raised).__name__
    if isinstance(raised, GenerationError):
        return f"return pg.Failure({kind}(...)), and do not raise it"
    return (
        f"list the error of bad data: pg.each({stage.name!r}, f, catch=({kind},)), where f returns"
        " a Result"
    )


_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def _is_misfit(raised: Exception) -> bool:
    """Whether a function was called with what it does not take: the stage's own, or one of
    pipegen's.
    """
    innermost = raised.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if not isinstance(raised, TypeError) or innermost is None:
        return False
    return innermost.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _noted(raised: Exception, note: StageNote) -> Exception:
    """The exception of a stage with its note, as it may be raised."""
    bug = raisable(raised)
    blamed(bug, note)
    return bug


def _called(
    call: Call,
    earlier: Sequence[ProgramStep],
    begun: bool,
    going: Going,
    done: Advanced,
    bug: Bug | None,
) -> Going:
    """Rows at a call, of which those that began here may have answers: each wants an engine, or
    goes on.
    """
    rows: list[Row] = []
    slots: list[Slot[object]] = []
    for row, slot in zip(*going, strict=True):
        if not isinstance(slot, Success):
            rows.append(row)
            slots.append(slot)
            continue
        value, answers = slot.unwrap(), row.answers if begun else ()
        try:
            if not isinstance(value, call.takes):
                raise _misfit(call, _before(earlier), value, row)
            if answers and not isinstance(answers[-1], (Success, Failure)):
                raise ContractError(
                    f"engine {call.backend.name} answered {type(answers[-1]).__name__}, not a"
                    " Result: wrap it in Success(...) or Failure(...)"
                )
            after = call.ask(value, answers)
        except Exception as raised:
            if bug is None:
                raise
            bug(row, raised)
            continue
        if isinstance(after, EngineRequest):
            done.calls.append((row if begun else _moved(row, slot, len(earlier)), after))
        else:
            rows.append(row)
            slots.append(after)
    return rows, slots


def _enter(at: int, going: Going, there: dict[Place, list[Row]]) -> Going:
    """Rows at a branch: into its first pipe. A failed one goes past it, unless it failed before the
    first stage: then the branch may hand its request on.
    """
    for row, slot in zip(*going, strict=True):
        enters = isinstance(slot, (Success, Unread))
        came = Success(slot.given()) if isinstance(slot, Unread) else slot
        new = _moved(row, came, at + (not enters))
        if enters:
            new = Row(row.key, slot, outer=new)
        there.setdefault(new.place, []).append(new)
    return [], []


def _leave(
    pipe: AnyPipe,
    place: Place,
    rows: Sequence[Row],
    there: dict[Place, list[Row]],
    bug: Bug | None,
    stays: Stays,
) -> None:
    """Rows that come out of a pipe of a branch: each goes on in the next one, or after the branch."""
    at = place[-1][1]
    branch = _program(pipe, place).branch(at)
    for row in map(_plain, rows):
        outer: Any = row.outer
        try:
            after = branch.leave(outer.value, row.notes, row.turn, row.value)
        except Exception as raised:  # noqa: BLE001 - it raises again, or is handed on
            note = StageNote(f"{branch.decides} of {branch.name}", internal=False, row=row.key)
            noted = _noted(raised, note)
            if bug is None:
                raise noted  # noqa: B904 - it is `raised`, or has it as its cause
            bug(row, noted)
            continue
        if isinstance(after, GoOn) and isinstance(row.value, Failure) and stays(row):
            after = row.value
        if isinstance(after, GoOn):
            outer = _moved(outer, after.value, at)
            new = Row(row.key, after.value, turn=row.turn + 1, notes=after.notes, outer=outer)
        else:
            new = _moved(outer, after, at + 1)
        there.setdefault(new.place, []).append(new)


def _spread(step: Expand | Gather, going: Going) -> Going:
    """Requests as the rows that they ask for, and results as those that they hold, each with the
    answer that its request was made of. In the pipes that it is in, each row came in as its own
    request.
    """
    rows: list[Row] = []
    slots: list[Slot[object]] = []
    for row, slot in zip(*going, strict=True):
        parts: Sequence[Slot[object]] = (slot,)
        if isinstance(step, Gather):
            parts = step.answers(slot, row.before, step.whole)
        elif isinstance(slot, Success) and not step.whole:
            parts = [*map(Success, step.expand(slot.unwrap()))]
        slots += parts
        count = len(parts)
        if count == 1 and row.request is None and isinstance(step, Expand):
            rows.append(row)
            continue
        request = slot if count > 1 and not row.samples else None
        for sample, part in enumerate(parts):
            path = ((sample, count),) if count > 1 else ()
            before = part if isinstance(step, Gather) else row.before
            rows.append(row._replace(samples=row.samples + path, request=request, before=before))
    return rows, slots


def _gathered(step: Gather, at: int, going: Going, done: Advanced) -> Going:
    """The rows of each request as one, where they are all there."""
    if not any(row.samples or row.before is not None for row in going[0]):
        return going
    families = groupby(
        lambda row_slot: (row_slot[0].key, row_slot[0].outer and row_slot[0].outer.sample),
        zip(*going, strict=True),
    )
    rows: list[Row] = []
    slots: list[Slot[object]] = []
    for family in families.values():
        # the share that each row is of its request
        shares = [math.prod(count for _, count in row.samples) for row, _ in family]
        if sum(math.lcm(*shares) // share for share in shares) < math.lcm(*shares):
            done.waiting.extend([_moved(row, slot, at) for row, slot in family])
            continue
        family.sort(key=lambda member: member[0].samples)
        parts = [
            part
            for row, slot in family
            for part in step.answers(slot, row.before, step.whole and bool(row.samples))
        ]
        slots.append(step.gather(parts, family[0][0].request))
        rows.append(family[0][0]._replace(samples=(), request=None, before=None))
    return rows, slots
