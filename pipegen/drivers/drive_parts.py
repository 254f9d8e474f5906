"""The parts of a drive (`pipegen.drivers.drive`): its input, the sessions of its engines with the rows
that they work on, the order of its output, how it is drained, and what wakes it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from returns.result import Result

from pipegen.core.backend import Session
from pipegen.core.foreign_calls import attempt
from pipegen.core.functional import WORKERS
from pipegen.core.interpreter import Advanced, Row
from pipegen.core.slots import Slot, is_ok
from pipegen.core.steps import EngineRequest
from pipegen.drivers.arguments import Admission
from pipegen.drivers.scopes import Scoped, Scopes
from pipegen.drivers.telemetry import Seen
from pipegen.engines.protocol import Event
from pipegen.engines.session import open_session
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Encoded, ResolvedRequest

if TYPE_CHECKING:
    import asyncio


IN_FLIGHT = 64
"""Requests in flight for an engine that does not tell what keeps it full."""
SLOW_INPUT, PATIENCE = 0.002, 0.02
"""Seconds that an input may take a request, and a few; of a slower one no more than run are taken.
"""
K = TypeVar("K")
T = TypeVar("T")
K_contra = TypeVar("K_contra", contravariant=True)
Prepared = tuple[Advanced, dict[int, Exception]]
"""Rows at their calls and ends, and the bugs of stages by the numbers of their requests."""


class NoRequest(Enum):
    """What an input gives where it has no request."""

    NOW = auto()
    """None yet: `Drive.wake` is called when there may be one."""
    MORE = auto()
    """The input has ended."""


class KeptAnswers(Protocol[K_contra]):
    """Answers to calls that need not be asked for again."""

    def of(self, key: K_contra, row: Row, wanted: EngineRequest) -> Slot[Any] | None:
        """The answer to what this row wants; None where none is kept."""
        ...

    def keep(self, key: K_contra, row: Row, wanted: EngineRequest, slot: Slot[Any]) -> None:
        """Keep an answer: the request has not ended with it."""
        ...


class Watcher(Protocol):
    """Who follows the calls of a batch while they run."""

    def begins(self, opened: OpenSession) -> None:
        """A call begins."""
        ...

    def sees(self, event: Event) -> None:
        """Something has come for a row of the call that runs."""
        ...

    def stays(self, row: Row) -> bool:
        """Whether a failed row goes on in no other route (`pipegen.core.interpreter.advance`)."""
        ...


@dataclass(slots=True)
class TakenRequest(Generic[K]):
    """A request on its way."""

    key: K
    given: Slot[GenerationRequest]
    number: int
    outcome: Slot[Any] | Exception | None = None
    """Its slot, or the bug that raises when its turn comes; None while it is in flight."""
    seen: Seen | None = None
    """What is recorded of it, where anything is."""


@dataclass
class OutputOrder(Generic[K]):
    """The requests that were taken and not given out: they are given out in the order of the input,
    or as they end.
    """

    ordered: bool = True
    waiting: int = 0
    """How many have ended and were not given out."""
    _requests: deque[TakenRequest[K]] = field(default_factory=deque)
    """Those to be given out: all, or where they are not ordered those that have ended."""
    _taken: int = 0

    def take(self, key: K, request_slot: Slot[GenerationRequest]) -> TakenRequest[K]:
        """A request is taken, and has a number."""
        request = TakenRequest(key, request_slot, self._taken)
        self._taken += 1
        if self.ordered:
            self._requests.append(request)
        return request

    def end(self, taken: TakenRequest[K], outcome: Slot[object] | Exception) -> None:
        """A request has its slot, or a bug."""
        taken.outcome = outcome
        self.waiting += 1
        if not self.ordered:
            self._requests.append(taken)

    def give(self) -> list[tuple[K, Slot[Any]]]:
        """The keys and slots of the requests whose turn has come. Raises a bug once all before it
        were given out.
        """
        slots: list[tuple[K, Slot[Any]]] = []
        while self._requests and (outcome := self._requests[0].outcome) is not None:
            if isinstance(outcome, Exception):
                if slots:
                    break
                raise outcome
            slots.append((self._requests.popleft().key, outcome))
            self.waiting -= 1
        return slots


@dataclass
class Input(ABC, Generic[K]):
    """Where the requests of a drive come from. Those with images may be prepared by other threads,
    which take them to their first calls.
    """

    is_open: bool = field(default=True, init=False)
    """Whether there may be more requests."""
    nothing_now: bool = field(default=False, init=False)
    """Whether none is there yet."""
    error: Exception | None = field(default=None, init=False)
    """What it raised."""
    preparing: dict[Future[Prepared], TakenRequest[K]] = field(default_factory=dict, init=False)
    """The requests that other threads prepare."""
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)
    admission = Admission()
    """What is made of requests before the first stage."""
    is_batch: ClassVar[bool]
    """Whether all is there from the start."""
    together: ClassVar[int]
    """How many requests go through stages together."""

    @abstractmethod
    def taken(self, wants: Callable[[bool], bool]) -> Iterator[tuple[K, Slot[Any]]]:
        """Keys and requests as long as there are some, and the drive wants them. It is asked with
        whether the input is slow.
        """

    def prepare(
        self, taken: TakenRequest[K], work: Callable[[], Prepared], wake: Callable[[], object]
    ) -> None:
        """Let another thread prepare a request. `wake` is called once that is done."""
        self._pool = self._pool or ThreadPoolExecutor(WORKERS, thread_name_prefix="pipegen-drive")
        future = self._pool.submit(work)
        self.preparing[future] = taken
        future.add_done_callback(lambda _: wake())

    def prepared(self) -> list[tuple[TakenRequest[K], Result[Prepared, Exception]]]:
        """The requests that other threads have prepared since, and what came of each."""
        done = [future for future in self.preparing if future.done()]
        return [(self.preparing.pop(future), attempt(future.result)) for future in done]

    def close(self) -> None:
        """Take no more, and end the work of other threads."""
        self.is_open = False
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@dataclass
class ReadInput(Input[K]):
    """Requests that are taken one by one, as there is room for them.

    take: gives the next key and request, or why there is none.
    admits: whether requests are to be admitted (see `pipegen.drivers.arguments`).
    """

    take: Callable[[], tuple[K, Any] | NoRequest]
    admission: Admission = field(default_factory=Admission)
    admits: bool = True
    clock: Callable[[], float] = time.monotonic
    is_batch, together = False, 64

    def taken(self, wants: Callable[[bool], bool]) -> Iterator[tuple[K, Slot[Any]]]:
        count, waited = 0, 0.0
        while self.is_open and wants(waited >= max(PATIENCE, count * SLOW_INPUT)):
            began = self.clock()
            outcome = attempt(self.take)
            count, waited = count + 1, waited + self.clock() - began
            if not is_ok(outcome):
                self.is_open, self.error = False, outcome.failure()
                return
            item = outcome.unwrap()
            self.nothing_now = item is NoRequest.NOW
            if isinstance(item, NoRequest):
                self.is_open = self.nothing_now
                return
            key, given = item
            yield key, self.admission.admitted(given) if self.admits else given


@dataclass
class WholeBatch(Input[K]):
    """Requests that are all there from the start, admitted, with their images read."""

    requests: Iterable[tuple[K, Slot[Any]]]
    is_batch, together = True, 256

    def taken(self, wants: Callable[[bool], bool]) -> Iterator[tuple[K, Slot[Any]]]:
        """All, whether there is room for them or not."""
        if self.is_open:
            self.is_open = False
            yield from self.requests


@dataclass
class OpenSession:
    """The session of an engine, the rows to be added next, and those that it works on, by their
    numbers in the session.
    """

    name: Any
    session: Session
    backend: Any
    shown: bool
    """Of the call of a batch: as in `EngineRequest`."""
    answered: list[Row] = field(default_factory=list)
    """Rows with the answer, which have not gone on."""
    new: list[int] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    inputs: dict[int, Any] = field(default_factory=dict)
    """What the engine gets for each of them."""
    others: dict[int, list[Row]] = field(default_factory=dict)
    """Other rows, which want the same as the one of that number."""
    scoped: dict[int, Scoped] = field(default_factory=dict)
    """The same, where the backend keeps something for the row."""
    _same: dict[Hashable, int] = field(default_factory=dict)
    """By `EngineRequest.same`, the row that others may be asked with."""
    _names: dict[int, Hashable] = field(default_factory=dict)
    """Of these rows, `EngineRequest.same`."""

    def want(self, number: int, row: Row, wanted: EngineRequest) -> bool:
        """Take a row under this number; False where it is asked with another one."""
        if wanted.same is not None:
            first = self._same.setdefault(wanted.same, number)
            if first != number:
                self.others.setdefault(first, []).append(row)
                return False
            self._names[number] = wanted.same
        self.rows[number], self.inputs[number] = row, wanted.input
        self.new.append(number)
        return True

    def add_new(self, *, sort: bool = False) -> None:
        """Add the new rows to the session; in the order of the input where they are to be sorted."""
        new, self.new = self.new, []
        if sort:
            new = in_order(new, self.rows.__getitem__)
        self.session.add({number: self.scoped.get(number, self.inputs[number]) for number in new})

    def is_known(self, number: int) -> bool:
        """Whether the answer was known before."""
        return number in self.scoped and self.scoped[number].known is not None

    def end(self, number: int) -> tuple[Any, list[Row]]:
        """What the engine got under this number, and the rows that have the answer."""
        self._same.pop(self._names.pop(number, None), None)
        self.scoped.pop(number, None)
        return self.inputs.pop(number), [self.rows.pop(number), *self.others.pop(number, ())]

    @property
    def all_rows(self) -> list[Row]:
        """The rows of all numbers."""
        return [*self.rows.values(), *(row for rows in self.others.values() for row in rows)]


class Sessions:
    """The open sessions: one for each engine, to which rows are added at any time. Of a whole batch
    they are its calls, one for each place of the pipe.

    in_flight: how many requests may be in flight; where that is open, the engines say it.
    tokens: whether the engines tell of rows while they work on them: all, or with `cheap_tokens`
    those for which it costs little.
    """

    def __init__(
        self,
        wake: Callable[[], object],
        *,
        is_batch: bool = False,
        in_flight: int | None = None,
        tokens: bool = False,
    ) -> None:
        self._wake, self._is_batch, self._tokens = wake, is_batch, tokens
        self.cheap_tokens = False
        self.loop: asyncio.AbstractEventLoop | None = None
        """Of an asynchronous caller."""
        self.opened: dict[Any, OpenSession] = {}
        """By the engine; of a batch by the place. Of one place, what nobody is shown comes first."""
        self._count = 0
        self.scopes = Scopes()
        self.image_bytes = 0
        """What the images of the rows take; of a whole batch, nothing is counted."""
        self.in_flight = in_flight or IN_FLIGHT
        self.are_known = is_batch or in_flight is not None
        """Whether it is known how many requests may be in flight."""
        self._in_flight = None if self.are_known else dict[Any, int]()

    @property
    def side_by_side(self) -> int:
        """How many rows the engines work on at a time."""
        return max((opened.session.side_by_side for opened in self.opened.values()), default=0)

    def want(self, row: Row, wanted: EngineRequest, known: Slot[object] | None = None) -> None:
        """Put what a row wants to what its engine is to work on next. `known` is the answer, where
        an engine that keeps something for the row is asked again.
        """
        self._count += 1
        engine: Any = wanted.backend
        name = (row.place, wanted.shown, id(engine)) if self._is_batch else id(engine)
        opened = self.opened.get(name)
        if opened is None:
            cheap = self.cheap_tokens and getattr(engine, "tells_tokens", False)
            tokens, fed = self._tokens or cheap, not self._is_batch
            session = open_session(engine, self._wake, tokens=tokens, loop=self.loop, fed=fed)
            opened = self.opened[name] = OpenSession(name, session, engine, wanted.shown)
        # it is asked again, since an engine may know better once it has started
        if self._in_flight is not None:
            self._in_flight[name] = getattr(engine, "in_flight", IN_FLIGHT)
            self.in_flight, self.are_known = max(self._in_flight.values()), True
        if wanted.scoped:
            opened.scoped[self._count] = Scoped(self.scopes.of(row), wanted.input, known)
        if opened.want(self._count, row, wanted) and not self._is_batch:
            self.image_bytes += image_bytes(wanted.input)

    @property
    def due(self) -> list[OpenSession]:
        """Those to work next: all; of a whole batch the call that comes first."""
        if self._is_batch:
            return [self.opened[min(self.opened)]] if self.opened else []
        return [*self.opened.values()]

    def end(self, opened: OpenSession, number: int) -> tuple[Any, list[Row]]:
        """What the engine got under this number, and the rows that have the answer."""
        asked, rows = opened.end(number)
        self.image_bytes -= 0 if self._is_batch else image_bytes(asked)
        return asked, rows

    def leave(self, opened: OpenSession) -> None:
        """End a session."""
        del self.opened[opened.name]
        opened.session.close()

    @property
    def live(self) -> Iterator[Row]:
        """The rows that want an answer, or have one and have not gone on."""
        for opened in self.opened.values():
            yield from opened.all_rows
            yield from opened.answered


@dataclass
class Drain:
    """The time that requests in flight have to end once no more are taken."""

    clock: Callable[[], float] = time.monotonic
    _end: float | None = None

    def begin(self, seconds: float) -> None:
        """They have so many seconds from now; begun again, no more than they had."""
        end = self.clock() + seconds
        self._end = end if self._end is None else min(self._end, end)

    @property
    def seconds_left(self) -> float | None:
        """None where it has not begun."""
        return None if self._end is None else max(0.0, self._end - self.clock())


class Alarm:
    """Wakes who waits for something to look at: a thread, or the event loop of an asynchronous
    caller.
    """

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()
        """Free when there is something to look at since the last wait. Unlike an event, a signal
        handler may free it wherever it interrupts this thread.
        """
        self._awakens: Callable[[], object] = self._asleep.release

    def wake(self) -> None:
        """Let who waits look again: a row has ended, there is a request, or all is to be closed. A
        signal handler may call it.
        """
        with contextlib.suppress(RuntimeError):  # it is awake, or its event loop was closed
            self._awakens()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it is woken, for so many seconds at most."""
        self._asleep.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))

    def event_in(self, loop: asyncio.AbstractEventLoop) -> asyncio.Event:
        """An event of the loop that runs in this thread; it is set where a thread would wake."""
        import asyncio  # half of what `import pipegen` would cost

        woken, thread = asyncio.Event(), threading.get_ident()

        def awaken() -> None:
            if threading.get_ident() == thread:
                woken.set()
            else:
                loop.call_soon_threadsafe(woken.set)

        self._awakens = awaken
        return woken


def in_order(items: Iterable[T], row_of: Callable[[T], Row]) -> list[T]:
    """Items that stand for a row each, in the order of the input and of a request's samples."""
    by_sample = sorted(items, key=lambda item: row_of(item).sample)
    return sorted(by_sample, key=lambda item: row_of(item).key)


def image_bytes(wanted: object) -> int:
    """What the images of a call's input take, in bytes: as pixels, or as they came."""
    if isinstance(wanted, Encoded):
        images = wanted.prompt.images
        return sum([len(image.rgb) for image in images]) if images else 0
    return (
        sum(len(piece) for source in wanted.request.sources for piece in source.contents)
        if isinstance(wanted, ResolvedRequest)
        else 0
    )
