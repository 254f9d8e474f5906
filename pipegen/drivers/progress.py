"""Progress within a batch: how far the engine is with the call that it works on.

with pg.backends.hf("embedded") as route:
    pg.run(pg.watched(route, print), requests)
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from returns.result import Success

from pipegen.core.backend import AsyncStreamBackend, Backend, FedBackend, OpenCall
from pipegen.core.calls import Call
from pipegen.core.drive import await_answers
from pipegen.core.joining import relayed
from pipegen.core.parallel import read_in_thread
from pipegen.core.pipe import Pipe, Rebinding
from pipegen.core.slots import Slot
from pipegen.drivers.events import Event, aevents_of, events_of
from pipegen.engines.protocol import GeneratesByStream, RowDone, TokensMade

__all__ = ["Progress", "watched"]

P = TypeVar("P", bound=Pipe[Any, Any])


class Progress(NamedTuple):
    """How far a call is: of its `rows` (a request has as many as it has samples) `done` are done, and `tokens` tokens were made."""

    engine: str
    rows: int
    done: int
    tokens: int


def watched(pipe: P, tell: Callable[[Progress], object], *, every: float = 0.1) -> P:
    """The same pipe, whose calls tell how far they are: at their start, then as tokens come, at most once in `every` seconds, and at their end.

    Engines that answer a call all at once tell of its start and its end only. `tell` is called from the thread that the engine works in; what it raises
    is a bug and comes through.

    >>> from pipegen.drivers.batch import run
    >>> from pipegen.drivers.route import route
    >>> from pipegen.testing.fake import FakeEngine
    >>> slots = run(watched(route(FakeEngine("three words long")), print), [{"prompt": "Hi"}])
    Progress(engine='fake', rows=1, done=0, tokens=0)
    Progress(engine='fake', rows=1, done=1, tokens=16)
    """

    return pipe.with_parts(_watched(part, tell, every) for part in pipe.parts)


def _watched(part: Pipe[Any, Any], tell: Callable[[Progress], object], every: float) -> Pipe[Any, Any]:
    if part.row is not None:
        return part  # it calls nothing

    known: dict[int, tuple[Backend[Any, Any], _Watched]] = {}

    def watch(wanted: Call) -> Call:
        engine = wanted.backend
        if id(engine) not in known:  # one for each engine: rows of one engine are merged into one call
            kind = _WatchedFed if isinstance(engine, FedBackend) else _Watched
            known[id(engine)] = engine, kind(engine, tell, every)
        return replace(wanted, backend=known[id(engine)][1])

    def rebind(new: Rebinding) -> Pipe[Any, Any]:
        return _watched(part.rebound(new), tell, every)

    return replace(part, steps=lambda batch: relayed(part.steps(batch), watch), rebind=rebind)


class _Count:
    """What a call has made so far, reported now and then."""

    def __init__(self, engine: str, rows: int, tell: Callable[[Progress], object], every: float) -> None:
        self._now, self._tell, self._every = Progress(engine, rows, 0, 0), tell, every
        self._slots: list[Slot[Any] | None] = [None] * rows
        self._reported = time.monotonic()
        tell(self._now)

    def see(self, event: Event) -> None:
        if isinstance(event, RowDone):
            self._slots[event.row] = event.slot
            self._now = self._now._replace(done=self._now.done + 1)
        elif isinstance(event, TokensMade):
            self._now = self._now._replace(tokens=self._now.tokens + len(event.token_ids))
        if time.monotonic() - self._reported >= self._every:
            self._reported = time.monotonic()
            self._tell(self._now)

    def end(self, slots: Sequence[Slot[Any]] | None = None) -> Sequence[Slot[Any]]:
        """Tell of the end, and give the answers: those of the rows that were seen, unless they come all at once."""
        answers = [slot for slot in self._slots if slot is not None] if slots is None else slots
        tokens = sum(len(slot.unwrap().token_ids) for slot in answers if isinstance(slot, Success) and hasattr(slot.unwrap(), "token_ids"))
        self._tell(self._now._replace(done=len(answers), tokens=max(tokens, self._now.tokens)))
        return answers


class _Watched:
    """The backend of a call, for the drivers: it tells how far `generate` is. Streams are shown as they come, so they report nothing more."""

    def __init__(self, engine: Backend[Any, Any], tell: Callable[[Progress], object], every: float) -> None:
        self._engine, self._tell, self._every = engine, tell, every

    @property
    def name(self) -> str:
        return self._engine.name

    def generate(self, inputs: Sequence[Any]) -> Sequence[Slot[Any]]:
        count = self._count(inputs)
        if not self._by_stream:
            return count.end(self._engine.generate(inputs))
        for event in events_of(self._engine, inputs):
            count.see(event)
        return count.end()

    async def agenerate(self, inputs: Sequence[Any]) -> Sequence[Slot[Any]]:
        count = self._count(inputs)
        if not self._by_stream:
            return count.end(await await_answers(self._engine, inputs))
        if not isinstance(self._engine, AsyncStreamBackend):
            await read_in_thread(events_of(self._engine, inputs), count.see)
            return count.end()
        async for event in aevents_of(self._engine, inputs):
            count.see(event)
        return count.end()

    def stream(self, inputs: Sequence[Any]) -> Iterator[Event]:
        return events_of(self._engine, inputs)

    def astream(self, inputs: Sequence[Any]) -> AsyncIterator[Event]:
        return aevents_of(self._engine, inputs)

    @property
    def _by_stream(self) -> bool:
        """Whether the engine's `generate` is its `stream`, read to the end: then it costs nothing to read that."""
        return isinstance(self._engine, GeneratesByStream) and self._engine.generates_by_stream

    def _count(self, inputs: Sequence[Any]) -> _Count:
        return _Count(self.name, len(inputs), self._tell, self._every)


class _WatchedFed(_Watched):
    """The same for an engine that is fed while it works."""

    @property
    def in_flight(self) -> int:
        fed: Any = self._engine
        number: int = fed.in_flight
        return number

    def open(self, wake: Callable[[], object]) -> OpenCall[Any, Any]:
        fed: Any = self._engine
        return _WatchedCall(self.name, fed.open(wake), self._tell, self._every)


class _WatchedCall:
    """An open call that tells how far it is: of all rows that were added so far."""

    def __init__(self, engine: str, call: OpenCall[Any, Any], tell: Callable[[Progress], object], every: float) -> None:
        self._call, self._tell, self._every = call, tell, every
        self._now, self._reported = Progress(engine, 0, 0, 0), -every

    @property
    def computes(self) -> bool:
        return self._call.computes

    def add(self, inputs: Sequence[tuple[int, Any]]) -> None:
        self._now = self._now._replace(rows=self._now.rows + len(inputs))
        self._tell_of(0)
        self._call.add(inputs)

    def step(self) -> Sequence[tuple[int, Slot[Any]]]:
        ended = self._call.step()
        tokens = sum(len(slot.unwrap().token_ids) for _, slot in ended if isinstance(slot, Success) and hasattr(slot.unwrap(), "token_ids"))
        self._now = self._now._replace(tokens=self._now.tokens + tokens)
        self._tell_of(len(ended))
        return ended

    def _tell_of(self, ended: int) -> None:
        self._now = self._now._replace(done=self._now.done + ended)
        if time.monotonic() - self._reported >= self._every or self._now.done == self._now.rows:
            self._reported = time.monotonic()
            self._tell(self._now)

    def close(self) -> None:
        self._call.close()
