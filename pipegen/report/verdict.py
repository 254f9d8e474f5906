"""The records of `pipegen verify`: one answer with what a reference makes of it, one fault with its
evidence, and the verdict about a server.

The first place where the reference would have chosen another token is judged by its *margin*, the
difference of the two log probabilities. A small one is arithmetic, a large one has a cause.
`pipegen.report.diagnose` names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pipegen.answer.answer_check import FindingKind
from pipegen.core.errors import GenerationError
from pipegen.records.answer_parts import common_prefix
from pipegen.records.codec import encode, error_to_plain
from pipegen.records.fields import UNWRITTEN, record

Precision = Literal["float32", "float16", "bfloat16"]
Measured = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], str | None]
"""What is scored in another precision: the ids of a prompt, those after it with their log
probabilities, and the adapter.
"""
Kind = Literal[
    "template",
    "context",
    "images",
    "order",
    "length",
    "text",
    "end tokens",
    "penalty",
    "sampling",
    "batch",
    "chat",
    "logprobs",
    "precision",
    "weights",
    "unknown",
]
WrongKind = FindingKind | Literal["logprobs"]
"""What in an answer may not obey its request."""
Way = Literal["chat", "ids"]
"""How a server is asked: by messages, or by the ids of the prompt."""
KINDS: Mapping[Kind, str] = {
    "template": (
        "the server renders the messages to another prompt: another chat template, or other"
        " variables of it"
    ),
    "context": (
        "the server cuts long prompts, or computes otherwise beyond some length, and does not"
        " say so"
    ),
    "images": (
        "the server prepares images otherwise: another normalisation, another size, or none at all"
    ),
    "order": "the server gives requests the answers of others",
    "length": (
        "answers do not end as they were asked to: cut or too long, or with a wrong finish or count"
    ),
    "text": "the text is not that of the tokens: something changes it",
    "end tokens": "the server ends answers at other tokens than the model's end tokens",
    "penalty": "the server takes a penalty of repeated tokens where the request sets none",
    "sampling": (
        "the server draws tokens otherwise than the request says: another temperature, other"
        " filters, or no seed"
    ),
    "batch": "the server gives a request another answer among others than alone",
    "chat": (
        "by chat the server answers otherwise than by token ids, with the same prompt: other"
        " parameters where the request sets none"
    ),
    "logprobs": "the log probabilities that the server gives are not those of its tokens",
    "precision": "the server computes in a lower precision: another dtype",
    "weights": "the server has other weights",
    "unknown": (
        "the server answers otherwise, and the cause is not known: quantised weights, slightly"
        " other weights (an adapter), or another setting"
    ),
}
"""What may be wrong with a server, in the order in which it shows."""
SPREAD: Mapping[Precision, float] = {"float32": 0.0005, "float16": 0.02, "bfloat16": 0.15}
"""The most that log probabilities of a right server are away from those of the reference (root of
the mean square), by its precision.
"""
MARGIN: Mapping[Precision, float] = {"float32": 0.01, "float16": 0.1, "bfloat16": 0.7}
"""The largest margin that arithmetic of that precision explains."""
Decode = Callable[[Sequence[int]], str]
_FARTHEST = 20.0
"""What a log probability can be away at most, where one of the two may be minus infinity."""


_TIMES = 2.0
"""A right server is at most so many times as far from the reference as the reference in the
server's precision is.
"""
_BROAD = 30.0
"""The margin of a right server is at most so many times that spread."""
SHOWN = 5
"""Tokens about a place that are shown."""


class NoiseLimits(NamedTuple):
    """What arithmetic explains."""

    spread: float
    margin: float


def limits_of(precision: Precision, noise: float | None = None) -> NoiseLimits:
    """What the precision explains; less where it was measured on this model.

    >>> limits_of("bfloat16"), limits_of("bfloat16", 0.01)
    (NoiseLimits(spread=0.15, margin=0.7), NoiseLimits(spread=0.02, margin=0.3))
    """
    most, least = (
        NoiseLimits(SPREAD[precision], MARGIN[precision]),
        (SPREAD["float32"], MARGIN["float32"]),
    )
    if noise is None:
        return most
    return NoiseLimits(
        max(least[0], min(most.spread, _TIMES * noise)),
        max(least[1], min(most.margin, _BROAD * noise)),
    )


class Parting(NamedTuple):
    """The first place of an answer where the reference would have chosen another token."""

    place: int
    """The position of the token, from 0."""
    token: int
    """The server's."""
    choice: int
    """The reference's."""
    margin: float
    """By how much the reference's own choice is more likely."""


