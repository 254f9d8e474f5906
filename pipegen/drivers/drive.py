"""What takes requests through a pipe: `run`, `imap`, `stream`, jobs, and all asynchronous ones are a
few lines over it.

Requests are taken from the input and become rows. Rows go through the stages up to their next calls
(`pipegen.core.interpreter`), and are added to the session of the engine that they want. A step of a
session brings the answers of rows that have ended; these go on at once. Its `side_by_side` says how
much a step is. When the last row of a request is at the end of the pipe, the request has its slot.
Of an input that is read, all calls of one engine are one session. Rows are added to it at any time.
No request waits for another one, and an engine has rows to work on as long as there is input.

**A whole batch** is there from the start. All its rows that want an engine at one place of the pipe
are one call of it. A call begins when no row is on its way to an earlier one. Some hundred rows go
through the stages together, so what lies between two stages is soon gone.

**Bounds.** At most `in_flight` requests are in flight; by default, as many as the engine says keep
it full. Slots are given out in the order of the input. At most `REORDER` times as many requests may
have ended and wait for slower ones before them. No input is taken while so many do. No more
requests are prepared while the images of those in flight take `HELD_BYTES`. So memory depends on
these bounds, and not on the length of the input.

**Ending early.** `close` ends all at once. `drain` takes no more input, and lets rows end for a time.

**Threads.** Stages, and engines of this process, run in the thread that asks for the next slot. For
an asynchronous caller they may run in other threads. Images are read and resized on a few others.
Of an input that is read, requests with images go through their stages there, up to the first call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from returns.result import Failure, Success

from pipegen.core.error_notes import named
from pipegen.core.errors import CallFailed
from pipegen.core.foreign_calls import attempt
from pipegen.core.functional import partition_all
from pipegen.core.interpreter import Advanced, Row, advance
from pipegen.core.parallel import WORKERS
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.core.steps import EngineRequest
from pipegen.drivers.arguments import admitted, loaded
from pipegen.drivers.isolation import error_of, isolated
from pipegen.drivers.naming import request_words
from pipegen.drivers.row_sessions import (
    KeptAnswers,
    NoRequest,
    OpenSession,
    Request,
    image_bytes,
    in_order,
)
from pipegen.engines.extras import MissingExtra
from pipegen.engines.model import begin_run, end_run
from pipegen.engines.protocol import Event, RowDone
from pipegen.engines.session import ALL, open_session
from pipegen.records.options import GenerationOptions
from pipegen.records.requests import ImagePolicy, RequestPolicy

if TYPE_CHECKING:
    import asyncio

__all__ = ["HELD_BYTES", "IN_FLIGHT", "REORDER", "Drive", "drive"]

B = TypeVar("B")
K = TypeVar("K")
IN_FLIGHT = 64
"""Requests in flight for an engine that does not tell what keeps it full."""
REORDER = 8
"""How many times `in_flight` requests may have ended and wait for a slower one before them."""
TOGETHER, BATCH_TOGETHER = 64, 256
"""Rows that go through stages together, of an input that is read and of a whole batch."""
SLOW_INPUT, PATIENCE = 0.002, 0.02
"""Seconds that an input may take a request, and a few; of a slower one no more than run are taken.
"""
HELD_BYTES = 512 * 2**20
"""Bytes of the images of requests in flight, beyond which no more are prepared."""


class Drive(Generic[K]):
    """The slots of any number of requests; see the module.

    take: gives the next key and request, or why there is none. `batch` has them all, admitted, with images read.
    finished: is called with each slot as soon as there is one, before its turn.
    isolate_bugs: a bug fails its own request, and does not raise (see `pipegen.drivers.isolation`).
    kept: answers that are not asked for again.
    admits: whether requests are to be admitted (see `pipegen.drivers.arguments`).
    begins, sees: are called with each call of a batch when it begins, and with each event of it.
    stays: whether a failed row goes on in no other route (see `pipegen.core.interpreter.advance`).
    """

    def __init__(
        self,
        pipe: Pipe[Any, Any],
        take: Callable[[], tuple[K, Any] | NoRequest] = lambda: NoRequest.MORE,
        options: GenerationOptions | None = None,
        *,
        batch: Iterable[tuple[K, Slot[Any]]] | None = None,
        image_policy: ImagePolicy | None = None,
        policy: RequestPolicy | None = None,
        in_flight: int | None = None,
        ordered: bool = True,
        isolate_bugs: bool = False,
        finished: Callable[[K, Slot[Any]], object] = lambda key, slot: None,
        kept: KeptAnswers[K] | None = None,
        admits: bool = True,
        begins: Callable[[OpenSession], object] = lambda opened: None,
        sees: Callable[[Event], object] | None = None,
        stays: Callable[[Row], bool] = lambda row: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipe, self._source, self._options = pipe, take, options
        self._reads, self._allows = image_policy or ImagePolicy(), policy or RequestPolicy()
        fixed = in_flight is not None or batch is not None
        self._limit, self._limits = in_flight or IN_FLIGHT, None if fixed else dict[Any, int]()
        self._ordered, self._isolates, self._finished = ordered, isolate_bugs, finished
        self._kept, self._admits, self._clock = kept, admits, clock
        self._batch, self._begins, self._sees, self._stays = batch, begins, sees, stays
        self._whole = batch is not None
        """Whether it is a whole batch."""
        self._turns: deque[Request[K]] = deque()
        """The requests to be given out: all taken where they are ordered, else those that ended."""
        self._requests: dict[int, Request[K]] = {}
        """The requests in flight, by their numbers: the keys of their rows."""
        self._apart: dict[int, list[Row]] = {}
        """The rows that wait for other rows of their request, by its number."""
        self._waiting = 0
        """Requests that have ended and were not given out."""
        self._bytes = self._rows = self._taken = 0
        self._sessions: dict[Any, OpenSession] = {}
        """By the engine; of a batch by the place. Of one place, scores of prompts come first."""
        self._more, self._nothing_now = not self._whole, False
        self._input_error: Exception | None = None
        self._preparing: dict[Future[tuple[Advanced, dict[int, Exception]]], Request[K]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._asleep = threading.Lock()
        self._asleep.acquire()
        """Free when there is something to look at since the last wait. Unlike an event, a signal
        handler may free it wherever it interrupts this thread.
        """
        self._until: float | None = None
        """When it is drained, the time at which that ends."""
        self._most_wait = -1.0
        """Seconds that `round` may wait; as long as it takes where it is negative."""
        self.closed = False
        """Whether no more work is wanted."""
        self._awakens: Callable[[], object] = self._asleep.release
        self._loop: asyncio.AbstractEventLoop | None = None
        """Of an asynchronous caller."""
        self._idle = False
        begin_run(self, pipe.owns)

    def wake(self) -> None:
        """Let a thread that waits within `round` look again: a row has ended, there is a request,
        or all is to be closed. A signal handler may call it.
        """
        with contextlib.suppress(RuntimeError):  # it is awake, or its event loop was closed
            self._awakens()

    @property
    def exhausted(self) -> bool:
        """Whether all requests were taken and given out. Raises what the input raised, once all
        before it was given out.
        """
        if self._more or self._requests or self._waiting or self._batch is not None:
            return False
        if self._input_error is not None:
            raise self._input_error
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

        loop, woken, thread = asyncio.get_running_loop(), asyncio.Event(), threading.get_ident()

        def awaken() -> None:
            if threading.get_ident() == thread:
                woken.set()
            else:
                loop.call_soon_threadsafe(woken.set)

        self._loop, self._awakens = loop, awaken
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
            if self._sessions or self._pool is not None:  # what ends may take a while
                await asyncio.to_thread(self.close)
            self.close()

    @property
    def _only_looks(self) -> bool:
        """Whether a round does nothing but look at what has come for the rows of a batch."""
        return self._batch is None and all(
            opened.rows and not opened.new for opened in self._sessions.values()
        )

    def round(self, *, goes_on: bool = True) -> list[tuple[K, Slot[Any]]]:
        """Take requests for which there is room, let the engines work for one step, and give out
        the slots whose turn has come. The rows of a batch whose call has ended go on now, or in
        the next round.
        """
        self._idle = False
        self._fill()
        if self._turns and self._turns[0].ended:
            return self._given()
        worked = self._settle_prepared()
        sessions = [*self._sessions.items()]
        for name, opened in [min(sessions)] if self._whole and sessions else sessions:
            if opened.rows and not self._awaits_more(opened):
                try:
                    self._add(opened)
                    events = opened.session.step()
                except CallFailed as failed:
                    events = self._failed(name, opened, failed)
                except Exception as bug:
                    if (
                        not self._isolates
                        or isinstance(bug, MissingExtra)
                        or self._until is not None
                    ):
                        raise
                    worked, events = True, self._isolate(name, opened, bug)
                self._take(opened, events)
                worked |= bool(events) or opened.session.side_by_side > 0
        if self._whole and goes_on:
            worked |= self._end_calls()
        self._idle = not worked and self._waits
        if self._idle and self._loop is None:
            self._asleep.acquire(timeout=self._most_wait)
        return self._given()

    def _given(self) -> list[tuple[K, Slot[Any]]]:
        ended_slots: list[tuple[K, Slot[Any]]] = []
        while self._turns and self._turns[0].ended:
            request = self._turns[0]
            if request.bug is not None:
                if ended_slots:
                    break
                raise request.bug
            self._turns.popleft()
            self._waiting -= 1
            # one of the two is there
            ended_slots.append((request.key, request.slot))  # type: ignore[arg-type]
        return ended_slots

    def drain(self, seconds: float) -> None:
        """Take no more requests, and let those in flight end for so many seconds. Only `finished`
        is called with them.

        A step of an engine is not interrupted. An engine that takes no rows while it works is not
        called again. Drained again, there is no more time than there was. A bug of an engine
        raises: its rows are not run again.
        """
        self._more = False
        end = self._clock() + seconds
        self._until = end if self._until is None else min(self._until, end)
        while self._ends and (seconds_left := self._until - self._clock()) > 0:
            self._most_wait = min(seconds_left, threading.TIMEOUT_MAX)
            self.round()

    @property
    def _ends(self) -> bool:
        """Whether something in flight would end without a new call."""
        return bool(self._preparing) or any(
            opened.rows and opened.session.side_by_side != ALL for opened in self._sessions.values()
        )

    def close(self) -> None:
        """End all that is in flight."""
        self.closed, self._more = True, False
        self.wake()
        sessions, self._sessions = list(self._sessions.values()), {}
        for opened in sessions:
            opened.session.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._requests.clear()
        self._apart.clear()
        end_run(self, self._pipe.owns)

    # Requests become rows.

    def _fill(self) -> None:
        if self._batch is not None:
            batch, self._batch = self._batch, None
            self._begin([self._request(key, slot) for key, slot in batch])
        if not self._more:
            return
        together: list[Request[K]] = []
        count, waited = 0, 0.0
        while (
            self._more
            and self.room > 0
            and not (waited >= max(PATIENCE, count * SLOW_INPUT) and self._enough)
        ):
            began = self._clock()
            outcome = attempt(self._source)
            count, waited = count + 1, waited + self._clock() - began
            if not is_ok(outcome):
                self._more, self._input_error = False, outcome.failure()
                break
            item = outcome.unwrap()
            self._nothing_now = item is NoRequest.NOW
            if isinstance(item, NoRequest):
                self._more = item is NoRequest.NOW
                break
            together += self._begun(*item)
            # The first one tells which engine there is, and so how many may be taken.
            if len(together) == TOGETHER or self._limits == {}:
                self._begin(together)
                together = []
        self._begin(together)

    @property
    def _enough(self) -> bool:
        """Whether there are as many requests as the engines work on at a time."""
        return len(self._requests) >= max(
            (opened.session.side_by_side for opened in self._sessions.values()), default=0
        )

    @property
    def _takes_more(self) -> bool:
        """Whether there is room for a request, and perhaps one for it."""
        return self._more and not self._nothing_now and self.room > 0

    @property
    def room(self) -> int:
        """How many requests may be taken now."""
        crowded = self._bytes >= HELD_BYTES or len(self._preparing) >= 4 * WORKERS
        return (
            0
            if (crowded and self._requests) or self._waiting >= REORDER * self._limit
            else self._limit - len(self._requests)
        )

    def _begun(self, key: K, raw_request: Any) -> list[Request[K]]:
        """A request that is taken, to be prepared; none where it has images: another thread reads
        and prepares it.
        """
        slot = admitted(raw_request, self._options, self._allows) if self._admits else raw_request
        request = self._request(key, slot)
        if not is_ok(slot) or not slot.unwrap().sources:
            return [request]
        self._pool = self._pool or ThreadPoolExecutor(WORKERS, thread_name_prefix="pipegen-drive")
        future = self._pool.submit(
            lambda: self._advanced([Row(request.number, loaded(slot, self._reads))])
        )
        self._preparing[future] = request
        future.add_done_callback(lambda _: self.wake())
        return []

    def _request(self, key: K, slot: Slot[Any]) -> Request[K]:
        request = Request(key, slot, self._taken)
        self._taken += 1
        self._requests[request.number] = request
        if self._ordered:
            self._turns.append(request)
        return request

    def _begin(self, requests: Sequence[Request[K]]) -> None:
        for some in partition_all(BATCH_TOGETHER, requests):
            self._go([Row(request.number, request.given) for request in some])

    # Rows go on, to their calls and to their ends.

    def _go(self, rows: list[Row]) -> None:
        """Let rows go on, with those of their requests that wait for them."""
        if self._apart:
            for number in {row.key for row in rows}:
                rows = [*rows, *self._apart.pop(number, ())]
        if rows:
            self._settle(*self._advanced(rows))

    def _advanced(self, rows: Sequence[Row]) -> tuple[Advanced, dict[int, Exception]]:
        """Rows at their calls and ends, and the bugs of stages; those of a batch raise."""
        bugs: dict[int, Exception] = {}
        if self._whole:
            return advance(self._pipe, rows, stays=self._stays), bugs
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
                self._apart.setdefault(row.key, []).append(row)
        for row, wanted in in_order(advanced.calls, itemgetter(0)):
            if row.key in self._requests:
                key = self._requests[row.key].key
                answer = None if self._kept is None else self._kept.of(key, row, wanted)
                if answer is None:
                    self._want(row, wanted)
                else:
                    answered.append(row.answered(answer))
        if answered:
            self._go(answered)

    def _want(self, row: Row, wanted: EngineRequest) -> None:
        """Put what a row wants to what its engine is to work on next."""
        self._rows += 1
        if self._open(row, wanted).want(self._rows, row, wanted) and not self._whole:
            self._bytes += image_bytes(wanted.input)

    def _open(self, row: Row, wanted: EngineRequest) -> OpenSession:
        backend: Any = wanted.backend
        name = (row.place, wanted.shown, id(backend)) if self._whole else id(backend)
        opened = self._sessions.get(name)
        if opened is None:
            settings: dict[str, Any] = {"tokens": self._sees is not None, "loop": self._loop}
            session = open_session(backend, self.wake, fed=not self._whole, **settings)
            opened = self._sessions[name] = OpenSession(backend, session, wanted.shown)
        # it is asked again, since an engine may know better once it has started
        if self._limits is not None:
            self._limits[name] = getattr(backend, "in_flight", IN_FLIGHT)
            self._limit = max(self._limits.values())
        return opened

    @property
    def live(self) -> Iterator[Row]:
        """The rows that have not ended."""
        for opened in self._sessions.values():
            yield from opened.all_rows
            yield from opened.answered
        for rows in self._apart.values():
            yield from rows

    def _has_bug(self, request: Request[K], bug: Exception) -> None:
        """A stage raised at a row of a request. That is its own."""
        if self._isolates and not isinstance(bug, MissingExtra):
            named(bug, lambda _: request_words(request.given))
            self._end(request, Failure(error_of(bug)))
            return
        named(bug, lambda _: request_words(request.given, request.number))
        request.bug, self._more = bug, False
        self._end(request, None)

    def _end(self, request: Request[K], slot: Slot[Any] | None) -> None:
        """A request has its slot, or a bug."""
        request.slot = slot
        del self._requests[request.number]
        self._apart.pop(request.number, None)
        self._waiting += 1
        if not self._ordered:
            self._turns.append(request)
        if slot is not None:
            self._finished(request.key, slot)

    # Engines work.

    def _settle_prepared(self) -> bool:
        """Let requests go on that other threads have prepared; whether there were any."""
        prepared = [future for future in self._preparing if future.done()]
        for future in prepared:
            request, result = self._preparing.pop(future), attempt(future.result)
            if is_ok(result):
                self._settle(*result.unwrap())
            else:
                self._has_bug(request, result.failure())
        return bool(prepared)

    @property
    def _waits(self) -> bool:
        """Whether there is nothing to do until it is woken."""
        can_give = bool(self._turns) and self._turns[0].ended
        has_work = bool(self._requests) or self._more
        return has_work and not self._takes_more and not can_give and not self.closed

    def _awaits_more(self, opened: OpenSession) -> bool:
        """Whether an engine with nothing to work on begins with more rows: those that are being
        prepared, or, where it takes none later, all others.
        """
        at_once = opened.session.side_by_side == ALL
        if self._until is not None and at_once:
            return True
        if not opened.session.side_by_side or len(opened.new) < len(opened.rows):
            return False
        return bool(self._preparing) or (self._takes_more and at_once)

    def _add(self, opened: OpenSession) -> None:
        """Hand the session what is new."""
        new, opened.new = opened.new, []
        if not new:
            return
        if self._whole:
            new = in_order(new, opened.rows.__getitem__)
            self._begins(opened)
        opened.session.add({number: opened.inputs[number] for number in new})

    def _failed(self, name: Any, opened: OpenSession, failed: CallFailed) -> list[Event]:
        """A call failed as a whole: so do its rows, and the session is over."""
        if not self._whole:  # that of a batch is closed when its call ends
            del self._sessions[name]
            opened.session.close()
        return [RowDone(row=number, slot=Failure(failed.error)) for number in opened.rows]

    def _take(self, opened: OpenSession, events: Sequence[Event]) -> None:
        """Let the rows go on that a step has ended; those of a batch, when all have ended."""
        kept: list[tuple[Row, Any, Slot[Any]]] = []
        for event in events:
            if self._sees is not None:
                self._sees(event)
            if not isinstance(event, RowDone):
                continue
            asked, rows = opened.end(event.row)
            self._bytes -= 0 if self._whole else image_bytes(asked)
            for row in rows:
                if row.key in self._requests:
                    opened.answered.append(row)
                    opened.slots.append(event.slot)
                    kept += () if self._kept is None else [(row, asked, event.slot)]
        if not self._whole:
            self._go_on(opened)
        for row, asked, slot in kept:
            if row.key in self._requests and self._kept is not None:
                wanted = EngineRequest(opened.backend, asked)
                self._kept.keep(self._requests[row.key].key, row, wanted, slot)

    def _go_on(self, opened: OpenSession) -> None:
        """Let the rows go on that have an answer."""
        rows, opened.answered = opened.answered, []
        slots, opened.slots = opened.slots, []
        for some in partition_all(BATCH_TOGETHER, in_order(range(len(rows)), rows.__getitem__)):
            self._go([rows[at].answered(slots[at]) for at in some])

    def _end_calls(self) -> bool:
        """Let the rows of a batch go on, where all rows of their call have ended; whether any did."""
        ended = [name for name, opened in self._sessions.items() if not opened.rows]
        for name in ended:
            opened = self._sessions.pop(name)
            opened.session.close()
            self._go_on(opened)
        return bool(ended)

    def _isolate(self, name: Any, opened: OpenSession, bug: Exception) -> list[Event]:
        """An engine has raised: the requests that it worked on are run again, in halves, down to
        the one that makes it raise.
        """
        del self._sessions[name]
        opened.session.close()
        keys = sorted(row.key for row in opened.all_rows)
        numbers = dict.fromkeys(key for key in keys if key in self._requests)
        requests = [self._requests[number] for number in numbers]
        inputs = [request.given for request in requests]
        slots = isolated(lambda batch: drive(self._pipe, batch), inputs, bug)
        for request, slot in zip(requests, slots, strict=True):
            self._end(request, slot)
        # nobody waits for these any more
        return [RowDone(row=number, slot=Success(None)) for number in opened.rows]


def drive(pipe: Pipe[Any, B], batch: Iterable[Slot[Any]]) -> Batch[B]:
    """Run a pipe over the slots of a batch.

    >>> from pipegen.core.pipe import pure
    >>> drive(pure("double", lambda n: 2 * n), [Success(2)])
    (<Success: 4>,)
    """
    numbered_slots: list[tuple[int, Slot[B]]] = []
    with contextlib.closing(Drive(pipe, batch=enumerate(batch))) as runner:
        while not runner.exhausted:  # no generator: it would change a StopIteration of the engine
            numbered_slots += runner.round()
    return tuple([slot for _, slot in numbered_slots])
