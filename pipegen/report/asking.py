"""Ask a server greedily, by chat and by token ids, and have a reference score what it answers.

Nothing but the temperature and the length is set in a request by chat, so that the server's own
defaults show. A request by ids sets everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from returns.result import Failure, Success

from pipegen.answer.answer_check import answer_of, check_answer
from pipegen.core.errors import (
    GenerationError,
    InvalidRequest,
    MalformedResponse,
    UnsupportedMultimodal,
    UnsupportedOption,
)
from pipegen.core.pipe import Pipe, pure
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.arguments import prepare_batch
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.drivers.scoring import continued_by, scoring
from pipegen.drivers.streaming import Done, stream
from pipegen.records.options import ChatTemplateOptions, GenerationOptions, merge
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.records.results import Finish, GenerationResult
from pipegen.records.scores import Scored
from pipegen.report.audit_row import SLACK, spelled_by_server
from pipegen.report.verdict import Answer, Way

__all__ = [
    "Asked",
    "Failed",
    "Routes",
    "answers_of",
    "ask",
    "plain_requests",
    "rendered_by",
    "unswitched",
]


class Routes(NamedTuple):
    """The ways to a server, and what its answers are scored by."""

    chat: Route
    by_ids: Route | None
    """None where the server is asked by chat alone."""
    reference: Route
    """It has the weights that the server should have."""
    names_ends: bool = False
    """Whether the ids that come by chat hold the end token."""
    switched: bool = True
    """Whether the server is sent the template's thinking switch."""


class Failed(NamedTuple):
    id: str
    way: Way
    error: GenerationError


class Asked(NamedTuple):
    """Requests, and what is asked of them beside temperature 0."""

    requests: Sequence[Slot[GenerationRequest]]
    options: GenerationOptions
    image_policy: ImagePolicy | None = None
    streamed: bool = False
    own: Sequence[GenerationOptions] = ()
    """What each request is asked beside `options`; empty where they are asked the same."""


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
    plain = plain_requests(requests, image_policy)
    options = GenerationOptions(max_new_tokens=max_new_tokens)
    out: list[Answer | Failed] = []
    for way, route in (("chat", routes.chat), ("ids", routes.by_ids)):
        if route is not None:
            chosen: Any = way
            batch = [
                slot
                for slot in plain
                if (
                    slot.unwrap().messages is not None or way == "ids"
                    if is_ok(slot)
                    else way == "chat"
                )
            ]
            out += ask(routes, chosen, Asked(batch, options, image_policy), tell)
    return out


def ask(
    routes: Routes, way: Way, asked: Asked, tell: Callable[[str], object] = lambda text: None
) -> list[Answer | Failed]:
    """The answers one way. What this way does not honour is left out where the other way was asked
    too.
    """
    route = routes.chat if way == "chat" or routes.by_ids is None else routes.by_ids
    tell(f"asking by {way}")
    honoured = "logprobs" in route.engine.capabilities.honours and not asked.streamed
    options = merge(asked.options, GenerationOptions(temperature=0.0, logprobs=honoured or None))
    slots = [*_run(route, asked, options)]
    unread = [
        index
        for index, slot in enumerate(slots)
        if honoured and not is_ok(slot) and isinstance(slot.failure(), MalformedResponse)
    ]
    notes: dict[int, str] = {}
    if unread:  # perhaps its log probabilities alone cannot be read
        without = merge(asked.options, GenerationOptions(temperature=0.0))
        fewer = asked._replace(
            requests=[asked.requests[index] for index in unread],
            own=[asked.own[index] for index in unread] if asked.own else (),
        )
        for index, slot in zip(unread, _run(route, fewer, without), strict=True):
            if is_ok(slot) and "logprob" in slots[index].failure().message:
                notes[index] = slots[index].failure().message
                slots[index] = slot
    rows = [_row(slot, routes.reference, routes.names_ends) for slot in slots]
    tell(f"scoring the answers by {way}")
    continued = [
        slot.bind(lambda row, request=request: continued_by(request, row.ids))  # type: ignore[misc]
        for slot, request in zip(rows, asked.requests, strict=True)
    ]
    scored = run(
        rendered_by(routes) >> scoring(routes.reference), continued, image_policy=asked.image_policy
    )
    out: list[Answer | Failed] = []
    for index, (request, row, score) in enumerate(zip(asked.requests, rows, scored, strict=True)):
        name = (request.unwrap().id if is_ok(request) else None) or "?"
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


def _run(
    route: Route, asked: Asked, options: GenerationOptions | None
) -> Sequence[Slot[GenerationResult]]:
    row_options: Sequence[GenerationOptions | None] = asked.own or [options] * len(asked.requests)
    requests = [
        slot.map(
            lambda request, more=more: dataclasses.replace(  # type: ignore[misc]
                request, options=merge(request.options, merge(more, options))
            )
        )
        for slot, more in zip(asked.requests, row_options, strict=True)
    ]
    if not asked.streamed:
        return run(route, requests, image_policy=asked.image_policy)
    done = {
        event.index: event.slot
        for event in stream(route, requests, image_policy=asked.image_policy)
        if isinstance(event, Done)
    }
    return [done[index] for index in range(len(requests))]


_TAKEN = ("max_new_tokens", "chat", "preprocess")


def plain_requests(
    requests: Sequence[Request], image_policy: ImagePolicy | None
) -> list[Slot[GenerationRequest]]:
    """The requests with ids, and without options that would change what is greedy."""
    return [
        _plain(slot, index)
        for index, slot in enumerate(prepare_batch(requests, None, image_policy, None), 1)
    ]


