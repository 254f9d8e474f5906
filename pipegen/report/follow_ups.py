"""Ask a server's own answers back: cut short, with stop strings, as streams, and drawn with seeds.
Each has to go with the answer that came before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pipegen.core.errors import MalformedResponse, UnsupportedOption
from pipegen.core.slots import Slot
from pipegen.records.options import GenerationOptions, StopOptions
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.report.asking import Asked, Failed, Routes, ask
from pipegen.report.diff import common_prefix
from pipegen.report.verdict import Answer, Fault

__all__ = ["Base", "FollowUps", "drawn_otherwise"]

GREEDY, DRAWN = 8, 16
"""So many requests are asked again greedily, and with seeds."""
DRAWN_TOKENS = 24
_SURE = 6.0
"""So many standard deviations from what is expected are no chance."""
_LEAST_VARIANCE = 4.0
_IMPOSSIBLE = -10.0
"""A natural log probability that is no chance."""


class Base(NamedTuple):
    """A request whose answer by chat was right."""

    request: Slot[GenerationRequest]
    answer: Answer


class FollowUps(NamedTuple):
    """The server, and what it answered."""

    routes: Routes
    """By chat, as the answers were asked."""
    whole: Routes
    """By chat, with every option set."""
    streams: Routes
    """By chat, with nothing asked for that does not come in streams."""
    bases: Sequence[Base]
    margin: float
    """The largest margin that arithmetic explains."""
    seeded: bool
    """Whether a seed has to make rows repeatable."""
    filtered: bool
    """Whether the server may filter what it draws by defaults of its own: not all of its options
    can be set.
    """
    failed: list[Failed]
    """What failed, but for answers that cannot be read, is put here."""
    image_policy: ImagePolicy | None = None
    tell: Callable[[str], object] = lambda words: None

    @property
    def longest(self) -> list[Base]:
        fit = [base for base in self.bases if base.answer.count >= 4 and len(base.answer.text) > 3]
        return sorted(fit, key=lambda base: -base.answer.count)[:GREEDY]

    @property
    def widest(self) -> list[Base]:
        """The requests whose answers are least sure."""
        return sorted(
            self.bases,
            key=lambda base: -math.fsum(1 - math.exp(one) for _, one in base.answer.likeliest),
        )[:DRAWN]

    @property
    def asked(self) -> int:
        """How many requests are asked."""
        return 3 * len(self.longest) + 3 * len(self.widest)

    def faults(self) -> Iterator[Fault]:
        """What is wrong."""
        tries = (self._short, self._stops, self._streams, self._drawn)
        yield from (fault for fault in (look() for look in tries) if fault is not None)

    def _ask(
        self,
        bases: Sequence[Base],
        own: Sequence[GenerationOptions],
        *,
        streamed: bool = False,
        whole: bool = False,
    ) -> list[Answer | Failed | None]:
        """The answers; an answer that cannot be read is `Failed`, and None stands for any other
        failure.
        """
        asked = Asked(
            [base.request for base in bases], GenerationOptions(), self.image_policy, streamed, own
        )
        made = ask(
            self.whole if whole else self.streams if streamed else self.routes,
            "chat",
            asked,
            self.tell,
        )
        other = [
            one
            for one in made
            if isinstance(one, Failed) and not isinstance(one.error, MalformedResponse)
        ]
        self.failed.extend(one for one in other if not isinstance(one.error, UnsupportedOption))
        return [None if any(one is failed for failed in other) else one for one in made]

    def _short(self) -> Fault | None:
        """Half of an answer's tokens: so many have to come, and the finish has to say it."""
        bases = self.longest
        limits = [max(1, base.answer.count // 2) for base in bases]
        made = self._ask(bases, [GenerationOptions(max_new_tokens=limit) for limit in limits])
        wrong: list[tuple[Answer, str]] = []
        for base, limit, answer in zip(bases, limits, made, strict=True):
            if answer is None:
                continue
            if isinstance(answer, Failed):
                wrong.append((base.answer, answer.error.message))
            elif any(kind in ("length", "finish") for kind, _ in answer.wrong):
                wrong.append(
                    (
                        answer,
                        next(words for kind, words in answer.wrong if kind in ("length", "finish")),
                    )
                )
            elif (
                answer.count
                and answer.count != limit
                and not base.answer.by_text
                and self._goes_on(base.answer, answer)
            ):
                wrong.append((answer, f"{limit} tokens were asked, and {answer.count} came"))
            elif (
                answer.count
                and answer.count == limit
                and answer.finish != "length"
                and self._goes_on(base.answer, answer)
            ):
                wrong.append(
                    (
                        answer,
                        (
                            f"the answer ended after the {limit} tokens that were asked, and its"
                            f" finish is {answer.finish}"
                        ),
                    )
                )
        evidence = "requests with an answer, asked again for half of its tokens"
        return _fault("length", wrong, len(bases), evidence)

    def _goes_on(self, base: Answer, answer: Answer) -> bool:
        """Whether the shorter answer is how the longer one begins."""
        return bool(answer.text) and base.text != answer.text and base.text.startswith(answer.text)

    def _stops(self) -> Fault | None:
        """A piece of an answer as the stop string: the text has to end before it, and the tokens
        there.
        """
        pairs = [(base, stop) for base in self.longest if (stop := _stop_in(base.answer.text))]
        made = self._ask(
            [base for base, _ in pairs],
            [GenerationOptions(stop=StopOptions(stop=(stop,))) for _, stop in pairs],
        )
        wrong: list[tuple[Answer, str]] = []
        for (base, stop), answer in zip(pairs, made, strict=True):
            wanted = base.answer.text[: base.answer.text.index(stop)]
            if answer is None:
                continue
            if isinstance(answer, Failed):
                wrong.append((base.answer, answer.error.message))
            elif answer.text != wanted and (
                wanted.startswith(answer.text) or answer.text.startswith(wanted)
            ):
                wrong.append(
                    (
                        answer,
                        (
                            f"before the stop string {stop!r} the text is {wanted!r:.60}, and"
                            f" {answer.text!r:.60} came"
                        ),
                    )
                )
            elif (
                answer.text == wanted
                and not base.answer.by_text
                and answer.count >= base.answer.count > 8
            ):
                wrong.append(
                    (
                        answer,
                        (
                            f"with the stop string {stop!r} all {answer.count} tokens of the answer"
                            " came"
                        ),
                    )
                )
        return _fault(
            "length",
            wrong,
            len(pairs),
            "requests with an answer, asked again with a piece of it as the stop string",
        )

    def _streams(self) -> Fault | None:
        """The same text has to come in pieces."""
        if "stream" not in self.routes.chat.engine.capabilities.honours:
            return None
        bases = self.longest
        made = self._ask(
            bases,
            [GenerationOptions(max_new_tokens=base.answer.limit) for base in bases],
            streamed=True,
        )
        wrong: list[tuple[Answer, str]] = []
        for base, answer in zip(bases, made, strict=True):
            if answer is None:
                continue
            if isinstance(answer, Failed):
                wrong.append((base.answer, answer.error.message))
            elif answer.text != base.answer.text and (
                answer.wrong or self._is_far(answer, base.answer)
            ):
                wrong.append(
                    (
                        answer,
                        (
                            f"the whole answer is {base.answer.text!r:.60}, and as a stream it is"
                            f" {answer.text!r:.60}"
                        ),
                    )
                )
        return _fault("text", wrong, len(bases), "requests with an answer, asked again as streams")

    def _is_far(self, answer: Answer, base: Answer) -> bool:
        """Whether the two part at a place that is no near tie of the reference."""
        place = common_prefix(answer.token_ids, base.token_ids)
        if place >= len(answer.token_ids):
            return True
        return answer.likeliest[place][1] - answer.logprobs[place] > self.margin

    def _drawn(self) -> Fault | None:
        """Tokens drawn at temperature 1, twice with one seed and once with another."""
        bases = self.widest
        made = [self._ask(bases, [_drawing(seed)] * len(bases), whole=True) for seed in (1, 1, 2)]
        answers = [
            [answer if isinstance(answer, Answer) else None for answer in row] for row in made
        ]
        known = [answer for row in answers for answer in row if answer is not None]
        if not known:
            return None
        found = drawn_otherwise(known, filtered=self.filtered)
        if found is not None:
            return _fault(
                "sampling",
                [(known[0], found)],
                len(known),
                "tokens drawn at temperature 1, beside how likely they are to the reference",
            )
        pairs = [
            (one, other)
            for one, other in zip(answers[0], answers[1], strict=True)
            if one is not None and other is not None
        ]
        apart = [one for one, other in pairs if self._far_apart(one, other)]
        chance = math.fsum(1 - math.exp(_likeliest_all(one)) for one, _ in pairs)
        if self.seeded and len(apart) >= 3 and 2 * len(apart) >= chance:
            words = "the same request with the same seed has two answers"
            return _fault(
                "sampling",
                [(one, words) for one in apart],
                len(pairs),
                "requests drawn twice with one seed",
            )
        others = [
            (one, other)
            for one, other in zip(answers[0], answers[2], strict=True)
            if one is not None and other is not None
        ]
        if (
            all(one.text == other.text for one, other in others)
            and math.fsum(_likeliest_all(one) for one, _ in others) < _IMPOSSIBLE
        ):
            return _fault(
                "sampling",
                [(known[0], "another seed gives the same answers")],
                len(others),
                "requests drawn with two seeds",
            )
        return None

    def _far_apart(self, one: Answer, other: Answer) -> bool:
        return one.text != other.text


def _drawing(seed: int) -> GenerationOptions:
    return GenerationOptions(
        temperature=1.0, seed=seed, max_new_tokens=DRAWN_TOKENS, logprobs=False
    )


def _likeliest_all(answer: Answer) -> float:
    """The log probability that the likeliest token is drawn in each place: no answer has a higher
    one.
    """
    return math.fsum(one for _, one in answer.likeliest)


def drawn_otherwise(answers: Sequence[Answer], *, filtered: bool = False) -> str | None:
    """Why these answers were not drawn at temperature 1: how often the likeliest token came, beside
    how often it should have.

    >>> def answer(token):
    ...     likeliest = ((1, math.log(0.6)),) * 100
    ...     return Answer(
    ...         id="a",
    ...         way="chat",
    ...         expected=(5,),
    ...         token_ids=(token,) * 100,
    ...         logprobs=(-1.0,) * 100,
    ...         likeliest=likeliest,
    ...     )
    >>> drawn_otherwise([answer(1)])
    'the likeliest token came 100 times of 100, and 60 are expected'
    """
    places = [
        (token == choice, math.exp(one))
        for answer in answers
        for token, (choice, one) in zip(answer.token_ids, answer.likeliest, strict=True)
    ]
    variance = math.fsum(share * (1 - share) for _, share in places)
    came, expected = sum(hit for hit, _ in places), math.fsum(share for _, share in places)
    words = (
        f"the likeliest token came {came} times of {len(places)}, and {expected:.0f} are expected"
    )
    if came == len(places):
        return words if math.fsum(math.log(share) for _, share in places) < _IMPOSSIBLE else None
    if variance < _LEAST_VARIANCE:
        return None
    sure = (came - expected) / math.sqrt(variance)
    return words if sure < -_SURE or (sure > _SURE and not filtered) else None


def _stop_in(text: str) -> str:
    """A piece of the text from its middle that does not come earlier, and is no white space."""
    for place in range(len(text) // 3 + 1, len(text) - 3):
        piece = text[place : place + 3]
        if (
            piece.strip() == piece
            and text.index(piece) == place
            and piece.isascii()
            and piece.isalnum()
        ):
            return piece
    return ""


def _fault(kind: str, wrong: Sequence[tuple[Answer, str]], of: int, evidence: str) -> Fault | None:
    if not wrong:
        return None
    first, words = wrong[0]
    return Fault(
        kind=kind,  # type: ignore[arg-type]  # a Kind
        answers=len(wrong),
        of=of,
        first=first,
        example=words,
        evidence=evidence,
    )
