"""Streaming: text as it comes, through the same route.

`stream` yields `Delta`s and, last for each request, `Done` with the slot. The joined deltas of a request are the text of its result, whatever the
chunking: what a plugin or a later stage may still change is held back until it is final.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from typing import Any

from pipegen.core.drive import advance, answers_of, failed
from pipegen.core.errors import CallFailed, ContractError
from pipegen.core.pipe import Call, Pipe, Row, counted
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.drivers.arguments import Options, check_run, require_iterable
from pipegen.drivers.batch import prepare_batch
from pipegen.engines.protocol import RowDone, TextMade, TokensMade
from pipegen.records.fields import record
from pipegen.records.plain import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.results import GenerationResult
from pipegen.stages.parts.row_decoder import RowDecoder

__all__ = ["Delta", "Done", "astream", "stream"]


@record
class Delta:
    """New text of request `index` (its position in the batch), of its sample `sample`."""

    index: int
    text: str
    sample: int = 0
    reasoning: str = ""
    """New reasoning, where a server tells it apart; it is no part of the text."""


@record
class Done:
    """Request `index` is finished: the slot that `run` gives."""

    index: int
    slot: Slot[GenerationResult]


class _Deltas:
    """What has been shown of each row, and what may be shown now. Does no input or output, so it serves both drivers."""

    def __init__(self, keeps_text: bool) -> None:
        self.keeps_text = keeps_text
        self.shown: dict[Row, str] = {}
        self.answered: dict[Row, Slot[Any]] = {}

    def open(self, wanted: Call) -> Call:
        """Start a call without the rows that have shown text already: those are never tried again, their answer stands."""
        fresh = [place for place, row in enumerate(wanted.rows) if not self.shown.get(row)]
        self.wanted = Call(wanted.backend, tuple(wanted.inputs[place] for place in fresh), tuple(wanted.rows[place] for place in fresh))
        engine: Any = wanted.backend
        follows = self.keeps_text and not any(plugin.trim is not None for plugin in getattr(engine, "plugins", ()))
        self.shows = follows
        self.decoders: dict[int, RowDecoder] = {}
        self.slots: list[Slot[Any] | None] = [None] * len(fresh)
        return self.wanted

    def see(self, event: TokensMade | TextMade | RowDone) -> Iterator[Delta]:
        """The deltas that an engine's event brings."""
        if isinstance(event, RowDone):
            self.slots[event.row] = event.slot
            return
        row = self.wanted.rows[event.row]
        if isinstance(event, TextMade):
            text = event.text if self.shows else ""
            if text or event.reasoning:
                self.shown[row] = self.shown.get(row, "") + text
                yield Delta(index=row[0], sample=row[1], text=text, reasoning=event.reasoning)
            return
        if self.shows and (text := self._decoded(event) if event.text is None else event.text):
            self.shown[row] = self.shown.get(row, "") + text
            yield Delta(index=row[0], sample=row[1], text=text)

    def _decoded(self, event: TokensMade) -> str:
        """The text of tokens that come without: the engine does not decode."""
        engine: Any = self.wanted.backend
        if event.row not in self.decoders:
            options = self.wanted.inputs[event.row].options
            self.decoders[event.row] = RowDecoder(options, engine.tokenizer, engine.eos_token_ids, engine.plugins)
        return self.decoders[event.row].take(event.token_ids)

    def close(self, wanted: Call) -> Sequence[Slot[Any]]:
        """The answers to the call as the pipe wanted it."""
        if any(slot is None for slot in self.slots):
            raise ContractError(f"engine {wanted.backend.name} ended its stream without an answer for every row")
        return self._answers(wanted, [slot for slot in self.slots if slot is not None])

    def failed(self, wanted: Call, failure: CallFailed) -> Sequence[Slot[Any]]:
        """The answers to a call that failed on the way: rows that were finished keep theirs."""
        broken = failed(self.wanted, failure)
        return self._answers(wanted, [slot if slot is not None else broken[row] for row, slot in enumerate(self.slots)])

    def _answers(self, wanted: Call, slots: Sequence[Slot[Any]]) -> Sequence[Slot[Any]]:
        self.answered.update(zip(self.wanted.rows, slots, strict=True))
        return [self.answered[row] for row in wanted.rows]

    def finish(self, batch: Batch[GenerationResult]) -> Iterator[Delta | Done]:
        """What was held back, and the slots."""
        for index, slot in enumerate(batch):
            if is_ok(slot) and isinstance(slot.unwrap(), GenerationResult):
                for sample, completed in enumerate(slot.unwrap().completions):
                    if not is_ok(completed):
                        continue
                    completion = completed.unwrap()
                    shown = self.shown.get((index, sample), "")
                    if not completion.text.startswith(shown):
                        raise ContractError(f"the streamed text of request {index} is not how its result begins: a stage changed text that it said it keeps")
                    if len(completion.text) > len(shown):
                        yield Delta(index=index, sample=sample, text=completion.text[len(shown) :])
            yield Done(index=index, slot=slot)


