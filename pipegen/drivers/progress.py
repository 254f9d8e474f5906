"""Progress within a batch: how far the engine is with the call that it works on.

with pg.backends.hf("embedded") as route:
    pg.run(pg.watched(route, print), requests)
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from returns.result import Success

from pipegen.core.backend import AsyncStreamBackend, Backend, FedBackend, OpenCall
from pipegen.core.blame import StageNote, blamed
from pipegen.core.parallel import read_in_thread
from pipegen.core.pipe import Pipe, Rebinding, pipe_of
from pipegen.core.slots import Slot
from pipegen.core.steps import Call, Nest, Step, Steps, Wanted
from pipegen.drivers.batch import await_answers
from pipegen.drivers.events import Event, aevents_of, events_of
from pipegen.engines.protocol import GeneratesByStream, RowDone, TokensMade, answers_depend_on

__all__ = ["Progress", "watched"]

P = TypeVar("P", bound=Pipe[Any, Any])


class Progress(NamedTuple):
    """How far a call is: of its `rows` (a request has as many as it has samples) `done` are done,
    and `tokens` tokens were made.
    """

    engine: str
    rows: int
    done: int
    tokens: int


def watched(pipe: P, tell: Callable[[Progress], object], *, every: float = 0.1) -> P:
    """The same pipe, whose calls tell how far they are: at their start, then as tokens come, at
    most once in `every` seconds, and at their end.

    Engines that answer a call all at once tell of its start and its end only. `tell` is called from
    the thread that the engine works in; what it raises is a bug and comes through. Raises
    `TypeError` for what is no pipe or no function.

    >>> from pipegen.drivers.batch import run
    >>> from pipegen.drivers.route import route
    >>> from pipegen.testing.fake import FakeEngine
    >>> slots = run(watched(route(FakeEngine("three words long")), print), [{"prompt": "Hi"}])
    Progress(engine='fake', rows=1, done=0, tokens=0)
    Progress(engine='fake', rows=1, done=1, tokens=16)
    """
    if not isinstance(pipe, Pipe) or not callable(tell):
        raise TypeError(
            "watched takes a pipe and a function of its progress, such as watched(route, print),"
            f" not {pipe!r:.80} and {tell!r:.80}"
        )
    return pipe.with_parts(pipe_of(_watched(step, tell, every)) for step in pipe.steps)


def _watched(step: Step, tell: Callable[[Progress], object], every: float) -> Step:
    if not isinstance(step, (Call, Nest)):
        return step  # it calls nothing
    # one for each engine: rows of one engine are merged into one call
    known: dict[int, tuple[Backend[Any, Any], _Watched]] = {}

    def watch(engine: Backend[Any, Any]) -> _Watched:
        if id(engine) not in known:
            kind = _WatchedFed if isinstance(engine, FedBackend) else _Watched
            known[id(engine)] = engine, kind(engine, tell, every)
        return known[id(engine)][1]

    def ask(value: Any, answers: tuple[Slot[Any], ...]) -> Wanted | Slot[Any]:
        wanted = step.ask(value, answers)  # type: ignore[union-attr]  # of a call
        return (
            wanted._replace(backend=watch(wanted.backend)) if isinstance(wanted, Wanted) else wanted
        )

    def among(before: Steps, after: Steps) -> Step:
        there = step if step.among is None else step.among(before, after)
        return _watched(there, tell, every)

    def rebind(new: Rebinding) -> Pipe[Any, Any]:
        return watched(pipe_of(step).rebound(new), tell, every=every)

    if isinstance(step, Call):
        return replace(step, ask=ask, among=among, rebind=rebind)
    ways = tuple(watched(way, tell, every=every) for way in step.ways)
    return replace(step, ways=ways, among=among, rebind=rebind)


class _Count:
    """What a call has made so far: reported at its start, at its end, and at intervals."""

    def __init__(self, engine: str, tell: Callable[[Progress], object], every: float) -> None:
        self._now, self._tell, self._every, self._told = (
            Progress(engine, 0, 0, 0),
            tell,
            every,
            -every,
        )
        self._slots: dict[int, Slot[Any]] = {}

    def add(self, rows: int = 0, done: int = 0, tokens: int = 0, *, ends: bool = False) -> None:
        """Count more, and report it if the call `ends` or the last report is long ago."""
        before = self._now
        self._now = Progress(
            before.engine, before.rows + rows, before.done + done, before.tokens + tokens
        )
        if ends or time.monotonic() - self._told >= self._every:
            self._told = time.monotonic()
            try:
                self._tell(self._now)
            except Exception as raised:
                blamed(raised, StageNote("tell, of watched", internal=False))
                raise

    def see(self, event: Event) -> None:
        if isinstance(event, RowDone):
            self._slots[event.row] = event.slot
            self.add(done=1)
        elif isinstance(event, TokensMade):
            self.add(tokens=len(event.token_ids))

    def end(self, slots: Sequence[Slot[Any]] | None = None) -> Sequence[Slot[Any]]:
        """Tell of the end, and give the answers: those of the rows that were seen, unless they come
        all at once.
        """
        answers = [self._slots[row] for row in sorted(self._slots)] if slots is None else slots
        self.add(
            done=len(answers) - self._now.done,
            tokens=max(0, _tokens(answers) - self._now.tokens),
            ends=True,
        )
        return answers


def _tokens(slots: Iterable[Slot[Any]]) -> int:
    return sum(
        len(slot.unwrap().token_ids)
        for slot in slots
        if isinstance(slot, Success) and hasattr(slot.unwrap(), "token_ids")
    )


class _Watched:
    """The backend of a call, for the drivers: it tells how far `generate` is. Streams are shown as
    they come, so they report nothing more.
    """

    def __init__(
        self, engine: Backend[Any, Any], tell: Callable[[Progress], object], every: float
    ) -> None:
        self._engine, self._tell, self._every = engine, tell, every

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def depends_on(self) -> Mapping[str, Any]:
        return answers_depend_on(self._engine)

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
        """Whether the engine's `generate` is its `stream`, read to the end: then it costs nothing
        to read that.
        """
        return isinstance(self._engine, GeneratesByStream) and self._engine.generates_by_stream

    def _count(self, inputs: Sequence[Any]) -> _Count:
        count = _Count(self.name, self._tell, self._every)
        count.add(rows=len(inputs))
        return count


class _WatchedFed(_Watched):
    """The same for an engine that is fed while it works."""

    @property
    def in_flight(self) -> int:
        fed: Any = self._engine
        number: int = fed.in_flight
        return number

    def open(self, wake: Callable[[], object]) -> OpenCall[Any, Any]:
        fed: Any = self._engine
        return _WatchedCall(fed.open(wake), _Count(self.name, self._tell, self._every))


class _WatchedCall:
    """An open call that tells how far it is: of all rows that were added so far."""

    def __init__(self, call: OpenCall[Any, Any], count: _Count) -> None:
        self._call, self._count, self._open = call, count, 0

    @property
    def side_by_side(self) -> int:
        return self._call.side_by_side

    def add(self, inputs: Sequence[tuple[int, Any]]) -> None:
        self._open += len(inputs)
        self._count.add(rows=len(inputs))
        self._call.add(inputs)

    def step(self) -> Sequence[tuple[int, Slot[Any]]]:
        ended = self._call.step()
        self._open -= len(ended)
        self._count.add(
            done=len(ended), tokens=_tokens(slot for _, slot in ended), ends=not self._open
        )
        return ended

    def close(self) -> None:
        self._call.close()
