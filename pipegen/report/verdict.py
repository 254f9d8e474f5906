"""Is a server serving a model right? What its greedy answers show, beside what a reference finds likeliest in each place.

The first place where the reference would have chosen another token is judged by its *margin*, the difference of the two log probabilities there: a small one
is arithmetic, a large one is another template, other parameters or other weights. Answers by chat and answers by token ids tell these apart: the server
renders the first itself and fills in its own defaults; the second leave it neither.

>>> same = Answer(id="a", way="chat", expected=(1, 2), prompt_token_ids=(1, 2), token_ids=(7, 3), logprobs=(-0.1, -0.2), likeliest=((7, -0.1), (3, -0.2)))
>>> other = Answer(id="b", way="chat", expected=(1, 2), prompt_token_ids=(1, 9, 2), token_ids=(7,), logprobs=(-5.0,), likeliest=((3, -0.1),))
>>> judge([same]), [fault.kind for fault in judge([same, other])]
((), ['template'])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pipegen.core.errors import GenerationError
from pipegen.io.jsonl import error_to_plain
from pipegen.records.fields import record
from pipegen.report.diff import common_prefix

__all__ = ["Answer", "Fault", "KINDS", "Parting", "Precision", "Verdict", "judge", "spread"]

Precision = Literal["float32", "float16", "bfloat16"]
Kind = Literal["template", "context", "end tokens", "penalty", "precision", "weights", "chat"]
KINDS: Mapping[Kind, str] = {
    "template": "the server renders the messages to another prompt: another chat template, or other variables of it",
    "context": "the server cuts long prompts: its context is shorter than the prompts, and it does not say so",
    "end tokens": "the server ends answers at other tokens than the model's end tokens",
    "penalty": "the server takes a penalty of repeated tokens where the request sets none",
    "precision": "the server computes in a lower precision: another dtype, or quantised weights",
    "weights": "the server has other weights",
    "chat": "by chat the server answers otherwise than by token ids, with the same prompt: other parameters where the request sets none",
}
"""What may be wrong with a server, in the order in which it shows."""
SPREAD: Mapping[Precision, float] = {"float32": 0.0005, "float16": 0.02, "bfloat16": 0.15}
"""The most that log probabilities of a right server are away from those of the reference (root of the mean square), by its precision."""
MARGIN: Mapping[Precision, float] = {"float32": 0.01, "float16": 0.1, "bfloat16": 0.7}
"""The largest margin that arithmetic of that precision explains."""
OTHER_WEIGHTS = 1.0
"""From this spread or median margin on, no precision explains what is seen."""
MOST = 0.9
"""The share of partings that must look alike before a cause is named by it."""
_FEW = 2
"""A pattern of fewer partings may be chance, where nothing else shows that weights and prompt are right."""
_SHOWN = 5
"""Tokens about a place that are shown."""
Decode = Callable[[Sequence[int]], str]
_FARTHEST = 20.0
"""What a log probability can be away at most, where one of the two may be minus infinity."""


class Parting(NamedTuple):
    """The first place of an answer where the reference would have chosen another token."""

    place: int
    token: int
    """The server's."""
    choice: int
    """The reference's."""
    margin: float


