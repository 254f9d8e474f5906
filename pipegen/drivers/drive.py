"""What takes requests through a pipe: `run`, `imap`, `stream`, jobs, and all asynchronous ones are a
few lines over it.

Requests are taken from the input and become rows. Rows go through the stages up to their next calls
(`pipegen.core.interpreter`), and are added to the session of the engine that they want. A step of a
session brings the answers of rows that have ended; these go on at once. Its `side_by_side` says
about how many rows a step advances; it is 0 where rows end by themselves. When the last row of a
request is at the end of the pipe, the request has its slot. Of an input that is read, all calls of
one engine are one session. Rows are added to it at any time. No request waits for another one,
unless an engine has `generate` alone, and an engine has rows to work on as long as there is input.

**A whole batch** is there from the start. All its rows that want an engine at one place of the pipe
are one call of it, in a session of its own. Scores, thoughts and parts of calls have another. They go on when all of them have ended. A call begins
when no row is on its way to an earlier one. Some hundred rows go through the stages together, so
what lies between two stages is soon gone.

**Bounds.** Of an input that is read, at most `in_flight` requests are in flight; by default, as
many as the engine says keep it full. Slots are given out in the order of the input, or, with
`ordered=False`, as they end. No input is taken while `REORDER` times as many have ended and wait
for slower ones before them. No more requests are prepared while the images of those in flight take
`HELD_BYTES`. So memory depends on these bounds, and not on the length of the input.

**Ending early.** `close` ends all at once. `drain` takes no more input, and lets rows end for a time.

**Threads.** Stages, and engines of this process, run in the thread that asks for the next slot. For
an asynchronous caller they may run in other threads. Images are read and resized on a few others.
Of an input that is read, requests with images go through their stages there, up to the first call.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from returns.result import Failure, Success

from pipegen.core.distribution import MissingExtra
from pipegen.core.error_notes import named
from pipegen.core.errors import CallFailed
from pipegen.core.functional import WORKERS, partition_all
from pipegen.core.interpreter import Advanced, Row, advance
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.core.steps import EngineRequest
from pipegen.drivers.drive_parts import (
    Alarm,
    Drain,
    Input,
    KeptAnswers,
    OpenSession,
    OutputOrder,
    Prepared,
    Sessions,
    TakenRequest,
    Watcher,
    WholeBatch,
    in_order,
)
from pipegen.drivers.naming import error_of, isolated, request_words
from pipegen.drivers.telemetry import telemetry_of
from pipegen.engines.model import begin_run, end_run
from pipegen.engines.protocol import Event, RowDone
from pipegen.engines.session import ALL

if TYPE_CHECKING:
    import asyncio


B = TypeVar("B")
K = TypeVar("K")
REORDER = 8
"""How many times `in_flight` requests may have ended and wait for a slower one before them."""
HELD_BYTES = 512 * 2**20
"""Bytes of the images of requests in flight, beyond which no more are prepared."""


class Drive(Generic[K]):
    """The slots of any number of requests; see the module, and its parts in
    `pipegen.drivers.drive_parts`.

    in_flight: how many requests may be in flight; where it is left open, the engines say it.
    isolate_bugs: a bug fails its own request, and does not raise (see `pipegen.drivers.naming`).
    finished: is called with each slot as soon as there is one, before its turn.
    kept: answers that are not asked for again.
    watcher: follows the calls of a whole batch.
    recorded: whether OpenTelemetry is given its requests (see `pipegen.drivers.telemetry`).
    """

    def __init__(
        self,
        pipe: Pipe[Any, Any],
        source: Input[K],
        *,
        in_flight: int | None = None,
        ordered: bool = True,
        isolate_bugs: bool = False,
        finished: Callable[[K, Slot[Any]], object] = lambda key, slot: None,
        kept: KeptAnswers[K] | None = None,
        watcher: Watcher | None = None,
        clock: Callable[[], float] = time.monotonic,
        recorded: bool = True,
    ) -> None:
        self._pipe, self._input, self._is_batch = pipe, source, source.is_batch
        self._isolates, self._finished, self._kept = isolate_bugs, finished, kept
        self._watcher = watcher
        self._output_order: OutputOrder[K] = OutputOrder(ordered=ordered)
        self._requests: dict[int, TakenRequest[K]] = {}
        """The requests in flight, by their numbers: the keys of their rows."""
        self._incomplete: dict[int, list[Row]] = {}
        """The rows that wait for other rows of their request, by its number."""
        self._alarm, self._drain = Alarm(), Drain(clock)
        self.wake = self._alarm.wake
        """Lets a thread that waits within `round` look again. A signal handler may call it."""
        self._sessions = Sessions(
            self.wake,
            is_batch=self._is_batch,
            in_flight=in_flight,
            tokens=watcher is not None,
        )
        self._telemetry = (
            telemetry_of(pipe, streams=watcher is not None, sessions=self._sessions)
            if recorded
            else None
        )
        self._sessions.cheap_tokens = self._telemetry is not None
        self.closed = False
        """Whether no more work is wanted."""
        self._idle = False
        begin_run(self, pipe.owns)

    @property
    def exhausted(self) -> bool:
        """Whether all requests were taken and given out. Raises what the input raised, once all
        before it was given out.
        """
        if self._input.is_open or self._requests or self._output_order.waiting:
            return False
        if self._input.error is not None:
            raise self._input.error
        return True

    def slots(self) -> Generator[tuple[K, Slot[Any]], None, None]:
        """The keys and slots of all requests. Bugs raise when their turn comes, those of an engine
        at once.
        """
        try:
            while not self.exhausted:
                yield from self.round()
        finally:
            self.close()

    async def rounds(self, light: bool = False) -> AsyncGenerator[list[tuple[K, Slot[Any]]], None]:
        """What each `round` gives, beside the running event loop. A round in which stages work, or
        rows are added, is done in a thread, unless they are `light`. Where it is left, the round
        at work ends first: a thread cannot be cancelled.
        """
        import asyncio  # half of what `import pipegen` would cost

        self._sessions.loop = loop = asyncio.get_running_loop()
        woken = self._alarm.event_in(loop)
        working: asyncio.Future[list[tuple[K, Slot[Any]]]] | None = None
        try:
            while not self.exhausted:
                woken.clear()
                if light or self._only_looks:
                    yield self.round(goes_on=light)
                else:
                    working = loop.run_in_executor(None, copy_context().run, self.round)
                    yield await asyncio.shield(working)
                if self._idle:
                    await woken.wait()
        finally:
            if working is not None:
                await asyncio.wait([working])
            # what ends may take a while
            if self._sessions.opened or self._sessions.scopes:
                await asyncio.to_thread(self.close)
            self.close()

    @property
    def _only_looks(self) -> bool:
        """Whether a round does nothing but look at what has come for the rows of a batch."""
        return not self._input.is_open and all(
            opened.rows and not opened.new for opened in self._sessions.opened.values()
        )

    def round(self, *, goes_on: bool = True) -> list[tuple[K, Slot[Any]]]:
        """Take requests for which there is room, let the engines work for one step, and give out
        the slots whose turn has come. The rows of a batch whose call has ended go on now, or in
        the next round.
        """
        self._idle = False
        if self._input.is_open:
            self._fill()
        if self._output_order.waiting and (given := self._output_order.give()):
            return given
        worked = bool(self._input.preparing) and self._settle_prepared()
        for opened in self._sessions.due:
            if opened.rows and not self._awaits_more(opened):
                try:
                    if opened.new:
                        if self._watcher is not None:
                            self._watcher.begins(opened)
                        opened.add_new(sort=self._is_batch)
                    events = opened.session.step()
                except CallFailed as failed:
                    events = self._failed(opened, failed)
                except Exception as bug:
                    if (
                        not self._isolates
                        or isinstance(bug, MissingExtra)
                        or self._drain.seconds_left is not None
                    ):
                        raise
                    worked, events = True, self._isolate(opened, bug)
                self._take(opened, events)
                worked |= bool(events) or opened.session.side_by_side > 0
        if self._is_batch and goes_on:
            for opened in [one for one in self._sessions.opened.values() if not one.rows]:
                worked = True
                self._sessions.leave(opened)
                self._go_on(opened)
        given = self._output_order.give() if self._output_order.waiting else []
        self._idle = not (worked or given) and self._waits
        if self._idle and self._sessions.loop is None:
            self._alarm.wait(self._drain.seconds_left)
        return given

    def drain(self, seconds: float) -> None:
        """Take no more requests, and let those in flight end for so many seconds. Only `finished`
        is called with them.

        A step of an engine is not interrupted. An engine that takes no rows while it works is not
        called again. Drained again, there is no more time than there was. A bug of an engine
        raises: its rows are not run again.
        """
        self._input.is_open = False
        self._drain.begin(seconds)
        while self._ends and self._drain.seconds_left:
            self.round()

    @property
    def _ends(self) -> bool:
        """Whether something in flight would end without a new call."""
        return bool(self._input.preparing) or any(
            opened.rows and opened.session.side_by_side != ALL
            for opened in self._sessions.opened.values()
        )

    def close(self) -> None:
        """End all that is in flight."""
        self.closed = True
        self.wake()
        for opened in [*self._sessions.opened.values()]:
            self._sessions.leave(opened)
        self._sessions.scopes.close()
        self._input.close()
        raised = sys.exc_info()[1]
        for request in self._requests.values():
            self._record_end(request, raised if isinstance(raised, Exception) else None)
        self._requests.clear()
        self._incomplete.clear()
        end_run(self, self._pipe.owns)

    # Requests become rows.

    def _fill(self) -> None:
        """Take requests. Those without images go to their calls; others are prepared first."""
        together: list[Row] = []
        for key, slot in self._input.taken(self._wants_one):
            request = self._output_order.take(key, slot)
            self._requests[request.number] = request
            if self._telemetry is not None:
                request.seen = self._telemetry.begins(slot)
            if not self._is_batch and is_ok(slot) and slot.unwrap().sources:
                self._input.prepare(request, partial(self._read, request), self.wake)
            else:
                together.append(Row(request.number, slot))
            # The first one tells which engine there is, and so how many may be taken.
            if len(together) == self._input.together or not self._sessions.are_known:
                self._go(together)
                together = []
        self._go(together)

    def _read(self, taken: TakenRequest[K]) -> Prepared:
        """Read the images of a request, and advance it."""
        return self._advanced([Row(taken.number, self._input.admission.loaded(taken.given))])

    def _wants_one(self, input_is_slow: bool) -> bool:
        """Whether to take a request: of a slow input no more than the engines work on at a time."""
        full = input_is_slow and len(self._requests) >= self._sessions.side_by_side
        return self.room > 0 and not full

    @property
    def _takes_more(self) -> bool:
        """Whether there is room for a request, and perhaps one for it."""
        return self._input.is_open and not self._input.nothing_now and self.room > 0

    @property
    def room(self) -> int:
        """How many requests may be taken now."""
        most, busy = self._sessions.in_flight, len(self._input.preparing) >= 4 * WORKERS
        crowded = self._sessions.image_bytes >= HELD_BYTES or busy
        return (
            0
            if (crowded and self._requests) or self._output_order.waiting >= REORDER * most
            else most - len(self._requests)
        )

    # Rows go on, to their calls and to their ends.

    def _go(self, rows: list[Row]) -> None:
        """Let rows go on, with those of their requests that wait for them."""
        if self._incomplete:
            for number in {row.key for row in rows}:
                rows = [*rows, *self._incomplete.pop(number, ())]
        if rows:
            advanced, bugs = self._advanced(rows)
            if self._sessions.scopes:
                inside = (*advanced.waiting, *(row for row, _ in advanced.calls))
                self._sessions.scopes.leave(rows, inside)
            self._settle(advanced, bugs)

    def _advanced(self, rows: Sequence[Row]) -> Prepared:
        """Rows at their calls and ends, and the bugs of stages; those of a batch raise."""
        bugs: dict[int, Exception] = {}
        if self._watcher is not None:
            return advance(self._pipe, rows, stays=self._watcher.stays), bugs
        if self._is_batch:
            return advance(self._pipe, rows), bugs
        return advance(self._pipe, rows, lambda row, bug: bugs.setdefault(row.key, bug)), bugs

    def _settle(self, advanced: Advanced, bugs: dict[int, Exception]) -> None:
        answered: list[Row] = []
        for number, bug in bugs.items():
            self._has_bug(self._requests[number], bug)
        for row in sorted(advanced.ended, key=itemgetter(0)):  # in the order of the input
            if row.key in self._requests:
                self._end(self._requests[row.key], row.value)
        for row in advanced.waiting:
            if row.key in self._requests:
                self._incomplete.setdefault(row.key, []).append(row)
        for row, wanted in in_order(advanced.calls, itemgetter(0)):
            if row.key in self._requests:
                key = self._requests[row.key].key
                answer = None if self._kept is None else self._kept.of(key, row, wanted)
                if answer is None or wanted.scoped:
                    self._sessions.want(row, wanted, answer)
                else:
                    answered.append(row.answered(answer))
        if answered:
            self._go(answered)

    @property
    def live(self) -> Iterator[Row]:
        """The rows that have not ended."""
        yield from self._sessions.live
        for rows in self._incomplete.values():
            yield from rows

    def _has_bug(self, taken: TakenRequest[K], bug: Exception) -> None:
        """A stage raised at a row of a request. That is its own."""
        if self._isolates and not isinstance(bug, MissingExtra):
            named(bug, lambda _: request_words(taken.given))
            self._end(taken, Failure(error_of(bug)))
            return
        named(bug, lambda _: request_words(taken.given, taken.number))
        self._input.is_open = False
        self._end(taken, bug)

    def _end(self, taken: TakenRequest[K], outcome: Slot[object] | Exception) -> None:
        """A request has its slot, or a bug."""
        self._record_end(taken, outcome)
        del self._requests[taken.number]
        self._sessions.scopes.end(taken.number)
        self._incomplete.pop(taken.number, None)
        self._output_order.end(taken, outcome)
        if not isinstance(outcome, Exception):
            self._finished(taken.key, outcome)

    def _record_end(self, taken: TakenRequest[K], outcome: Slot[object] | Exception | None) -> None:
        if self._telemetry is not None and taken.seen is not None:
            self._telemetry.ends(taken.seen, outcome)

    def _record(self, opened: OpenSession, event: Event) -> None:
        for row in (opened.rows[event.row], *opened.others.get(event.row, ())):
            request = self._requests.get(row.key)
            if self._telemetry is not None and request is not None and request.seen is not None:
                self._telemetry.sees(request.seen, opened.backend, event)

    # Engines work.

    def _settle_prepared(self) -> bool:
        """Let requests go on that other threads have prepared; whether there were any."""
        prepared = self._input.prepared()
        for request, result in prepared:
            if is_ok(result):
                self._settle(*result.unwrap())
            else:
                self._has_bug(request, result.failure())
        return bool(prepared)

    @property
    def _waits(self) -> bool:
        """Whether there is nothing to do until it is woken."""
        has_work = bool(self._requests) or self._input.is_open
        return has_work and not (self._takes_more or self.closed)

    def _awaits_more(self, opened: OpenSession) -> bool:
        """Whether an engine with nothing to work on begins with more rows: those that are being
        prepared, or, where it takes none later, all others.
        """
        at_once = opened.session.side_by_side == ALL
        if at_once and self._drain.seconds_left is not None:
            return True
        if not opened.session.side_by_side or len(opened.new) < len(opened.rows):
            return False
        return bool(self._input.preparing) or (self._takes_more and at_once)

    def _failed(self, opened: OpenSession, failed: CallFailed) -> list[Event]:
        """A call failed as a whole: so do its rows, and the session is over."""
        if not self._is_batch:  # that of a batch is closed when its call ends
            self._sessions.leave(opened)
        return [RowDone(row=number, slot=Failure(failed.error)) for number in opened.rows]

    def _take(self, opened: OpenSession, events: Sequence[Event]) -> None:
        """Let the rows go on that a step has ended; those of a batch, when all have ended."""
        kept: list[tuple[Row, object, Slot[object]]] = []
        for event in events:
            if self._watcher is not None:
                self._watcher.sees(event)
            if self._telemetry is not None:
                self._record(opened, event)
            if isinstance(event, RowDone):
                keeps = self._kept is not None and not opened.is_known(event.row)
                asked, rows = self._sessions.end(opened, event.row)
                for row in rows:
                    if row.key in self._requests:
                        opened.answered.append(row.answered(event.slot))
                        kept += [(row, asked, event.slot)] if keeps else ()
        if not self._is_batch:
            self._go_on(opened)
        for row, asked, slot in kept:
            if row.key in self._requests and self._kept is not None:
                wanted = EngineRequest(opened.backend, asked)
                self._kept.keep(self._requests[row.key].key, row, wanted, slot)

    def _go_on(self, opened: OpenSession) -> None:
        """Let the rows go on that have an answer."""
        rows, opened.answered = opened.answered, []
        for some in partition_all(WholeBatch.together, in_order(rows, lambda row: row)):
            self._go([*some])

    def _isolate(self, opened: OpenSession, bug: Exception) -> list[Event]:
        """An engine has raised: the requests that it worked on are run again, in halves, down to
        the one that makes it raise. Their images are read again.
        """
        self._sessions.leave(opened)
        keys = sorted(row.key for row in opened.all_rows)
        numbers = dict.fromkeys(key for key in keys if key in self._requests)
        requests = [self._requests[number] for number in numbers]
        for number in numbers:
            self._sessions.scopes.end(number)
        inputs = self._input.admission.with_images([request.given for request in requests])
        slots = isolated(lambda batch: drive(self._pipe, batch), inputs, bug)
        for request, slot in zip(requests, slots, strict=True):
            self._end(request, slot)
        # nobody waits for these any more
        return [RowDone(row=number, slot=Success(None)) for number in opened.rows]


def drive(pipe: Pipe[Any, B], batch: Iterable[Slot[object]]) -> Batch[B]:
    """Run a pipe over the slots of a batch. Nothing is recorded of them.

    >>> from pipegen.core.pipe import pure
    >>> drive(pure("double", lambda n: 2 * n), [Success(2)])
    (<Success: 4>,)
    """
    numbered_slots: list[tuple[int, Slot[B]]] = []
    with contextlib.closing(Drive(pipe, WholeBatch(enumerate(batch)), recorded=False)) as runner:
        while not runner.exhausted:  # no generator: it would change a StopIteration of the engine
            numbered_slots += runner.round()
    return tuple([slot for _, slot in numbered_slots])
