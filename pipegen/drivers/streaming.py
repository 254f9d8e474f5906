"""Streaming: text as it comes, through the same route.

`stream` yields `Delta`s and, last for each request, `Done` with the slot. The joined deltas of a
request are the text of its result, whatever the chunking: what a plugin or a stage after the call
may still change is held back until it is final. A stage before the call changes nothing of that. Of
several calls one after another, the last one's text is streamed.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from returns.result import Failure

from pipegen.core.errors import CallFailed, ContractError
from pipegen.core.pipe import Pipe
from pipegen.core.rows import Row, shown_text
from pipegen.core.slots import Slot, is_ok
from pipegen.core.steps import Wanted
from pipegen.drivers.arguments import Options, check_run, prepare_batch, require_iterable
from pipegen.drivers.drive import Drive, of_batch
from pipegen.drivers.events import Event, aevents_of, events_of
from pipegen.drivers.naming import Naming
from pipegen.drivers.session import Session
from pipegen.engines.protocol import RowDone, TextMade
from pipegen.records.fields import record
from pipegen.records.plain import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.results import GenerationResult

__all__ = ["Delta", "Done", "astream", "stream"]


@record
class Delta:
    """New text of request `index` (its position in the batch), of its sample `sample`."""

    index: int
    text: str
    sample: int = 0
    reasoning: str = ""
    """New reasoning, where a server tells it apart; it is no part of the text."""
    round: int = 0
    """The round of `pg.repeat` that it belongs to, counted from 0."""


@record
class Done:
    """Request `index` is finished: the slot that `run` gives."""

    index: int
    slot: Slot[GenerationResult]


class _Shown:
    """A row of a call: where its text goes, and what makes text of its ids."""

    def __init__(self, at: tuple[int, int, int], *, shown: bool, follow: Any) -> None:
        self.at, self.shown, self.follow = at, shown, follow


class _Deltas:
    """What has been shown of each row, and what may be shown now. Does no input or output, so it
    serves both drivers.
    """

    def __init__(self, pipe: Pipe[Any, Any]) -> None:
        self._pipe = pipe
        self._texts: dict[tuple[int, int, int], str] = {}
        self._answers: dict[tuple[int, int, int], Slot[Any]] = {}
        self._new: deque[Delta] = deque()
        self.drive: Drive[int]

    def of(self, key: int, row: Row, wanted: Wanted) -> Slot[Any] | None:
        """The answer of a row that has shown text already: it is never tried again."""
        at = self._place(row)
        return self._answers.get(at) if self._texts.get(at) else None

    def keep(self, key: int, row: Row, wanted: Wanted, slot: Slot[Any]) -> None:
        """It is kept when it comes."""

    def _place(self, row: Row) -> tuple[int, int, int]:
        """The request of a row, which of its samples it is, and the round."""
        samples = {row.sample, *(other.sample for other in self.drive.live(row))}
        return row.key, sorted(samples).index(row.sample), shown_text(self._pipe, row).round

    def begin(self, row: Row, wanted: Wanted) -> _Shown:
        """A row of a call that begins."""
        text = shown_text(self._pipe, row)
        shown = text.keeps and wanted.shown
        follow = text.follow(wanted.input) if shown and text.follow is not None else None
        return _Shown(self._place(row), shown=shown, follow=follow)

    def see(self, row: _Shown, event: Event) -> None:
        """Note what an engine tells of a row."""
        if isinstance(event, RowDone):
            self._answers[row.at] = event.slot
            return
        if isinstance(event, TextMade):
            self._tell(row, event.text if row.shown else "", event.reasoning)
        elif row.follow is not None:
            text = row.follow.take(event.token_ids) if event.text is None else event.text
            self._tell(row, text, "")

    def _tell(self, row: _Shown, text: str, reasoning: str) -> None:
        if text or reasoning:
            self._texts[row.at] = self._texts.get(row.at, "") + text
            index, sample, turn = row.at
            delta = Delta(index=index, sample=sample, text=text, reasoning=reasoning, round=turn)
            self._new.append(delta)

    def new(self) -> Iterator[Delta]:
        """The deltas since the last time."""
        while self._new:
            yield self._new.popleft()

    def finish(self, slots: Iterable[tuple[int, Slot[GenerationResult]]]) -> Iterator[Delta | Done]:
        """What was held back, and the slots."""
        for index, slot in slots:
            if is_ok(slot) and isinstance(slot.unwrap(), GenerationResult):
                for sample, completed in enumerate(slot.unwrap().completions):
                    if is_ok(completed):
                        result = completed.unwrap()
                        for turn, one in enumerate((*result.rounds[:-1], result)):
                            yield from self._rest((index, sample, turn), one.text)
            yield Done(index=index, slot=slot)

    def _rest(self, at: tuple[int, int, int], text: str) -> Iterator[Delta]:
        shown = self._texts.get(at, "")
        index, sample, turn = at
        if not text.startswith(shown):
            raise ContractError(
                f"the streamed text of request {index} is not how its result begins: a"
                " stage changed text that it said it keeps"
            )
        if len(text) > len(shown):
            yield Delta(index=index, sample=sample, text=text[len(shown) :], round=turn)


class _Streamed(Session):
    """A call as events. Rows that have ended are given when the call is over."""

    def __init__(self, backend: Any, deltas: _Deltas) -> None:
        super().__init__(backend)
        self._deltas = deltas
        self._numbers: list[int] = []
        self._rows: list[_Shown] = []
        self._ended: dict[int, Slot[Any]] = {}
        self._events: Any = None

    def begin(self, rows: Sequence[tuple[int, Row, Wanted]]) -> None:
        self._rows = [self._deltas.begin(row, wanted) for _, row, wanted in rows]

    def step(self) -> Sequence[tuple[int, Slot[Any]]]:
        """The next event, or the end."""
        if self._events is None:
            self._events = self._start(events_of)
        try:
            return self._see(next(self._events, None))
        except CallFailed as failed:
            return self._failed(failed)

    async def astep(self) -> Sequence[tuple[int, Slot[Any]]]:
        if self._events is None:
            self._events = self._start(aevents_of)
        try:
            return self._see(await anext(self._events, None))
        except CallFailed as failed:
            return self._failed(failed)

    def _start(self, of: Callable[[Any, Sequence[Any]], Any]) -> Any:
        self._numbers, inputs = self.take()
        return of(self.backend, inputs)

    def _see(self, event: Event | None) -> Sequence[tuple[int, Slot[Any]]]:
        if event is not None:
            self._deltas.see(self._rows[event.row], event)
            if isinstance(event, RowDone):
                self._ended[event.row] = event.slot
            return ()
        if len(self._ended) < len(self._numbers):
            raise ContractError(
                f"engine {self.backend.name} ended its stream without an answer for every row"
            )
        return [(self._numbers[row], slot) for row, slot in sorted(self._ended.items())]

    def _failed(self, failure: CallFailed) -> Sequence[tuple[int, Slot[Any]]]:
        """Rows that were finished keep their answers."""
        for row in range(len(self._numbers)):
            if row not in self._ended:
                self._see(RowDone(row=row, slot=Failure(failure.error)))
        return self._see(None)

    def close(self) -> None:
        super().close()
        if hasattr(self._events, "close"):
            self._events.close()

    async def aclose(self) -> None:
        """As `close`, for asynchronous code."""
        if hasattr(self._events, "aclose"):
            await self._events.aclose()


def stream(
    route: Pipe[GenerationRequest, GenerationResult],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Iterator[Delta | Done]:
    """Generate for a batch and yield text as it comes; the slots are those of `run`.

    A fallback within the route takes a request over only before its first delta. `Done` comes for
    all requests of the batch once the engine has finished the last of them: to have each as soon as
    it ends, stream them one by one.
    """
    chosen = check_run(route, options, image_policy, policy)
    batch = prepare_batch(requests, chosen, image_policy, policy)
    deltas = _Deltas(route)
    whole = deltas.drive = of_batch(route, batch, partial(_Streamed, deltas=deltas), deltas)
    slots: list[tuple[int, Slot[Any]]] = []
    with Naming(batch), contextlib.closing(whole):
        while not whole.exhausted:
            slots += whole.round()
            yield from deltas.new()
        yield from deltas.finish(slots)


async def astream(
    route: Pipe[GenerationRequest, GenerationResult],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> AsyncIterator[Delta | Done]:
    """As `stream`, for asynchronous code; the same deltas and slots."""
    import asyncio

    chosen = check_run(route, options, image_policy, policy)
    require_iterable(requests)
    batch = await asyncio.to_thread(prepare_batch, tuple(requests), chosen, image_policy, policy)
    deltas = _Deltas(route)
    sessions: list[_Streamed] = []

    def session(backend: Any) -> _Streamed:
        sessions.append(_Streamed(backend, deltas))
        return sessions[-1]

    whole = deltas.drive = of_batch(route, batch, session, deltas)
    slots: list[tuple[int, Slot[Any]]] = []
    with Naming(batch), contextlib.closing(whole):
        try:
            while not whole.exhausted:
                slots += await whole.around()
                for delta in deltas.new():
                    yield delta
        finally:
            for streamed in sessions:
                await streamed.aclose()
        for last in deltas.finish(slots):
            yield last
