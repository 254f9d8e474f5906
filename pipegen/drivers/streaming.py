"""Streaming: text as it comes, through the same route.

`stream` yields `Delta`s and, last for each request, `Done` with the slot. The joined deltas of a
request are the text of its result, whatever the chunking: what a plugin or a stage after the call
may still change is held back until it is final. A stage before the call changes nothing of that. Of
several calls one after another, the last one's text is streamed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple

from pipegen.core.errors import ContractError
from pipegen.core.pipe import Pipe
from pipegen.core.rows import Row, shown_text
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.drivers.arguments import Options, check_run, prepare_batch, require_iterable
from pipegen.drivers.events import Event, aevents_of, events_of
from pipegen.drivers.naming import name_bug
from pipegen.drivers.whole import Whole, WholeCall
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


class _Shown(NamedTuple):
    """Where the text of a row goes, whether it is shown, and what makes text of its ids."""

    at: tuple[int, int, int]
    shown: bool
    follow: Any


class _Deltas:
    """What has been shown of each row, and what may be shown now. Does no input or output, so it
    serves both drivers.
    """

    def __init__(self, pipe: Pipe[Any, Any], batch: Batch[Any]) -> None:
        self._pipe = pipe
        self._texts: dict[tuple[int, int, int], str] = {}
        self._answers: dict[tuple[int, int, int], Slot[Any]] = {}
        self._rows: list[_Shown] = []
        """The rows of the call that is performed."""
        self.whole = Whole(pipe, batch, self._answer)

    def _answer(self, row: Row) -> Slot[Any] | None:
        """The answer of a row that has shown text already: it is never tried again."""
        if not self._texts:
            return None
        place = self._place(row, {row.sample, *self._samples().get(row.key, ())})
        return self._answers.get(place) if self._texts.get(place) else None

    def _samples(self) -> dict[int, set[Any]]:
        """The samples of each request that have not ended."""
        samples: dict[int, set[Any]] = {}
        for row in self.whole.live():
            samples.setdefault(row.key, set()).add(row.sample)
        return samples

    def _place(self, row: Row, samples: Iterable[Any]) -> tuple[int, int, int]:
        """The request of a row, which of its samples it is, and the round."""
        return row.key, sorted(samples).index(row.sample), shown_text(self._pipe, row).round

    def begin(self, call: WholeCall) -> None:
        """A call begins."""
        samples = self._samples()
        self._rows = []
        for (row, wanted), *_ in call.rows:
            text = shown_text(self._pipe, row)
            shown = text.keeps and wanted.shown
            follow = text.follow(wanted.input) if shown and text.follow is not None else None
            self._rows.append(_Shown(self._place(row, samples[row.key]), shown, follow))

    def see(self, call: WholeCall, event: Event) -> Delta | None:
        """What an engine tells of a row, as a delta where there is new text."""
        row, text, reasoning = self._rows[event.row], "", ""
        if isinstance(event, RowDone):
            call.answers[event.row] = event.slot
        elif isinstance(event, TextMade):
            text, reasoning = event.text if row.shown else "", event.reasoning
        elif row.follow is not None:
            text = row.follow.take(event.token_ids) if event.text is None else event.text
        if not text and not reasoning:
            return None
        self._texts[row.at] = self._texts.get(row.at, "") + text
        index, sample, turn = row.at
        return Delta(index=index, sample=sample, text=text, reasoning=reasoning, round=turn)

    def end(self, call: WholeCall) -> None:
        """A call has ended. Raises `ContractError` where a row has no answer."""
        if len(call.answers) < len(self._rows):
            raise ContractError(
                f"engine {call.backend.name} ended its stream without an answer for every row"
            )
        for place, row in enumerate(self._rows):
            self._answers[row.at] = call.answers[place]

    def finish(self) -> Iterator[Delta | Done]:
        """What was held back, and the slots."""
        for index, slot in enumerate(self.whole.slots):
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
    deltas = _Deltas(route, batch)
    try:
        for call in deltas.whole.calls():
            deltas.begin(call)
            with call, contextlib.closing(events_of(call.backend, call.inputs)) as events:
                for event in events:
                    if (delta := deltas.see(call, event)) is not None:
                        yield delta
            deltas.end(call)
        yield from deltas.finish()
    except Exception as raised:
        name_bug(raised, batch)
        raise


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
    deltas = _Deltas(route, batch)
    try:
        for call in deltas.whole.calls():
            deltas.begin(call)
            with call:
                async with contextlib.aclosing(aevents_of(call.backend, call.inputs)) as events:
                    async for event in events:
                        if (delta := deltas.see(call, event)) is not None:
                            yield delta
            deltas.end(call)
        for last in deltas.finish():
            yield last
    except Exception as raised:
        name_bug(raised, batch)
        raise
