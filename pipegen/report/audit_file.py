"""Were these results made by this model, with these options? Recorded ids are read through a
reference once.

The rule for a row: its prompt is the one that the reference renders (where the request is at hand).
Its text, finish and counts are those of its ids, and what the request asks (`audit_row`). Each of its
ids is the likeliest one where it was greedy, and one that its filters leave where it was drawn. Its
recorded log probabilities are the reference's. What a row's options change beyond that (penalties,
a form) is not known to the reference, and such a row is `not judged`, unless its log probabilities
tell. What only many rows tell is in `together`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pipegen.answer import answer_check
from pipegen.answer.barred import barred_after, spellings
from pipegen.core.functional import partition_all
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.route import Route
from pipegen.drivers.scoring import continued_by, score
from pipegen.records.fields import record
from pipegen.records.options import ChatTemplateOptions, GenerationOptions, in_effect
from pipegen.records.parse_request import request_from
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.records.results import Finish, GenerationResult
from pipegen.records.scores import Scored
from pipegen.report.asking import unswitched
from pipegen.report.audit_row import FaultName, disobedience, kind_of, room_in
from pipegen.report.diagnose import OTHER_WEIGHTS, Limits, limits_of
from pipegen.report.diff import common_prefix
from pipegen.report.drawn import (
    left_out,
    surely_left,
    unknown_options,
)
from pipegen.report.respelled import unspelled
from pipegen.report.together import ScoredRow, likeliest_at, wrong_together
from pipegen.report.verdict import SPREAD, Precision, distances, rms

__all__ = ["Recorded", "RowVerdict", "verify_results"]

WINDOW = 64
"""Rows that are scored together."""
_LOOKED = 8
"""So many places of a row are looked at more closely."""
_UNLIKELY = -12.0
"""A token that is less likely shows other weights, where one is known not to be drawn."""
_ANY = 0.1
"""So often any token of the vocabulary comes, where it is not the model's."""
_NEVER = -14.0
"""A natural log probability that no row of a large file has."""
RowKind = Literal[
    "right", "template", "length", "text", "sampling", "weights", "unknown", "not judged"
]
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
Noise = Callable[
    [Precision, Sequence[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]], float | None
]


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
    rows: tuple[RowVerdict, ...]
    """The verdict on each row."""
    spread: float | None
    """How far the recorded log probabilities are from the reference's; None where there are
    none.
    """
    most_spread: float
    """The spread that the precision explains."""
    whole: str = ""
    """What is wrong with all rows together, though with none alone."""

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
        rows = [
            {"id": row.id, "verdict": row.verdict, "evidence": row.evidence} for row in self.rows
        ]
        names = ("right", "model", "precision", "spread", "most_spread", "whole", "counts")
        return {**{name: getattr(self, name) for name in names}, "rows": rows}