def _plain(slot: Slot[GenerationRequest], index: int) -> Slot[GenerationRequest]:
    if not is_ok(slot):
        return slot
    request = slot.unwrap()
    options = request.options
    set_too = (
        [
            field.name
            for field in dataclasses.fields(options)
            if getattr(options, field.name) is not None
        ]
        if options is not None
        else []
    )
    more = [name for name in set_too if name not in _TAKEN]
    if more:
        message = f"a server is asked greedily, without the option {more[0]}"
        return Failure(
            InvalidRequest(
                message,
                hint=(
                    "leave it out: of the options those of the prompt are taken, and max_new_tokens"
                ),
            )
        )
    return Success(
        request if request.id is not None else dataclasses.replace(request, id=str(index))
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


class _Row(NamedTuple):
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


def _row(slot: Slot[GenerationResult], reference: Route, names_ends: bool = False) -> Slot[_Row]:
    if not is_ok(slot):
        return Failure(slot.failure())
    result, engine = slot.unwrap(), reference.engine
    if (
        not result.token_ids
        and engine.eos_token_ids
        and (result.reasoning is not None or result.tool_calls)
    ):
        return Success(_Row(result, engine.eos_token_ids[:1], by_text=True, empty=True, apart=True))
    ids = result.token_ids or tuple(engine.tokenizer.encode(result.raw_text))
    ends: tuple[int, ...] = engine.eos_token_ids
    if (
        result.finish is Finish.EOS
        and ends
        and not (ids and ids[-1] in ends)
        and not (result.token_ids and names_ends)
    ):
        ids = (*ids, ends[0])
    if not ids and not ends:
        return Failure(MalformedResponse(_NOTHING))
    return Success(_Row(result, ids or ends[:1], not result.token_ids, empty=not ids))


_NOTHING = "the server answers nothing, and names no end"


def _judged(answer: Answer) -> Answer | Failed:
    """The answer; of an empty one only the prompt can be wrong."""
    return (
        answer
        if answer.token_ids or answer.other_prompt
        else Failed(answer.id, answer.way, MalformedResponse(_NOTHING))
    )


def _answer(
    name: str, way: Way, row: _Row, scored: Scored, routes: Routes, images: int, note: str | None
) -> Answer:
    result = row.result
    by_ids = way == "ids"  # which are those that were sent
    count = 0 if row.empty else len(row.ids)
    limit = result.clipped_from or result.options.max_new_tokens or 0
    noted: tuple[Any, ...] = () if note is None else (("logprobs", note),)
    answer = Answer(
        id=name,
        way=way,
        expected=scored.prompt_token_ids,
        prompt_token_ids=() if by_ids else result.prompt_token_ids,
        prompt_tokens=0 if by_ids else result.prompt_tokens,
        token_ids=row.ids[:count],
        logprobs=scored.token_logprobs[:count],
        likeliest=scored.likeliest[:count],
        server_logprobs=tuple([token.logprob for token in result.logprobs or ()]),
        gaps=tuple([token.margin for token in result.logprobs or ()]),
        ends=frozenset(routes.reference.engine.eos_token_ids),
        images=images,
        text=result.text,
        by_text=row.by_text,
        finish=result.finish.value,
        count=result.completion_tokens,
        limit=limit,
        wrong=noted if by_ids else _wrong(result, routes) + noted,
    )
    return _read_as_written(answer, routes.reference) if row.by_text else answer


def _wrong(result: GenerationResult, routes: Routes) -> tuple[Any, ...]:
    """What of an answer by chat does not obey its request."""
    engine, ids = routes.reference.engine, result.token_ids
    spelled = spelled_by_server(result, result.text, engine.tokenizer)
    context = routes.chat.engine.capabilities.context_length or engine.capabilities.context_length
    room = (
        None
        if context is None
        else context - SLACK - (len(result.prompt_token_ids) or result.prompt_tokens)
    )
    ends = frozenset(engine.eos_token_ids) if routes.names_ends else None
    answer, options = answer_of(result, spelled=spelled, ending_ids=ends, room=room)
    names = {"length": "length", "count": "length", "finish": "finish", "text": "text"}
    findings: list[Any] = [
        (names[finding.kind], finding.words)
        for finding in check_answer(answer, options)
        if finding.kind in names
    ]
    blank = not ids and not result.text.strip()
    if blank and len(result.text) < result.completion_tokens - 1:  # one may be the end
        message = f"{result.completion_tokens} tokens are counted, and the text is {result.text!r}"
        findings.append(("text", message))
    left = next((token for token in engine.tokenizer.special_tokens if token in result.text), None)
    if left is not None and not ids:
        findings.append(("text", f"the text holds the special token {left!r}"))
    return tuple(findings)


def _read_as_written(answer: Answer, reference: Route) -> Answer:
    """A text may have been written in other tokens than it is read in. The answer ends before a
    place where the reference goes on with the same text.
    """
    parting, tokenizer = answer.parting, reference.engine.tokenizer
    if parting is None or parting.choice in answer.ends:
        return answer
    left, choice = (
        tokenizer.decode(answer.token_ids[parting.place :]),
        tokenizer.decode((parting.choice,)),
    )
    if not (left.startswith(choice) or choice.startswith(left)):
        return answer
    fields = {
        name: getattr(answer, name)[: parting.place]
        for name in ("token_ids", "logprobs", "likeliest", "server_logprobs")
    }
    return dataclasses.replace(answer, **fields)
