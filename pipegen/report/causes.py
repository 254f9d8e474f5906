"""Why are answers not those that the reference would have written?

A cause is named by a pattern that no other cause makes, or by a test. The answer is scored once
more after another prompt, the request is asked again, or the reference writes its own answer. Where
nothing fits, the cause is not known.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pipegen.core.functional import partition_all
from pipegen.records.answer_parts import common_prefix
from pipegen.records.fields import unchecked_replace
from pipegen.report.respelled import is_respelled
from pipegen.report.verdict import (
    MARGIN,
    SHOWN,
    SPREAD,
    Answer,
    Decode,
    Fault,
    Kind,
    NoiseLimits,
    Parting,
    Precision,
    Way,
    distances,
    partings,
    rms,
    spread,
)

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
FEW = 2
"""A pattern of fewer partings may be chance, where nothing else shows that weights and prompt are
right.
"""
GOOD = 3
"""So many right answers at least show that something is wrong with some kind of request alone."""
_TRIED = 3
"""So many requests, or a few times as many, are asked again or written by the reference."""
_FITTED = 12
"""So many answers have to be those to other prompts, where so many are wrong."""
_LEAST = 3
"""An answer of fewer tokens fits many prompts."""
_MANY = 8
"""So many log probabilities at least show how they are to be read."""
IdsAfter = tuple[tuple[int, ...], tuple[int, ...]]
"""A prompt, and the ids of an answer."""
Rescored = tuple[tuple[float, ...], tuple[tuple[int, float], ...]]
"""The log probabilities of an answer, and the likeliest token in each place."""


class Trials:
    """What may be tried to tell causes apart. Here nothing is: what a trial would show is not named."""

    def rescore(self, pairs: Sequence[IdsAfter]) -> list[Rescored | None]:
        """Score answers after other prompts."""
        return [None for _ in pairs]

    def again(self, names: Sequence[str], way: Way) -> list[Answer]:
        """Ask requests once more, that way."""
        return []

    def written(self, names: Sequence[str]) -> list[str | None]:
        """What the reference itself writes."""
        return [None for _ in names]

    def noise(self, precision: Precision) -> float | None:
        """How far the reference in that precision is from the reference: the root of the mean
        square over the same answers.
        """
        return None


class Case(NamedTuple):
    """What is judged by, and what shows ids and tells causes apart."""

    precision: Precision
    limits: NoiseLimits
    decode: Decode
    trials: Trials


def differs(answer: Answer, twin: Answer, margin: float) -> bool:
    """Whether the request has another answer the other time, and not by a near tie of the server's
    own.
    """
    index = common_prefix(answer.token_ids, twin.token_ids)
    pairs = [*zip(answer.server_logprobs, twin.server_logprobs, strict=False)]
    if answer.token_ids == twin.token_ids:
        distance = rms(distances(answer.server_logprobs, twin.server_logprobs))
        return distance is not None and distance > max(margin, SPREAD["bfloat16"])
    ended = index in (len(answer.token_ids), len(twin.token_ids))
    return ended or index >= len(pairs) or abs(pairs[index][0] - pairs[index][1]) > margin


def cause_of(
    case: Case, answers: Sequence[Answer], *, few: int, of: int | None = None, default: bool = False
) -> Fault | None:
    """Why the answers are not those of the reference; None where they are. `default` says that the
    same requests are right by ids, and `few` how many partings are a pattern.
    """
    limits, far = case.limits, spread(answers)
    parted = partings(answers, limits.margin)
    past = [answer for answer in answers if answer.runs_on is not None]
    if not parted and not past and (far is None or far <= limits.spread):
        return None
    ids = {id(answer) for answer in (*(answer for answer, _ in parted), *past)}
    odd = [
        answer
        for answer in answers
        if id(answer) in ids or (spread([answer]) or 0.0) > 2 * limits.spread
    ] or [*answers]
    ids = {id(answer) for answer in odd}
    fine = [answer for answer in answers if id(answer) not in ids]
    return _Look(case, answers, odd, fine, parted, far, few, of or len(answers)).named(default)


class _Look(NamedTuple):
    """Answers that are not the reference's, and what may explain them, tried in turn."""

    case: Case
    answers: Sequence[Answer]
    odd: Sequence[Answer]
    fine: Sequence[Answer]
    parted: Sequence[tuple[Answer, Parting]]
    """The partings that arithmetic does not explain."""
    far: float | None
    """How far the log probabilities of all answers are away."""
    few: int
    of: int

    def named(self, default: bool) -> Fault:
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
        if fault is None and default:
            words = (
                "the same prompts have other answers by token ids, and those are the reference's"
            )
            return self._fault("chat", words)
        return fault or self._computing()

    def _fault(
        self, kind: Kind, evidence: str, odd: Sequence[Answer] = (), example: str = ""
    ) -> Fault:
        """A fault that these answers show, or all that are odd."""
        odd = odd or self.odd
        first = next((answer for answer in odd if self._parting(answer)), odd[0])
        words = example or self._shown(first)
        return Fault(
            kind=kind, answers=len(odd), of=self.of, first=first, example=words, evidence=evidence
        )

    def _parting(self, answer: Answer) -> Parting | None:
        found = partings([answer], self.case.limits.margin)
        return found[0][1] if found else None

    def _shown(self, answer: Answer) -> str:
        parting, decode, ids = self._parting(answer), self.case.decode, answer.token_ids
        if answer.runs_on is not None:
            end = decode(ids[answer.runs_on : answer.runs_on + 1])
            return f"it goes on after {end!r}, which ends answers"
        if parting is None:
            return f"a log probability is {max(answer.far, default=0.0):.2g} away"
        before = decode(ids[max(0, parting.place - SHOWN) : parting.place])
        token, choice = decode((parting.token,)), decode((parting.choice,))
        return (
            f"at token {parting.place} after {before!r} it has {token!r}, and the reference"
            f" {choice!r}, with a margin of {parting.margin:.2g}"
        )

    @property
    def _avoiding(self) -> list[Answer]:
        """The answers that take a token which came less often where the reference repeats one; none
        where they are too small a share of those that part.
        """
        avoiding = [answer for answer, parting in self.parted if answer.avoids(parting)]
        return avoiding if len(avoiding) >= MOST * len(self.parted) else []

    @property
    def _same_weights(self) -> bool | None:
        """Whether the log probabilities are the reference's where the answers are not; None where
        the server tells none.
        """
        far = spread(self.odd)
        return None if far is None else far <= max(2 * self.case.limits.spread, SPREAD["float32"])

    def _lowered(self) -> Fault | None:
        """Log probabilities that are given after a penalty was taken, as by SGLang: no token is less
        likely than by the reference but those that came before.
        """
        if self.parted and not self._avoiding:
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
                return self._fault("penalty", evidence, self._avoiding)
        return None

    def _logprobs(self) -> Fault | None:
        """Log probabilities that another reading makes the reference's; or that are far away though
        no token was chosen otherwise.
        """
        far, limit = self.far, self.case.limits.spread
        if far is None or far <= limit:
            return None
        numbers = [value for answer in self.answers for value in answer.server_logprobs]
        expected = {value for answer in self.answers for value in answer.logprobs}
        evidence = next(
            (f"read as {words}, they are the reference's" for words in self._readings(far)), ""
        )
        if not evidence and len({*numbers}) == 1 < len(expected):
            evidence = f"all of them are {numbers[0]:g}"
        if not evidence and not self.parted and _expected_partings(self.answers, far) > 6:
            evidence = (
                "with weights or arithmetic so far away other tokens would have been chosen, and"
                " none was"
            )
        if not evidence:
            return None
        worst = max(self.answers, key=lambda answer: max(answer.far, default=0.0))
        index = max(range(len(worst.far)), key=worst.far.__getitem__)
        example = (
            f"token {index} has the log probability {worst.server_logprobs[index]:.3g}, and"
            f" {worst.logprobs[index]:.3g} by the reference"
        )
        return self._fault("logprobs", evidence, example=example)

    def _readings(self, far: float) -> Iterator[str]:
        """The readings by which the log probabilities are the reference's."""
        enough = 0.0 if self.parted else min(2 * self.case.limits.spread, far / 5)
        least = max(_MANY, sum(len(answer.far) for answer in self.answers) / 2)
        for words, read, later, sooner in _READINGS:
            values = [
                distance
                for answer in self.answers
                for distance in distances(
                    [read(value) for value in answer.server_logprobs[later:]],
                    answer.logprobs[sooner:],
                )
            ]
            if len(values) >= least and (rms(values) or 0.0) <= enough:
                yield words

    def _group(self) -> Fault | None:
        """Whether only requests with images, or only the longest prompts, have other answers."""
        if len(self.fine) < GOOD:
            return None
        if (
            all(answer.images for answer in self.odd)
            and sum(not answer.images for answer in self.fine) >= GOOD
        ):
            evidence = "of the requests, those with images alone have other answers"
            return self._fault("images", evidence)
        shortest = min(len(answer.expected) for answer in self.odd)
        longest = max(len(answer.expected) for answer in self.fine)
        if (
            shortest > max(longest, 64)
            and 2 * len(self.odd) <= len(self.answers)
            and self._same_weights is not True
        ):
            evidence = (
                f"of the requests, those with prompts of more than {longest} tokens alone have"
                " other answers"
            )
            return self._fault("context", evidence)
        return None

    def _ends(self) -> Fault | None:
        """Whether one of the two ends the answer where tokens differ, and the other does not."""
        odd = [answer for answer in self.odd if answer.runs_on is not None or self._parting(answer)]
        ending = [
            answer
            for answer in odd
            if answer.runs_on is not None
            or ((parting := self._parting(answer)) and answer.ends_otherwise(parting))
        ]
        if (
            not odd
            or len(ending) < MOST * len(odd)
            or (self._same_weights is False and len(odd) < len(self.odd))
        ):
            return None
        most = max(answer.count for answer in self.answers)
        stopped = all(answer.by_text and answer.finish != "length" for answer in ending)
        if (
            stopped
            and most
            and len(ending) >= FEW
            and {answer.count for answer in ending} == {most}
        ):
            evidence = f"the answers end after {most} tokens, wherever the reference would end them"
            return self._fault("length", evidence, ending)
        if stopped and all(answer.count == answer.limit for answer in ending):
            evidence = (
                "the answers have all the tokens that were asked for, and a finish that says they"
                " ended by themselves"
            )
            return self._fault("length", evidence, ending)
        return self._fault(
            "end tokens", "where tokens differ, one of the two ends the answer", ending
        )

    def _text(self) -> Fault | None:
        """Of answers that came as text alone: how the text differs from what the reference
        writes.
        """
        odd = [answer for answer in self.odd if answer.by_text][: 2 * _TRIED]
        texts = self.case.trials.written([answer.id for answer in odd]) if odd else []
        pairs = [
            (answer, text) for answer, text in zip(odd, texts, strict=True) if text is not None
        ]
        for kind, words, relation in _RELATIONS:
            alike = [
                (answer, text)
                for answer, text in pairs
                if answer.text != text and relation(answer.text, text)
            ]
            if alike and len(alike) >= 0.6 * len(pairs):
                answer, text = alike[0]
                return self._fault(
                    kind,
                    f"the reference writes the same, but {words}",
                    [answer for answer, _ in alike],
                    f"it is {answer.text!r:.60}, and the reference writes {text!r:.60}",
                )
        return None

    def _penalty(self) -> Fault | None:
        least = self.few if self._same_weights is not False else max(GOOD, self.few)
        if len(self._avoiding) < least or self._varies():
            return None
        evidence = (
            "where tokens differ, the reference repeats one, and the server takes one that came"
            " less often"
        )
        return self._fault("penalty", evidence, self._avoiding)

    def _varies(self) -> bool:
        """Whether a request has more than one answer, far apart."""
        first = {answer.id: answer for answer, _ in self.parted[: 4 * _TRIED]}
        return bool(first) and any(
            differs(answer, first[answer.id], self.case.limits.margin)
            for answer in self.case.trials.again([*first], self.parted[0][0].way)
            if answer.id in first
        )

    def _sampling(self) -> Fault | None:
        if self._same_weights is False or not self._varies():
            return None
        evidence = "the same request, asked again, has other answers, and greedy ones were asked"
        return self._fault("sampling", evidence, [answer for answer, _ in self.parted])

    def _prompts(self) -> Fault | None:
        """Whether the answers are those to another prompt."""
        long = [
            answer for answer in self.odd if not answer.images and len(answer.token_ids) >= _LEAST
        ]
        # near ties of other weights may fall as after a like prompt, but not in so many answers
        tried = sorted(long, key=lambda answer: -len(answer.token_ids))[:_FITTED]
        if len(tried) < min(FEW, len(self.odd)):
            return None
        others = {
            answer.expected
            for answer in self.answers
            if not answer.images and len(answer.expected) <= 1024
        }
        order: _Change = ("order", "other requests", lambda ids: [*(others - {ids})])
        for kind, change, changed in (order, *_CHANGES):
            if all(self._fits(answer, changed(answer.expected)) for answer in tried):
                return self._fault(kind, f"the answers are the reference's to {change}")
        return None

    def _fits(self, answer: Answer, prompts: Sequence[tuple[int, ...]]) -> bool:
        """Whether the answer is the reference's after one of these prompts."""
        limits, ids = self.case.limits, answer.token_ids
        nearest = min(2 * limits.spread, (spread([answer]) or 0.0) / 3)
        for some in partition_all(16, filter(None, prompts)):
            for rescored in self.case.trials.rescore([(prompt, ids) for prompt in some]):
                if rescored is None:
                    continue
                again = unchecked_replace(answer, logprobs=rescored[0], likeliest=rescored[1])
                if not partings([again], limits.margin) and (spread([again]) or 0.0) <= nearest:
                    return True
        return False

    def _computing(self) -> Fault:
        """Weights or precision: by how far the log probabilities are away, else by the margins."""
        far, precision, noise_of = self.far, self.case.precision, self.case.trials.noise
        margins = sorted(parting.margin for _, parting in self.parted) or [0.0]
        if self._same_weights and self.parted:
            evidence = (
                "the log probabilities are the reference's, and tokens that are not the likeliest"
                " were chosen"
            )
            return self._fault("unknown", evidence)
        measure, middle, largest, explained, weights = (
            (
                "the margins of other tokens are",
                margins[len(margins) // 2],
                margins[-1],
                MARGIN,
                OTHER_MARGIN,
            )
            if far is None
            else ("log probabilities are", far, far, SPREAD, OTHER_WEIGHTS)
        )
        words = f"{measure} {middle:.2g} away"
        if middle >= weights:
            return self._fault("weights", f"{words}, more than any precision explains")
        for lower in LOWER[precision]:
            noise = None if far is None else noise_of(lower)
            least, most = (0.0, explained[lower]) if noise is None else (noise / 3, 2 * noise)
            if least <= largest <= most:
                evidence = f"{measure} {largest:.2g} away, as those of {lower} are"
                return self._fault("precision", evidence)
        return self._fault(
            "unknown", f"{words}: more than {precision} explains, and less than other weights"
        )


_READINGS: tuple[tuple[str, Callable[[float], float], int, int], ...] = (
    ("those of the next token", float, 0, 1),
    ("those of the token before", float, 1, 0),
    ("logarithms to the base 2", lambda value: value * math.log(2), 0, 0),
    ("logarithms to the base 10", lambda value: value * math.log(10), 0, 0),
    ("probabilities", lambda value: math.log(value) if value > 0 else -20.0, 0, 0),
    ("their negatives", operator.neg, 0, 0),
)
"""Other readings of log probabilities: what is read, from which one on, and beside which one on of
the reference's.
"""


def _expected_partings(answers: Sequence[Answer], far: float) -> float:
    """How many tokens would be others if logits were so far away, by the gaps between the two
    likeliest.
    """
    gaps = [gap for answer in answers for gap in answer.gaps if gap is not None]
    return math.fsum(0.5 * math.erfc(gap / (2 * max(far, 1e-9))) for gap in gaps)


def _holds(text: str, part: str) -> bool:
    return text.startswith(part) or text.endswith(part)


_RELATIONS: tuple[tuple[Kind, str, Callable[[str, str], bool]], ...] = (
    (
        "text",
        "in other cases of letters",
        lambda text, expected: text.casefold() == expected.casefold(),
    ),
    (
        "text",
        "with other white space",
        lambda text, expected: "".join(text.split()) == "".join(expected.split()),
    ),
    ("text", "in another spelling: typographic characters, escapes or encoding", is_respelled),
    (
        "text",
        "without its first or last letters",
        lambda text, expected: 0 < len(text) >= len(expected) - 2 and _holds(expected, text),
    ),
    (
        "text",
        "with more about it",
        lambda text, expected: len(expected) > 2 and _holds(text, expected),
    ),
    (
        "length",
        "more of it",
        lambda text, expected: len(text) > 2 and expected.startswith(text),
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


_Change = tuple[Kind, str, Callable[[tuple[int, ...]], list[tuple[int, ...]]]]
_CHANGES: tuple[_Change, ...] = (
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
