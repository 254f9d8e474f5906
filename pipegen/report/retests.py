"""Ask a server's own answers back: cut short, with stop strings, as streams, and drawn: with seeds,
and as several samples. Each has to go with the answer that came before.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from returns.result import Failure, Success

from pipegen.core.errors import MalformedResponse, UnsupportedOption
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.records import strict_json
from pipegen.records.answer_parts import common_prefix
from pipegen.records.engine_list import DIALECTS, UNKNOWN_SERVERS
from pipegen.records.option_groups import StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS, names_in
from pipegen.records.options import merge
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult
from pipegen.report.asking import Failed, RequestSet, Routes, Server, ask
from pipegen.report.drawn import IMPOSSIBLE, SURE, Draw, deviations
from pipegen.report.verdict import Answer, Fault, Kind, faults_of, partings

if TYPE_CHECKING:
    from pipegen.backends.servers.wire import WireRequest


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


class Retest(NamedTuple):
    """A way to ask for an answer once more, and what has to come then."""

    kind: Kind
    options: Callable[[Answer], GenerationOptions | None]
    """What is asked beside; None where the answer is not one to ask about."""
    wrong: Callable[[Answer, Answer, float], str]
    """What is wrong with the second answer, by the first and the largest margin that arithmetic
    explains; empty where nothing is.
    """
    evidence: str
    streamed: bool = False


def _half(answer: Answer) -> int:
    return max(1, answer.count // 2)


def _wrong_half(answer: Answer, half: Answer, margin: float) -> str:
    """Half of an answer's tokens: so many have to come, and the finish has to say it."""
    limit = _half(answer)
    for kind, words in half.wrong:
        if kind in ("length", "count", "finish"):
            return words
    goes_on = half.text and answer.text != half.text and answer.text.startswith(half.text)
    if not goes_on or not half.count:
        return ""
    if half.count != limit:
        return "" if answer.by_text else f"{limit} tokens were asked, and {half.count} came"
    return (
        ""
        if half.finish == "length"
        else f"the answer ended after the {limit} tokens that were asked, and its finish is"
        f" {half.finish}"
    )


def _stop_of(answer: Answer) -> GenerationOptions | None:
    stop = _stop_in(answer.text)
    return GenerationOptions(stop=StopOptions(stop=(stop,))) if stop else None


def _wrong_stop(answer: Answer, stopped: Answer, margin: float) -> str:
    """The text has to end before the stop string, and the tokens there."""
    stop = _stop_in(answer.text)
    expected, text = answer.text[: answer.text.index(stop)], stopped.text
    if text != expected:
        return (
            f"before the stop string {stop!r} the text is {expected!r:.60}, and {text!r:.60} came"
            if expected.startswith(text) or text.startswith(expected)
            else ""
        )
    all_came = not answer.by_text and stopped.count >= answer.count > 8
    return (
        f"with the stop string {stop!r} all {stopped.count} tokens of the answer came"
        if all_came
        else ""
    )


def _wrong_stream(answer: Answer, streamed: Answer, margin: float) -> str:
    """The same text has to come in pieces, but for a near tie of the reference."""
    if streamed.text == answer.text:
        return ""
    index = common_prefix(streamed.token_ids, answer.token_ids)
    near = (
        not streamed.wrong
        and index < len(streamed.token_ids)
        and streamed.likeliest[index][1] - streamed.logprobs[index] <= margin
    )
    return (
        ""
        if near
        else f"the whole answer is {answer.text!r:.60}, and as a stream it is {streamed.text!r:.60}"
    )


_RETESTS = (
    Retest(
        "length",
        lambda answer: GenerationOptions(max_new_tokens=_half(answer)),
        _wrong_half,
        "requests with an answer, asked again for half of its tokens",
    ),
    Retest(
        "length",
        _stop_of,
        _wrong_stop,
        "requests with an answer, asked again with a piece of it as the stop string",
    ),
    Retest(
        "text",
        lambda answer: GenerationOptions(max_new_tokens=answer.limit),
        _wrong_stream,
        "requests with an answer, asked again as streams",
        streamed=True,
    ),
)


