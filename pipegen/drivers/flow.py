"""Continuous feeding: each request runs as a small pipe of its own, and all their calls of one
engine are merged into one call that is fed while it runs.

Such a pipe is a *unit*. Units are taken from the input and run up to their first call, some of them
together, which costs less. The call's rows are added to the open call of that engine. When the last
row of a unit's call has ended, the unit goes on to its next call, or to its end. So no request
waits for another one, and an engine has rows to work on as long as there is input.

**Bounds.** At most `in_flight` units run at a time; by default, as many as the engine says keep it
full. Slots are given out in the order of the input: at most `REORDER` times as many units may have
ended and wait for slower ones before them, and no input is taken while so many do. No more units
are prepared while the images of those in flight take `HELD_BYTES`. So memory depends on these
bounds, and not on the length of the input.

**Ending early.** `close` ends everything at once. `drain` takes no more input, and gives what is in
flight some seconds to end.

**Threads.** Stages, and engines of this process, run in the thread that asks for the next slot.
Images are read and resized on a few other threads.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from returns.result import Failure

from pipegen.core.backend import BatchCall, FedBackend
from pipegen.core.blame import named
from pipegen.core.border import attempt
from pipegen.core.calls import Call, Steps
from pipegen.core.drive import Returned, Started, advance, begin, begin_each
from pipegen.core.errors import CallFailed
from pipegen.core.parallel import WORKERS
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.batch import admitted, loaded
from pipegen.drivers.isolation import isolated
from pipegen.drivers.naming import request_words
from pipegen.drivers.units import Feed, KeptAnswers, NoRequest, Unit, image_bytes
from pipegen.engines.extras import MissingExtra
from pipegen.records.options import GenerationOptions
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy

__all__ = ["HELD_BYTES", "IN_FLIGHT", "REORDER", "Flow"]

K = TypeVar("K")
IN_FLIGHT = 64
"""Requests in flight for an engine that does not tell what keeps it full."""
REORDER = 8
"""How many times `in_flight` requests may have ended and wait for a slower one before them."""
TOGETHER = 64
"""Requests that are prepared together."""
SLOW_INPUT, PATIENCE = 0.002, 0.02
"""The seconds that an input may take for each request, and for a few at least. Of a slower one no
more are taken at once than the engines work on.
"""
HELD_BYTES = 512 * 2**20
"""Bytes of the images of requests in flight, beyond which no more are prepared."""


class Flow(Generic[K]):
    """The slots of any number of requests; see the module.

    take: gives the next key and request, or why there is none. finished: is called with each slot
    as soon as there is one, before its turn. isolate_bugs: a bug fails its own request, and does
    not raise (see `pipegen.drivers.isolation`). kept: answers that are not asked for again. admits:
    whether requests are taken as they come; otherwise they are admitted already (see
    `pipegen.drivers.batch`).
    """

    def __init__(
        self,
        pipe: Pipe[GenerationRequest, Any],
        take: Callable[[], tuple[K, Any] | NoRequest],
        options: GenerationOptions | None = None,
        *,
        image_policy: ImagePolicy | None = None,
        policy: RequestPolicy | None = None,
        in_flight: int | None = None,
        ordered: bool = True,
        isolate_bugs: bool = False,
        finished: Callable[[K, Slot[Any]], object] = lambda key, slot: None,
        kept: KeptAnswers[K] | None = None,
        admits: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipe, self._take, self._options = pipe, take, options
        self._reads, self._allows = image_policy or ImagePolicy(), policy or RequestPolicy()
        self._limit, self._limits = in_flight or IN_FLIGHT, None if in_flight else dict[int, int]()
        self._ordered, self._isolates, self._finished = ordered, isolate_bugs, finished
        self._kept, self._admits, self._clock = kept, admits, clock
        self._turns: deque[Unit[K]] = deque()
        """The units to be given out: all that were taken where they are ordered, else those that
        have ended.
        """
        self._units: dict[int, Unit[K]] = {}
        """The units in flight."""
        self._waiting = 0
        """Units that have ended and were not given out."""
        self._bytes = 0
        self._rows = self._requests = 0
        self._feeds: dict[int, Feed] = {}
        self._more, self._nothing_now = True, False
        self._input_error: Exception | None = None
        self._preparing: dict[Future[Started], Unit[K]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._asleep = threading.Lock()
        """Free when there is something to look at since the last wait. Unlike an event, a signal
        handler may free it wherever it interrupts this thread.
        """
        self._until: float | None = None
        """When the flow is drained, the time at which that ends."""
        self._most_wait = -1.0
        """Seconds that `round` may wait; as long as it takes where it is negative."""
        self.closed = False
        """Whether no more work is wanted."""

    def wake(self) -> None:
        """Let a thread that waits within `round` look again: a row has ended, there is a request,
        or the flow is to be closed. A signal handler may call it.
        """
        with contextlib.suppress(RuntimeError):  # it is awake
            self._asleep.release()

    @property
    def busy(self) -> bool:
        """Whether a request is in flight."""
        return bool(self._units)

    @property
    def exhausted(self) -> bool:
        """Whether all requests were taken and given out. Raises what the input raised, once all
        before it was given out.
        """
        if self._more or self._units or self._waiting:
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

    def round(self) -> Iterator[tuple[K, Slot[Any]]]:
        """Take requests for which there is room, let the engines work for one step, and give out
        the slots whose turn has come.
        """
        self._fill()
        if not (self._turns and self._turns[0].ended):
            self._work()
        while self._turns and self._turns[0].ended:
            unit = self._turns.popleft()
            self._waiting -= 1
            if unit.bug is not None:
                raise unit.bug
            yield unit.key, unit.slot  # type: ignore[misc]  # one of the two is there

    def drain(self, seconds: float) -> None:
        """Take no more requests, and let those in flight end for so many seconds. Only `finished`
        is called with them.

        A step of an engine is not interrupted. An engine that takes no rows while it works is not
        called again. Drained again, a flow has no more time than it had. A bug of an engine raises:
        its rows are not run again.
        """
        self._more = False
        end = self._clock() + seconds
        self._until = end if self._until is None else min(self._until, end)
        while self._ends and (left := self._until - self._clock()) > 0:
            self._most_wait = min(left, threading.TIMEOUT_MAX)
            for _ in self.round():
                pass

    @property
    def _ends(self) -> bool:
        """Whether something in flight would end without a new call."""
        return bool(self._preparing) or any(
            feed.rows and not isinstance(feed.call, BatchCall) for feed in self._feeds.values()
        )

    def close(self) -> None:
        """End all that is in flight."""
        self.closed, self._more = True, False
        self.wake()
        feeds, self._feeds = list(self._feeds.values()), {}
        for feed in feeds:
            feed.call.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for unit in self._units.values():
            if unit.started is not None:
                unit.started.running.close()
        self._units.clear()

    def _fill(self) -> None:
        together: list[Unit[K]] = []
        taken, waited = 0, 0.0
        while (
            self._more
            and self.room > 0
            and not (waited >= max(PATIENCE, taken * SLOW_INPUT) and self._enough)
        ):
            began = self._clock()
            given = attempt(self._take)
            taken, waited = taken + 1, waited + self._clock() - began
            if not is_ok(given):
                self._more, self._input_error = False, given.failure()
                break
            request = given.unwrap()
            self._nothing_now = request is NoRequest.NOW
            if isinstance(request, NoRequest):
                self._more = request is NoRequest.NOW
                break
            together += self._taken(*request)
            # the first one tells which engine there is, and so how many may be taken
            if len(together) == TOGETHER or self._limits == {}:
                self._begin(together)
                together = []
        self._begin(together)

    @property
    def _enough(self) -> bool:
        """Whether there are as many requests as the engines work on at a time."""
        return len(self._units) >= max(
            (feed.call.side_by_side for feed in self._feeds.values()), default=0
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
            if (crowded and self._units) or self._waiting >= REORDER * self._limit
            else self._limit - len(self._units)
        )

    def _taken(self, key: K, request: Any) -> list[Unit[K]]:
        """The request as a unit to be prepared; none where it has images: another thread reads and
        prepares it.
        """
        asked = admitted(request, self._options, self._allows) if self._admits else request
        unit = Unit(key, asked, self._requests)
        self._requests += 1
        self._units[id(unit)] = unit
        if self._ordered:
            self._turns.append(unit)
        if not (is_ok(asked) and asked.unwrap().sources):
            return [unit]
        self._pool = self._pool or ThreadPoolExecutor(WORKERS, thread_name_prefix="pipegen-flow")
        future = self._pool.submit(lambda: begin(self._pipe, (loaded(asked, self._reads),)))
        self._preparing[future] = unit
        future.add_done_callback(lambda _: self.wake())
        return []

    def _begin(self, units: Sequence[Unit[K]]) -> None:
        """Prepare units together; one by one where a stage raises, since the bug is of one of
        them.
        """
        begun = attempt(lambda: begin_each(self._pipe, tuple([unit.asked for unit in units])))
        if is_ok(begun):
            for unit, started in zip(units, begun.unwrap(), strict=True):
                self._follow(unit, started)
            return
        for unit in units:
            self._advance(unit, functools.partial(begin, self._pipe, (unit.asked,)))

    def _work(self) -> None:
        """Let prepared units go on, and each engine of this process work for one step; wait where
        nothing else is to be done.
        """
        prepared = [future for future in self._preparing if future.done()]
        for future in prepared:
            self._advance(self._preparing.pop(future), future.result)
        worked = bool(prepared)
        for backend, feed in list(self._feeds.items()):
            if feed.rows and not self._awaits_more(feed):
                worked |= self._step(backend, feed) or feed.call.side_by_side > 0
        idle = not worked and not self._takes_more and not any(unit.ended for unit in self._turns)
        if idle and (self._units or self._more) and not self.closed:
            self._asleep.acquire(timeout=self._most_wait)

    def _awaits_more(self, feed: Feed) -> bool:
        """Whether an engine with nothing to work on begins with more rows: those that are being
        prepared, or, where it takes none later, all others.
        """
        if self._until is not None and isinstance(feed.call, BatchCall):
            return True
        if not feed.call.side_by_side or len(feed.new) < len(feed.rows):
            return False
        return bool(self._preparing) or (self._takes_more and isinstance(feed.call, BatchCall))

    def _step(self, backend: int, feed: Feed) -> bool:
        """Add what is new, and take what has ended; whether something has."""

        def stepped() -> Sequence[tuple[int, Slot[Any]]]:
            new, feed.new = feed.new, []
            if new:
                feed.call.add(new)
            return feed.call.step()

        made = attempt(stepped)
        if is_ok(made):
            ended = made.unwrap()
        else:
            del self._feeds[backend]
            feed.call.close()
            raised = made.failure()
            if not isinstance(raised, CallFailed):
                self._isolate(feed, raised)
                return True
            ended = [(row, Failure(raised.error)) for row in feed.rows]
        answered: dict[Unit[Any], dict[int, Slot[Any]]] = {}
        for row, answer in ended:
            unit, place = feed.rows.pop(row)
            unit.answers[place] = answer
            unit.missing -= 1
            answered.setdefault(unit, {})[place] = answer
        for unit, answers in answered.items():
            if unit.started is not None:
                number, call = unit.calls, unit.started.step
                if not unit.missing:
                    self._go_on(unit, unit.started.running)
                if self._kept is not None and not unit.ended and isinstance(call, Call):
                    self._kept.keep(unit.key, number, call, answers)
        return bool(ended)

    def _go_on(self, unit: Unit[K], running: Steps[Any]) -> None:
        """Let a unit go on with the answers of its call."""
        self._advance(unit, lambda: Started(running, advance(running, unit.answers)))

    def _advance(self, unit: Unit[K], go: Callable[[], Started]) -> None:
        """Let a unit go on to its next call or to its end. A bug in its stages is its own."""
        gone = attempt(go)
        if is_ok(gone):
            self._follow(unit, gone.unwrap())
            return
        bug = gone.failure()
        if self._isolates and not isinstance(bug, MissingExtra):
            self._end(unit, isolated(self._pipe, [unit.asked], bug)[0])
            return
        named(bug, lambda _: request_words(unit.asked, unit.number))
        unit.bug, self._more = bug, False
        self._end(unit, None)

    def _follow(self, unit: Unit[K], started: Started) -> None:
        """A unit has come to its next call, or to its end: add its rows to what its engine works
        on, or keep its slot.
        """
        unit.started, step = started, started.step
        if isinstance(step, Returned):
            self._end(unit, step.batch[0])
            return
        unit.calls += 1
        unit.answers = (
            [None] * len(step.inputs)
            if self._kept is None
            else list(self._kept.of(unit.key, unit.calls, step))
        )
        unit.missing = unit.answers.count(None)
        if not unit.missing:
            self._go_on(unit, unit.started.running)
            return
        feed = self._feed(step)
        self._bytes -= unit.bytes
        unit.bytes = sum(map(image_bytes, step.inputs))
        self._bytes += unit.bytes
        for place, asked in enumerate(step.inputs):
            if unit.answers[place] is None:
                feed.rows[self._rows] = unit, place
                feed.new.append((self._rows, asked))
                self._rows += 1

    def _feed(self, wanted: Call) -> Feed:
        backend = wanted.backend
        feed = self._feeds.get(id(backend))
        if feed is None:
            feed = self._feeds[id(backend)] = Feed(
                backend,
                backend.open(self.wake) if isinstance(backend, FedBackend) else BatchCall(backend),
            )
        # it is asked again, since an engine may know better once it has started
        if self._limits is not None:
            self._limits[id(backend)] = (
                IN_FLIGHT if isinstance(feed.call, BatchCall) else feed.backend.in_flight
            )
            self._limit = max(self._limits.values())
        return feed

    def _end(self, unit: Unit[K], slot: Slot[Any] | None) -> None:
        """A unit has its slot, or a bug."""
        unit.slot, unit.started = slot, None
        del self._units[id(unit)]
        self._bytes -= unit.bytes
        self._waiting += 1
        if not self._ordered:
            self._turns.append(unit)
        if slot is not None:
            self._finished(unit.key, slot)

    def _isolate(self, feed: Feed, bug: Exception) -> None:
        """An engine has raised: the units that it worked on are run again, in halves, down to the
        one that makes it raise; or it raises here.
        """
        if not self._isolates or isinstance(bug, MissingExtra) or self._until is not None:
            raise bug
        units = list({id(unit): unit for unit, _ in feed.rows.values()}.values())
        for unit, slot in zip(
            units, isolated(self._pipe, [unit.asked for unit in units], bug), strict=True
        ):
            if unit.started is not None:
                unit.started.running.close()
            self._end(unit, slot)
