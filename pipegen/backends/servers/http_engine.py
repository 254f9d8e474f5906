"""What every online engine is besides its rows: connections, the thread for synchronous callers."""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pipegen.backends.http.loops import LoopThread
from pipegen.backends.http.transport import RowCall
from pipegen.backends.request_queue import beginning
from pipegen.backends.servers.reading import malformed
from pipegen.backends.servers.sending import Sender
from pipegen.backends.servers.wire import (
    Completion,
    Facts,
    LastCallCache,
    ServerRequest,
    WireRequest,
)
from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.core.slots import Slot
from pipegen.engines.capabilities import Capabilities
from pipegen.engines.model import Model
from pipegen.engines.plugin import Pluggable
from pipegen.engines.protocol import PromptWork, RowDone
from pipegen.engines.session import answers
from pipegen.engines.settings import that_change_answers
from pipegen.records.engine_list import shown

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


A = TypeVar("A")
R = TypeVar("R")


class HttpEngine(Pluggable, ABC, Generic[A, R]):
    """An engine that is a server: asked with A, it answers with R."""

    elsewhere = True
    """Rows are computed in another process: to add them, and to look at what has come, takes no
    time to speak of.
    """

    def __init__(self, sender: Sender) -> None:
        self.name, self.wire, self.sender = sender.wire.name, sender.wire, sender
        self.loop = LoopThread()
        self.limit_of = LastCallCache(self._limit_by)
        self.capable = LastCallCache(self.capabilities_by)

    @property
    def address(self) -> str:
        """Which model is asked, and where."""
        return f"{self.sender.named} at {self.server_root}"

    @property
    def model_name(self) -> str:
        """The name that the server is asked with, as far as settings say it."""
        return self.sender.settings.served_model_name or self.sender.named

    @property
    def server_root(self) -> str:
        """The server's address."""
        return self.sender.access.root

    @property
    def known(self) -> Facts:
        """The server's facts, as far as it was asked."""
        return self.sender.directory.known

    @property
    def prompt_work(self) -> PromptWork:
        """What the server has counted of prompts."""
        return self.sender.prompt_work

    @property
    def waits(self) -> str:
        """Why requests wait now, where that is for their limits a minute; else empty."""
        return self.sender.transport.waits

    def asked_settings(self) -> dict[str, Any]:
        """The settings that change answers, and `served_model_name`: the name by which the server
        is really asked for the model.

        A server is asked for the name, and for the limit that holds by `server_limit`, where no
        setting says them. Where it does not list its models, they are None.
        """
        settings = self.sender.settings
        values = that_change_answers(settings)
        if settings.served_model_name is None or settings.server_limit:
            facts = self.loop.run(self.sender.looked_up())
            name = self.sender.model(facts)
            values["served_model_name"] = name.value_or(None)
            if settings.server_limit:
                values["server_limit"] = (self.limit_of(facts) or True) if facts.models else None
        return values | (
            {}
            if settings.served_model_name is None
            else {"served_model_name": settings.served_model_name}
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.server_root})"

    @abstractmethod
    def heavy(self, engine_input: A) -> bool:
        """Whether a row's body is made in a thread and dropped once it is sent: it holds images."""

    @abstractmethod
    def ask(self, engine_input: A, stream: bool, facts: Facts) -> Slot[ServerRequest]:
        """What a row is asked with, once the server's facts are known."""

    @abstractmethod
    def answer(self, engine_input: A, completion: Completion) -> Slot[R]:
        """The row's answer, from the one completion of a whole reply."""

    @abstractmethod
    def row(self, engine_input: A, call: RowCall) -> Awaitable[Slot[R]]:
        """One row, asked and answered."""

    @abstractmethod
    async def followed(self, position: int, engine_input: A, call: RowCall, tell: Any) -> Slot[R]:
        """One row by its stream; `tell` is called with each event of the row at this position."""

    @property
    def capabilities(self) -> Capabilities:
        """What is honoured; the context length is the server's, and unknown before it was asked."""
        return self.capable(self.known)

    def read_model(self) -> Model:
        """What is known before a call: nothing that only the server says."""
        capabilities = self.capabilities_by(Facts())
        return Model(name=self.name, capabilities=capabilities, plugins=self.plugins)

    @abstractmethod
    def capabilities_by(self, facts: Facts) -> Capabilities: ...

    def _limit_by(self, facts: Facts) -> int | None:
        """How many tokens a row may have, prompt and answer together, as these facts say it."""
        limits = (
            self.sender.model(facts).map(lambda name: facts.models.get(name or "")).value_or(None),
            self.wire.limit(facts),
        )
        return min((limit for limit in limits if limit is not None), default=None)

    def close(self) -> None:
        """Close all connections, and the thread that served synchronous callers; both come again
        when they are needed again.
        """
        self.sender.transport.close()
        self.loop.close()

    def prepare(self, encoded: A, *, stream: bool = False) -> Slot[WireRequest]:
        """The request for one row, given what is known of the server. Pure; its body is the
        caller's own, though rows share parts of theirs.
        """
        facts = self.known
        server_request = self.sender.model(facts).bind(
            lambda model: self.ask(encoded, stream, facts).map(
                lambda request: self.sender.completed(request, model)
            )
        )
        wire_request = server_request.bind(lambda request: self.sender.request(request, facts))
        return wire_request.map(lambda request: request._replace(body=copy.deepcopy(request.body)))

    def generate(self, inputs: Sequence[A]) -> list[Slot[R]]:
        """One slot for each input, in order; a row that fails fails alone."""
        return answers(self, inputs)

    @property
    def in_flight(self) -> int:
        """How many requests are kept in flight for it: as many as may be at the server, and some
        that are ready when one of them ends.
        """
        return self.sender.settings.max_in_flight * 5 // 4 + 1

    def open(
        self,
        wake: Callable[[], object],
        *,
        tokens: bool = False,
        loop: AbstractEventLoop | None = None,
        fed: bool = False,
    ) -> ServerSession[A, R]:
        """A call whose rows are asked for on the event loop of the caller, or on one in a thread.
        Rows that are fed have a deadline each; otherwise the whole call has one besides.
        """
        return ServerSession(self, wake, loop, tokens=tokens, fed=fed)


