"""Streaming: text as it comes, through the same route.

`stream` yields `Delta`s and, last for each request, `Done` with the slot. The joined deltas of a
request are the text of its result, whatever the chunking: what a plugin or a stage after the call
may still change is held back until it is final. A stage before the call changes nothing of that. Of
several calls one after another, the last one's text is streamed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pipegen.core.calls import Call, Row
from pipegen.core.drive import advance, failed
from pipegen.core.errors import CallFailed, ContractError
from pipegen.core.joining import counted
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.drivers.arguments import Options, check_run, require_iterable
from pipegen.drivers.batch import prepare_batch
from pipegen.drivers.events import Event, aevents_of, events_of
from pipegen.drivers.naming import Naming
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


@record
class Done:
    """Request `index` is finished: the slot that `run` gives."""

    index: int
    slot: Slot[GenerationResult]


class _Deltas:
    """What has been shown of each row, and what may be shown now. Does no input or output, so it
    serves both drivers.
    """

    def __init__(self) -> None:
        self.shown: dict[Row, str] = {}
        self.answered: dict[Row, Slot[Any]] = {}

    def open(self, wanted: Call) -> Call:
        """Start a call without the rows that have shown text already: those are never tried again,
        their answer stands.
        """
        fresh = [place for place, row in enumerate(wanted.rows) if not self.shown.get(row)]
        self.wanted = replace(
            wanted,
            inputs=tuple(wanted.inputs[place] for place in fresh),
            rows=tuple(wanted.rows[place] for place in fresh),
        )
        self.decoders: dict[int, Any] = {}
        self.slots: list[Slot[Any] | None] = [None] * len(fresh)
        return self.wanted

    def see(self, event: Event) -> Iterator[Delta]:
        """The deltas that an engine's event brings."""
        if isinstance(event, RowDone):
            self.slots[event.row] = event.slot
            return
        row = self.wanted.rows[event.row]
        if isinstance(event, TextMade):
            text = event.text if self.wanted.shown else ""
            if text or event.reasoning:
                self.shown[row] = self.shown.get(row, "") + text
                yield Delta(index=row[0], sample=row[1], text=text, reasoning=event.reasoning)
            return
        follow = self.wanted.follow if self.wanted.shown else None
        if follow is None:
            return
        if event.text is None and event.row not in self.decoders:  # the engine does not decode
            self.decoders[event.row] = follow(self.wanted.inputs[event.row])
        text = self.decoders[event.row].take(event.token_ids) if event.text is None else event.text
        if text:
            self.shown[row] = self.shown.get(row, "") + text
            yield Delta(index=row[0], sample=row[1], text=text)

    def close(self, wanted: Call) -> Sequence[Slot[Any]]:
        """The answers to the call as the pipe wanted it."""
        if any(slot is None for slot in self.slots):
            raise ContractError(
                f"engine {wanted.backend.name} ended its stream without an answer for every row"
            )
        return self._answers(wanted, [slot for slot in self.slots if slot is not None])

    def failed(self, wanted: Call, failure: CallFailed) -> Sequence[Slot[Any]]:
        """The answers to a call that failed on the way: rows that were finished keep theirs."""
        broken = failed(self.wanted, failure)
        return self._answers(
            wanted,
            [slot if slot is not None else broken[row] for row, slot in enumerate(self.slots)],
        )

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
                        raise ContractError(
                            f"the streamed text of request {index} is not how its result begins: a"
                            " stage changed text that it said it keeps"
                        )
                    if len(completion.text) > len(shown):
                        yield Delta(index=index, sample=sample, text=completion.text[len(shown) :])
            yield Done(index=index, slot=slot)


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
    deltas = _Deltas()
    running = counted(route, batch)
    with Naming(batch), contextlib.closing(running):
        step = advance(running)
        while isinstance(step, Call):
            opened = deltas.open(step)
            try:
                for event in events_of(opened.backend, opened.inputs):
                    yield from deltas.see(event)
                answers = deltas.close(step)
            except CallFailed as failure:
                answers = deltas.failed(step, failure)
            step = advance(running, answers)
        yield from deltas.finish(step.batch)


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
    deltas = _Deltas()
    running = counted(route, batch)
    with Naming(batch), contextlib.closing(running):
        step = advance(running)
        while isinstance(step, Call):
            opened = deltas.open(step)
            try:
                async for event in aevents_of(opened.backend, opened.inputs):
                    for delta in deltas.see(event):
                        yield delta
                answers = deltas.close(step)
            except CallFailed as failure:
                answers = deltas.failed(step, failure)
            step = advance(running, answers)
        for last in deltas.finish(step.batch):
            yield last
