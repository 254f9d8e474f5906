"""One schedule for all calls of an engine: who calls while another call runs joins its batch (see `pipegen.backends.shared_steps`).

**Invariants.**

- The schedule is used only under `lock`, and only while the weights' own lock is held.
- A row is in the schedule from `add` until it is done, or its call has left it. A row that was left takes part in no further step.
- What a step raises ends all rows of the schedule. After an interruption (Ctrl-C) rows of other calls go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from pipegen.backends.hf.rows import HFRow
from pipegen.backends.hf.scheduler import Schedule
from pipegen.backends.shared_steps import Box, SharedSteps
from pipegen.core.border import attempt
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.protocol import RowDone, TokensMade
from pipegen.records.results import Encoded

__all__ = ["HFCall", "SharedSchedule"]

Event = TokensMade | RowDone


class SharedSchedule(SharedSteps[Event]):
    """The rows of all calls of an engine, and of those that differ from it only in their plugins.

    start: makes the schedule, which loads the weights where needed. Raises `CallFailed`.
    step: one step of it: the rows that may have gone on or ended.
    """

    def __init__(self, start: Callable[[], Schedule], step: Callable[[Schedule], Sequence[HFRow]]) -> None:
        super().__init__()
        self._start, self._step = start, step
        self._schedule: Schedule | None = None
        self._process = os.getpid()

    def add(self, rows: Sequence[HFRow]) -> None:
        """Let rows take part. Raises `CallFailed` where the weights cannot be loaded."""
        with self.entered():
            if self._schedule is not None and (self._schedule.finished or self._process != os.getpid()):
                self._schedule = None  # done, or of the process that this one was forked from
            if self._schedule is None:
                self._schedule, self._process = self._start(), os.getpid()
            self._schedule.add(rows)

    def _advance(self) -> None:
        schedule = self._schedule
        if schedule is None:
            return
        try:
            advanced = attempt(lambda: self._step(schedule))
        except BaseException:  # Ctrl-C
            schedule.requeue()
            raise
        if not is_ok(advanced):
            self._schedule = None
            for box in {row.box for row in schedule.rows if row.box is not None}:
                box.fail(advanced.failure())
            return
        _tell(advanced.unwrap())
        if schedule.finished:
            self._schedule = None

    def _drop(self) -> None:
        if self._schedule is not None:
            self._schedule.prune()
            if all(row.done for row in self._schedule.rows):
                self._schedule = None


def _tell(rows: Sequence[HFRow]) -> None:
    for row in rows:
        if row.box is None or row.dropped:
            continue
        event, row.event = row.event, None
        if event is not None and row.error is None:
            row.box.put(event)
        if row.done and not row.reported:
            row.reported = True
            row.box.put(RowDone(row=row.position, slot=row.slot()))


class HFCall:
    """The rows of one call, to which more may be added. Who made it leaves it in the end.

    make: makes the row at a position of the call, failed where it cannot be run.
    size: how many rows run side by side.
    """

    def __init__(self, shared: SharedSchedule, make: Callable[[int, Encoded], HFRow], size: int, *, least: int = 1) -> None:
        self._shared, self._make, self._box, self.side_by_side = shared, make, Box[Event](least), size
        self._rows: dict[int, HFRow] = {}

    @property
    def open(self) -> bool:
        """Whether rows have not ended yet."""
        return bool(self._rows)

    def add(self, inputs: Sequence[tuple[int, Encoded]]) -> None:
        """Add rows, each with its position. Raises `CallFailed` where the engine cannot be loaded."""
        rows = [self._make(position, encoded) for position, encoded in inputs]
        for row in rows:
            self._rows[row.position], row.box = row, self._box
        _tell([row for row in rows if row.done])
        live = [row for row in rows if not row.done]
        if live:
            self._shared.add(live)

    def step(self) -> list[tuple[int, Slot[Any]]]:
        """The rows that have ended, after a step where none has. Raises as `generate` does."""
        return [(event.row, event.slot) for event in self.events() if isinstance(event, RowDone)]

    def events(self) -> list[Event]:
        """What has come, after a step where nothing has."""
        return self._taken(self._shared.step(self._box))

    async def aevents(self) -> list[Event]:
        """As `events`, beside the event loop."""
        return self._taken(await self._shared.astep(self._box))

    def _taken(self, events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, RowDone):
                del self._rows[event.row]
        return events

    def close(self) -> None:
        """Leave the rows that still run: no further step computes them."""
        if self._rows:
            for row in self._rows.values():
                row.dropped = True
            self._rows.clear()
            self._shared.leave()
