"""Were these results made by this model, with these options? Recorded ids are read through a
reference once.

The rule for a row: its prompt is the one that the reference renders (where the request is at hand).
Its text, finish and counts are those of its ids, and what the request asks (`audit_row`). Its ids
were chosen as the options say (`audit_tokens`). What only many rows tell is in `together`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipegen.answer import answer_check
from pipegen.core.functional import partition_all
from pipegen.core.slots import Slot, is_ok, live
from pipegen.drivers.route import Route
from pipegen.drivers.scoring import continued_by, score
from pipegen.records.codec import encode
from pipegen.records.fields import record
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.parse_request import request_from
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.records.results import GenerationResult
from pipegen.records.scores import Scored
from pipegen.report.asking import of_prompt, unswitched
from pipegen.report.audit_row import (
    disobedience,
    has_images,
    ids_of,
    is_taken_apart,
    kind_of,
    room_in,
)
from pipegen.report.audit_tokens import RowKind, TokenJudge
from pipegen.report.diff import UNKNOWN
from pipegen.report.respelled import unspelled
from pipegen.report.together import ScoredRow, wrong_together
from pipegen.report.verdict import (
    SPREAD,
    Measured,
    NoiseLimits,
    Precision,
    distances,
    limits_of,
    rms,
)

WINDOW = 64
"""Rows that are scored together."""
ROW_KINDS: Mapping[RowKind, str] = {
    "template": "the prompt is another one than the model's template makes",
    "length": "the answer is cut or too long, or its finish or its counts are wrong",
    "text": "the text is not that of its ids, or has not the form that was asked",
    "sampling": "the ids were not chosen as the options say",
    "weights": "other weights made the ids",
    "unknown": (
        "the ids are not the reference's, and the cause is not known: other options, another"
        " model, quantised or slightly other weights"
    ),
    "not judged": "nothing is known of the row",
}
Noise = Callable[[Precision, Sequence[Measured]], float | None]


@record
class RowVerdict:
    """What is known of one row."""

    id: str
    """The id of the row."""
    verdict: RowKind
    """`right`, a fault, or `not judged`."""
    evidence: str
    """What the verdict rests on."""


@record
class Recorded:
    """What was found out about a file of results."""

    model: str
    """The model that should have answered."""
    precision: Precision
    """What the results were computed in."""
    spread: float | None
    """How far the recorded log probabilities are from the reference's; None where there are
    none.
    """
    most_spread: float
    """The spread that the precision explains."""
    whole: str = ""
    """What is wrong with all rows together, though with none alone."""
    rows: tuple[RowVerdict, ...]
    """The verdict on each row."""

    @property
    def counts(self) -> dict[str, int]:
        """How many rows have each verdict."""
        return dict(Counter(row.verdict for row in self.rows))

    @property
    def right(self) -> bool:
        """Whether no row is wrong, and some were judged."""
        return (
            not self.whole
            and set(self.counts) <= {"right", "not judged"}
            and "right" in self.counts
        )

    def plain(self) -> dict[str, Any]:
        """The verdict as plain data."""
        values = encode(self)
        rows = values.pop("rows")
        return {"right": self.right, **values, "counts": self.counts, "rows": rows}


def verify_results(
    results: Iterable[tuple[Hashable, Slot[GenerationResult]]],
    model: str,
    reference: Route,
    *,
    requests: Callable[[Hashable], Slot[GenerationRequest] | None] = lambda name: None,
    precision: Precision = "float32",
    noise: Noise = lambda precision, rows: None,
    image_policy: ImagePolicy | None = None,
    tell: Callable[[int], object] = lambda done: None,
) -> Recorded:
    """Whether these results, each with its id, are the model's.

    reference: a route whose engine scores, on the weights that made them. requests: the request of
    an id, where it is at hand: prompts are then rendered and compared, and rows with images are
    judged. precision: what the results were computed in. noise: how far the reference in that
    precision is from itself.
    """
    rows: list[ScoredRow | RowVerdict] = []
    results = [*results]
    room = room_in(live(slot for _, slot in results))
    audit = _Audit(reference, requests, image_policy, room)
    for window in partition_all(WINDOW, results):
        rows += audit.scored([row for name, slot in window for row in _rows_of(name, slot)])
        tell(len(rows))
    scored_rows = [row for row in rows if isinstance(row, ScoredRow)]
    far = rms([value for row in scored_rows for value in row.far])
    near = (far or 0.0) <= SPREAD[precision] / 10
    measured = (
        None
        if near or precision == "float32"
        else noise(
            precision,
            [
                (row.prompt, row.ids, row.logprobs, row.options.adapter)
                for row in scored_rows[:WINDOW]
            ],
        )
    )
    limits = limits_of(precision, measured)
    verdicts = [audit.judged(row, limits) if isinstance(row, ScoredRow) else row for row in rows]
    overall = ""
    if all(row.verdict in ("right", "not judged") for row in verdicts):
        overall = wrong_together(scored_rows, reference, far, limits)
    return Recorded(
        model=model,
        precision=precision,
        rows=tuple(verdicts),
        spread=far,
        most_spread=limits.spread,
        whole=overall,
    )


class _RecordedRow(NamedTuple):
    id: str
    request: Hashable
    """The id of its request."""
    result: GenerationResult


class _RowToScore(NamedTuple):
    row: _RecordedRow
    ids: tuple[int, ...]
    slots: list[Slot[GenerationRequest]]
    """What is scored: the ids after the recorded prompt and, last, after the rendered one."""
    rendered: bool


class _Audit(NamedTuple):
    """What rows are judged by."""

    reference: Route
    requests: Callable[[Hashable], Slot[GenerationRequest] | None]
    policy: ImagePolicy | None
    room: Callable[[GenerationResult], int | None]

    def scored(self, rows: Sequence[_RecordedRow | RowVerdict]) -> list[ScoredRow | RowVerdict]:
        """The rows with what the reference makes of them, or why it makes nothing of them."""
        asked = [row if isinstance(row, RowVerdict) else self._asked(row) for row in rows]
        slots = [slot for entry in asked if isinstance(entry, _RowToScore) for slot in entry.slots]
        scores = iter(_scores(slots, self.reference, self.policy))
        return [
            entry
            if isinstance(entry, RowVerdict)
            else self._scored(entry, [next(scores) for _ in entry.slots])
            for entry in asked
        ]

    def _scored(
        self, row_to_score: _RowToScore, scores: list[Slot[Scored]]
    ) -> ScoredRow | RowVerdict:
        (name, request, result), of_ids, rendered = row_to_score.row, scores[0], scores[-1]
        if not is_ok(of_ids):
            reason = f"the reference does not score it: {of_ids.failure().message}"
            return self._obeying(name, "not judged", reason, result)
        scored = of_ids.unwrap()
        prompt = rendered.map(lambda row: row.prompt_token_ids).value_or(None)
        own = result.options.logprobs != "processed"  # the reference scores the model's own
        recorded = [token.logprob for token in result.logprobs or () if own]
        return ScoredRow(
            name,
            request,
            result,
            scored.prompt_token_ids,
            row_to_score.ids,
            scored.token_logprobs,
            scored.likeliest,
            prompt if row_to_score.rendered else None,
            tuple(distances(recorded, scored.token_logprobs)),
        )

    def judged(self, scored_row: ScoredRow, limits: NoiseLimits) -> RowVerdict:
        """The verdict on a row. Of one without ids, is another spelling of its text right? Then the
        text is wrong, and not the weights.
        """
        kind, evidence = TokenJudge(scored_row, self.reference, limits).verdict()
        if kind in ("weights", "unknown", "sampling") and not scored_row.result.token_ids:
            for words, text in unspelled(scored_row.result.raw_text):
                result = dataclasses.replace(scored_row.result, raw_text=text)
                (again,) = self.scored([_RecordedRow(scored_row.id, scored_row.request, result)])
                if (
                    isinstance(again, ScoredRow)
                    and TokenJudge(again, self.reference, limits).verdict()[0] == "right"
                ):
                    evidence = (
                        f"it is {scored_row.result.raw_text!r:.80}: the model's text, {words}"
                    )
                    return RowVerdict(id=scored_row.id, verdict="text", evidence=evidence)
        return self._obeying(scored_row.id, kind, evidence, scored_row.result)

    def _obeying(
        self, name: str, kind: RowKind, evidence: str, result: GenerationResult
    ) -> RowVerdict:
        """The verdict by the ids, unless these are right, or not judged, and the rest of the row is
        wrong.
        """
        if kind in ("right", "not judged"):
            engine, room = self.reference.engine, self.room(result)
            kind, evidence = disobedience(
                result, engine.tokenizer, engine.eos_token_ids, room=room
            ) or (kind, evidence)
        return RowVerdict(id=name, verdict=kind, evidence=evidence)

    def _asked(self, recorded_row: _RecordedRow) -> _RowToScore | RowVerdict:
        result, engine, slot = (
            recorded_row.result,
            self.reference.engine,
            self.requests(recorded_row.request),
        )
        size = engine.tokenizer.vocab_size
        strange = [token_id for token_id in result.token_ids if token_id >= size]
        silent = result.options == UNKNOWN
        if strange and not silent:
            reason = f"it has the id {strange[0]}, and the model has {size} ids"
            return RowVerdict(id=recorded_row.id, verdict="unknown", evidence=reason)
        ids = ids_of(result, engine.tokenizer, engine.eos_token_ids)
        request = None if slot is None else slot.value_or(None)
        images = has_images(result) or bool(request is not None and request.sources)
        if request is not None and (request.turns or result.rounds or result.previous is not None):
            request = None  # the row has another request than its id
        of_prompt = bool(result.prompt_token_ids) and not images
        reasons = {
            "the file does not tell with which options it was made": silent,
            "it has no ids, and its reasoning or its tool calls were taken out of its text": (
                is_taken_apart(result)
            ),
            "it has no ids and no text": not ids,
            "it has images, and its request is not at hand": images and request is None,
            "it has no prompt ids, and its request is not at hand": (
                request is None and not of_prompt
            ),
        }
        for reason, holds in reasons.items():
            if holds:
                return self._obeying(recorded_row.id, "not judged", reason, result)
        prompt = {
            "prompt_token_ids": [*result.prompt_token_ids],
            "continuation": [*ids],
            "options": {"adapter": result.options.adapter},
        }
        slots = [request_from(prompt)] if of_prompt else []
        if request is not None:
            slots.append(_rendered(request, result.options, ids, self.reference))
        return _RowToScore(recorded_row, ids, slots, request is not None)


def _scores(
    requests: Sequence[Slot[GenerationRequest]], reference: Route, policy: ImagePolicy | None
) -> list[Slot[Scored]]:
    """The scores, in order. A recorded template was that of the run: rows with equal ones are
    scored together, with it in the run's options.
    """
    templates = [_template_of(slot) for slot in requests]
    scores: dict[int, Slot[Scored]] = {}
    for template in dict.fromkeys(templates):
        places = [index for index, other in enumerate(templates) if other == template]
        batch = [requests[index].map(_without_template) for index in places]
        options = GenerationOptions(chat=ChatTemplateOptions(template=template))
        scores |= zip(places, score(reference, batch, options, image_policy=policy), strict=True)
    return [scores[index] for index in range(len(requests))]


def _template_of(slot: Slot[GenerationRequest]) -> str | None:
    return slot.map(_own_template).value_or(None)


def _own_template(request: GenerationRequest) -> str | None:
    options = request.options
    return None if options is None or options.chat is None else options.chat.template


def _without_template(request: GenerationRequest) -> GenerationRequest:
    options = request.options or GenerationOptions()
    chat = dataclasses.replace(options.chat or ChatTemplateOptions(), template=None)
    return dataclasses.replace(request, options=dataclasses.replace(options, chat=chat))


def _rows_of(row_id: Hashable, slot: Slot[GenerationResult]) -> list[_RecordedRow | RowVerdict]:
    """What is judged of a result: its rounds and samples, each with an id of its own, and with that
    of its request.
    """
    if not is_ok(slot):
        reason = f"the row failed: {type(slot.failure()).__name__}: {slot.failure().message}"
        return [RowVerdict(id=str(row_id), verdict="not judged", evidence=reason)]
    return [*_rows_in(str(row_id), row_id, slot.unwrap())]


def _rows_in(
    name: str, row_id: Hashable, result: GenerationResult
) -> Iterator[_RecordedRow | RowVerdict]:
    of_sample = bool(result.samples and result.samples[0].rounds)  # which has the same ones
    for number, earlier in enumerate(() if of_sample else result.rounds[:-1], 1):
        # it has another request than the row's id
        yield from _rows_in(f"{name} round {number}", None, earlier)
    count = answer_check.UntrimmedAnswer(choices=len(result.completions))
    known = len(result.samples) > 1 and result.options != UNKNOWN
    findings = answer_check.check_answer(count, result.options) if known else ()
    verdicts = [
        *(RowVerdict(id=name, verdict=kind_of(it.kind), evidence=it.words) for it in findings),
        *(
            RowVerdict(id=name, verdict="text", evidence=words)
            for words in (
                *_unlike(result, result.samples[:1], "first sample"),
                *_unlike(result, result.rounds[-1:], "last round"),
            )
        ),
    ]
    if verdicts:
        yield verdicts[0]
    elif len(result.samples) < 2:
        yield _RecordedRow(name, row_id, result)
    else:
        asked = None if result.rounds else row_id  # tables have no rounds of samples
        for index, sample in enumerate(result.samples):
            options = _options_of(sample, result)
            yield from _rows_in(
                f"{name}#{index}", asked, dataclasses.replace(sample, options=options)
            )


_SHARED = ("text", "finish", "raw_text", "token_ids", "stop", "reasoning", "tool_calls", "rounds")
"""What a result has of its first sample and of its last round; tables have the first two alone."""


def _unlike(
    result: GenerationResult, parts: Sequence[GenerationResult], what: str
) -> Iterator[str]:
    """Where a result is not that of this part, in words."""
    for part in parts:
        for name in _SHARED[: 2 if part.options == UNKNOWN else None]:
            own, other = getattr(result, name), getattr(part, name)
            if own != other and not (name == "rounds" and not other):
                yield f"its {name} is {own!r:.60}, and that of its {what} {other!r:.60}"


def _options_of(sample: GenerationResult, result: GenerationResult) -> GenerationOptions:
    """What a sample was made with; a table has only what all samples of a request were made with."""
    options = result.options if sample.options == UNKNOWN else sample.options
    return options if options == UNKNOWN else dataclasses.replace(options, samples=1)


def _rendered(
    request: GenerationRequest, options: GenerationOptions, ids: tuple[int, ...], reference: Route
) -> Slot[GenerationRequest]:
    """The request as it is scored: of its options, and of those that the row was made with, those
    of the prompt.

    A row without a thinking switch is that of a server that was not sent it, so it is rendered
    without one.
    """
    return continued_by(unswitched(of_prompt(request, options), reference), ids)
