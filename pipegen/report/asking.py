"""Ask a server greedily, by chat and by token ids, and have a reference score what it answers.

Nothing but the temperature and the length is set in a request by chat, so that the server's own
defaults show. A request by ids sets everything.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from returns.result import Failure, Success

from pipegen.core.errors import (
    GenerationError,
    InvalidRequest,
    MalformedResponse,
    UnsupportedMultimodal,
    UnsupportedOption,
)
from pipegen.core.pipe import Pipe, pure
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.arguments import check_settings
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.drivers.scoring import continued_by, scoring
from pipegen.drivers.streaming import Done, stream
from pipegen.records.engine_list import Dialect
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import merge
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.records.results import GenerationResult
from pipegen.records.scores import Scored
from pipegen.report.audit_row import SLACK, findings_in, ids_of, is_one_text, is_taken_apart
from pipegen.report.verdict import Answer, Way, WrongKind


class Routes(NamedTuple):
    """The ways to a server, and what its answers are scored by."""

    chat: Route
    by_ids: Route | None
    """None where the server is asked by chat alone."""
    reference: Route
    """It has the weights that the server should have."""
    switched: bool = True
    """Whether the server is sent the template's thinking switch."""


class Failed(NamedTuple):
    id: str
    way: Way
    error: GenerationError


@dataclasses.dataclass
class Server:
    """A server that is asked, and what became of it so far."""

    routes: Routes
    """By chat as its own defaults show, and by ids."""
    whole: Routes
    """By chat, with every option set."""
    streams: Routes
    """By chat, with nothing asked for that does not come in streams."""
    dialect: Dialect
    deterministic: bool = False
    """Whether its answers must not depend on their batch."""
    image_policy: ImagePolicy | None = None
    report: Callable[[str], object] = lambda text: None
    """Called with what is done now."""
    failed: list[Failed] = dataclasses.field(default_factory=list)
    not_judged: list[str] = dataclasses.field(default_factory=list)
    """What the server cannot be asked."""
    asked_again: int = 0
    """How many requests were asked after their answers came."""


class RequestSet(NamedTuple):
    """Requests, and what is asked of them beside temperature 0."""

    requests: Sequence[Slot[GenerationRequest]]
    options: GenerationOptions
    image_policy: ImagePolicy | None = None
    streamed: bool = False


def answers_of(
    routes: Routes,
    requests: Sequence[Request],
    max_new_tokens: int,
    image_policy: ImagePolicy | None = None,
    tell: Callable[[str], object] = print,
) -> list[Answer | Failed]:
    """What the server answers to these requests, each way, scored by the reference; one that fails
    either way comes with its error.
    """
    options = GenerationOptions(max_new_tokens=max_new_tokens)
    by_ids = plain_requests(requests, image_policy)
    by_chat = [slot for slot in by_ids if slot.map(_has_messages).value_or(True)]
    answers = ask(routes, "chat", RequestSet(by_chat, options, image_policy), tell)
    if routes.by_ids is not None:
        batch = [slot for slot in by_ids if is_ok(slot)]
        answers += ask(routes, "ids", RequestSet(batch, options, image_policy), tell)
    return answers


def ask(
    routes: Routes,
    way: Way,
    request_set: RequestSet,
    tell: Callable[[str], object] = lambda text: None,
) -> list[Answer | Failed]:
    """The answers one way. What this way does not honour is left out where the other way was asked
    too.
    """
    route = routes.chat if way == "chat" or routes.by_ids is None else routes.by_ids
    tell(f"asking by {way}")
    honoured = "logprobs" in route.engine.capabilities.honours and not request_set.streamed
    greedy = merge(request_set.options, GenerationOptions(temperature=0.0))
    slots = [*_run(route, request_set, merge(greedy, GenerationOptions(logprobs=honoured or None)))]
    # perhaps its log probabilities alone cannot be read
    notes = {
        index: error.message
        for index, slot in enumerate(slots)
        if honoured
        and isinstance(error := slot.swap().value_or(None), MalformedResponse)
        and "logprob" in error.message
    }
    fewer = request_set._replace(requests=[request_set.requests[index] for index in notes])
    for index, slot in zip([*notes], _run(route, fewer, greedy), strict=True):
        slots[index] = slot if is_ok(slot) else slots[index]
    rows = [slot.bind(functools.partial(_row, routes.reference)) for slot in slots]
    tell(f"scoring the answers by {way}")
    continued = [
        slot.bind(functools.partial(_continued, request))
        for slot, request in zip(rows, request_set.requests, strict=True)
    ]
    scored = run(
        rendered_by(routes) >> scoring(routes.reference),
        continued,
        image_policy=request_set.image_policy,
    )
    out: list[Answer | Failed] = []
    for index, (request, row, score) in enumerate(
        zip(request_set.requests, rows, scored, strict=True)
    ):
        name = request.map(lambda known: known.id).value_or(None) or "?"
        if is_ok(score):
            images = len(request.unwrap().sources)
            made_of = _answer(
                name, way, row.unwrap(), score.unwrap(), routes, images, notes.get(index)
            )
            out.append(made_of if row.unwrap().apart else _judged(made_of))
        elif way == "chat" or not isinstance(
            score.failure(), (UnsupportedMultimodal, UnsupportedOption)
        ):
            out.append(Failed(name, way, score.failure()))
    return out