class FollowUps(NamedTuple):
    """A server, and requests that it answered right."""

    server: Server
    bases: Sequence[Base]
    margin: float
    """The largest margin that arithmetic explains."""

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

    def faults(self) -> Iterator[Fault]:
        """What is wrong."""
        for retest in _RETESTS:
            yield from self._asked_back(retest)
        for look in (self._drawn, self._filtered, self._samples):
            yield from look()
        if self.server.deterministic:
            yield from self._among_others()

    def _ask(
        self,
        bases: Sequence[Base],
        options: Sequence[GenerationOptions],
        routes: Routes,
        *,
        streamed: bool = False,
    ) -> list[Answer | Failed | None]:
        """The answers; an answer that cannot be read is `Failed`, and None stands for any other
        failure.
        """
        requests = [
            base.request.map(functools.partial(_with_options, more))
            for base, more in zip(bases, options, strict=True)
        ]
        self.server.asked_again += len(requests)
        batch = RequestSet(requests, GenerationOptions(), self.server.image_policy, streamed)
        out: list[Answer | Failed | None] = []
        for answer in ask(routes, "chat", batch, self.server.report):
            failed = isinstance(answer, Failed) and not isinstance(answer.error, MalformedResponse)
            if isinstance(answer, Failed) and failed:
                unasked = isinstance(answer.error, UnsupportedOption)
                self.server.failed.extend([] if unasked else [answer])
            out.append(None if failed else answer)
        return out

    def _asked_back(self, retest: Retest) -> list[Fault]:
        if retest.streamed and "stream" not in self.server.routes.chat.engine.capabilities.honours:
            return []
        pairs = [
            (base, options)
            for base in self.longest
            if (options := retest.options(base.answer)) is not None
        ]
        bases = [base for base, _ in pairs]
        routes = self.server.streams if retest.streamed else self.server.routes
        answers = self._ask(
            bases, [options for _, options in pairs], routes, streamed=retest.streamed
        )
        wrong = [
            (base.answer, answer.error.message)
            if isinstance(answer, Failed)
            else (answer, retest.wrong(base.answer, answer, self.margin))
            for base, answer in zip(bases, answers, strict=True)
            if answer is not None
        ]
        return faults_of(
            retest.kind, [pair for pair in wrong if pair[1]], len(bases), retest.evidence
        )

    def _among_others(self) -> list[Fault]:
        """All requests at once, and then one by one: the answers must be the same."""
        options = [GenerationOptions(max_new_tokens=base.answer.limit) for base in self.bases]
        together = self._ask(self.bases, options, self.server.whole)
        pairs = [
            (answer, alone)
            for base, more, answer in zip(self.bases, options, together, strict=True)
            for alone in self._ask([base], [more], self.server.whole)
            if isinstance(answer, Answer) and isinstance(alone, Answer)
        ]
        apart = [
            (answer, f"alone it is {alone.text!r:.60}, and among others {answer.text!r:.60}")
            for answer, alone in pairs
            if (answer.token_ids, answer.text) != (alone.token_ids, alone.text)
        ]
        return faults_of("batch", apart, len(pairs), "requests asked alone and among the others")

    def _drawn(self) -> list[Fault]:
        """Tokens drawn at temperature 1, twice with one seed and once with another."""
        first, second, third = (self._answers(self.widest, _drawing(seed)) for seed in (1, 1, 2))
        drawn = [answer for answers in (first, second, third) for answer in answers.values()]
        if not drawn:
            return []
        reason = _drawn_otherwise(drawn, filtered=DIALECTS[self.server.dialect] in UNKNOWN_SERVERS)
        if reason is not None:
            return faults_of(
                "sampling",
                [(drawn[0], reason)],
                len(drawn),
                "tokens drawn at temperature 1, beside how likely they are to the reference",
            )
        again = [name for name in first if name in second]
        apart = [first[name] for name in again if first[name].text != second[name].text]
        chance = math.fsum(1 - math.exp(_likeliest_all(first[name])) for name in again)
        if self.server.dialect == "vllm" and len(apart) >= 3 and 2 * len(apart) >= chance:
            example = "the same request with the same seed has two answers"
            return faults_of(
                "sampling",
                [(answer, example) for answer in apart],
                len(again),
                "requests drawn twice with one seed",
            )
        others = [name for name in first if name in third]
        if (
            all(first[name].text == third[name].text for name in others)
            and math.fsum(_likeliest_all(first[name]) for name in others) < IMPOSSIBLE
        ):
            return faults_of(
                "sampling",
                [(drawn[0], "another seed gives the same answers")],
                len(others),
                "requests drawn with two seeds",
            )
        return []

    def _answers(self, bases: Sequence[Base], options: GenerationOptions) -> dict[str, Answer]:
        """The answers that came, by the ids of their requests."""
        answers = self._ask(bases, [options] * len(bases), self.server.whole)
        return {answer.id: answer for answer in answers if isinstance(answer, Answer)}

    def _filtered(self) -> list[Fault]:
        """Tokens drawn with filters that leave the likeliest one alone."""
        for name, value in _FILTERS.items():
            options = dataclasses.replace(_drawing(3), **{name: value})
            answers = self._answers(self._sampled, options).values()
            other = [answer for answer, _ in partings(answers, self.margin)]
            if len(other) >= 2:
                example = f"another token than the likeliest one came with {name}={value}"
                return faults_of(
                    "sampling",
                    [(answer, example) for answer in other],
                    len(answers),
                    f"requests drawn with {name}={value}, which leaves the likeliest token alone",
                )
        return []

    def _samples(self) -> list[Fault]:
        """Several samples of a request, drawn without a seed: as the choices of one answer, and
        asked for one by one. All have to come, and not those of each request may be alike.
        """
        bases, route = self._sampled, self.server.whole.chat
        requests = [base.request for base in bases]
        self.server.asked_again += (1 + SAMPLES) * len(requests)
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
            pairs = [
                (base.answer, self._texts(base, slot))
                for base, slot in zip(bases, slots, strict=True)
            ]
            sampled = [(answer, texts) for answer, texts in pairs if texts is not None]
            few = [
                (answer, f"{len(texts)} of {SAMPLES} choices came")
                for answer, texts in sampled
                if len(texts) != SAMPLES
            ]
            alike = [
                (answer, f"all are {texts[0]:.60}")
                for answer, texts in sampled
                if len({*texts}) == 1
            ]
            if few:
                return faults_of("length", few, len(sampled), evidence)
            if len(alike) == len(bases) and chance < IMPOSSIBLE:
                return faults_of("sampling", alike, len(sampled), evidence)
        return []

    def _texts(self, base: Base, slot: Slot[list[str]]) -> list[str] | None:
        """The samples; None where they failed, or the server does not take such a request."""
        error = slot.swap().value_or(None)
        if isinstance(error, UnsupportedOption):
            self.server.not_judged.append(f"several samples: {error.message}")
        elif error is not None:
            self.server.failed.append(Failed(base.answer.id, "chat", error))
        return slot.value_or(None)