@record
class Answer:
    """One greedy answer of a server, and what the reference makes of it."""

    id: str
    way: Literal["chat", "ids"]
    """How the server was asked: by messages, or by the ids of the prompt."""
    expected: tuple[int, ...]
    """The prompt as the reference renders it."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt as the server ran it; empty where it does not say."""
    prompt_tokens: int = 0
    """How many tokens the server counts in the prompt; 0 where it does not say."""
    token_ids: tuple[int, ...]
    """The answer. Where the server ended it and names no end token, one of the model's is put behind. Empty where the server had no room for an answer."""
    logprobs: tuple[float, ...]
    """The reference's log probability of each token."""
    likeliest: tuple[tuple[int, float], ...]
    """The reference's likeliest token in each place, with its log probability."""
    server_logprobs: tuple[float, ...] = ()
    """The server's log probabilities of the first tokens, as many as it gave."""
    ends: frozenset[int] = frozenset()
    """The model's end tokens."""

    @property
    def counted(self) -> int:
        """The tokens of the prompt as the server ran it; 0 where that is not known."""
        return len(self.prompt_token_ids) or self.prompt_tokens

    @property
    def other_prompt(self) -> bool:
        """Whether the server is known to have run another prompt."""
        return self.prompt_token_ids != self.expected if self.prompt_token_ids else self.counted not in (0, len(self.expected))

    @property
    def cut(self) -> bool:
        """Whether the server's prompt may be the expected one without a piece."""
        ids, expected = self.prompt_token_ids, self.expected
        if not ids:
            return 0 < self.counted < len(expected)
        left = len(ids) - common_prefix(ids, expected)
        return len(ids) < len(expected) and ids[len(ids) - left :] == expected[len(expected) - left :]

    @property
    def parting(self) -> Parting | None:
        """Where the reference would have chosen another token first; None where it agrees with the whole answer."""
        for place, (token, (choice, highest), own) in enumerate(zip(self.token_ids, self.likeliest, self.logprobs, strict=True)):
            if token != choice:
                return Parting(place, token, choice, min(highest - own, _FARTHEST))
        return None

    @property
    def far(self) -> list[float]:
        """How far the server's log probabilities are from the reference's."""
        return [min(abs(one - other), _FARTHEST) if one != other else 0.0 for one, other in zip(self.server_logprobs, self.logprobs, strict=False)]

    @property
    def runs_on(self) -> int | None:
        """The place of an end token that the answer goes on after."""
        return next((place for place, token in enumerate(self.token_ids[:-1]) if token in self.ends), None)

    def ends_otherwise(self, parting: Parting) -> bool:
        """Whether one of the two ends the answer there, and the other does not."""
        return (parting.token in self.ends) != (parting.choice in self.ends)

    def avoids(self, parting: Parting) -> bool:
        """Whether the reference repeats a token there, and the server takes a new one instead: new in the answer, or in prompt and answer."""
        answer = {*self.token_ids[: parting.place]}
        return any(parting.choice in seen and parting.token not in seen for seen in (answer, answer | {*self.expected}))


@record
class Fault:
    """Something that is wrong with the server, and where it shows first."""

    kind: Kind
    answers: int
    """How many answers show it."""
    of: int
    """Of how many it was looked for in."""
    first: Answer
    """The first answer that shows it."""
    example: str
    """What is seen there."""

    @property
    def words(self) -> str:
        return KINDS[self.kind]


@record
class Verdict:
    """What was found out about a server."""

    url: str
    model: str
    dialect: str
    precision: Precision
    """What the server was taken to compute in."""
    prompts: int
    """How many requests were asked."""
    answers: int
    """How many answers were judged, by chat and by ids."""
    agreeing: int
    """How many of these the reference would have written too."""
    ways: tuple[str, ...]
    """How the server was asked."""
    spread: float | None
    """How far its log probabilities are from the reference's (root of the mean square); None where it tells none."""
    margin: float
    """The largest margin at a first parting of the answers with the prompt that was expected; 0 where there is none."""
    faults: tuple[Fault, ...]
    failed: tuple[tuple[str, str, GenerationError], ...] = ()
    """Requests that were not answered or not scored: their id, the way, the error."""
    too_long: int = 0
    """Requests that the model, or the server, has no room for; they are not judged."""

    @property
    def right(self) -> bool:
        """Whether nothing is wrong, and something was judged."""
        return not self.faults and not self.failed and self.answers > 0

    @property
    def most_spread(self) -> float:
        """The spread that the precision explains."""
        return SPREAD[self.precision]

    @property
    def most_margin(self) -> float:
        """The margin that the precision explains."""
        return MARGIN[self.precision]

    def plain(self) -> dict[str, Any]:
        """The verdict as plain data."""
        names = ("right", "url", "model", "dialect", "precision", "prompts", "answers", "agreeing", "spread", "margin", "too_long")
        faults = [
            {"kind": one.kind, "words": one.words, "answers": one.answers, "of": one.of, "way": one.first.way, "first": one.first.id, "example": one.example}
            for one in self.faults
        ]
        failed = [{"id": name, "way": way, "error": error_to_plain(error)} for name, way, error in self.failed]
        return {**{name: getattr(self, name) for name in names}, "ways": list(self.ways), "faults": faults, "failed": failed}


def spread(answers: Iterable[Answer]) -> float | None:
    """The root of the mean square of how far log probabilities are away; None where the server gave none."""
    squares = [value * value for answer in answers for value in answer.far]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else None