def _has_messages(request: GenerationRequest) -> bool:
    return request.messages is not None


def _continued(
    request: Slot[GenerationRequest], answered_row: _AnsweredRow
) -> Slot[GenerationRequest]:
    return request.bind(
        lambda known: continued_by(of_prompt(known, known.options), answered_row.ids)
    )


def of_prompt(request: GenerationRequest, options: GenerationOptions | None) -> GenerationRequest:
    """The request as it is scored: of these options, with those of its prompt alone."""
    options = options or GenerationOptions()
    own = GenerationOptions(
        adapter=options.adapter, chat=options.chat, preprocess=options.preprocess
    )
    return dataclasses.replace(request, options=own)


def _run(
    route: Route, request_set: RequestSet, options: GenerationOptions | None
) -> Sequence[Slot[GenerationResult]]:
    if not request_set.streamed:
        return run(route, request_set.requests, options, image_policy=request_set.image_policy)
    events = stream(route, request_set.requests, options, image_policy=request_set.image_policy)
    done = {event.index: event.slot for event in events if isinstance(event, Done)}
    return [done[index] for index in range(len(request_set.requests))]


_TAKEN = ("max_new_tokens", "chat", "preprocess")


def plain_requests(
    requests: Sequence[Request], image_policy: ImagePolicy | None
) -> list[Slot[GenerationRequest]]:
    """The requests with ids, and without options that would change what is greedy."""
    return [
        _plain(slot, index)
        for index, slot in enumerate(check_settings(None, image_policy).batch(requests), 1)
    ]


def _plain(slot: Slot[GenerationRequest], index: int) -> Slot[GenerationRequest]:
    return slot.bind(_without_sampling).map(
        lambda request: (
            request if request.id is not None else dataclasses.replace(request, id=str(index))
        )
    )


def _without_sampling(request: GenerationRequest) -> Slot[GenerationRequest]:
    options = request.options or GenerationOptions()
    more = [
        field.name
        for field in dataclasses.fields(options)
        if getattr(options, field.name) is not None and field.name not in _TAKEN
    ]
    if not more:
        return Success(request)
    hint = "leave it out: of the options those of the prompt are taken, and max_new_tokens"
    return Failure(
        InvalidRequest(f"a server is asked greedily, without the option {more[0]}", hint=hint)
    )


def rendered_by(routes: Routes) -> Pipe[GenerationRequest, GenerationRequest]:
    """The stage before the reference that has it render a request as the server does."""
    return pure(
        "rendered_by",
        lambda request: request if routes.switched else unswitched(request, routes.reference),
    )


def unswitched(request: GenerationRequest, reference: Route) -> GenerationRequest:
    """The request as a server renders it that is not sent the thinking switch: with a template that
    takes it for not set.
    """
    chat = request.options.chat if request.options is not None else None
    template = (None if chat is None else chat.template) or (
        getattr(reference.engine, "renderer", None) and reference.engine.renderer.template
    )
    if (
        request.messages is None
        or not template
        or "enable_thinking" not in template
        or (chat is not None and chat.enable_thinking is not None)
    ):
        return request
    unset = ChatTemplateOptions(template="{%- set enable_thinking = not_set_at_all -%}" + template)
    return dataclasses.replace(
        request, options=merge(GenerationOptions(chat=unset), request.options)
    )


