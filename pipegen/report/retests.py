"""Ask a server's own answers back: cut short, with stop strings, as streams, and drawn: with seeds,
and as several samples. Each has to go with the answer that came before.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from returns.result import Failure, Success

from pipegen.core.errors import MalformedResponse, UnsupportedOption
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.records import strict_json
from pipegen.records.option_table import OPTIONS, names_in
from pipegen.records.options import GenerationOptions, StopOptions
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.records.results import GenerationResult
from pipegen.report.asking import Asked, Failed, Routes, ask
from pipegen.report.diff import common_prefix
from pipegen.report.drawn import IMPOSSIBLE, SURE, Draw, deviations
from pipegen.report.verdict import Answer, Fault

if TYPE_CHECKING:
    from pipegen.backends.servers.wire import WireRequest

__all__ = ["Base", "FollowUps"]

GREEDY, DRAWN = 8, 16
"""So many requests are asked again greedily, and with seeds."""
DRAWN_TOKENS = 24
_FILTERS: Mapping[str, Any] = {name: OPTIONS[name].row.trial for name in names_in("filter")}
"""Filters that leave the likeliest token alone."""
SAMPLES = 4
"""So many samples of a request are asked for."""


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
    not_judged: list[str]
    """What the server cannot be asked is put here."""
    image_policy: ImagePolicy | None = None
    tell: Callable[[str], object] = lambda text: None

    @property
    def longest(self) -> list[Base]:
        fit = [base for base in self.bases if base.answer.count >= 4 and len(base.answer.text) > 3]
        return sorted(fit, key=lambda base: -base.answer.count)[:GREEDY]

    @property
    def widest(self) -> list[Base]:
        """The requests whose answers are least sure."""
        return sorted(
            self.bases,
            key=lambda base: (
                -math.fsum(1 - math.exp(logprob) for _, logprob in base.answer.likeliest)
            ),
        )[:DRAWN]

    @property
    def _sampled(self) -> list[Base]:
        return self.widest[:GREEDY]

    @property
    def asked(self) -> int:
        """How many requests are asked."""
        filtered = len(_FILTERS) * len(self._sampled)
        drawn = 3 * len(self.widest) + (1 + SAMPLES) * len(self._sampled)
        return 3 * len(self.longest) + drawn + filtered

    def faults(self) -> Iterator[Fault]:
        """What is wrong."""
        tries = (
            *(self._short, self._stops, self._streams, self._drawn, self._filtered),
            self._samples,
        )
        yield from (fault for fault in (look() for look in tries) if fault is not None)

    def _ask(
        self,
        bases: Sequence[Base],
        row_options: Sequence[GenerationOptions],
        *,
        streamed: bool = False,
        whole: bool = False,
    ) -> list[Answer | Failed | None]:
        """The answers; an answer that cannot be read is `Failed`, and None stands for any other
        failure.
        """
        batch = Asked(
            [base.request for base in bases],
            GenerationOptions(),
            self.image_policy,
            streamed,
            row_options,
        )
        answers = ask(
            self.whole if whole else self.streams if streamed else self.routes,
            "chat",
            batch,
            self.tell,
        )
        other = [
            answer
            for answer in answers
            if isinstance(answer, Failed) and not isinstance(answer.error, MalformedResponse)
        ]
        self.failed.extend(
            answer for answer in other if not isinstance(answer.error, UnsupportedOption)
        )
        return [None if any(answer is failed for failed in other) else answer for answer in answers]

    def _short(self) -> Fault | None:
        """Half of an answer's tokens: so many have to come, and the finish has to say it."""
        bases = self.longest
        limits = [max(1, base.answer.count // 2) for base in bases]
        answers = self._ask(bases, [GenerationOptions(max_new_tokens=limit) for limit in limits])
        wrong: list[tuple[Answer, str]] = []
        for base, limit, answer in zip(bases, limits, answers, strict=True):
            if answer is None:
                continue
            if isinstance(answer, Failed):
                wrong.append((base.answer, answer.error.message))
            elif any(kind in ("length", "finish") for kind, _ in answer.wrong):
                wrong.append(
                    (
                        answer,
                        next(
                            message
                            for kind, message in answer.wrong
                            if kind in ("length", "finish")
                        ),
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
        answers = self._ask(
            [base for base, _ in pairs],
            [GenerationOptions(stop=StopOptions(stop=(stop,))) for _, stop in pairs],
        )
        wrong: list[tuple[Answer, str]] = []
        for (base, stop), answer in zip(pairs, answers, strict=True):
            expected = base.answer.text[: base.answer.text.index(stop)]
            if answer is None:
                continue
            if isinstance(answer, Failed):
                wrong.append((base.answer, answer.error.message))
            elif answer.text != expected and (
                expected.startswith(answer.text) or answer.text.startswith(expected)
            ):
                wrong.append(
                    (
                        answer,
                        (
                            f"before the stop string {stop!r} the text is {expected!r:.60}, and"
                            f" {answer.text!r:.60} came"
                        ),
                    )
                )
            elif (
                answer.text == expected
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
        answers = self._ask(
            bases,
            [GenerationOptions(max_new_tokens=base.answer.limit) for base in bases],
            streamed=True,
        )
        wrong: list[tuple[Answer, str]] = []
        for base, answer in zip(bases, answers, strict=True):
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
        index = common_prefix(answer.token_ids, base.token_ids)
        if index >= len(answer.token_ids):
            return True
        return answer.likeliest[index][1] - answer.logprobs[index] > self.margin

    def _drawn(self) -> Fault | None:
        """Tokens drawn at temperature 1, twice with one seed and once with another."""
        bases = self.widest
        rows = [self._ask(bases, [_drawing(seed)] * len(bases), whole=True) for seed in (1, 1, 2)]
        answers = [
            [answer if isinstance(answer, Answer) else None for answer in row] for row in rows
        ]
        drawn = [answer for row in answers for answer in row if answer is not None]
        if not drawn:
            return None
        reason = _drawn_otherwise(drawn, filtered=self.filtered)
        if reason is not None:
            return _fault(
                "sampling",
                [(drawn[0], reason)],
                len(drawn),
                "tokens drawn at temperature 1, beside how likely they are to the reference",
            )
        pairs = [
            (first, second)
            for first, second in zip(answers[0], answers[1], strict=True)
            if first is not None and second is not None
        ]
        apart = [first for first, second in pairs if self._far_apart(first, second)]
        chance = math.fsum(1 - math.exp(_likeliest_all(first)) for first, _ in pairs)
        if self.seeded and len(apart) >= 3 and 2 * len(apart) >= chance:
            example = "the same request with the same seed has two answers"
            return _fault(
                "sampling",
                [(first, example) for first in apart],
                len(pairs),
                "requests drawn twice with one seed",
            )
        others = [
            (first, second)
            for first, second in zip(answers[0], answers[2], strict=True)
            if first is not None and second is not None
        ]
        if (
            all(first.text == second.text for first, second in others)
            and math.fsum(_likeliest_all(first) for first, _ in others) < IMPOSSIBLE
        ):
            return _fault(
                "sampling",
                [(drawn[0], "another seed gives the same answers")],
                len(others),
                "requests drawn with two seeds",
            )
        return None

    def _filtered(self) -> Fault | None:
        """Tokens drawn with filters that leave the likeliest one alone."""
        bases = self._sampled
        for name, value in _FILTERS.items():
            options = dataclasses.replace(_drawing(3), **{name: value})
            answers = [
                answer
                for answer in self._ask(bases, [options] * len(bases), whole=True)
                if isinstance(answer, Answer)
            ]
            partings = [
                (answer, parting)
                for answer in answers
                if (parting := answer.parting) is not None and parting.margin > self.margin
            ]
            if len(partings) >= 2:
                return _fault(
                    "sampling",
                    [
                        (answer, f"another token than the likeliest one came with {name}={value}")
                        for answer, _ in partings
                    ],
                    len(answers),
                    f"requests drawn with {name}={value}, which leaves the likeliest token alone",
                )
        return None

    def _samples(self) -> Fault | None:
        """Several samples of a request, drawn without a seed: as the choices of one answer, and
        asked for one by one. All have to come, and not those of each request may be alike.
        """
        bases, route = self._sampled, self.whole.chat
        requests = [base.request for base in bases]
        options = GenerationOptions(temperature=1.0, max_new_tokens=DRAWN_TOKENS)
        several = dataclasses.replace(options, samples=SAMPLES)
        at_once = _choices(route, requests, options)
        one_by_one = [slot.bind(_drawn_texts) for slot in run(route, requests, several)]
        chance = (SAMPLES - 1) * math.fsum(
            _likeliest_all(base.answer, DRAWN_TOKENS) for base in bases
        )
        for evidence, slots in (
            (f"requests for {SAMPLES} choices at once", at_once),
            (f"requests for {SAMPLES} samples, without a seed", one_by_one),
        ):
            sampled = [
                (base.answer, texts)
                for base, slot in zip(bases, slots, strict=True)
                if (texts := self._texts(base, slot)) is not None
            ]
            few = [
                (answer, f"{len(texts)} of {SAMPLES} choices came")
                for answer, texts in sampled
                if len(texts) != SAMPLES
            ]
            if few:
                return _fault("length", few, len(sampled), evidence)
            if len(sampled) == len(bases) and chance < IMPOSSIBLE:
                alike = [
                    (answer, f"all are {texts[0]:.60}")
                    for answer, texts in sampled
                    if len({*texts}) == 1
                ]
                if len(alike) == len(sampled):
                    return _fault("sampling", alike, len(sampled), evidence)
        return None

    def _texts(self, base: Base, slot: Slot[list[str]]) -> list[str] | None:
        """The samples; None where they failed, or the server does not take such a request."""
        if is_ok(slot):
            return slot.unwrap()
        error = slot.failure()
        if isinstance(error, UnsupportedOption):
            reason = f"several samples: {error.message}"
            self.not_judged.extend([reason] if reason not in self.not_judged else [])
        else:
            self.failed.append(Failed(base.answer.id, "chat", error))
        return None

    def _far_apart(self, first: Answer, second: Answer) -> bool:
        return first.text != second.text


def _drawing(seed: int) -> GenerationOptions:
    return GenerationOptions(
        temperature=1.0, seed=seed, max_new_tokens=DRAWN_TOKENS, logprobs=False
    )


def _choices(
    route: Route, requests: Sequence[Slot[GenerationRequest]], options: GenerationOptions
) -> list[Slot[list[str]]]:
    """The messages of the choices of each answer, where a server is asked for several at once. No
    route asks so: it asks for each sample alone.
    """
    # an event loop, which nothing but this needs here
    import asyncio

    from pipegen.backends.http.transport import AttemptFailed, HttpStatusError
    from pipegen.backends.servers.dry import wire_requests
    from pipegen.backends.servers.reading import error_message, json_of

    engine: Any = route.engine

    async def one(request: WireRequest) -> Slot[list[str]]:
        body, transport = {**(request.body or {}), "n": SAMPLES}, engine.sender.transport
        try:
            reply = await transport.once(request._replace(body=body), transport.ends())
        except HttpStatusError as refusal:
            message = f"the server refuses n={SAMPLES}: {error_message(refusal.reply)[0]}"
            return Failure(UnsupportedOption(message, option="samples"))
        except AttemptFailed as failed:
            return Failure(failed.error)
        return json_of(reply.body).map(_messages)

    async def each() -> list[Slot[list[str]]]:
        wires = wire_requests(route, requests, options)
        sent = await asyncio.gather(*[one(slot.unwrap()) for slot in wires if is_ok(slot)])
        replies = iter(sent)
        return [next(replies) if is_ok(slot) else Failure(slot.failure()) for slot in wires]

    slots: list[Slot[list[str]]] = engine.loop.run(each())
    return slots


def _drawn_texts(result: GenerationResult) -> Slot[list[str]]:
    """The samples of a result, none of which may have failed."""
    for _, error in result.failed_samples:
        return Failure(error)
    return Success([str((sample.text, sample.reasoning)) for sample in result.samples])


def _messages(answer: Any) -> list[str]:
    """The message of each choice: text, reasoning and calls."""
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    return [
        strict_json.dump(choice.get("message"))
        for choice in (choices if isinstance(choices, list) else ())
        if isinstance(choice, Mapping)
    ]


def _likeliest_all(answer: Answer, most: int | None = None) -> float:
    """The log probability that the likeliest token is drawn in each place, up to `most`: no answer
    has a higher one.
    """
    return math.fsum(logprob for _, logprob in answer.likeliest[:most])


def _drawn_otherwise(answers: Sequence[Answer], *, filtered: bool = False) -> str | None:
    """Why these answers were not drawn at temperature 1: how often the likeliest token came, beside
    how often it should have.
    """
    draws = [
        Draw(token == choice, share, share, share * (1 - share), token == choice, logprob)
        for answer in answers
        for token, (choice, logprob) in zip(answer.token_ids, answer.likeliest, strict=True)
        for share in [math.exp(logprob)]
    ]
    sure = deviations(draws)
    if not (sure < -SURE or (sure > SURE and (not filtered or sure == math.inf))):
        return None
    came = sum(draw.likeliest for draw in draws)
    expected = math.fsum(draw.most for draw in draws)
    return f"the likeliest token came {came} times of {len(draws)}, and {expected:.0f} are expected"


def _stop_in(text: str) -> str:
    """A piece of the text from its middle that does not come earlier, and is no white space."""
    for index in range(len(text) // 3 + 1, len(text) - 3):
        piece = text[index : index + 3]
        if (
            piece.strip() == piece
            and text.index(piece) == index
            and piece.isascii()
            and piece.isalnum()
        ):
            return piece
    return ""


def _fault(kind: str, wrong: Sequence[tuple[Answer, str]], of: int, evidence: str) -> Fault | None:
    if not wrong:
        return None
    first, example = wrong[0]
    return Fault(
        kind=kind,  # type: ignore[arg-type]  # a Kind
        answers=len(wrong),
        of=of,
        first=first,
        example=example,
        evidence=evidence,
    )
