"""Progress within a batch: how far the engine is with the call that it works on.

with pg.backends.hf("embedded") as route:
    pg.run(pg.watched(route, print), requests)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from pipegen.core.backend import Backend, Session
from pipegen.core.error_notes import StageNote, blamed
from pipegen.core.pipe import Pipe, pipe_of
from pipegen.core.slots import Slot
from pipegen.core.steps import Branch, Call, EngineMap, EngineRequest, Step
from pipegen.drivers.drive_parts import IN_FLIGHT
from pipegen.engines.protocol import Event, RowDone, TokensMade, answers_depend_on
from pipegen.engines.session import answers, open_session

P = TypeVar("P", bound=Pipe[Any, Any])


class Progress(NamedTuple):
    """How far a call of an engine is."""

    engine: str
    """The engine's name."""
    rows: int
    """Samples that the call generates."""
    done: int
    """Samples that have ended."""
    tokens: int
    """Generated tokens."""


def watched(pipe: P, tell: Callable[[Progress], object], *, every: float = 0.1) -> P:
    """The same pipe, whose calls tell how far they are. They do so at their start, with their first
    tokens, as tokens come (at most once in `every` seconds), and at their end.

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
    if not isinstance(step, (Call, Branch)):
        return step  # it calls nothing
    # one for each engine: rows of one engine are merged into one call
    watchers: dict[int, tuple[Backend[Any, Any], _Watched]] = {}

    def watch(engine: Backend[Any, Any]) -> _Watched:
        if id(engine) not in watchers:
            watchers[id(engine)] = engine, _Watched(engine, tell, every)
        return watchers[id(engine)][1]

    def ask(value: object, answers: tuple[Slot[object], ...]) -> EngineRequest | Slot[Any]:
        wanted = step.ask(value, answers)  # type: ignore[union-attr]  # of a call
        return (
            wanted._replace(backend=watch(wanted.backend))
            if isinstance(wanted, EngineRequest)
            else wanted
        )

    def rebind(new: EngineMap) -> Pipe[Any, Any]:
        return watched(pipe_of(step).rebound(new), tell, every=every)

    if isinstance(step, Call):
        among = step.among
        return replace(
            step,
            ask=ask,
            among=among and (lambda *around: _watched(among(*around), tell, every)),
            rebind=rebind,
        )
    ways = tuple(watched(way, tell, every=every) for way in step.ways)
    return replace(step, ways=ways, rebind=rebind)


class _Watched:
    """The backend of a call, for the drivers: its sessions tell how far they are."""

    def __init__(
        self, engine: Backend[Any, Any], tell: Callable[[Progress], object], every: float
    ) -> None:
        self.watched, self._tell, self._every = engine, tell, every

    @property
    def name(self) -> str:
        return self.watched.name

    @property
    def depends_on(self) -> Mapping[str, object]:
        return answers_depend_on(self.watched)

    @property
    def in_flight(self) -> int:
        number: int = getattr(self.watched, "in_flight", IN_FLIGHT)
        return number

    def generate(self, inputs: Sequence[object]) -> Sequence[Slot[Any]]:
        return answers(self, inputs)

    def open(self, wake: Callable[[], object], *, tokens: bool = False, **how: Any) -> Session:
        tells: bool = tokens or getattr(self.watched, "tells_tokens", False)
        session = open_session(self.watched, wake, tokens=tells, **how)
        return _WatchedSession(self.name, session, self._tell, self._every)


class _WatchedSession:
    """A session that tells how far it is, of all rows that were added so far: at its start, when
    all rows have ended, and at intervals.
    """

    def __init__(
        self, engine: str, session: Session, tell: Callable[[Progress], object], every: float
    ) -> None:
        self._session, self._tell, self._every = session, tell, every
        self._now, self._told = Progress(engine, 0, 0, 0), -every
        self._made: dict[int, int] = {}
        """The tokens of rows that have not ended."""

    @property
    def side_by_side(self) -> int:
        return self._session.side_by_side

    @property
    def running(self) -> int:
        running: int = getattr(self._session, "running", self.side_by_side)
        return running

    def add(self, inputs: Mapping[int, object]) -> None:
        self._made.update(dict.fromkeys(inputs, 0))
        self._count(rows=len(inputs))
        self._session.add(inputs)

    def step(self) -> Sequence[Event]:
        events, done, tokens = self._session.step(), 0, 0
        for event in events:
            if isinstance(event, TokensMade):
                count = len(event.token_ids)
                self._made[event.row] += count
                tokens += count
            elif isinstance(event, RowDone):
                done += 1
                tokens += max(0, _tokens(event.slot) - self._made.pop(event.row))
        if events:
            self._count(done=done, tokens=tokens, ends=not self._made)
        return events

    def close(self) -> None:
        self._session.close()

    def _count(self, rows: int = 0, done: int = 0, tokens: int = 0, *, ends: bool = False) -> None:
        """Count more, and tell of it if the call `ends`, the first tokens have come, or the last
        time is long ago.
        """
        name, *counts = self._now
        ends = ends or (tokens > 0 and not self._now.tokens)
        self._now = Progress(name, *map(sum, zip(counts, (rows, done, tokens), strict=True)))
        if ends or time.monotonic() - self._told >= self._every:
            self._told = time.monotonic()
            try:
                self._tell(self._now)
            except Exception as raised:
                blamed(raised, StageNote("tell, of watched", internal=False))
                raise


def _tokens(slot: Slot[object]) -> int:
    return len(getattr(slot.value_or(None), "token_ids", ()))