@record
class Answer:
    """One greedy answer of a server, and what the reference makes of it."""

    id: str
    """The id of the request."""
    way: Way
    """`chat` or `ids`."""
    expected: tuple[int, ...]
    """The prompt as the reference renders it."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt as the server ran it; empty where it does not say."""
    prompt_tokens: int = 0
    """How many tokens the server counts in the prompt; 0 where it does not say."""
    token_ids: tuple[int, ...]
    """The answer. Where the server ended it and names no end token, one of the model's is put
    behind. Empty where the server had no room for an answer.
    """
    logprobs: tuple[float, ...]
    """The reference's log probability of each token."""
    likeliest: tuple[tuple[int, float], ...]
    """The reference's likeliest token in each place, with its log probability."""
    server_logprobs: tuple[float, ...] = ()
    """The server's log probabilities of the first tokens, as many as it gave."""
    gaps: tuple[float | None, ...] = ()
    """By how much the likeliest token is likelier than the second, as the server says, in the
    places of `server_logprobs`.
    """
    ends: frozenset[int] = frozenset()
    """The model's end tokens."""
    images: int = 0
    """How many images the request has."""
    text: str = ""
    """The text as the server gave it."""
    by_text: bool = False
    """Whether the server gave its text alone: `token_ids` are then the reference's reading of
    it.
    """
    finish: str = ""
    """How the answer ended, as the server says."""
    count: int = 0
    """How many tokens the server counts in the answer."""
    limit: int = 0
    """How many tokens were asked for at most."""
    wrong: tuple[tuple[WrongKind, str], ...] = ()
    """What in the answer does not obey the request: the kind, and what is seen."""

    @property
    def counted(self) -> int:
        """The tokens of the prompt as the server ran it; 0 where that is not known."""
        return len(self.prompt_token_ids) or self.prompt_tokens

    @property
    def other_prompt(self) -> bool:
        """Whether the server is known to have run another prompt."""
        return (
            self.prompt_token_ids != self.expected
            if self.prompt_token_ids
            else self.counted not in (0, len(self.expected))
        )

    @property
    def cut(self) -> bool:
        """Whether the server's prompt may be the expected one without a piece."""
        ids, expected = self.prompt_token_ids, self.expected
        if not ids:
            return 0 < self.counted < len(expected)
        left = len(ids) - common_prefix(ids, expected)
        return (
            len(ids) < len(expected) and ids[len(ids) - left :] == expected[len(expected) - left :]
        )

    @property
    def parting(self) -> Parting | None:
        """Where the reference would have chosen another token first; None where it agrees with the
        whole answer.
        """
        for index, (token, (choice, highest), logprob) in enumerate(
            zip(self.token_ids, self.likeliest, self.logprobs, strict=True)
        ):
            if token != choice:
                return Parting(index, token, choice, min(highest - logprob, _FARTHEST))
        return None

    @property
    def far(self) -> list[float]:
        """How far the server's log probabilities are from the reference's."""
        return distances(self.server_logprobs, self.logprobs)

    @property
    def runs_on(self) -> int | None:
        """The place of an end token that the answer goes on after."""
        return next(
            (index for index, token in enumerate(self.token_ids[:-1]) if token in self.ends), None
        )

    def ends_otherwise(self, parting: Parting) -> bool:
        """Whether one of the two ends the answer there, and the other does not."""
        return (parting.token in self.ends) != (parting.choice in self.ends)

    def avoids(self, parting: Parting) -> bool:
        """Whether the reference repeats a token there, and the server takes one that came less
        often: in the answer, or in prompt and answer.
        """
        answer = self.token_ids[: parting.place]
        return any(
            seen.count(parting.choice) > seen.count(parting.token)
            for seen in (answer, self.expected + answer)
        )

    def moved(self, least: float, *, of_prompt: bool = False) -> list[tuple[bool, bool]]:
        """The log probabilities that are further than `least` from the reference's.

        For each: whether its token came before in the answer (or the prompt), and whether it is
        higher.
        """
        before = {*self.expected} if of_prompt else set[int]()
        moves: list[tuple[bool, bool]] = []
        for token, at_server, logprob in zip(
            self.token_ids, self.server_logprobs, self.logprobs, strict=False
        ):
            if abs(at_server - logprob) > least:
                moves.append((token in before, at_server > logprob))
            before.add(token)
        return moves