def judge(answers: Sequence[Answer], precision: Precision = "float32", decode: Decode = str) -> tuple[Fault, ...]:
    """What is wrong with the server that gave these answers, taken to compute in that precision. `decode` shows ids.

    Answers to another prompt than the expected one show the prompt's fault alone. Weights and precision are judged by the answers to ids, where there are
    any, since only those leave no default to the server; what the other answers show beyond that is a default.
    """
    chat, by_ids = ([answer for answer in answers if answer.way == way] for way in ("chat", "ids"))
    same = [answer for answer in chat if not answer.other_prompt]
    computed = _of_computing(by_ids, precision, decode)
    default = None
    if computed is None or computed.kind != "weights":
        default = _of_defaults(same, precision if computed is None else "bfloat16", decode, few=1 if by_ids else _FEW)
    if computed is not None or not by_ids:
        default = default if default is not None and default.kind != "chat" else None
    if not by_ids and (default is None or default.kind != "penalty"):  # log probabilities may be those after the penalty
        computed = _of_computing(same, precision, decode, margins=default is None)
    return tuple(fault for fault in (_of_prompts(chat, decode), default, computed) if fault is not None)


def _of_prompts(chat: Sequence[Answer], decode: Decode) -> Fault | None:
    """Prompts that are cut are all longer than any that the server ran; a template shows in short prompts too."""
    others = [answer for answer in chat if answer.other_prompt]
    if not others:
        return None
    most, first = max(answer.counted for answer in chat), others[0]
    cut = [answer for answer in others if answer.cut and len(answer.expected) > most]
    alike = len(cut) < len(chat) or len({len(answer.expected) - answer.counted for answer in cut}) > 1
    kind: Kind = "context" if len(cut) == len(others) and alike else "template"
    example = f"{len(first.expected)} tokens of the prompt are expected, and the server counts {first.counted}"
    if first.prompt_token_ids and kind == "template":
        place = common_prefix(first.expected, first.prompt_token_ids)
        expected, made = (decode(ids[max(0, place - _SHOWN) : place + _SHOWN]) for ids in (first.expected, first.prompt_token_ids))
        example += f"; about token {place} {expected!r} is expected, and the server has {made!r}"
    return Fault(kind=kind, answers=len(others), of=len(chat), first=first, example=example)


def _partings(answers: Sequence[Answer], precision: Precision) -> list[tuple[Answer, Parting]]:
    """The partings that arithmetic does not explain."""
    found = [(answer, answer.parting) for answer in answers]
    return [(answer, parting) for answer, parting in found if parting is not None and parting.margin > MARGIN[precision]]


def _of_computing(answers: Sequence[Answer], precision: Precision, decode: Decode, *, margins: bool = True) -> Fault | None:
    """Weights or precision: by how far the log probabilities are away, else by the margins."""
    parted, far = _partings(answers, precision) if margins else [], spread(answers)
    if not parted and (far is None or far <= SPREAD[precision]):
        return None
    typical = sorted(parting.margin for _, parting in parted)[len(parted) // 2] if parted else 0.0
    kind: Kind = "weights" if (typical if far is None else far) >= OTHER_WEIGHTS else "precision"
    farthest = max(answers, key=lambda answer: max(answer.far, default=0.0))
    first, parting = parted[0] if parted else (farthest, None)
    example = f"a log probability is {max(first.far, default=0.0):.2g} away" if parting is None else _shown(first, parting, decode)
    return Fault(kind=kind, answers=len(parted) or len(answers), of=len(answers), first=first, example=example)


def _of_defaults(answers: Sequence[Answer], precision: Precision, decode: Decode, *, few: int) -> Fault | None:
    """A default of the server: a penalty takes new tokens where the reference repeats one, end tokens end answers elsewhere, and nothing else is wrong."""
    parted = _partings(answers, precision)
    past = [answer for answer in answers if answer.runs_on is not None]
    ending = [*past, *(answer for answer, parting in parted if answer.runs_on is None and answer.ends_otherwise(parting))]
    avoiding = [answer for answer, parting in parted if answer.avoids(parting)]
    odd = [*past, *(answer for answer, _ in parted if answer.runs_on is None)]
    if not odd:
        return None
    kind: Kind = "chat"
    if len(ending) >= MOST * len(odd):
        kind, odd = "end tokens", ending
    elif len(avoiding) >= max(few, MOST * len(odd)):
        kind, odd = "penalty", avoiding
    first = odd[0]
    if first.runs_on is not None:
        example = f"it goes on after {decode(first.token_ids[first.runs_on : first.runs_on + 1])!r}, which ends answers"
    else:
        example = _shown(first, next(parting for answer, parting in parted if answer is first), decode)
    return Fault(kind=kind, answers=len(odd), of=len(answers), first=first, example=example)


def _shown(answer: Answer, parting: Parting, decode: Decode) -> str:
    before = decode(answer.token_ids[max(0, parting.place - _SHOWN) : parting.place])
    token, choice = decode((parting.token,)), decode((parting.choice,))
    return f"at token {parting.place} after {before!r} it has {token!r}, and the reference {choice!r}, with a margin of {parting.margin:.2g}"
