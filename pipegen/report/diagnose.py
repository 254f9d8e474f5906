"""Judge a server by its greedy answers: which faults do they show, and what does each name rest on?

Answers by chat and answers by token ids tell much apart. The server renders the first itself and
fills in its own defaults; the second leave it neither. What both show alike is no default. A cause
is named by a pattern that no other cause makes, or by a test. The answer is scored once more after
another prompt, the request is asked again, or the reference writes its own answer. Where nothing
fits, the cause is not known.

>>> same = Answer(
...     id="a",
...     way="chat",
...     expected=(1, 2),
...     prompt_token_ids=(1, 2),
...     token_ids=(7, 3),
...     logprobs=(-0.1, -0.2),
...     likeliest=((7, -0.1), (3, -0.2)),
... )
>>> other = Answer(
...     id="b",
...     way="chat",
...     expected=(1, 2),
...     prompt_token_ids=(1, 9, 2),
...     token_ids=(7,),
...     logprobs=(-5.0,),
...     likeliest=((3, -0.1),),
... )
>>> judge([same]), [fault.kind for fault in judge([same, other])]
((), ['template'])
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pipegen.core.functional import partition_all
from pipegen.records.fields import unchecked_replace
from pipegen.report.diff import common_prefix
from pipegen.report.respelled import is_respelled
from pipegen.report.verdict import (
    MARGIN,
    SPREAD,
    Answer,
    Decode,
    Fault,
    Kind,
    Parting,
    Precision,
    Way,
    distances,
    rms,
    spread,
)

__all__ = ["Limits", "Rescored", "Trials", "judge", "limits_of", "one_each", "partings"]

LOWER: dict[Precision, tuple[Precision, ...]] = {
    "float32": ("float16", "bfloat16"),
    "float16": ("bfloat16",),
    "bfloat16": (),
}
"""The precisions that are lower than another."""
OTHER_WEIGHTS = 1.0
"""From this spread on, no precision explains what is seen."""
OTHER_MARGIN = 3.0
"""The same for the median of margins, where no log probabilities are known."""
MOST = 0.9
"""The share of partings that must look alike before a cause is named by it."""
_FEW = 2
"""A pattern of fewer partings may be chance, where nothing else shows that weights and prompt are
right.
"""
_GOOD = 3
"""So many right answers at least show that something is wrong with some kind of request alone."""
_TIMES = 2.0
"""A right server is at most so many times as far from the reference as the reference in the
server's precision is.
"""
_BROAD = 30.0
"""The margin of a right server is at most so many times that spread."""
_TRIED = 3
"""So many requests, or a few times as many, are asked again or written by the reference."""
_FITTED = 12
"""So many answers have to be those to other prompts, where so many are wrong."""
_LEAST = 3
"""An answer of fewer tokens fits many prompts."""
_MANY = 8
"""So many log probabilities at least show how they are to be read."""
_SHOWN = 5
"""Tokens about a place that are shown."""


class Limits(NamedTuple):
    """What arithmetic explains."""

    spread: float
    margin: float


Rescored = tuple[tuple[float, ...], tuple[tuple[int, float], ...]]
"""The log probabilities of an answer, and the likeliest token in each place."""


def _no_scores(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[Rescored | None]:
    return [None for _ in pairs]


class Trials(NamedTuple):
    """What may be tried to tell causes apart. Without one, the cause it would show is named by no
    test.
    """

    rescore: Callable[
        [Sequence[tuple[tuple[int, ...], tuple[int, ...]]]], list[Rescored | None]
    ] = _no_scores
    """Score answers after other prompts."""
    again: Callable[[Sequence[str], Way], list[Answer]] = lambda names, way: []
    """Ask requests once more, that way."""
    written: Callable[[Sequence[str]], list[str | None]] = lambda names: [None for _ in names]
    """What the reference itself writes."""
    noise: Callable[[Precision], float | None] = lambda precision: None
    """How far the reference in that precision is from the reference: the root of the mean square
    over the same answers.
    """


def limits_of(precision: Precision, noise: float | None) -> Limits:
    """What the precision explains; less where it was measured on this model.

    >>> limits_of("bfloat16", None), limits_of("bfloat16", 0.01)
    (Limits(spread=0.15, margin=0.7), Limits(spread=0.02, margin=0.3))
    """
    if noise is None:
        return Limits(SPREAD[precision], MARGIN[precision])
    least = Limits(SPREAD["float32"], MARGIN["float32"])
    return Limits(
        max(least.spread, min(SPREAD[precision], _TIMES * noise)),
        max(least.margin, min(MARGIN[precision], _BROAD * noise)),
    )


def judge(
    answers: Sequence[Answer],
    precision: Precision = "float32",
    decode: Decode = str,
    *,
    limits: Limits | None = None,
    trials: Trials | None = None,
) -> tuple[Fault, ...]:
    """What is wrong with the server that gave these answers, taken to compute in that precision.
    `decode` shows ids.

    Answers to another prompt than the expected one show the prompt's fault alone. Weights and
    precision are judged by the answers to ids, where there are any; by chat what counts beside them
    is what is not the same by ids.
    """
    case = _Case(
        precision,
        limits or Limits(SPREAD[precision], MARGIN[precision]),
        decode,
        trials or Trials(),
    )
    chat, by_ids = ([answer for answer in answers if answer.way == way] for way in ("chat", "ids"))
    others = [answer for answer in chat if answer.other_prompt]
    same = [answer for answer in chat if not answer.other_prompt]
    forms = [*_of_forms([*same, *by_ids])]
    if any(fault.kind == "text" for fault in forms) or any(
        answer.wrong and answer.by_text for answer in same
    ):
        # their ids are those of a text that is known to be wrong
        same = [answer for answer in same if not answer.by_text]
    prompt = None if not others else _swapped(chat) or case.of_prompts(chat, others)
    computed = case.cause(by_ids, few=_FEW)
    if by_ids:
        twins = {answer.id: answer for answer in by_ids}
        odd = {answer.id for answer, _ in partings(by_ids, case.limits.margin)} | {
            answer.id for answer in by_ids if answer.runs_on is not None
        }
        apart = [
            answer
            for answer in same
            if answer.id not in odd or _differs(answer, twins[answer.id], case.limits.margin)
        ]
        if computed is not None:  # what was asked by chat alone shows it too
            apart = [answer for answer in apart if answer.id in twins]
        default = case.cause(apart, few=1, of=len(same), default=computed is None)
        if (
            default is not None
            and computed is not None
            and (
                computed.kind == "weights"
                or default.kind in ("precision", "weights", "unknown", "chat")
            )
        ):
            default = None
    else:
        default = case.cause(same, few=_FEW)
    faults = [fault for fault in (prompt, *forms, default, computed) if fault is not None]
    if prompt is not None and prompt.kind == "order":
        # what is asked again gets the answers of other requests than before
        faults = [fault for fault in faults if fault.kind != "sampling"]
    return tuple(one_each(faults))


def one_each(faults: Iterable[Fault]) -> list[Fault]:
    """The first fault of each kind."""
    firsts: dict[Kind, Fault] = {}
    for fault in faults:
        firsts.setdefault(fault.kind, fault)
    return [*firsts.values()]


def partings(answers: Iterable[Answer], margin: float) -> list[tuple[Answer, Parting]]:
    """The partings that arithmetic does not explain."""
    pairs = [(answer, answer.parting) for answer in answers]
    return [
        (answer, parting)
        for answer, parting in pairs
        if parting is not None and parting.margin > margin
    ]


def _differs(answer: Answer, twin: Answer, margin: float) -> bool:
    """Whether the request has another answer the other time, and not by a near tie of the server's
    own.
    """
    index = common_prefix(answer.token_ids, twin.token_ids)
    if index == len(answer.token_ids) == len(twin.token_ids):
        distance = rms(distances(answer.server_logprobs, twin.server_logprobs))
        return distance is not None and distance > max(margin, SPREAD["bfloat16"])
    if index in (len(answer.token_ids), len(twin.token_ids)):
        return True
    if index < min(len(answer.server_logprobs), len(twin.server_logprobs)):
        return abs(answer.server_logprobs[index] - twin.server_logprobs[index]) > margin
    return True


def _swapped(chat: Sequence[Answer]) -> Fault | None:
    """Answers whose prompt is that of another request."""
    others = [answer for answer in chat if answer.other_prompt]
    prompts = {answer.expected: answer.id for answer in chat}
    swapped = [answer for answer in others if answer.prompt_token_ids in prompts]
    if all(answer.prompt_token_ids for answer in others):
        if len(others) < _FEW or Counter(answer.prompt_token_ids for answer in others) != Counter(
            answer.expected for answer in others
        ):
            return None
        example, evidence = (
            f"it has the prompt of the request {prompts[swapped[0].prompt_token_ids]}",
            "the prompts that the server names are those of other requests",
        )
    else:
        swapped = others
        if len(swapped) < 2 * _FEW or Counter(answer.counted for answer in others) != Counter(
            len(answer.expected) for answer in others
        ):
            return None
        example = (
            f"{len(swapped[0].expected)} tokens of the prompt are expected, and the server counts"
            f" {swapped[0].counted}"
        )
        evidence = "the counts of the prompts' tokens are those that are expected, in another order"
    return Fault(
        kind="order",
        answers=len(swapped),
        of=len(chat),
        first=swapped[0],
        example=example,
        evidence=evidence,
    )


def _of_forms(chat: Sequence[Answer]) -> Iterable[Fault]:
    """What does not obey its request, whatever the weights."""
    stopped = [answer for answer in chat if any(kind == "finish" for kind, _ in answer.wrong)]
    last = {answer.token_ids[-1:] for answer in stopped}
    elsewhere = (
        len(stopped) >= _FEW
        and len(last) == 1
        and all(answer.finish != "length" for answer in stopped)
    )
    names = (
        ("length", ("length",) if elsewhere else ("length", "finish")),
        ("text", ("text",)),
        ("end tokens", ("finish",) if elsewhere else ()),
        ("logprobs", ("logprobs",)),
    )
    for kind, seen in names:
        wrong = [answer for answer in chat if any(name in seen for name, _ in answer.wrong)]
        if wrong:
            example = next(example for name, example in wrong[0].wrong if name in seen)
            evidence = {
                "length": "finish and counts, beside what was asked",
                "text": "the text, beside the text of the ids that came with it",
                "logprobs": (
                    "with log probabilities the answer cannot be read, and without them it can"
                ),
                "end tokens": (
                    "the answers end at one token, which is none of the model's end tokens"
                ),
            }[kind]
            yield Fault(
                kind=kind,  # type: ignore[arg-type]  # a Kind
                answers=len(wrong),
                of=len(chat),
                first=wrong[0],
                example=example,
                evidence=evidence,
            )


class _Case(NamedTuple):
    precision: Precision
    limits: Limits
    decode: Decode
    trials: Trials

    def of_prompts(self, chat: Sequence[Answer], others: Sequence[Answer]) -> Fault:
        """Prompts that are cut are all longer than any that the server ran; a template shows in
        short prompts too.
        """
        most, first = max(answer.counted for answer in chat), others[0]
        plain = [answer for answer in chat if not answer.images]
        cut = [answer for answer in others if answer.cut and len(answer.expected) > most]
        alike = (
            len(cut) < len(chat)
            or len({len(answer.expected) - answer.counted for answer in cut}) > 1
        )
        kind: Kind = "context" if len(cut) == len(others) and alike else "template"
        evidence = (
            "only prompts above some length are shorter at the server"
            if kind == "context"
            else "the prompt's ids, or their count, as the server tells"
        )
        if (
            all(answer.images for answer in others)
            and sum(not answer.other_prompt for answer in plain) >= _GOOD
        ):
            kind, evidence = "images", "the prompts of requests with images alone are others"
        example = (
            f"{len(first.expected)} tokens of the prompt are expected, and the server counts"
            f" {first.counted}"
        )
        if first.prompt_token_ids and kind != "context":
            index = common_prefix(first.expected, first.prompt_token_ids)
            expected, at_server = (
                self.decode(ids[max(0, index - _SHOWN) : index + _SHOWN])
                for ids in (first.expected, first.prompt_token_ids)
            )
            example += (
                f"; about token {index} {expected!r} is expected, and the server has {at_server!r}"
            )
        return Fault(
            kind=kind,
            answers=len(others),
            of=len(chat),
            first=first,
            example=example,
            evidence=evidence,
        )

    def cause(
        self, answers: Sequence[Answer], *, few: int, of: int | None = None, default: bool = False
    ) -> Fault | None:
        """Why the answers are not those of the reference; None where they are. `default` says that
        the same requests are right by ids.
        """
        parted = {id(answer): parting for answer, parting in partings(answers, self.limits.margin)}
        past = [answer for answer in answers if answer.runs_on is not None]
        far = spread(answers)
        if not parted and not past and (far is None or far <= self.limits.spread):
            return None
        odd = [
            answer
            for answer in answers
            if id(answer) in parted or answer.runs_on is not None or self._is_far(answer)
        ] or [*answers]
        look = _Look(
            self,
            answers,
            odd,
            [answer for answer in answers if not any(answer is other for other in odd)],
            parted,
            few,
            of or len(answers),
        )
        return look.named(default=default)

    def _is_far(self, answer: Answer) -> bool:
        distance = spread([answer])
        return distance is not None and distance > 2 * self.limits.spread


class _Look(NamedTuple):
    """Answers that are not the reference's, and what may explain them, tried in turn."""

    case: _Case
    answers: Sequence[Answer]
    odd: Sequence[Answer]
    fine: Sequence[Answer]
    parted: dict[int, Parting]
    few: int
    of: int

    def named(self, *, default: bool) -> Fault:
        tries = (
            self._lowered,
            self._logprobs,
            self._group,
            self._ends,
            self._text,
            self._penalty,
            self._sampling,
            self._prompts,
        )
        fault = next((fault for fault in (look() for look in tries) if fault is not None), None)
        if fault is not None:
            return fault
        if default:
            return self._fault(
                "chat",
                self.odd,
                "the same prompts have other answers by token ids, and those are the reference's",
            )
        return self._computing()

    def _fault(self, kind: Kind, odd: Sequence[Answer], evidence: str, example: str = "") -> Fault:
        first = next((answer for answer in odd if id(answer) in self.parted), odd[0])
        return Fault(
            kind=kind,
            answers=len(odd),
            of=self.of,
            first=first,
            example=example or self._shown(first),
            evidence=evidence,
        )

    def _shown(self, answer: Answer) -> str:
        parting, decode = self.parted.get(id(answer)), self.case.decode
        if answer.runs_on is not None:
            return (
                "it goes on after"
                f" {decode(answer.token_ids[answer.runs_on : answer.runs_on + 1])!r}, which ends"
                " answers"
            )
        if parting is None:
            return f"a log probability is {max(answer.far, default=0.0):.2g} away"
        before = decode(answer.token_ids[max(0, parting.place - _SHOWN) : parting.place])
        token, choice = decode((parting.token,)), decode((parting.choice,))
        return (
            f"at token {parting.place} after {before!r} it has {token!r}, and the reference"
            f" {choice!r}, with a margin of {parting.margin:.2g}"
        )

    @property
    def _far(self) -> float | None:
        return spread(self.odd)

    @property
    def _same_weights(self) -> bool | None:
        """Whether the log probabilities are the reference's where the answers are not; None where
        the server tells none.
        """
        return (
            None
            if self._far is None
            else self._far <= max(2 * self.case.limits.spread, SPREAD["float32"])
        )

    def _lowered(self) -> Fault | None:
        """Log probabilities that are given after a penalty was taken, as by SGLang: no token is less
        likely than by the reference but those that came before.
        """
        parted = [answer for answer in self.odd if id(answer) in self.parted]
        avoiding = [answer for answer in parted if answer.avoids(self.parted[id(answer)])]
        if len(avoiding) < MOST * len(parted):
            return None
        for of_prompt in (False, True):
            moved = [
                pair
                for answer in self.answers
                for pair in answer.moved(self.case.limits.spread, of_prompt=of_prompt)
            ]
            lower = [repeated for repeated, higher in moved if not higher]
            alike = sum(repeated != higher for repeated, higher in moved)
            if sum(lower) >= _MANY and len(lower) < len(moved) and alike >= MOST * len(moved):
                evidence = (
                    "log probabilities are lower for tokens that came before, and higher for others"
                )
                return self._fault("penalty", avoiding or self.odd, evidence)
        return None

    def _logprobs(self) -> Fault | None:
        """Log probabilities that another reading makes the reference's; or that are far away though
        no token was chosen otherwise.
        """
        far = spread(self.answers)
        if far is None or far <= self.case.limits.spread:
            return None
        enough = 0.0 if self.parted else min(2 * self.case.limits.spread, far / 5)
        worst = max(self.answers, key=lambda answer: max(answer.far, default=0.0))
        for reading, read in _READINGS:
            values = [value for answer in self.answers for value in distances(*read(answer))]
            left = rms(values)
            if (
                left is not None
                and left <= enough
                and len(values) >= max(_MANY, sum(len(answer.far) for answer in self.answers) / 2)
            ):
                return self._fault(
                    "logprobs",
                    self.odd,
                    f"read as {reading}, they are the reference's",
                    self._shown_logprob(worst),
                )
        numbers = [value for answer in self.answers for value in answer.server_logprobs]
        if (
            len({*numbers}) == 1
            and len({value for answer in self.answers for value in answer.logprobs}) > 1
        ):
            return self._fault(
                "logprobs", self.odd, f"all of them are {numbers[0]:g}", self._shown_logprob(worst)
            )
        if not self.parted and _expected_partings(self.answers, far) > 6:
            evidence = (
                "with weights or arithmetic so far away other tokens would have been chosen, and"
                " none was"
            )
            return self._fault("logprobs", self.odd, evidence, self._shown_logprob(worst))
        return None

    def _shown_logprob(self, answer: Answer) -> str:
        index = max(range(len(answer.far)), key=answer.far.__getitem__, default=0)
        return (
            f"token {index} has the log probability {answer.server_logprobs[index]:.3g}, and"
            f" {answer.logprobs[index]:.3g} by the reference"
        )

    def _group(self) -> Fault | None:
        """Whether only requests with images, or only the longest prompts, have other answers."""
        if len(self.fine) < _GOOD:
            return None
        if (
            all(answer.images for answer in self.odd)
            and sum(not answer.images for answer in self.fine) >= _GOOD
        ):
            return self._fault(
                "images", self.odd, "of the requests, those with images alone have other answers"
            )
        shortest, longest = (
            min(len(answer.expected) for answer in self.odd),
            max(len(answer.expected) for answer in self.fine),
        )
        if (
            shortest > longest
            and shortest > 64
            and 2 * len(self.odd) <= len(self.answers)
            and self._same_weights is not True
        ):
            evidence = (
                f"of the requests, those with prompts of more than {longest} tokens alone have"
                " other answers"
            )
            return self._fault("context", self.odd, evidence)
        return None

    def _ends(self) -> Fault | None:
        odd = [
            answer for answer in self.odd if answer.runs_on is not None or id(answer) in self.parted
        ]
        ending = [
            answer
            for answer in odd
            if answer.runs_on is not None or answer.ends_otherwise(self.parted[id(answer)])
        ]
        if (
            not odd
            or len(ending) < MOST * len(odd)
            or (self._same_weights is False and len(odd) < len(self.odd))
        ):
            return None
        most = max(answer.count for answer in self.answers)
        if (
            len(ending) >= _FEW
            and most
            and all(
                answer.by_text and answer.finish != "length" and answer.count == most
                for answer in ending
            )
        ):
            return self._fault(
                "length",
                ending,
                f"the answers end after {ending[0].count} tokens, wherever the reference would end"
                " them",
            )
        full = [
            answer
            for answer in ending
            if answer.by_text and answer.count == answer.limit and answer.finish != "length"
        ]
        if len(full) == len(ending):
            return self._fault(
                "length",
                ending,
                "the answers have all the tokens that were asked for, and a finish that says they"
                " ended by themselves",
            )
        return self._fault(
            "end tokens", ending, "where tokens differ, one of the two ends the answer"
        )

    def _penalty(self) -> Fault | None:
        parted = [answer for answer in self.odd if id(answer) in self.parted]
        avoiding = [answer for answer in parted if answer.avoids(self.parted[id(answer)])]
        least = self.few if self._same_weights is not False else max(_GOOD, self.few)
        if len(avoiding) < max(least, MOST * len(parted)) or self._varies(parted):
            return None
        return self._fault(
            "penalty",
            avoiding,
            "where tokens differ, the reference repeats one, and the server takes one that came"
            " less often",
        )

    def _text(self) -> Fault | None:
        """Of answers that came as text alone: how the text differs from what the reference
        writes.
        """
        odd = [answer for answer in self.odd if answer.by_text][: 2 * _TRIED]
        if not odd:
            return None
        pairs = [
            (answer, text)
            for answer, text in zip(
                odd, self.case.trials.written([answer.id for answer in odd]), strict=True
            )
            if text is not None
        ]
        for kind, relation_text, relation in _RELATIONS:
            alike = [answer for answer, text in pairs if relation(answer.text, text)]
            if pairs and len(alike) >= max(1, 0.6 * len(pairs)):
                expected = next(text for answer, text in pairs if answer is alike[0])
                example = f"it is {alike[0].text!r:.60}, and the reference writes {expected!r:.60}"
                return self._fault(
                    kind, alike, f"the reference writes the same, but {relation_text}", example
                )
        return None

    def _varies(self, odd: Sequence[Answer]) -> bool:
        """Whether a request has more than one answer, far apart."""
        if not odd:
            return False
        first = {answer.id: answer for answer in odd[: 4 * _TRIED]}
        margin = self.case.limits.margin
        return any(
            _differs(answer, first[answer.id], margin)
            for answer in self.case.trials.again([*first], odd[0].way)
            if answer.id in first
        )

    def _sampling(self) -> Fault | None:
        parted = [answer for answer in self.odd if id(answer) in self.parted]
        if self._same_weights is not False and self._varies(parted):
            return self._fault(
                "sampling",
                parted,
                "the same request, asked again, has other answers, and greedy ones were asked",
            )
        return None

    def _prompts(self) -> Fault | None:
        """Whether the answers are those to another prompt."""
        long = [
            answer for answer in self.odd if not answer.images and len(answer.token_ids) >= _LEAST
        ]
        # near ties of other weights may fall as after a like prompt, but not in so many answers
        tried = sorted(long, key=lambda answer: -len(answer.token_ids))[:_FITTED]
        if len(tried) < min(_FEW, len(self.odd)):
            return None
        others = list(
            {
                answer.expected
                for answer in self.answers
                if not answer.images and len(answer.expected) <= 1024
            }
        )
        if all(
            self._fits(answer, [ids for ids in others if ids != answer.expected]) is not None
            for answer in tried
        ):
            return self._fault(
                "order", self.odd, "the answers are the reference's to other requests"
            )
        for kind, change, changed in _CHANGES:
            if all(self._fits(answer, changed(answer.expected)) is not None for answer in tried):
                return self._fault(kind, self.odd, f"the answers are the reference's to {change}")
        return None

    def _fits(self, answer: Answer, prompts: Sequence[tuple[int, ...]]) -> int | None:
        """The first of these prompts after which the answer is the reference's."""
        limits, ids = self.case.limits, answer.token_ids
        for start, some in enumerate(partition_all(16, [prompt for prompt in prompts if prompt])):
            for index, rescored in enumerate(
                self.case.trials.rescore([(prompt, ids) for prompt in some])
            ):
                if rescored is None:
                    continue
                again = unchecked_replace(answer, logprobs=rescored[0], likeliest=rescored[1])
                distance = spread([again])
                if not partings([again], limits.margin) and (
                    distance is None
                    or distance <= min(2 * limits.spread, (spread([answer]) or 0.0) / 3)
                ):
                    return 16 * start + index
        return None

    def _computing(self) -> Fault:
        """Weights or precision: by how far the log probabilities are away, else by the margins."""
        far, case = spread(self.answers), self.case
        margins = sorted(parting.margin for parting in self.parted.values())
        size = far if far is not None else margins[len(margins) // 2] if margins else 0.0
        if self._same_weights and margins:
            evidence = (
                "the log probabilities are the reference's, and tokens that are not the likeliest"
                " were chosen"
            )
            return self._fault("unknown", self.odd, evidence)
        measure = "log probabilities are" if far is not None else "the margins of other tokens are"
        if size >= (OTHER_WEIGHTS if far is not None else OTHER_MARGIN):
            return self._fault(
                "weights", self.odd, f"{measure} {size:.2g} away, more than any precision explains"
            )
        for lower in LOWER[case.precision]:
            noise = case.trials.noise(lower)
            least, most = (0.0, SPREAD[lower]) if noise is None else (noise / 3, _TIMES * noise)
            if far is None:
                least, most = 0.0, MARGIN[lower]
            largest = size if far is not None else margins[-1] if margins else 0.0
            if least <= largest <= most:
                return self._fault(
                    "precision", self.odd, f"{measure} {largest:.2g} away, as those of {lower} are"
                )
        explained = f"more than {case.precision} explains, and less than other weights"
        return self._fault("unknown", self.odd, f"{measure} {size:.2g} away: {explained}")


_LN2, _LN10 = math.log(2), math.log(10)
_READINGS: tuple[tuple[str, Callable[[Answer], tuple[Sequence[float], Sequence[float]]]], ...] = (
    ("those of the next token", lambda answer: (answer.server_logprobs, answer.logprobs[1:])),
    ("those of the token before", lambda answer: (answer.server_logprobs[1:], answer.logprobs)),
    (
        "logarithms to the base 2",
        lambda answer: ([value * _LN2 for value in answer.server_logprobs], answer.logprobs),
    ),
    (
        "logarithms to the base 10",
        lambda answer: ([value * _LN10 for value in answer.server_logprobs], answer.logprobs),
    ),
    (
        "probabilities",
        lambda answer: (
            [math.log(value) if value > 0 else -20.0 for value in answer.server_logprobs],
            answer.logprobs,
        ),
    ),
    (
        "their negatives",
        lambda answer: ([-value for value in answer.server_logprobs], answer.logprobs),
    ),
)
"""Other readings of log probabilities: what is read, and beside what of the reference's."""


def _expected_partings(answers: Sequence[Answer], far: float) -> float:
    """How many tokens would be others if logits were so far away, by the gaps between the two
    likeliest.
    """
    gaps = [gap for answer in answers for gap in answer.gaps if gap is not None]
    return math.fsum(0.5 * math.erfc(gap / (2 * max(far, 1e-9))) for gap in gaps)


def _without(part: str, text: str) -> bool:
    return (
        len(part) > 0
        and text != part
        and (text.startswith(part) or text.endswith(part))
        and len(text) - len(part) <= 2
    )


_RELATIONS: tuple[tuple[Kind, str, Callable[[str, str], bool]], ...] = (
    (
        "text",
        "in other cases of letters",
        lambda text, expected: text != expected and text.casefold() == expected.casefold(),
    ),
    (
        "text",
        "with other white space",
        lambda text, expected: (
            text != expected and "".join(text.split()) == "".join(expected.split())
        ),
    ),
    ("text", "in another spelling: typographic characters, escapes or encoding", is_respelled),
    ("text", "without its first or last letters", _without),
    (
        "text",
        "with more about it",
        lambda text, expected: (
            len(expected) > 2
            and text != expected
            and (text.startswith(expected) or text.endswith(expected))
        ),
    ),
    (
        "length",
        "more of it",
        lambda text, expected: len(text) > 2 and text != expected and expected.startswith(text),
    ),
)
"""How a text may differ from what the reference writes."""


def _lengths(ids: Sequence[int]) -> list[int]:
    sizes = {2**power for power in range(2, 13)} | {
        len(ids) // 2,
        len(ids) // 4,
        *range(len(ids) - 4, len(ids)),
    }
    return sorted(size for size in sizes if 0 < size < len(ids))


_CHANGES: tuple[tuple[Kind, str, Callable[[tuple[int, ...]], list[tuple[int, ...]]]], ...] = (
    ("template", "their prompts with the first token twice", lambda ids: [(ids[0], *ids)]),
    (
        "context",
        "the ends of their prompts",
        lambda ids: [ids[len(ids) - size :] for size in _lengths(ids)],
    ),
    (
        "context",
        "the beginnings of their prompts",
        lambda ids: [ids[:size] for size in _lengths(ids)],
    ),
)
"""What a server may make of a prompt without saying so."""