class ServerSession(Generic[A, R]):
    """An open call of a server: at most `max_in_flight` of its rows are asked for at a time.

    Rows that wait are put in order in rounds: prompts that begin alike are asked for one after
    another, and the server's prefix cache serves them.
    """

    side_by_side = 0

    def __init__(
        self,
        engine: HttpEngine[A, R],
        wake: Callable[[], object],
        loop: AbstractEventLoop | None,
        *,
        tokens: bool,
        fed: bool,
    ) -> None:
        self._engine, self._wake, self._tokens, self._fed = engine, wake, tokens, fed
        self._loop = engine.loop.running() if loop is None else loop
        self._events = deque[object]()
        self._done, self._slots, self._retries = deque[int](), deque[Slot[R]](), deque[int]()
        """The rows that have ended since the last step; the answer of each, and how often it was
        sent again.
        """
        self._woken = False
        """Whether the caller has been woken since its last step."""
        self._bug: Exception | None = None
        self._added = 0
        """How many rows it was given; the caller's thread counts them, and the loop those that
        have ended.
        """
        # used on the loop alone
        self._ended = 0
        self._inputs: dict[int, A] = {}
        """The rows that wait, by their numbers."""
        self._next = deque[int]()
        """Those that are asked for next, in this order."""
        self._came_since: dict[int, Any] = {}
        """Those that are put in order once all these are asked for, with how each begins."""
        self._call_ends: float | None = None
        self._room = engine.sender.settings.max_in_flight
        """How many more rows may be asked for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed: Future[None] | None = None
        """Set once no row runs any more."""

    def add(self, inputs: Mapping[int, A]) -> None:
        self._added += len(inputs)
        begins = {number: beginning(cast(Any, asked)) for number, asked in inputs.items()}
        self._loop.call_soon_threadsafe(self._came, inputs, begins)

    def step(self) -> list[object]:
        """What has come; it never waits. A bug raises, and `CallFailed` where the engine was
        closed.
        """
        self._woken = False  # before it looks: what comes meanwhile wakes again
        if self._bug is not None:
            raise self._bug
        ended = len(self._done)  # the other events of these rows have come before
        events = [self._events.popleft() for _ in range(len(self._events))]
        for _ in range(ended):
            row, slot = self._done.popleft(), self._slots.popleft()
            events.append(RowDone(row=row, slot=slot, retries=self._retries.popleft()))
        return events

    @property
    def running(self) -> int:
        """How many rows are asked for."""
        return self._added - self._ended - len(self._inputs)

    def close(self) -> None:
        """Cancel the rows that still run, and wait until they have ended."""
        if self._ended < self._added and not isinstance(self._bug, CallFailed):
            closed = Future[None]()
            self._loop.call_soon_threadsafe(self._cancel, closed)
            closed.result()

    def _came(self, inputs: Mapping[int, A], begins: Mapping[int, object]) -> None:
        """Ask for the rows that have come, as far as there is room."""
        if self._call_ends is None and not self._fed:
            self._call_ends = self._engine.sender.transport.call_ends()
        self._inputs.update(inputs)
        self._came_since.update(begins)
        for _ in range(min(len(inputs), self._room)):
            self._room -= 1
            task = self._loop.create_task(self._rows())
            self._tasks.add(task)
            task.add_done_callback(self._finished)

    async def _rows(self) -> None:
        """One row after the other, as long as some wait."""
        engine, transport = self._engine, self._engine.sender.transport
        while self._next or self._came_since:
            if not self._next:
                self._next.extend(sorted(self._came_since, key=self._came_since.__getitem__))
                self._came_since = {}
            number = self._next.popleft()
            row_input = self._inputs.pop(number)
            call = transport.row(transport.call_ends() if self._fed else self._call_ends)
            slot = await (
                engine.followed(number, row_input, call, self._tell)
                if self._tokens
                else engine.row(row_input, call)
            )
            self._ended += 1
            self._slots.append(slot.alt(engine.sender.access.scrubbed))
            self._retries.append(call.retries)
            self._done.append(number)
            self._wake_caller()
        self._room += 1

    def _tell(self, event: object) -> None:
        """Tell the caller what a row has made."""
        self._events.append(event)
        self._wake_caller()

    def _wake_caller(self) -> None:
        """Wake the caller where it can do anything with what has come: rows that are one call go on
        together, once all have ended.
        """
        if not self._woken and (self._fed or self._tokens or self._ended == self._added):
            self._woken = True
            self._wake()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._closed is not None:
            if not self._tasks:
                self._closed.set_result(None)
        elif task.cancelled():
            words = "the engine was closed while the call ran"
            self._bug = CallFailed(BackendFailed(words, backend=self._engine.name))
            self._wake()
        elif (bug := task.exception()) is not None:
            if not isinstance(bug, Exception):
                raise bug
            self._bug = self._bug or bug
            self._wake()

    def _cancel(self, closed: Future[None]) -> None:
        self._closed = closed
        for held in (self._inputs, self._next, self._came_since):
            held.clear()
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            closed.set_result(None)


@dataclass(slots=True)
class WholeRow(Generic[A, R]):
    """A row that is asked for whole: a `RowToSend` of the sender."""

    engine: HttpEngine[A, R]
    asked: A

    @property
    def heavy(self) -> bool:
        return self.engine.heavy(self.asked)

    def ask(self, facts: Facts) -> Slot[ServerRequest]:
        return self.engine.ask(self.asked, False, facts)

    def read(self, completions: tuple[Completion, ...]) -> Slot[R]:
        if len(completions) != 1:
            return malformed(
                f"{shown(self.engine.name)} gave {len(completions)} completions where one was asked"
            )
        return self.engine.answer(self.asked, completions[0])
