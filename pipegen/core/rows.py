"""Rows on their way through a pipe, and the interpreter that takes them from call to call.

A `Row` is plain data: where it is, its value there, and what it needs to go on. `advance` takes rows through the stages of a pipe up to their next calls or
their ends. It does no input or output, and no row keeps anything that is running: a row can be pickled, kept, and go on later. Only a driver performs calls
(`pipegen.drivers.drive`): it gives a row the answer (`row.answered(slot)`), and advances it again.

Rows that are advanced together go through each stage together, so equal work is done once. A failed row goes past all stages.

>>> from returns.result import Success
>>> from pipegen.core.pipe import pure
>>> done = advance(pure("double", lambda n: 2 * n) >> pure("show", str), [Row(0, Success(2))])
>>> [(row.key, row.value.unwrap()) for row in done.ended]
[(0, '4')]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from returns.result import Failure, Success

from pipegen.core.blame import StageNote, blamed, raisable
from pipegen.core.errors import ContractError
from pipegen.core.slots import Slot
from pipegen.core.steps import Again, Call, Close, Gather, Nest, Open, Program, Stage, Wanted

if TYPE_CHECKING:
    from pipegen.core.pipe import Pipe

__all__ = ["Advanced", "Frame", "Place", "Row", "Shown", "advance", "shown_text"]

T = TypeVar("T")
Place: TypeAlias = tuple[tuple[int, int], ...]
"""Where a row is: its turn and its place in the pipe, and in each pipe within it that it is in. Earlier places are less than later ones."""
Bug: TypeAlias = Callable[["Row", Exception], object]


class Frame(NamedTuple):
    """Where a row is in one pipe: the whole one, or one within it."""

    at: int = 0
    """Its place in the pipe's program."""
    samples: tuple[tuple[int, int], ...] = ()
    """Which sample it is, and of how many; of each of these again, where samples became several rows."""
    request: Slot[Any] | None = None
    """What the last step that opens was given; None where that was several rows already."""
    before: Slot[Any] | None = None
    """The answer that its request was made of."""
    entry: Slot[Any] | None = None
    """What came into the pipe at this turn."""
    turn: int = 0
    """How many turns of the nest came before."""
    notes: tuple[Any, ...] = ()
    """What the nest has noted at these: the errors of a fallback, the results of a loop."""


class Row(NamedTuple):
    """A row on its way."""

    key: Any
    """The request that it belongs to. Keys are numbers, or what else can be sorted."""
    value: Slot[Any]
    frames: tuple[Frame, ...] = (Frame(),)
    answers: tuple[Slot[Any], ...] = ()
    """What the engine has answered at the call where the row is."""

    @property
    def place(self) -> Place:
        return tuple([(frame.turn, frame.at) for frame in self.frames])

    @property
    def sample(self) -> tuple[tuple[int, int], ...]:
        """Which sample it is, and of how many, in the whole pipe and in those within it."""
        return tuple([sample for frame in self.frames for sample in frame.samples])

    def answered(self, slot: Slot[Any]) -> Row:
        """The row with one more answer to its call."""
        return self._replace(answers=(*self.answers, slot))

    def _moved(self, value: Slot[Any], at: int) -> Row:
        frame = Frame._make((at, *self.frames[-1][1:]))  # `_replace` takes three times as long
        return Row(
            self.key, value, (*self.frames[:-1], frame) if len(self.frames) > 1 else (frame,)
        )

    def _framed(self, value: Slot[Any], frame: Frame) -> Row:
        return Row(self.key, value, (*self.frames[:-1], frame))


class Advanced(NamedTuple):
    """Rows that cannot go on by themselves."""

    ended: list[Row]
    calls: list[tuple[Row, Wanted]]
    """Rows that want an engine."""
    waiting: list[Row]
    """Rows that wait for other rows of their request: advance them again with these."""


def advance(pipe: Pipe[Any, Any], rows: Iterable[Row], bug: Bug | None = None) -> Advanced:
    """Rows through their stages, up to their next calls or their ends. A pure function, as far as the stages are.

    What a stage raises comes through, with a note that names the stage and the row's key; with `bug`, it is handed there, and the row is gone.
    """
    done, going = Advanced([], [], []), dict[Place, list[Row]]()
    for row in rows:
        going.setdefault(row.place, []).append(row)
    while going:
        place = min(going)  # so those that are late catch up, and go on together with the others
        for row in _through(pipe, place, going.pop(place), done, bug):
            going.setdefault(row.place, []).append(row)
    return done


class Shown(NamedTuple):
    """What is known of the text that a row's call streams."""

    keeps: bool
    """Whether it is the text of the row's result, unchanged."""
    follow: Callable[[Any], Any] | None
    """What turns ids into text for it."""
    round: int
    """In which round of a loop the row is."""


