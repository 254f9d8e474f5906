"""Streaming: text as it comes, through the same route.

`stream` yields `Delta`s and, last for each request, `Done` with the slot. The joined deltas of a
request are the text of its result, whatever the chunking. What a plugin or a stage after the call
may still change is held back until it is final. A stage before the call changes nothing of that. Of
several calls one after another, the last one's text is streamed.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple

from pipegen.core.errors import ContractError
from pipegen.core.interpreter import Place, Row, shown_text
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch, Slot
from pipegen.drivers.arguments import Options, check_run, with_option_words
from pipegen.drivers.drive import Drive
from pipegen.drivers.drive_parts import OpenSession, WholeBatch
from pipegen.drivers.naming import name_bug
from pipegen.engines.protocol import Event, RowDone, TextMade
from pipegen.records.fields import record
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.results import GenerationResult


@record
class Delta:
    """New text of one sample of a request."""

    index: int
    """The position of the request, from 0."""
    text: str
    """The new text. It is final."""
    sample: int = 0
    """The number of the sample, from 0."""
    reasoning: str = ""
    """New reasoning, if a server returns it separately."""
    round: int = 0
    """The round of `pg.repeat`, from 0. Of loops within a loop, that of the outermost."""


@record
class Done:
    """Request `index` is finished: the slot that `run` gives."""

    index: int
    """The position of the request, from 0."""
    slot: Slot[GenerationResult]
    """The slot that `run` returns."""


class _StreamedRow(NamedTuple):
    """Where the text of a row goes, whether it is shown, and what makes text of its ids."""

    row: Row
    at: tuple[int, int, int]
    shown: bool
    follow: Any


class _Deltas:
    """What has been shown of each row, and what may be shown now."""

    def __init__(self, pipe: Pipe[Any, Any], batch: Batch[Any]) -> None:
        self._pipe = pipe
        self._texts: dict[tuple[int, int, int], str] = {}
        self._told: dict[int, set[tuple[Place, Any]]] = {}
        """Of each request, where which of its rows had deltas."""
        self._rows: dict[int, _StreamedRow] = {}
        """The rows of the call that is performed."""
        self._come = deque[Delta]()
        self._slots: list[Slot[Any]] = []
        self.drive = Drive(pipe, WholeBatch(enumerate(batch)), watcher=self)

    def stays(self, row: Row) -> bool:
        """Whether there were deltas of what came into the branch with this row."""
        outer: Any = row.outer
        place, sample = outer.place, outer.sample
        return any(
            other_place[: len(place)] == place and other_sample[: len(sample)] == sample
            for other_place, other_sample in self._told.get(row.key, ())
        )

    def _samples(self) -> dict[int, set[Any]]:
        """The samples of each request that have not ended."""
        samples: dict[int, set[Any]] = {}
        for row in self.drive.live:
            samples.setdefault(row.key, set()).add(row.sample)
        return samples

    def _place(self, row: Row, samples: Iterable[Any]) -> tuple[int, int, int]:
        """The request of a row, which of its samples it is, and the round."""
        return row.key, sorted(samples).index(row.sample), shown_text(self._pipe, row).round or 0

    def begins(self, opened: OpenSession) -> None:
        """A call begins."""
        samples = self._samples()
        self._rows = {}
        for number, row in opened.rows.items():
            text, asked = shown_text(self._pipe, row), opened.inputs[number]
            is_shown = text.keeps and opened.shown
            follow = text.follow(asked) if is_shown and text.follow is not None else None
            self._rows[number] = _StreamedRow(
                row, self._place(row, samples[row.key]), is_shown, follow
            )

    def sees(self, event: Event) -> None:
        """What an engine tells of a row: a delta where there is new text."""
        row, text, reasoning = self._rows[event.row], "", ""
        if isinstance(event, RowDone):
            return
        if isinstance(event, TextMade):
            text, reasoning = event.text if row.shown else "", event.reasoning
        elif row.follow is not None:
            text = row.follow.take(event.token_ids) if event.text is None else event.text
        if text or reasoning:
            self._told.setdefault(row.row.key, set()).add((row.row.place, row.row.sample))
            self._texts[row.at] = self._texts.get(row.at, "") + text
            index, sample, turn = row.at
            self._come.append(
                Delta(index=index, sample=sample, text=text, reasoning=reasoning, round=turn)
            )

    def come(self, numbered_slots: Iterable[tuple[int, Slot[object]]]) -> Iterator[Delta]:
        """The deltas of a round, which gave these slots."""
        self._slots += [slot for _, slot in numbered_slots]
        while self._come:
            yield self._come.popleft()

    def finish(self) -> Iterator[Delta | Done]:
        """What was held back, and the slots."""
        for index, slot in enumerate(self._slots):
            whole = slot.value_or(None)
            completions = whole.completions if isinstance(whole, GenerationResult) else ()
            for sample, completed in enumerate(completions):
                result = completed.value_or(None)
                turns = () if result is None else (*result.rounds[:-1], result)
                for turn, turn_result in enumerate(turns):
                    yield from self._rest((index, sample, turn), turn_result.text)
            yield Done(index=index, slot=slot)

    def _rest(self, at: tuple[int, int, int], text: str) -> Iterator[Delta]:
        streamed = self._texts.get(at, "")
        index, sample, turn = at
        if not text.startswith(streamed):
            raise ContractError(
                f"the streamed text of request {index} is not how its result begins: a"
                " stage changed text that it said it keeps"
            )
        if len(text) > len(streamed):
            yield Delta(index=index, sample=sample, text=text[len(streamed) :], round=turn)


@with_option_words
def stream(
    route: Pipe[GenerationRequest, GenerationResult],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Iterator[Delta | Done]:
    """Generate for a batch and yield text as it comes; the slots are those of `run`.

    A fallback within the route takes a request over only before its first delta; after it, the slot
    is that of the first route alone. `Done` comes for
    all requests of the batch once the engine has finished the last of them. To have each as soon as
    it ends, stream them one by one.
    """
    batch = check_run(route, options, image_policy, policy).batch(requests)
    deltas = _Deltas(route, batch)
    try:
        with contextlib.closing(deltas.drive) as drive:
            while not drive.exhausted:
                yield from deltas.come(drive.round())
        yield from deltas.finish()
    except Exception as raised:
        name_bug(raised, batch)
        raise


@with_option_words
async def astream(
    route: Pipe[GenerationRequest, GenerationResult],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> AsyncIterator[Delta | Done]:
    """As `stream`, for asynchronous code; the same deltas and slots."""
    batch = await check_run(route, options, image_policy, policy).batch_beside(requests)
    deltas = _Deltas(route, batch)
    try:
        async with contextlib.aclosing(deltas.drive.rounds()) as rounds:
            async for numbered_slots in rounds:
                for delta in deltas.come(numbered_slots):
                    yield delta
        for last in deltas.finish():
            yield last
    except Exception as raised:
        name_bug(raised, batch)
        raise