def _with_options(options: GenerationOptions, request: GenerationRequest) -> GenerationRequest:
    return dataclasses.replace(request, options=merge(request.options, options))


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

    async def one(wire: Slot[WireRequest]) -> Slot[list[str]]:
        if not is_ok(wire):
            return Failure(wire.failure())
        request, transport = wire.unwrap(), engine.sender.transport
        body = {**(request.body or {}), "n": SAMPLES}
        try:
            reply = await transport.once(request._replace(body=body), transport.row())
        except HttpStatusError as refusal:
            message = f"the server refuses n={SAMPLES}: {error_message(refusal.reply)[0]}"
            return Failure(UnsupportedOption(message, option="samples"))
        except AttemptFailed as failed:
            return Failure(failed.error)
        return json_of(reply.body).map(_messages)

    async def each() -> list[Slot[list[str]]]:
        return await asyncio.gather(*map(one, wire_requests(route, requests, options)))

    slots: list[Slot[list[str]]] = engine.loop.run(each())
    return slots


def _drawn_texts(result: GenerationResult) -> Slot[list[str]]:
    """The samples of a result, none of which may have failed."""
    for _, error in result.failed_samples:
        return Failure(error)
    return Success([str((sample.text, sample.reasoning)) for sample in result.samples])


def _messages(answer: object) -> list[str]:
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