def shown_text(pipe: Pipe[Any, Any], row: Row) -> Shown:
    """What is known of the text that the row's call streams."""
    keeps, turn = True, 0
    follow: Callable[[Any], Any] | None = None
    for depth, frame in enumerate(row.frames):
        level, after = _level(pipe, row.place[: depth + 1]), row.frames[depth + 1 : depth + 2]
        step = level.does[frame.at]
        keeps = keeps and level.keeps[frame.at]
        follow = level.follows[frame.at] or follow
        if isinstance(step, Nest) and step.splits:
            turn = after[0].turn
        elif after and frame.samples:  # its rows are put together, and then told apart
            keeps = False
    return Shown(keeps, follow, turn)


def _level(pipe: Pipe[Any, Any], place: Place) -> Program:
    """The program of the innermost pipe at this place."""
    for (_, at), (turn, _) in pairwise(place):
        nest = pipe.program.does[at]
        assert isinstance(nest, Nest)  # noqa: S101 - the place is one of this pipe
        pipe = nest.way(turn)
    return pipe.program


def _through(
    pipe: Pipe[Any, Any], place: Place, rows: list[Row], done: Advanced, bug: Bug | None
) -> Iterable[Row]:
    """Rows at one place, further on; those that cannot go on are put into `done`."""
    level, at = _level(pipe, place), place[-1][1]
    if at == len(level.does):
        if len(place) > 1:
            nest: Any = _level(pipe, place[:-1]).does[place[-2][1]]
            return _each(rows, lambda row: (_left(nest, row),), bug)
        done.ended.extend(rows)
        return ()
    step = level.does[at]
    if isinstance(step, Gather):
        return _gathered(step, rows, at, done)
    failed = [
        row._moved(row.value, level.gathers[at])
        for row in rows
        if not isinstance(row.value, Success)
    ]
    live = [row for row in rows if isinstance(row.value, Success)] if failed else rows
    if isinstance(step, Stage):
        return failed + _staged(level, at, live, bug)
    if isinstance(step, Call):
        return failed + _each(live, lambda row: _called(step, row, at, done), bug)
    if isinstance(step, Nest):
        return failed + [_entered(row) for row in live]
    return failed + [
        moved
        for row in live
        for moved in (_opened(step, row) if isinstance(step, Open) else _closed(step, row))
    ]


def _each(rows: Sequence[Row], do: Callable[[Row], Iterable[Row]], bug: Bug | None) -> list[Row]:
    """What becomes of each row alone; what raises is handed to `bug`, where there is one."""
    out: list[Row] = []
    for row in rows:
        try:
            out.extend(do(row))
        except Exception as raised:
            if bug is None:
                raise
            bug(row, raised)
    return out


def _staged(level: Program, at: int, rows: list[Row], bug: Bug | None) -> list[Row]:
    """Rows through the stages from one place on, each over all of them before the next.

    Of stages that look at each row alone, one row is through all of them before the next begins: what lies between them is gone by then.
    """
    does, end = level.does, at
    while rows and end < len(does) and isinstance(step := does[end], Stage):
        first, end = end, end + 1
        if step.row is None:
            rows = _batched(step, rows, end, bug)
            continue
        while end < len(does) and isinstance(after := does[end], Stage) and after.row is not None:
            end += 1
        rows = _each(rows, partial(_through_stages, does[first:end], end), bug)
    return rows


def _through_stages(stages: Sequence[Any], end: int, row: Row) -> tuple[Row]:
    slot = row.value
    for stage in stages:
        if not isinstance(slot, Success):
            break
        value = slot.unwrap()
        if not isinstance(value, stage.takes):
            raise _wrong_record(stage, value, row)
        try:
            slot = stage.row(value)
        except Exception as raised:  # noqa: BLE001 - it raises again
            catch = (
                "" if stage.internal or isinstance(raised, ContractError) else type(raised).__name__
            )
            raise _noted(raised, StageNote(stage.name, stage.internal, catch, row.key))  # noqa: B904 - it is `raised`, or has it as its cause
    return (row._moved(slot, end),)


def _batched(stage: Stage, rows: list[Row], end: int, bug: Bug | None) -> list[Row]:
    """Rows through a stage that looks at all of them; where it raises, each alone, since the bug is
    of one of them.
    """
    live = [row for row in rows if isinstance(row.value, Success)]
    try:
        for row in live:
            if not isinstance(row.value.unwrap(), stage.takes):
                raise _wrong_record(stage, row.value.unwrap(), row)
        slots = iter(stage.batch([row.value.unwrap() for row in live])) if live else iter(())  # type: ignore[misc]  # these have one
    except Exception as raised:  # noqa: BLE001 - it raises again, or is handed on
        if bug is not None and len(live) > 1:
            return [moved for row in rows for moved in _batched(stage, [row], end, bug)]
        note = StageNote(stage.name, stage.internal, row=live[0].key if len(live) == 1 else None)
        noted = _noted(raised, note, unless_noted=True)
        if bug is None:
            raise noted  # noqa: B904 - it is `raised`, or has it as its cause
        bug(live[0], noted)
        return []
    return [
        row._moved(next(slots) if isinstance(row.value, Success) else row.value, end)
        for row in rows
    ]


