"""Is a server serving this model right? It is asked (`asking`, `questions`, `retests`), and its
answers are judged (`diagnose`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from returns.result import Success

from pipegen import backends
from pipegen.answer.answer_check import CUT_PROMPT, HINTS
from pipegen.backends.checkpoint.positions import Boundary, boundaries
from pipegen.core.errors import CallFailed, MalformedResponse, PromptTooLong
from pipegen.core.functional import partition_all
from pipegen.core.slots import Slot, live
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.drivers.scoring import score
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.engine_list import DIALECTS, UNKNOWN_SERVERS, Dialect
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS, names_in, server_fields
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.report.asking import (
    Failed,
    RequestSet,
    Routes,
    Server,
    answers_of,
    ask,
    plain_requests,
    rendered_by,
)
from pipegen.report.audit_row import kind_of
from pipegen.report.causes import IdsAfter, Rescored, Trials
from pipegen.report.diagnose import judge, one_each
from pipegen.report.questions import beyond, not_reached, prompts, with_images, with_tools
from pipegen.report.retests import Base, FollowUps
from pipegen.report.verdict import (
    MARGIN,
    SPREAD,
    Answer,
    Fault,
    Kind,
    Measured,
    Precision,
    Verdict,
    Way,
    distances,
    faults_of,
    limits_of,
    partings,
    rms,
    spread,
)

WINDOW = 64
"""Requests that are asked, and then scored, together."""
MAX_NEW_TOKENS = 32
LEFT_TO_SERVER = tuple(
    field
    for name in names_in("filter", "tokens", "bias", "penalty", "stop", "decode")
    for field in server_fields(OPTIONS[name].row)
    if field != "stop"
)
"""The fields of a request by chat that are not sent."""
_MEASURED = 64
"""So many answers are scored in another precision."""
_FOLLOWED: frozenset[Kind] = frozenset({"precision", "logprobs", "images", "context", "length"})
"""Answers with these faults alone can be asked back."""
Tell = Callable[[int, str], object]
"""Called with how many requests are done, and what is done now."""


def verify(
    url: str,
    model: str,
    requests: Iterable[Request] | None = None,
    *,
    dialect: Dialect | None = None,
    chat_only: bool = False,
    deterministic: bool = False,
    reference: Route | None = None,
    precision: Precision | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    image_policy: ImagePolicy | None = None,
    dtype: str = "float32",
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    tell: Tell = lambda done, text: None,
    **settings: object,
) -> Verdict:
    """Whether the server at this address serves this model right.

    requests: what to ask, without options but `max_new_tokens` and those of the prompt. A small set
    comes with pipegen.
    dialect: `vllm`, `sglang` or `plain`. By default, the server is asked which.
    chat_only: do not ask by token ids.
    deterministic: ask each request alone and among the others, too, and count other answers.
    reference: a route whose engine scores, on the right weights. By default `hf` on the model.
    precision: what the server should compute in. By default the checkpoint's own dtype.
    settings: those of servers, such as `api_key` or `timeout`.

    Raises `CallFailed` where the server cannot be reached or the model cannot be read,
    `InvalidField` for bad settings.
    """
    from pipegen.backends.checkpoint.checkpoint import Checkpoint
    from pipegen.backends.servers.dialects import find_dialect

    checkpoint: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    spoken = find_dialect(url, **settings) if dialect is None else dialect
    with contextlib.ExitStack() as stack:
        if reference is None:
            reference = stack.enter_context(
                backends.hf(model, dtype=dtype, device=device, **checkpoint)
            )
        # neither comes in streams
        ids = (
            {"return_token_ids": True, "return_prompt_token_ids": True}
            if spoken == "sglang"
            else {}
        )
        bodies = ({**LEFT, **ids}, LEFT, {**LEFT, "tool_choice": "none"}, ids)
        chat, streams, tools, whole = (
            stack.enter_context(_chat(url, model, spoken, settings, body)) for body in bodies
        )
        serve: Any = getattr(backends, f"{spoken}_server", None)
        by_ids = (
            None
            if chat_only or serve is None
            else stack.enter_context(serve(model, base_url=url, **settings, **checkpoint))
        )
        routes = Routes(chat, by_ids, reference, switched=DIALECTS[spoken] not in UNKNOWN_SERVERS)
        facts = Checkpoint(ModelLoadConfig(model=model, **checkpoint))
        computes_in: Any = precision or facts.dtype
        server = _ServerTrials(
            routes=routes,
            whole=routes._replace(chat=whole, by_ids=None),
            streams=routes._replace(chat=streams, by_ids=None),
            dialect=spoken,
            deterministic=deterministic,
            image_policy=image_policy,
            model=model,
            precision=computes_in,
            most=max_new_tokens,
            tell=tell,
            lengths=boundaries(facts.config),
            settings={"device": device, **checkpoint} if dtype == "float32" else None,
        )
        for window in partition_all(
            WINDOW,
            _questions(reference, server.lengths, max_new_tokens) if requests is None else requests,
        ):
            server.ask(window)
        if (
            requests is None
            and spoken == "vllm"
            and "tools" in (reference.engine.renderer.template or "")
        ):
            server.ask([*with_tools()], routes._replace(chat=tools, by_ids=None))
        return server.verdict(url)


LEFT: Mapping[str, object] = dict.fromkeys(LEFT_TO_SERVER)


def _chat(
    url: str, model: str, dialect: str, settings: Mapping[str, object], fields: Mapping[str, object]
) -> Route:
    """A route by chat. With `LEFT` it leaves to the server whatever it has a default for."""
    make: Any = backends.openai_server
    route: Route = make(model, base_url=url, dialect=dialect, extra_body=dict(fields), **settings)
    return route


def _questions(
    reference: Route, lengths: Sequence[Boundary], max_new_tokens: int
) -> Iterator[Request]:
    yield from prompts()
    limit = reference.engine.capabilities.context_length
    yield from beyond(
        lengths,
        lambda text: len(reference.engine.tokenizer.encode(text)),
        None if limit is None else limit - 2 * max_new_tokens,
    )
    if "images" in reference.engine.capabilities.honours:
        yield from with_images()


@dataclasses.dataclass(kw_only=True)
class _ServerTrials(Server, Trials):
    """What is asked of one server, and what it answered so far."""

    model: str
    precision: Precision
    most: int
    """The tokens that are asked for."""
    tell: Tell
    lengths: Sequence[Boundary]
    settings: Mapping[str, Any] | None
    """Those that load the reference; None where it does not compute in float32."""
    answers: list[Answer] = dataclasses.field(default_factory=list)
    requests: dict[str, Slot[GenerationRequest]] = dataclasses.field(default_factory=dict)
    count: int = 0
    measured: dict[Precision, float | None] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.report = lambda text: self.tell(self.count, text)

    def ask(self, requests: Sequence[Request], routes: Routes | None = None) -> None:
        """Ask these requests, each way."""
        named = plain_requests(requests, self.image_policy)
        self.requests |= {request.id or "": Success(request) for request in live(named)}
        rows = answers_of(routes or self.routes, named, self.most, self.image_policy, self.report)
        self.answers += [row for row in rows if isinstance(row, Answer)]
        self.failed += [row for row in rows if isinstance(row, Failed)]
        self.count += len(requests)
        self.report("")

    def verdict(self, url: str) -> Verdict:
        expected = [answer for answer in self.answers if not answer.other_prompt]
        by_ids = [answer for answer in expected if answer.way == "ids"]
        far = spread(by_ids) or spread(expected)
        near = (far or 0.0) <= SPREAD[self.precision] / 10 and not partings(
            expected, MARGIN[self.precision] / 10
        )
        limits = limits_of(
            self.precision,
            None if near or self.precision == "float32" else self.noise(self.precision),
        )
        decode = self.routes.reference.engine.tokenizer.decode
        faults = one_each(
            [
                *judge(self.answers, self.precision, decode, limits=limits, trials=self),
                *self._disobeyed(),
            ]
        )
        # what ends elsewhere has another length, finish and text too
        if any(fault.kind == "end tokens" for fault in faults):
            faults = [fault for fault in faults if fault.kind not in ("length", "text")]
        self.not_judged += self._not_reached(expected)
        if {fault.kind for fault in faults} <= _FOLLOWED:
            follow = FollowUps(self, self._bases(expected, limits.margin), limits.margin)
            faults = one_each([*faults, *follow.faults()])
        apart = sum(not answer.token_ids and answer.by_text for answer in expected)
        if apart:
            self.not_judged.append(
                f"{apart:,} answers, whose text the server took apart: only their prompts and"
                " lengths are judged"
            )
        margins = [parting.margin for answer in expected if (parting := answer.parting) is not None]
        wrong = [failure for failure in self.failed if not isinstance(failure.error, PromptTooLong)]
        return Verdict(
            url=url,
            model=self.model,
            dialect=self.dialect,
            precision=self.precision,
            prompts=self.count,
            answers=len(self.answers) - apart,
            agreeing=len(expected) - len(margins) - apart,
            ways=tuple(sorted({answer.way for answer in self.answers})),
            spread=far,
            margin=max(margins, default=0.0),
            faults=tuple(faults),
            failed=tuple(wrong),
            too_long=len({failure.id for failure in self.failed})
            - len({failure.id for failure in wrong}),
            asked_again=self.asked_again,
            most_spread=limits.spread,
            most_margin=limits.margin,
            not_judged=tuple(dict.fromkeys(self.not_judged)),
        )

    def _not_reached(self, expected: Sequence[Answer]) -> Iterator[str]:
        """The lengths of the configuration beyond which no answer is judged."""
        longest = [len(answer.expected) + len(answer.token_ids) for answer in expected]
        engines = (self.routes.reference.engine, self.routes.chat.engine)
        limits = [engine.capabilities.context_length for engine in engines]
        known_limits = [limit for limit in limits if limit is not None]
        return not_reached(self.lengths, max(longest, default=0), min(known_limits, default=None))

    def _bases(self, expected: Sequence[Answer], margin: float) -> list[Base]:
        """The requests by chat that were answered right, to be asked back."""
        return [
            Base(self.requests[answer.id], answer)
            for answer in expected
            if answer.way == "chat"
            and not partings([answer], margin)
            and not answer.images
            and not answer.wrong
            and answer.token_ids
            and answer.id in self.requests
            and not answer.id.startswith("tools-")
        ]

    def _disobeyed(self) -> Iterator[Fault]:
        """Answers that were refused as they came, since they do not obey their requests."""
        by_hint: dict[str, Kind] = {hint: kind_of(kind) for kind, hint in HINTS.items()}
        by_hint[CUT_PROMPT] = "context"
        refused: dict[Kind, list[tuple[Answer, str]]] = {}
        for failure in self.failed:
            kind = by_hint.get(failure.error.hint)
            if kind is not None and isinstance(failure.error, MalformedResponse):
                name, way, error = failure
                nothing = Answer(
                    id=name, way=way, expected=(), token_ids=(), logprobs=(), likeliest=()
                )
                refused.setdefault(kind, []).append((nothing, error.message))
        for kind, wrong in refused.items():
            yield from faults_of(kind, wrong, self.count, "the answer does not obey its request")

    def rescore(self, pairs: Sequence[IdsAfter]) -> list[Rescored | None]:
        return _rescored(self.routes.reference, pairs)

    def again(self, names: Sequence[str], way: Way) -> list[Answer]:
        batch = RequestSet(
            [self.requests[name] for name in names if name in self.requests] * 2,
            GenerationOptions(max_new_tokens=self.most),
            self.image_policy,
        )
        return [
            answer
            for answer in ask(self.routes, way, batch, self.report)
            if isinstance(answer, Answer)
        ]

    def written(self, names: Sequence[str]) -> list[str | None]:
        options = {"temperature": 0.0, "max_new_tokens": self.most}
        pipe = rendered_by(self.routes) >> self.routes.reference
        slots = run(
            pipe, [self.requests[name] for name in names], options, image_policy=self.image_policy
        )
        return [slot.map(lambda result: result.text).value_or(None) for slot in slots]

    def noise(self, precision: Precision) -> float | None:
        """How far the reference in that precision is from itself, over answers that came. None
        where it is not float32, or cannot be loaded.
        """
        if self.settings is None or self.routes.reference.engine.name != "hf":
            return None
        if precision not in self.measured:
            self.report(f"measuring {precision}")
            rows = [
                (answer.expected, answer.token_ids, answer.logprobs, None)
                for answer in self.answers
                if not answer.images and not answer.other_prompt
            ]
            self.measured[precision] = noise_of(
                precision, rows[-_MEASURED:], self.model, **self.settings
            )
        return self.measured[precision]


def _rescored(
    route: Route, pairs: Sequence[IdsAfter], adapters: Iterable[str | None] = itertools.repeat(None)
) -> list[Rescored | None]:
    requests = [
        {
            "prompt_token_ids": [*prompt],
            "continuation": [*ids],
            "options": {"adapter": adapter},
        }
        for (prompt, ids), adapter in zip(pairs, adapters, strict=False)
    ]
    return [
        slot.map(lambda scored: (scored.token_logprobs, scored.likeliest)).value_or(None)
        for slot in score(route, requests)
    ]


def noise_of(
    precision: Precision,
    rows: Sequence[Measured],
    model: str,
    **settings: Any,
) -> float | None:
    """How far the model in that precision is from these log probabilities of ids after prompts: the
    root of the mean square. None where it cannot load.
    """
    try:
        with backends.hf(model, dtype=precision, **settings) as route:
            scored = _rescored(route, [row[:2] for row in rows], [row[3] for row in rows])
    except CallFailed:
        return None
    far = [
        distance
        for (_, _, logprobs, _), again in zip(rows, scored, strict=True)
        if again is not None
        for distance in distances(again[0], logprobs)
    ]
    return rms(far) or None