def stream(
    route: Pipe[GenerationRequest, GenerationResult],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    images: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Iterator[Delta | Done]:
    """Generate for a batch and yield text as it comes; the slots are those of `run`.

    A fallback within the route takes a request over only before its first delta. `Done` comes for all requests of the batch once the engine has
    finished the last of them: to have each as soon as it ends, stream them one by one.
    """
    chosen = check_run(route, options, images, policy)
    batch = prepare_batch(requests, chosen, images, policy)
    deltas = _Deltas(route.keeps_text)
    running = counted(route, batch)
    try:
        step = advance(running)
        while isinstance(step, Call):
            opened = deltas.open(step)
            try:
                for event in _events(opened):
                    yield from deltas.see(event)
                answers = deltas.close(step)
            except CallFailed as failure:
                answers = deltas.failed(step, failure)
            step = advance(running, answers)
        yield from deltas.finish(step.batch)
    finally:
        running.close()


def _events(wanted: Call) -> Generator[TokensMade | TextMade | RowDone, None, None]:
    if not wanted.inputs:
        return
    streams = getattr(wanted.backend, "stream", None)
    if streams is not None:
        yield from streams(wanted.inputs)
    else:
        for row, slot in enumerate(answers_of(wanted, wanted.backend.generate(wanted.inputs))):
            yield RowDone(row=row, slot=slot)


async def astream(
    route: Pipe[GenerationRequest, GenerationResult],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    images: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> AsyncIterator[Delta | Done]:
    """As `stream`, for asynchronous code; the same deltas and slots."""
    import asyncio

    chosen = check_run(route, options, images, policy)
    require_iterable(requests)
    batch = await asyncio.to_thread(prepare_batch, tuple(requests), chosen, images, policy)
    deltas = _Deltas(route.keeps_text)
    running = counted(route, batch)
    try:
        step = advance(running)
        while isinstance(step, Call):
            opened = deltas.open(step)
            try:
                async for event in _aevents(opened):
                    for delta in deltas.see(event):
                        yield delta
                answers = deltas.close(step)
            except CallFailed as failure:
                answers = deltas.failed(step, failure)
            step = advance(running, answers)
        for last in deltas.finish(step.batch):
            yield last
    finally:
        running.close()


async def _aevents(wanted: Call) -> AsyncIterator[TokensMade | TextMade | RowDone]:
    astreams = getattr(wanted.backend, "astream", None)
    if astreams is not None and wanted.inputs:
        async for event in astreams(wanted.inputs):
            yield event
        return
    import asyncio

    events = _events(wanted)
    try:
        while True:
            coming = asyncio.ensure_future(asyncio.to_thread(next, events, None))
            try:
                event = await asyncio.shield(coming)
            finally:  # a thread cannot be cancelled: an engine at work is waited for, and closed only then
                await asyncio.wait([coming])
            if event is None:
                return
            yield event
    finally:
        events.close()
