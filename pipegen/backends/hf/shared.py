"""One schedule for all calls of an engine: who calls while another call runs joins its batch.

**Who steps.** Each call has a box, and each row knows the box of its call; a step puts what it brings into the boxes. A synchronous call steps whenever
its box is empty. Asynchronous calls wait for their boxes while a thread steps for all of them; it ends when none of them waits.

**Invariants.**

- The schedule is used only under `lock`, and only while the weights' own lock is held.
- A row is in the schedule from `add` until it is done, or its call has left it. A row that was left takes part in no further step.
- What a step raises ends all rows of the schedule: each call with rows in it raises it. After an interruption (Ctrl-C) rows of other calls go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pipegen.backends.hf.rows import HFRow
from pipegen.backends.hf.scheduler import Schedule
from pipegen.core.border import attempt
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.protocol import RowDone, TokensMade
from pipegen.records.results import Encoded

__all__ = ["Box", "HFCall", "SharedSchedule"]

Event = TokensMade | RowDone


class Box:
    """What has come for one call, and was not taken yet. With `least`, an asynchronous call is woken only once so much has come."""

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._events: deque[Event] = deque()
        self._failure: BaseException | None = None
        self._wake: Callable[[], object] | None = None

    @property
    def filled(self) -> bool:
        return bool(self._events) or self._failure is not None

    @property
    def ready(self) -> bool:
        """Whether an asynchronous call has what it waits for."""
        return len(self._events) >= self._least or self._failure is not None

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._woken()

    def fail(self, error: BaseException) -> None:
        self._failure = error
        self._woken()

    def _woken(self) -> None:
        wake = self._wake
        if wake is not None and self.ready:
            self._wake = None
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits there any more
                wake()

    def take(self) -> list[Event]:
        """What is there. Raises what has ended the call, once all that came before is taken."""
        taken: list[Event] = []
        while self._events:
            taken.append(self._events.popleft())
        if not taken and self._failure is not None:
            raise self._failure
        return taken

    async def wait(self) -> None:
        """Wait until it is ready."""
        loop = asyncio.get_running_loop()
        came: asyncio.Future[None] = loop.create_future()

        def ended() -> None:
            if not came.done():
                came.set_result(None)

        self._wake = lambda: loop.call_soon_threadsafe(ended)
        try:
            if not self.ready:
                await came
        finally:
            self._wake = None


class SharedSchedule:
    """The rows of all calls of an engine, and of those that differ from it only in their plugins.

    start: makes the schedule, which loads the weights where needed. Raises `CallFailed`.
    step: one step of it: the rows that may have gone on or ended.
    """

    def __init__(self, start: Callable[[], Schedule], step: Callable[[Schedule], Sequence[HFRow]]) -> None:
        self._start, self._step = start, step
        self.lock = threading.RLock()
        """Held while the schedule is used."""
        self._schedule: Schedule | None = None
        self._process = os.getpid()
        self._left = False
        """Whether a call has left rows behind."""
        self._stepping = False
        self._waiting: set[Box] = set()
        self._guard = threading.Lock()
        """Held while these two are used."""

    def add(self, rows: Sequence[HFRow]) -> None:
        """Let rows take part. Raises `CallFailed` where the weights cannot be loaded."""
        with self.lock:
            if self._schedule is not None and (self._schedule.finished or self._process != os.getpid()):
                self._schedule = None  # done, or of the process that this one was forked from
            if self._schedule is None:
                self._schedule, self._process = self._start(), os.getpid()
            self._schedule.add(rows)

    def step(self, box: Box) -> list[Event]:
        """What is there for the box, after a step where there is nothing (and perhaps nothing then either). Raises as the schedule does."""
        with self.lock:
            if not box.filled:
                self._advance()
        return box.take()

    async def astep(self, box: Box) -> list[Event]:
        """What is there for the box once it is ready; a thread steps while asynchronous calls wait."""
        if not box.ready:
            with self._guard:
                self._waiting.add(box)
                start, self._stepping = not self._stepping, True
            if start:
                asyncio.get_running_loop().run_in_executor(None, self._keep_stepping)
            try:
                await box.wait()
            finally:
                self._waiting.discard(box)
        return box.take()

    def leave(self) -> None:
        """Rows were left: they are dropped before the next step, or now where no step is running."""
        self._left = True
        if self.lock.acquire(blocking=False):
            try:
                self._prune()
            finally:
                self.lock.release()

    def _keep_stepping(self) -> None:
        while True:
            with self._guard:
                if all(box.ready for box in [*self._waiting]):
                    self._stepping = False
                    break
            with self.lock:
                self._advance()
        self.leave()  # what was left during the last step

    def _advance(self) -> None:
        """One step for every call, and what it brings put into the boxes."""
        self._prune()
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

    def _prune(self) -> None:
        if not self._left:
            return
        self._left = False
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
    """

    computes = True
    """Its rows advance when it steps."""

    def __init__(self, shared: SharedSchedule, make: Callable[[int, Encoded], HFRow], *, least: int = 1) -> None:
        self._shared, self._make, self._box = shared, make, Box(least)
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