def other_prompt_in_words(
    expected: Sequence[int], ran: Sequence[int], counted: int, decode: Decode
) -> str:
    """Where a prompt is not the expected one, for a reader; by the count alone where no ids came.

    >>> other_prompt_in_words((1, 2), (1, 3), 2, str)
    "2 tokens of the prompt are expected, and 2 came; about token 1 '(1, 2)' is expected, and '(1, 3)' came"
    >>> other_prompt_in_words((1, 2), (), 3, str)
    '2 tokens of the prompt are expected, and 3 came'
    """
    counts = f"{len(expected)} tokens of the prompt are expected, and {counted} came"
    index = common_prefix(expected, ran)
    about = slice(max(0, index - SHOWN), index + SHOWN)
    wanted, came = decode(expected[about]), decode(ran[about])
    there = f"; about token {index} {wanted!r} is expected, and {came!r} came"
    return counts + (there if ran else "")


def distances(some: Sequence[float], others: Sequence[float]) -> list[float]:
    """How far numbers are apart, pair by pair."""
    return [
        min(abs(left - right), _FARTHEST) if left != right else 0.0
        for left, right in zip(some, others, strict=False)
    ]


@record
class Fault:
    """Something that is wrong with the server, and where it shows first."""

    kind: Kind
    """The name of the fault."""
    answers: int
    """How many answers show it."""
    of: int
    """Of how many it was looked for in."""
    first: Annotated[Answer, UNWRITTEN]
    """The first answer that shows it."""
    example: str
    """What is seen there."""
    evidence: str = ""
    """What the name rests on."""

    @property
    def words(self) -> str:
        """What the kind of fault means, in words."""
        return KINDS[self.kind]


def faults_of(
    kind: Kind, wrong: Sequence[tuple[Answer, str]], of: int, evidence: str
) -> list[Fault]:
    """The fault of the answers that show it, each with what is seen there; none where none does."""
    return [
        Fault(kind=kind, answers=len(wrong), of=of, first=first, example=example, evidence=evidence)
        for first, example in wrong[:1]
    ]


@record
class Verdict:
    """What was found out about a server."""

    url: str
    """The server's address."""
    model: str
    """The model that should answer."""
    dialect: str
    """The kind of server."""
    precision: Precision
    """What the server was taken to compute in."""
    prompts: int
    """How many requests were asked."""
    answers: int
    """How many answers were judged, by chat and by ids."""
    agreeing: int
    """How many of these the reference would have written too."""
    spread: float | None
    """How far its log probabilities are from the reference's (root of the mean square); None where
    it tells none.
    """
    margin: float
    """The largest margin at a first parting of the answers with the prompt that was expected; 0
    where there is none.
    """
    faults: Annotated[tuple[Fault, ...], UNWRITTEN]
    """What is wrong, with its evidence."""
    failed: Annotated[tuple[tuple[str, str, GenerationError], ...], UNWRITTEN] = ()
    """Requests that were not answered or not scored: their id, the way, the error."""
    too_long: int = 0
    """Requests that the model, or the server, has no room for; they are not judged."""
    asked_again: int = 0
    """How many requests were asked again: cut short, with stop strings, as streams, with seeds, for
    several samples.
    """
    ways: tuple[str, ...]
    """How the server was asked."""
    most_spread: Annotated[float, UNWRITTEN] = 0.0
    """The spread that the precision explains."""
    most_margin: Annotated[float, UNWRITTEN] = 0.0
    """The margin that the precision explains."""
    not_judged: tuple[str, ...] = ()
    """What was not looked at, and why."""

    @property
    def right(self) -> bool:
        """Whether nothing is wrong, and something was judged."""
        return not self.faults and not self.failed and self.answers > 0

    def plain(self) -> dict[str, Any]:
        """The verdict as plain data."""
        faults = [
            {
                **encode(fault),
                "words": fault.words,
                "way": fault.first.way,
                "first": fault.first.id,
            }
            for fault in self.faults
        ]
        failed = [
            {"id": name, "way": way, "error": error_to_plain(error)}
            for name, way, error in self.failed
        ]
        return {"right": self.right, **encode(self), "faults": faults, "failed": failed}


def partings(answers: Iterable[Answer], margin: float) -> list[tuple[Answer, Parting]]:
    """The partings that arithmetic does not explain."""
    pairs = [(answer, answer.parting) for answer in answers]
    return [
        (answer, parting)
        for answer, parting in pairs
        if parting is not None and parting.margin > margin
    ]


def spread(answers: Iterable[Answer]) -> float | None:
    """The root of the mean square of how far log probabilities are away; None where the server gave
    none.
    """
    return rms([value for answer in answers for value in answer.far])


def rms(values: Sequence[float]) -> float | None:
    """The root of the mean square.

    >>> rms([3.0, 3.0]), rms([])
    (3.0, None)
    """
    return math.sqrt(math.fsum(value * value for value in values) / len(values)) if values else None
