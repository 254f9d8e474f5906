"""Stages one after another: what goes row by row, how samples are honoured, and what of a call may
be shown.

Where a stage that opens comes before one that closes, a request that asks for samples becomes as
many rows. Between two stages that ask an engine each row goes its own way: a request that is made
of an answer is made of each sample's answer. After the last stage that closes, the rows of each
request are put together in its one slot. Where no stage closes, nothing is expanded, and the stage
that opens refuses samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from returns.result import Failure, Success

from pipegen.core.blame import StageNote, blamed, moved, raisable
from pipegen.core.calls import Call, Row, Sampling, Steps
from pipegen.core.errors import ContractError
from pipegen.core.slots import Batch, Slot

if TYPE_CHECKING:
    from pipegen.core.pipe import Pipe

__all__ = ["Joined", "RowStage", "counted", "relayed", "row_by_row"]

A = TypeVar("A")
B = TypeVar("B")


def counted(pipe: Pipe[A, B], batch: Batch[A]) -> Steps[B]:
    """The steps of a pipe, which may be anybody's. Raises `ContractError` unless it returns one
    slot for each that went in.
    """
    if isinstance(pipe.steps, Joined):
        return (yield from pipe.steps(batch))
    return (yield from _alone(pipe, batch, lambda wanted: wanted))


def _alone(stage: Pipe[A, B], batch: Batch[A], change: Callable[[Call], Call]) -> Steps[B]:
    """The steps of one stage, each call changed before it goes on. What raises names the stage."""
    try:
        steps = stage.steps(batch)
        if not isinstance(steps, Generator):
            raise ContractError(
                f"the steps of the stage {stage.name!r} gave {type(steps).__name__}, not a"
                f" generator: {_PLAIN}"
            )
        return _matching(
            stage,
            len(batch),
            (yield from relayed(steps, functools.partial(_placed, stage, change))),
        )
    except Exception as raised:  # noqa: BLE001 - it raises again
        bug = raisable(raised)
        blamed(
            bug,
            StageNote(stage.name, stage.internal, row=0 if len(batch) == 1 else None),
            unless_noted=True,
        )
        raise bug  # noqa: B904 - it is `raised`, or has it as its cause


_PLAIN = "pg.each(name, function) makes a stage of a plain function"


def _placed(stage: Pipe[Any, Any], change: Callable[[Call], Call], wanted: Any) -> Call:
    if not isinstance(wanted, Call):
        raise ContractError(
            f"the stage {stage.name!r} yielded {type(wanted).__name__}, not a Call: {_PLAIN}"
        )
    return change(wanted)


def _matching(stage: Pipe[Any, B], count: int, slots: Batch[B]) -> Batch[B]:
    """What a stage returned, which is a slot for each that went in."""
    if not isinstance(slots, (tuple, list)):
        raise ContractError(
            f"{stage.name} gave {type(slots).__name__}, not a tuple of slots: a stage gives back"
            " one slot for each it gets"
        )
    if len(slots) != count:
        raise ContractError(
            f"{stage.name} gave {len(slots)} slots for {count}: a stage gives back one slot for"
            " each it gets"
        )
    wrong = (
        ()
        if stage.internal
        else [type(slot).__name__ for slot in slots if not isinstance(slot, (Success, Failure))]
    )
    if wrong:
        raise ContractError(
            f"{stage.name} gave {wrong[0]} in the place of a slot: wrap it in Success(...) or"
            " Failure(...)"
        )
    return slots


def relayed(steps: Steps[B], change: Callable[[Call], Call]) -> Steps[B]:
    """The same steps, each call changed before it goes on."""
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send((yield change(wanted)))
    except StopIteration as done:
        returned: Batch[B] = done.value
        return returned
    finally:
        steps.close()


class RowStage(NamedTuple):
    """A stage that looks at each row alone."""

    name: str
    takes: type[Any]
    do: Callable[[Any], Slot[Any]]
    internal: bool


def row_by_row(stages: Sequence[RowStage], batch: Batch[Any]) -> Batch[Any]:
    """Each row through all the stages before the next one begins; what lies between two stages is
    gone by then.
    """

    def through(row: int, slot: Slot[Any]) -> Slot[Any]:
        for name, takes, do, internal in stages:
            if not isinstance(slot, Success):
                return slot
            value = slot.unwrap()
            if not isinstance(value, takes):
                raise _wrong_record(name, takes, value, row)
            try:
                slot = do(value)
            except Exception as raised:  # noqa: BLE001 - it raises again
                catch = (
                    "" if internal or isinstance(raised, ContractError) else type(raised).__name__
                )
                bug = raisable(raised)
                blamed(bug, StageNote(name, internal, catch, row))
                raise bug  # noqa: B904 - it is `raised`, or has it as its cause
        return slot

    return tuple([through(row, slot) for row, slot in enumerate(batch)])


def _taken(stage: Pipe[Any, Any], batch: Batch[Any]) -> Batch[Any]:
    """The batch. Raises `ContractError` where a stage before this one was removed, or gives
    something else than what this one takes.
    """
    for row, slot in enumerate(batch):
        if isinstance(slot, Success) and not isinstance(slot.unwrap(), stage.takes):
            raise _wrong_record(stage.name, stage.takes, slot.unwrap(), row)
    return batch


def _wrong_record(name: str, takes: type[Any], value: Any, row: int) -> ContractError:
    """The error of a stage that is given what it does not take: who put the pipe together has to
    change it, whosever the stage is.
    """
    error = ContractError(
        f"the stage {name!r} takes {takes.__name__}, and was given {type(value).__name__} by the"
        " stages before it"
    )
    blamed(error, StageNote(name, internal=False, row=row))
    return error


@dataclass(frozen=True, slots=True)
class _Turn:
    """One stage, or several that go row by row, and what comes after it."""

    stage: Pipe[Any, Any]
    rows: tuple[RowStage, ...]
    """What the stages do to a row, where they look at each alone; `stage` is then the last of
    them.
    """
    expands: bool
    asks_later: bool
    """Whether a stage that opens comes later."""
    shown: bool
    follow: Callable[[Any], Any] | None


def _plan(parts: tuple[Pipe[Any, Any], ...]) -> tuple[_Turn, ...]:
    turns: list[_Turn] = []
    rows: list[RowStage] = []
    for place, part in enumerate(parts):
        rest = parts[place + 1 :]
        ends = (
            part.row is None
            or part.opens
            or part.closes
            or not rest
            or rest[0].row is None
            or rest[0].opens
        )
        rows += (
            [RowStage(part.name, part.takes, part.row, part.internal)]
            if part.row is not None
            else []
        )
        if ends:
            closes_later = any(later.closes for later in rest)
            turns.append(
                _Turn(
                    stage=part,
                    rows=tuple(rows),
                    expands=part.opens and not part.closes and closes_later,
                    asks_later=any(later.opens for later in rest),
                    shown=all(later.keeps_text for later in rest),
                    follow=next((later.follow for later in rest if later.follow is not None), None),
                )
            )
            rows = []
    return tuple(turns)


class Joined:
    """The steps of stages one after another."""

    __slots__ = ("_turns", "parts")

    def __init__(self, parts: tuple[Pipe[Any, Any], ...]) -> None:
        self.parts, self._turns = parts, _plan(parts)

    def __call__(self, batch: Batch[Any]) -> Steps[Any]:
        return self._from(0, batch, _Samples())

    def one_by_one(self, batch: Batch[Any]) -> list[Steps[Any]]:
        """The steps of each request alone. The stages that come first and make no calls work for
        all of them together: one stage after another costs less than one request after another,
        whose templates and tokenizers push each other out of the processor's caches.
        """
        first, slots = 0, batch
        for turn in self._turns:
            stage = turn.stage
            if stage.closes:
                break
            if (
                turn.expands
                and stage.sampling is not None
                and any(stage.sampling.count(slot) != 1 for slot in slots)
            ):
                break
            if turn.rows:
                slots = row_by_row(turn.rows, slots)
            elif stage.makes_no_calls:
                slots = stage.apply(_taken(stage, slots))
            else:
                break
            first += 1
        return [self._from(first, (slot,), _Samples()) for slot in slots]

    def _from(self, first: int, batch: Batch[Any], samples: _Samples) -> Steps[Any]:
        for turn in self._turns[first:]:
            stage = turn.stage
            if stage.opens and stage.sampling is not None:
                batch = samples.begin(batch, stage.sampling, expands=turn.expands)
            try:
                if turn.rows:
                    batch = row_by_row(turn.rows, batch)
                else:
                    batch = yield from _alone(
                        stage, _taken(stage, batch), functools.partial(samples.placed, turn)
                    )
            except Exception as raised:
                moved(raised, samples.request_of)
                raise
            if stage.closes and stage.sampling is not None:
                batch = samples.end(
                    batch, stage.sampling, whole=stage.opens, last=not turn.asks_later
                )
        return batch


class _Samples:
    """The place of each slot of the batch, once a request has become several rows."""

    rows: list[Row] | None = None
    """Of each slot its request and its sample; None while every request has one slot."""
    requests: Sequence[Slot[Any] | None] = ()
    """Of each request what the last stage that opens was given; None where that was several rows
    already.
    """
    before: Batch[Any] | None = None
    """Of each slot the answer that its request was made of, once there is one."""

    def begin(self, batch: Batch[Any], rule: Sampling, *, expands: bool) -> Batch[Any]:
        """Before a stage that opens: the batch with each request in as many rows as it asks for."""
        self.requests = (
            batch
            if self.rows is None
            else [
                slots[0] if len(slots) == 1 else None for slots in self._grouped(batch, self.rows)
            ]
        )
        if not expands:
            return batch
        counts = [rule.count(slot) for slot in batch]
        if all(count == 1 for count in counts):
            return batch
        return self._spread(
            [
                [rule.sample(slot, sample, count) for sample in range(count)]
                for slot, count in zip(batch, counts, strict=True)
            ]
        )

    def _spread(self, groups: Sequence[Sequence[Slot[Any]]]) -> Batch[Any]:
        """A batch of each slot's rows. Their numbers count all the rows of a request."""
        if any(len(group) > 1 for group in groups):
            requests = (
                range(len(groups)) if self.rows is None else [request for request, _ in self.rows]
            )
            seen: dict[int, int] = {}
            rows: list[Row] = []
            for request, group in zip(requests, groups, strict=True):
                for _ in group:
                    rows.append((request, seen.get(request, 0)))
                    seen[request] = rows[-1][1] + 1
            self.rows = rows
            if self.before is not None:
                self.before = tuple(
                    slot for slot, group in zip(self.before, groups, strict=True) for _ in group
                )
        return tuple(slot for group in groups for slot in group)

    def end(self, batch: Batch[Any], rule: Sampling, *, whole: bool, last: bool) -> Batch[Any]:
        """After a stage that closes: the batch with the rows of each request in its one slot,
        unless a stage to come asks an engine again.

        `whole` says that the stage has put rows of its own together. What it made of a request's
        only row stays as it is: it alone knows with which options.
        """
        if self.before is not None:
            batch = tuple(
                rule.link(slot, before) for slot, before in zip(batch, self.before, strict=True)
            )
        made = [] if self.rows is None else self._grouped(batch, self.rows)
        if whole and (self.rows is not None or not last):
            batch = self._spread([rule.completions(slot) for slot in batch])
        self.before = None if last else batch
        if not last or self.rows is None:
            return batch
        groups, self.rows = self._grouped(batch, self.rows), None
        gathered = zip(made, groups, self.requests, strict=True)
        return tuple(
            own[0] if whole and len(own) == 1 else rule.gather(group, request)
            for own, group, request in gathered
        )

    def _grouped(self, batch: Batch[Any], rows: Sequence[Row]) -> list[list[Slot[Any]]]:
        """The slots of each request."""
        groups: list[list[Slot[Any]]] = [[] for _ in self.requests]
        for (request, _), slot in zip(rows, batch, strict=True):
            groups[request].append(slot)
        return groups

    def request_of(self, row: int) -> int:
        """The request that a slot of the batch belongs to."""
        return row if self.rows is None else self.rows[row][0]

    def placed(self, turn: _Turn, wanted: Call) -> Call:
        """A call of the stage as the whole batch sees it."""
        rows, shown = wanted.rows, wanted.shown and turn.shown
        if self.rows is not None:
            here, count = self.rows, len(self.rows)
            rows = tuple((here[row][0], here[row][1] + count * sample) for row, sample in rows)
            shown = shown and not turn.stage.opens
        return Call(wanted.backend, wanted.inputs, rows, shown, wanted.follow or turn.follow)