def _called(call: Call, row: Row, at: int, done: Advanced) -> Iterator[Row]:
    """A row at a call: it wants an engine, or has its answers."""
    last = row.answers[-1] if row.answers else None
    if not isinstance(last, (Success, Failure, type(None))):
        raise ContractError(
            f"engine {call.backend.name} answered {type(last).__name__}, not a Result: wrap it in Success(...) or Failure(...)"
        )
    wanted = call.ask(row.value.unwrap(), row.answers)
    if isinstance(wanted, Wanted):
        done.calls.append((row, wanted))
    else:
        yield row._moved(wanted, at + 1)


def _entered(row: Row) -> Row:
    """A row that goes into the first pipe of a nest."""
    return Row(row.key, row.value, (*row.frames, Frame(entry=row.value)))


def _left(nest: Nest, row: Row) -> Row:
    """A row that comes out of a pipe of a nest: it goes on in the next one, or after the nest."""
    frame = row.frames[-1]
    try:
        after = nest.leave(frame.entry, frame.notes, frame.turn, row.value)  # type: ignore[arg-type]  # it was set on the way in
    except Exception as raised:  # noqa: BLE001 - it raises again
        note = StageNote(f"{nest.decides} of {nest.name}", internal=False, row=row.key)
        raise _noted(raised, note)  # noqa: B904 - it is `raised`, or has it as its cause
    if isinstance(after, Again):
        again = Frame(entry=after.value, turn=frame.turn + 1, notes=after.notes)
        return Row(row.key, after.value, (*row.frames[:-1], again))
    outer = Row(row.key, after, row.frames[:-1])
    return outer._moved(after, outer.frames[-1].at + 1)


def _opened(step: Open, row: Row) -> list[Row]:
    """A request as the rows that it asks for. In the pipes that it is in, each of them came in as its own request."""
    frame = row.frames[-1]
    opened = frame._replace(at=frame.at + 1, request=None if frame.samples else row.value)
    values = [row.value.unwrap()] if step.expand is None else step.expand(row.value.unwrap())
    if len(values) == 1:
        return [row._framed(row.value, opened)]
    return _spread(row, opened, [Success(value) for value in values])


def _spread(row: Row, frame: Frame, slots: Sequence[Slot[Any]]) -> list[Row]:
    count = len(slots)
    return [
        row._framed(slot, frame._replace(samples=(*frame.samples, (number, count))))
        for number, slot in enumerate(slots)
    ]


def _closed(step: Close, row: Row) -> list[Row]:
    """A result, linked with the answer that its request was made of; one of several samples as so many rows, where others are put together with them."""
    frame, slot = row.frames[-1], row.value
    if frame.before is not None:
        slot = step.sampling.link(slot, frame.before)
    slots = (
        step.sampling.completions(slot)
        if step.whole and (frame.samples or not step.last)
        else (slot,)
    )
    closed = frame._replace(at=frame.at + 1, before=None)
    rows = [row._framed(slots[0], closed)] if len(slots) == 1 else _spread(row, closed, slots)
    return (
        rows
        if step.last
        else [one._framed(one.value, one.frames[-1]._replace(before=one.value)) for one in rows]
    )


def _gathered(step: Gather, rows: list[Row], at: int, done: Advanced) -> list[Row]:
    """The rows of each request as one, where they are all there."""
    families: dict[Any, list[Row]] = {}
    for row in rows:
        outer = tuple([frame.samples for frame in row.frames[:-1]])
        families.setdefault((row.key, outer), []).append(row)
    out: list[Row] = []
    for family in families.values():
        if not _is_whole([row.frames[-1].samples for row in family]):
            done.waiting.extend(family)
            continue
        family.sort(key=lambda row: row.frames[-1].samples)
        first, slot = family[0], family[0].value
        if len(family) > 1:
            request = next(
                (row.frames[-1].request for row in family if isinstance(row.value, Success)), None
            )
            slot = step.sampling.gather([row.value for row in family], request)
        out.append(
            first._framed(slot, first.frames[-1]._replace(at=at + 1, samples=(), before=None))
        )
    return out


def _is_whole(paths: Sequence[tuple[tuple[int, int], ...]]) -> bool:
    """Whether these are all samples of a request."""
    if paths == [()]:
        return True
    groups: dict[int, list[tuple[tuple[int, int], ...]]] = {}
    for (number, _), *rest in paths:
        groups.setdefault(number, []).append(tuple(rest))
    return len(groups) == paths[0][0][1] and all(map(_is_whole, groups.values()))


def _wrong_record(stage: Stage, value: Any, row: Row) -> ContractError:
    """The error of a stage that is given what it does not take: who put the pipe together has to change it, whosever the stage is."""
    words = f"the stage {stage.name!r} takes {stage.takes.__name__}, and was given {type(value).__name__} by the stages before it"
    error = ContractError(words)
    blamed(error, StageNote(stage.name, internal=False, row=row.key))
    return error


def _noted(raised: Exception, note: StageNote, *, unless_noted: bool = False) -> Exception:
    bug = raisable(raised)
    blamed(bug, note, unless_noted=unless_noted)
    return bug