class _AnsweredRow(NamedTuple):
    """A server's answer, and the ids that are scored."""

    result: GenerationResult
    ids: tuple[int, ...]
    by_text: bool
    """Whether the server gave its text alone."""
    empty: bool = False
    """Whether no answer is scored: an end token is in its place, for the prompt as the reference
    renders it.
    """
    apart: bool = False
    """Whether the server took the text apart, to reasoning, calls and answer: what its tokens were
    is then not known.
    """


def _row(reference: Route, result: GenerationResult) -> Slot[_AnsweredRow]:
    engine = reference.engine
    ends = engine.eos_token_ids
    apart = is_taken_apart(result)
    ids = () if apart and ends else ids_of(result, engine.tokenizer, ends)
    if not ids and not ends:
        return Failure(MalformedResponse(_NOTHING))
    return Success(_AnsweredRow(result, ids or ends[:1], not result.token_ids, not ids, apart))


_NOTHING = "the server answers nothing, and names no end"


def _judged(answer: Answer) -> Answer | Failed:
    """The answer; of an empty one only the prompt can be wrong."""
    return (
        answer
        if answer.token_ids or answer.other_prompt
        else Failed(answer.id, answer.way, MalformedResponse(_NOTHING))
    )


def _answer(
    name: str,
    way: Way,
    answered_row: _AnsweredRow,
    scored: Scored,
    routes: Routes,
    images: int,
    note: str | None,
) -> Answer:
    result = answered_row.result
    by_ids = way == "ids"  # which are those that were sent
    count = 0 if answered_row.empty else len(answered_row.ids)
    limit = result.clipped_from or result.options.max_new_tokens or 0
    wrong: list[tuple[WrongKind, str]] = [] if by_ids else _wrong(result, routes)
    if note is not None:
        wrong.append(("logprobs", note))
    answer = Answer(
        id=name,
        way=way,
        expected=scored.prompt_token_ids,
        prompt_token_ids=() if by_ids else result.prompt_token_ids,
        prompt_tokens=0 if by_ids else result.prompt_tokens,
        token_ids=answered_row.ids[:count],
        logprobs=scored.token_logprobs[:count],
        likeliest=scored.likeliest[:count],
        server_logprobs=tuple([token.logprob for token in result.logprobs or ()]),
        gaps=tuple([token.margin for token in result.logprobs or ()]),
        ends=frozenset(routes.reference.engine.eos_token_ids),
        images=images,
        text=result.text,
        by_text=answered_row.by_text,
        finish=result.finish.value,
        count=result.completion_tokens,
        limit=limit,
        wrong=tuple(wrong),
    )
    return _read_as_written(answer, routes.reference) if answered_row.by_text else answer


def _wrong(result: GenerationResult, routes: Routes) -> list[tuple[WrongKind, str]]:
    """What of an answer by chat does not obey its request."""
    engine = routes.reference.engine
    context = routes.chat.engine.capabilities.context_length or engine.capabilities.context_length
    prompt = len(result.prompt_token_ids) or result.prompt_tokens
    room = None if context is None else context - SLACK - prompt
    findings = findings_in(result, engine.tokenizer, engine.eos_token_ids, room)
    # what else may be wrong is refused as the answer comes
    kinds = ("length", "count", "finish", "text")
    wrong: list[tuple[WrongKind, str]] = [
        (finding.kind, finding.words) for finding in findings if finding.kind in kinds
    ]
    text, count = result.text, result.completion_tokens
    if result.token_ids or result.reasoning is not None or result.tool_calls:
        return wrong
    if not text.strip() and len(text) < count - 1:  # one may be the end
        wrong.append(("text", f"{count} tokens are counted, and the text is {text!r}"))
    for token in engine.tokenizer.special_tokens:
        if token in text:
            wrong.append(("text", f"the text holds the special token {token!r}"))
    return wrong


def _read_as_written(answer: Answer, reference: Route) -> Answer:
    """A text may have been written in other tokens than it is read in. The answer ends before a
    place where the reference goes on with the same text.
    """
    parting = answer.parting
    if (
        parting is None
        or parting.choice in answer.ends
        or not is_one_text(
            answer.token_ids[parting.place :], parting.choice, reference.engine.tokenizer
        )
    ):
        return answer
    fields = {
        name: getattr(answer, name)[: parting.place]
        for name in ("token_ids", "logprobs", "likeliest", "server_logprobs")
    }
    return dataclasses.replace(answer, **fields)