def verify_results(
    results: Iterable[tuple[str, Slot[GenerationResult]]],
    model: str,
    reference: Route,
    *,
    requests: Callable[[str], Slot[GenerationRequest] | None] = lambda name: None,
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
    wrong: list[tuple[FaultName, str] | None] = []
    results = [*results]
    room = room_in(slot.unwrap() for _, slot in results if is_ok(slot))
    for window in partition_all(WINDOW, results):
        flat = [pair for name, slot in window for pair in _samples(name, slot)]
        wrong += [_disobedience(result, reference, room) for _, _, result in flat]
        rows += _scored_rows(flat, reference, requests, image_policy)
        tell(len(rows))
    scored_rows = [row for row in rows if isinstance(row, ScoredRow)]
    far = rms([value for row in scored_rows for value in row.far])
    near = (far or 0.0) <= SPREAD[precision] / 10
    measured = (
        None
        if near or precision == "float32"
        else noise(
            precision,
            [(row.prompt, row.ids, row.scored.token_logprobs) for row in scored_rows[:WINDOW]],
        )
    )
    limits = limits_of(precision, measured)
    verdicts: list[RowVerdict] = []
    for row, disobeyed in zip(rows, wrong, strict=True):
        if isinstance(row, RowVerdict):
            verdicts.append(_unless(row, disobeyed))
            continue
        verdict = _Judge(row, reference, limits, image_policy).verdict()
        if verdict.verdict in ("weights", "unknown", "sampling") and not row.result.token_ids:
            verdict = _respelled(row, verdict, requests, reference, limits, image_policy)
        verdicts.append(_unless(verdict, disobeyed))
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


def _respelled(
    row: ScoredRow,
    verdict: RowVerdict,
    requests: Callable[[str], Slot[GenerationRequest] | None],
    reference: Route,
    limits: Limits,
    policy: ImagePolicy | None,
) -> RowVerdict:
    """The verdict on a row without ids. Is another spelling of its text right? Then the text is
    wrong, and not the weights.
    """
    for words, text in unspelled(row.result.raw_text):
        result = dataclasses.replace(row.result, raw_text=text)
        again = _scored_rows([(row.id, row.request, result)], reference, requests, policy)[0]
        if (
            isinstance(again, ScoredRow)
            and _Judge(again, reference, limits, policy).verdict().verdict == "right"
        ):
            evidence = f"it is {row.result.raw_text!r:.80}: the model's text, {words}"
            return RowVerdict(id=row.id, verdict="text", evidence=evidence)
    return verdict


def _scored_rows(
    named_results: Sequence[tuple[str, str, GenerationResult | RowVerdict]],
    reference: Route,
    requests: Callable[[str], Slot[GenerationRequest] | None],
    policy: ImagePolicy | None,
) -> list[ScoredRow | RowVerdict]:
    prepared = [
        result
        if isinstance(result, RowVerdict)
        else _prepared(name, result, requests(request), reference)
        for name, request, result in named_results
    ]
    unscored = [entry for entry in prepared if isinstance(entry, _Asked)]
    scores = iter(_scores([slot for entry in unscored for slot in entry.slots], reference, policy))
    out: list[ScoredRow | RowVerdict] = []
    for (_, request, _), entry in zip(named_results, prepared, strict=True):
        if isinstance(entry, RowVerdict):
            out.append(entry)
            continue
        slots = [next(scores) for _ in entry.slots]
        of_ids, rendered = slots[0], slots[-1]
        if not is_ok(of_ids):
            out.append(
                RowVerdict(
                    id=entry.id,
                    verdict="not judged",
                    evidence=f"the reference does not score it: {of_ids.failure().message}",
                )
            )
            continue
        scored = of_ids.unwrap()
        expected = (
            rendered.unwrap().prompt_token_ids if entry.rendered and is_ok(rendered) else None
        )
        recorded = [each.logprob for each in entry.result.logprobs or ()]
        out.append(
            ScoredRow(
                entry.id,
                entry.result,
                entry.ids,
                scored,
                expected,
                tuple(distances(recorded, scored.token_logprobs)),
                request,
            )
        )
    return out


def _scores(
    requests: Sequence[Slot[GenerationRequest]], reference: Route, policy: ImagePolicy | None
) -> list[Slot[Scored]]:
    """The scores, in order. A recorded template was that of the run: rows with equal ones are
    scored together, with it in the run's options.
    """
    by_template: dict[str | None, list[int]] = {}
    for index, slot in enumerate(requests):
        options = slot.unwrap().options if is_ok(slot) else None
        by_template.setdefault(
            options.chat.template if options is not None and options.chat is not None else None, []
        ).append(index)
    scores: dict[int, Slot[Scored]] = {}
    for template, places in by_template.items():
        options = (
            None
            if template is None
            else GenerationOptions(chat=ChatTemplateOptions(template=template))
        )
        scores |= dict(
            zip(
                places,
                score(
                    reference,
                    [requests[index].map(_without_template) for index in places],
                    options,
                    image_policy=policy,
                ),
                strict=True,
            )
        )
    return [scores[index] for index in range(len(requests))]


def _without_template(request: GenerationRequest) -> GenerationRequest:
    options = request.options
    if options is None or options.chat is None:
        return request
    return dataclasses.replace(
        request,
        options=dataclasses.replace(options, chat=dataclasses.replace(options.chat, template=None)),
    )


def _samples(
    name: str, slot: Slot[GenerationResult]
) -> list[tuple[str, str, GenerationResult | RowVerdict]]:
    """The completions of a result, each with an id of its own, and with that of its request."""
    if not is_ok(slot):
        reason = f"the row failed: {type(slot.failure()).__name__}: {slot.failure().message}"
        return [(name, name, RowVerdict(id=name, verdict="not judged", evidence=reason))]
    result = slot.unwrap()
    if len(result.samples) < 2:
        return [(name, name, result)]
    count = answer_check.Answer(choices=len(result.completions))
    for finding in answer_check.check_answer(count, result.options):
        kind = kind_of(finding.kind)
        return [(name, name, RowVerdict(id=name, verdict=kind, evidence=finding.words))]
    samples = [
        dataclasses.replace(sample, options=dataclasses.replace(sample.options, samples=1))
        for sample in result.samples
    ]
    return [(f"{name}#{index}", name, sample) for index, sample in enumerate(samples)]


def _disobedience(
    result: GenerationResult | RowVerdict,
    reference: Route,
    room: Callable[[GenerationResult], int | None],
) -> tuple[FaultName, str] | None:
    """What of a result does not obey its request."""
    if isinstance(result, RowVerdict):
        return None
    engine = reference.engine
    return disobedience(result, engine.tokenizer, engine.eos_token_ids, room=room(result))


def _unless(verdict: RowVerdict, disobedience: tuple[FaultName, str] | None) -> RowVerdict:
    """The verdict by the ids, unless these are right, or not judged, and the rest of the row is
    wrong.
    """
    if disobedience is None or verdict.verdict not in ("right", "not judged"):
        return verdict
    return RowVerdict(id=verdict.id, verdict=disobedience[0], evidence=disobedience[1])


class _Asked(NamedTuple):
    id: str
    result: GenerationResult
    ids: tuple[int, ...]
    slots: list[Any]
    """What is scored: the ids after the recorded prompt and, last, after the rendered one."""
    rendered: bool


def _prepared(
    name: str,
    result: GenerationResult,
    request: Slot[GenerationRequest] | None,
    reference: Route,
) -> _Asked | RowVerdict:
    def not_judged(reason: str) -> RowVerdict:
        return RowVerdict(id=name, verdict="not judged", evidence=reason)

    engine = reference.engine
    if result.options == GenerationOptions():
        return not_judged("the file does not tell with which options it was made")
    strange = next(
        (token_id for token_id in result.token_ids if token_id >= engine.tokenizer.vocab_size), None
    )
    if strange is not None:
        reason = f"it has the id {strange}, and the model has {engine.tokenizer.vocab_size} ids"
        return RowVerdict(id=name, verdict="unknown", evidence=reason)
    if not result.token_ids and (result.reasoning is not None or result.tool_calls):
        return not_judged(
            "it has no ids, and the server took its reasoning or its tool calls out of its text"
        )
    ids = result.token_ids or tuple(engine.tokenizer.encode(result.raw_text))
    if (
        not result.token_ids
        and result.finish is Finish.EOS
        and engine.eos_token_ids
        and ids[-1:] != engine.eos_token_ids[:1]
    ):
        ids = (*ids, engine.eos_token_ids[0])
    if not ids:
        return not_judged("it has no ids and no text")
    later = result.rounds or result.previous is not None  # it has another request than its id
    rendered = (
        None
        if request is None or not is_ok(request) or request.unwrap().turns or later
        else _rendered(request.unwrap(), result.options, ids, reference)
    )
    images = bool(result.image_grid_thw or result.image_digests) or (
        request is not None and is_ok(request) and bool(request.unwrap().sources)
    )
    if images and rendered is None:
        return not_judged("it has images, and its request is not at hand")
    if not images and not result.prompt_token_ids and rendered is None:
        return not_judged("it has no prompt ids, and its request is not at hand")
    slots: list[Any] = []
    if result.prompt_token_ids and not images:
        slots.append(
            request_from({"prompt_token_ids": [*result.prompt_token_ids], "continuation": [*ids]})
        )
    if rendered is not None:
        slots.append(rendered)
    return _Asked(name, result, ids, slots, rendered is not None)


def _rendered(
    request: GenerationRequest, options: GenerationOptions, ids: tuple[int, ...], reference: Route
) -> Any:
    """The request as it is scored: of its options, and of those that the row was made with, those
    of the prompt.

    A row without a thinking switch is that of a server that was not sent it, so it is rendered
    without one.
    """
    bare = dataclasses.replace(
        request, options=GenerationOptions(chat=options.chat, preprocess=options.preprocess)
    )
    return continued_by(unswitched(bare, reference), ids)


class _Judge(NamedTuple):
    row: ScoredRow
    reference: Route
    limits: Limits
    policy: ImagePolicy | None

    def verdict(self) -> RowVerdict:
        tries = (self._template, self._logprobs, self._allowed, self._not_judged, self._chosen)
        kind, evidence = next(
            (result for result in (look() for look in tries) if result is not None),
            ("right", self._agreement),
        )
        return RowVerdict(id=self.row.id, verdict=kind, evidence=evidence)

    @property
    def _agreement(self) -> str:
        distance = f"; log probabilities are {rms(self.row.far):.2g} away" if self.row.far else ""
        options = self.row.result.options
        how = (
            "the likeliest one"
            if not options.temperature
            else "one that its options leave"
            if in_effect(options, "filter")
            else "one that may be drawn"
        )
        return f"each of the {len(self.row.ids)} ids is {how}{distance}"

    def _template(self) -> tuple[RowKind, str] | None:
        row = self.row
        count, prompt, expected = (
            row.result.prompt_tokens,
            row.result.prompt_token_ids,
            row.expected,
        )
        if expected is not None and prompt and prompt != expected:
            decode, index = self.reference.engine.tokenizer.decode, common_prefix(expected, prompt)
            expected_text, seen = (
                decode(ids[max(0, index - 5) : index + 5]) for ids in (expected, prompt)
            )
            return (
                "template",
                (
                    f"about token {index} of the prompt {expected_text!r} is expected, and"
                    f" {seen!r} was recorded"
                ),
            )
        if expected is not None and not prompt and count and count != len(expected):
            return (
                "template",
                f"{len(expected)} tokens of the prompt are expected, and {count} were recorded",
            )
        text = row.result.prompt_text
        if (
            text
            and prompt
            and not row.result.image_grid_thw
            and self.reference.engine.tokenizer.decode(prompt) != text
        ):
            return "template", "the ids of the recorded prompt are not those of its text"
        return None

    def _logprobs(self) -> tuple[RowKind, str] | None:
        far = rms(self.row.far)
        if far is None or far <= 2 * self.limits.spread:
            return None
        kind: RowKind = "weights" if far >= OTHER_WEIGHTS else "unknown"
        return (
            kind,
            (
                f"the recorded log probabilities are {far:.2g} away, and {self.limits.spread:.2g}"
                " is explained"
            ),
        )

    def _allowed(self) -> tuple[RowKind, str] | None:
        """The first token that the request does not allow. Without ids nothing is known of them."""
        allowed, ids = self.row.result.options.allowed_token_ids, self.row.result.token_ids
        index = next(
            (index for index, token in enumerate(ids) if allowed and token not in allowed), None
        )
        if index is None:
            return None
        return "sampling", (
            f"at token {index} it has {self._word(ids[index])} ({ids[index]}), which"
            " allowed_token_ids leaves out"
        )

    def _not_judged(self) -> tuple[RowKind, str] | None:
        unknown = unknown_options(self.row.result.options)
        if not unknown:
            return None
        if self.row.far:
            return (
                "right",
                (
                    f"log probabilities are {rms(self.row.far):.2g} away; which tokens are chosen"
                    f" with {unknown[0]} is not judged"
                ),
            )
        return "not judged", f"it was made with {' and '.join(unknown)}"

    def _chosen(self) -> tuple[RowKind, str] | None:
        odd = self._impossible() if self.row.result.options.temperature else self._parted()
        if odd is None:
            return None
        index, reason = odd
        logprob = self.row.scored.token_logprobs[index]
        evidence = f"{reason}; to the reference its log probability is {logprob:.2g}"
        if self.row.far:
            return "sampling", f"{evidence}; the recorded log probabilities are the reference's"
        if self._is_foreign and min(self.row.scored.token_logprobs) < _UNLIKELY:
            return (
                "weights",
                f"{evidence}, and that of another token {min(self.row.scored.token_logprobs):.2g}",
            )
        return "unknown", evidence

    @property
    def _is_foreign(self) -> bool:
        """Whether such tokens are not drawn at temperature 1 either."""
        scored = self.row.scored
        pairs = zip(scored.likeliest, scored.token_logprobs, strict=True)
        drawn = [self._unlikely(logprob, highest, 1.0) for (_, highest), logprob in pairs]
        return not self.row.result.options.temperature or math.fsum(drawn) > -_NEVER

    @property
    def _free(self) -> frozenset[int]:
        """The places where the likeliest token may have been one that the options hold back, or where
        none was chosen.
        """
        options, ends = self.row.result.options, frozenset(self.reference.engine.eos_token_ids)
        stop = options.stop
        count = (
            len(self.row.ids)
            if stop is not None and stop.ignore_eos
            else options.min_new_tokens or 0
        )
        barred = spellings(options.bad_words or (), self.reference.engine.tokenizer)
        return frozenset(self.row.result.forced) | {
            index
            for index, (choice, _) in enumerate(self.row.scored.likeliest)
            if (index < count and choice in ends)
            or (barred and choice in barred_after(self.row.ids[:index], barred))
        }

    def _parted(self) -> tuple[int, str] | None:
        """The first token that greedy decoding would not have chosen."""
        scored, free = self.row.scored, self._free
        allowed = self.row.result.options.allowed_token_ids
        if allowed and not self.row.result.token_ids:
            return None
        if allowed:  # the likeliest of all may be one that is left out
            held_back = [
                index
                for index, (choice, _) in enumerate(scored.likeliest)
                if choice not in allowed and index not in free
            ]
            free |= frozenset(held_back)
            odd = self._not_the_likeliest(held_back[:_LOOKED], frozenset(allowed))
            if odd is not None:
                return odd
        for index, (token, (choice, highest), logprob) in enumerate(
            zip(self.row.ids, scored.likeliest, scored.token_logprobs, strict=True)
        ):
            if token != choice and index not in free and highest - logprob > self.limits.margin:
                if self._read_otherwise(index, choice):
                    return None
                return (
                    index,
                    (
                        f"it was greedy, and at token {index} it has {self._word(token)}, and the"
                        f" reference {self._word(choice)}"
                    ),
                )
        return None

    def _read_otherwise(self, index: int, choice: int) -> bool:
        """Whether the rest of a row without ids is the text that the reference goes on with, in
        other tokens: a stop string may end within a token.
        """
        left, word = (
            self.reference.engine.tokenizer.decode(ids) for ids in (self.row.ids[index:], (choice,))
        )
        return not self.row.result.token_ids and (left.startswith(word) or word.startswith(left))

    def _word(self, token: int) -> str:
        return repr(self.reference.engine.tokenizer.decode((token,)))

    def _impossible(self) -> tuple[int, str] | None:
        """The first token that the row's temperature and filters would not have left."""
        row, options, free = self.row, self.row.result.options, self._free
        unsure: list[int] = []
        evidence = [
            0.0 if index in free else self._unlikely(logprob, highest)
            for index, ((_, highest), logprob) in enumerate(
                zip(row.scored.likeliest, row.scored.token_logprobs, strict=True)
            )
        ]
        if math.fsum(evidence) > -_NEVER:
            index = max(range(len(evidence)), key=evidence.__getitem__)
            return index, (
                f"at token {index} it has {self._word(row.ids[index])}, and tokens as unlikely as"
                " the row's are not drawn"
            )
        for index, (token, (choice, highest), logprob) in enumerate(
            zip(row.ids, row.scored.likeliest, row.scored.token_logprobs, strict=True)
        ):
            if index in free or token == choice or self._read_otherwise(index, choice):
                continue
            if (
                options.min_p
                and (logprob - highest) / (options.temperature or 1.0)
                < math.log(options.min_p) - self.limits.margin
            ):
                return (
                    index,
                    (
                        f"at token {index} it has {self._word(token)}, which"
                        f" min_p={options.min_p:g} leaves out"
                    ),
                )
            if in_effect(options, "filter") and not surely_left(logprob, options):
                unsure.append(index)
        return self._looked_at(
            sorted(unsure, key=lambda index: row.scored.token_logprobs[index])[:_LOOKED]
        )

    def _unlikely(self, logprob: float, highest: float, least: float = 0.0) -> float:
        """How a token shows that none was drawn from the reference, as a logarithm: by how much
        likelier it is where every now and then any token of the vocabulary comes.

        No right row has more than a number in sum, but for one in its exponential.
        """
        vocabulary = self.reference.engine.tokenizer.vocab_size
        temperature = self.row.result.options.temperature or 1.0
        at_most = (logprob - highest) / max(temperature, least)
        return math.log1p(_ANY * math.expm1(min(-at_most - math.log(vocabulary), 50.0)))

    def _likeliest_at(
        self, places: Sequence[int]
    ) -> Iterator[tuple[tuple[ScoredRow, int], tuple[tuple[int, float], ...]]]:
        return likeliest_at([(self.row, index) for index in sorted(places)], self.reference)

    def _looked_at(self, places: Sequence[int]) -> tuple[int, str] | None:
        """The first of these places whose token is not among those that top_k and top_p leave."""
        row, options = self.row, self.row.result.options
        for (_, index), tokens in self._likeliest_at(places):
            filter_name = left_out(
                row.scored.token_logprobs[index],
                tokens,
                options,
                self.limits.margin,
                self.reference.engine.tokenizer.vocab_size,
            )
            if filter_name:
                return (
                    index,
                    (
                        f"at token {index} it has {self._word(row.ids[index])}, which {filter_name}"
                        " leaves out"
                    ),
                )
        return None

    def _not_the_likeliest(
        self, places: Sequence[int], allowed: frozenset[int]
    ) -> tuple[int, str] | None:
        """The first of these places where greedy decoding takes another one of the allowed."""
        row = self.row
        for (_, index), tokens in self._likeliest_at(places):
            best, highest = next(
                ((token, logprob) for token, logprob in tokens if token in allowed), (None, 0.0)
            )
            if (
                best is not None
                and best != row.ids[index]
                and highest - row.scored.token_logprobs[index] > self.limits.margin
            ):
                return index, (
                    f"it was greedy, and at token {index} it has {self._word(row.ids[index])}, and"
                    f" of the allowed ones the reference {self._word(best)}"
                )
        return None
