"""Conversations in a pipe: each answer gets a reply of the user's code, and goes on with it.

>>> from pipegen.drivers.batch import run
>>> from pipegen.drivers.route import route
>>> from pipegen.testing.fake import FakeEngine
>>> def critic(result):
...     return "Shorter, please." if len(result.text) > 3 else None
>>> engine = FakeEngine(lambda row: "Yes<|im_end|>" if row.request.continues else "Yes, it is.")
>>> asked = {"messages": [{"role": "user", "content": "Is it?"}]}
>>> result = run(turns(route(engine), critic), [asked])[0].unwrap()
>>> [one.text for one in result.rounds], result.rounds_end
(['Yes, it is.', 'Yes'], 'done')
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest
from pipegen.core.fallback import loop
from pipegen.core.interpreter import guarded
from pipegen.core.pipe import Pipe, check_catch, pipe_of, row_stage
from pipegen.core.slots import Slot, is_ok
from pipegen.core.steps import Call, EngineRequest, GoOn
from pipegen.drivers.arguments import whole_number
from pipegen.drivers.repeat import ended
from pipegen.drivers.tool_results import with_image_bytes
from pipegen.drivers.tools import Tools
from pipegen.records.frozen import thaw
from pipegen.records.messages import Message
from pipegen.records.next_turn import Words
from pipegen.records.option_records import GenerationOptions
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Finish, GenerationResult, RoundsEnd, ToolReplies

Reply: TypeAlias = Words | None
"""What a step gives: what `result.then` takes, or None or nothing where the conversation is
over.
"""
LIMIT = 16


def turns(
    pipe: Pipe[GenerationRequest, GenerationResult],
    step: Callable[[GenerationResult], Reply] | Tools | None = None,
    *,
    limit: int | None = None,
    max_tokens: int | None = None,
    catch: tuple[type[Exception], ...] = (),
) -> Pipe[GenerationRequest, GenerationResult]:
    """Run a pipe in conversations, turn by turn.

    step: `step(result)` gives the messages that follow an answer, as `result.then` takes them, or
        None or `()` if the conversation is over. `pg.tools(...)` is a step that answers tool
        calls. Without a step, the `turns` of each request are asked one after another.
    limit: the most answers. By default that of the tools, or 16, and without a step any number.
    max_tokens: no turn begins once the conversation has so many tokens.
    catch: exceptions of your step that fail the request with `StageFailed`, as in `pg.each`.

    The step is called once for each answer, and is to be a function of it alone.

    The result is that of the last turn, with those of all turns in `.rounds`. `.rounds_end` is
    "done", "limit" or "tokens". With tools it is "unread" where the last answer looks like a tool
    call and was not read as one. It is "cut" where its length or a stop cut it there. The options of
    a run are for all turns.

    A request without messages, with other tools, or with `turns` where there is a step, is
    `InvalidRequest`. Raises `TypeError` for what is no pipe, step or limit.
    """
    asks = getattr(step, "replies", step)
    if not isinstance(pipe, Pipe) or not (step is None or callable(asks)):
        raise TypeError(
            "turns takes a pipe and a function that gives the next messages or None, or"
            f" pg.tools([...]), not {pipe!r:.80} and {step!r:.80}"
        )
    if inspect.iscoroutinefunction(step):
        raise TypeError("a step is no async function; tools may be: pg.tools([...])")
    tool_set = step if isinstance(step, Tools) else None
    if limit is None and step is not None:
        limit = LIMIT if tool_set is None else tool_set.limit
    limit = whole_number("limit", limit, or_none=True)
    max_tokens = whole_number("max_tokens", max_tokens, or_none=True)
    check_catch(catch)
    if catch and (step is None or tool_set is not None):
        raise TypeError("catch is about a step of your own; what tools raise: pg.tools(raised=...)")

    name = f"turns({pipe.name})"

    def over(rounds: tuple[Any, ...]) -> RoundsEnd | None:
        """The limit that is reached."""
        last = rounds[-1]
        if len(rounds) == limit:
            return "limit"
        tokens = last.prompt_tokens + last.completion_tokens
        return "tokens" if max_tokens is not None and tokens >= max_tokens else None

    def decide(rounds: tuple[Any, ...], first_request: Any) -> GoOn | Slot[Any]:
        if step is None and len(rounds) == 1 and not first_request.turns:
            return Success(rounds[0])
        result = ended(rounds, "done")
        if step is None:
            goes_on = bool(first_request.turns)
            request = Success[Any](
                next_request(rounds[-1], first_request.turns[0], first_request.turns[1:])
                if goes_on
                else None
            )
        elif tool_set is not None:  # no tool is called for nothing
            told = tool_set.unread == "tell" and result.tool_calls_unread is not None
            goes_on, request = bool(result.tool_calls) or told, Success[Any](rounds[-1])
        else:
            reply = guarded(f"step of {name}", partial(_reply, step), rounds[-1], catch)
            if not is_ok(reply):
                return reply
            goes_on, request = reply.unwrap() is not None, reply
        end = over(rounds) if goes_on else _last(result) if tool_set is not None else "done"
        if end is None:
            return GoOn(request, rounds)
        return Success(dataclasses.replace(result, rounds_end=end))

    opens = _own_turns if step is None else partial(_opening, tool_set)
    opening: Pipe[Any, Any] = row_stage("open turns", opens, takes=GenerationRequest)
    if tool_set is not None and tool_set.make is not None:
        opening = opening >> _making(tool_set)
    later = opening >> pipe if step is None else pipe
    tells = ", unread calls are told" if tool_set is not None and tool_set.unread == "tell" else ""
    step_name = getattr(step, "__qualname__", "") if tool_set is None else _words(tool_set)
    return loop(
        opening >> pipe,
        decide,
        later=later if tool_set is None else _calling(tool_set) >> pipe,
        decides="step",
        name=name,
        version=f"{step_name} at most {limit}, {max_tokens} tokens{tells}",
        plain=pipe if step is None else None,
    )


def _last(result: GenerationResult) -> RoundsEnd:
    """How a conversation with tools ends whose last answer called none."""
    if result.tool_calls_unread is None or result.tool_calls:
        return "done"
    return "unread" if result.finish is Finish.EOS else "cut"


def _reply(step: Any, result: GenerationResult) -> Slot[GenerationRequest | None]:
    reply = step(result)
    if reply is None or (isinstance(reply, (tuple, list)) and not reply):
        return Success(None)
    return Success(next_request(result, reply))


def next_request(
    result: GenerationResult, reply: Any, turns: tuple[Message, ...] = ()
) -> GenerationRequest:
    """The request of the next turn, with the options of this one, and its images as they were
    read; `turns` are to follow it.
    """
    request = result.then(reply, options=_options(result))
    all_messages, read_messages = (
        request.messages or (),
        result.turn.request.messages if result.turn else None,
    )
    count = 0 if request.continues is None else request.continues.messages - 1
    messages = (*(read_messages or ())[:count], *all_messages[count:])
    return dataclasses.replace(request, messages=messages, turns=turns)


def _options(result: GenerationResult) -> GenerationOptions | None:
    """The options that the row came with; how a prompt ends is each turn's."""
    options = None if result.turn is None else result.turn.request.options
    if options is None or options.chat is None:
        return options
    chat = dataclasses.replace(
        options.chat, add_generation_prompt=None, continue_final_message=None
    )
    return dataclasses.replace(options, chat=chat)


def _own_turns(request: GenerationRequest) -> Slot[GenerationRequest]:
    """The request of one turn: those after it are the loop's."""
    return Success(dataclasses.replace(request, turns=()) if request.turns else request)


def _opening(tool_set: Tools | None, request: GenerationRequest) -> Slot[GenerationRequest]:
    """The first request, with the tools."""
    if not request.messages:
        return Failure(
            InvalidRequest(
                "request: turns go on with a conversation, and this request has no messages",
                hint="ask with messages, also for one user turn",
            )
        )
    if request.turns:
        return Failure(
            InvalidRequest(
                "request.turns: a step says how this conversation goes on, and no turns do",
                hint="leave them out, or ask with pg.turns(route), without a step",
            )
        )
    if tool_set is None or request.tools == tool_set.schemas:
        return Success(request)
    if request.tools:
        return Failure(
            InvalidRequest(
                "request.tools: there are tools already, and others than those of pg.tools",
                hint="leave them out: turns(route, tools) puts the schemas into each request",
            )
        )
    return Success(dataclasses.replace(request, tools=tool_set.schemas))


def _making(tool_set: Tools) -> Pipe[Any, Any]:
    """The stage that has the tools of a conversation made, and gives its request with them."""

    def ask(request: object, answers: tuple[Slot[object], ...]) -> EngineRequest | Slot[Any]:
        return answers[0] if answers else EngineRequest(tool_set, request, False, scoped=True)

    return pipe_of(Call(name="make tools", backend=tool_set, ask=ask, keeps_text=True))


def _calling(tool_set: Tools) -> Pipe[Any, Any]:
    """The stage that has the calls of a result answered, and gives the next request."""

    def ask(result: Any, answers: tuple[Slot[Any], ...]) -> EngineRequest | Slot[Any]:
        if not answers:
            scoped = tool_set.make is not None
            return EngineRequest(tool_set, result, shown=False, scoped=scoped)
        return answers[0].map(lambda replies: next_request(replies.result, _read(replies)))

    return pipe_of(Call(name="tools", backend=tool_set, ask=ask, keeps_text=True))


def _read(replies: ToolReplies) -> list[dict[str, Any]]:
    """The messages of tools, with the bytes of their images."""
    return [
        {**message, "content": with_image_bytes(message["content"])}
        for message in thaw(replies.messages)
    ]


def _words(tool_set: Tools) -> str:
    """What of the tools changes answers. Settings that are the default are left out: rows of
    earlier versions are reused.
    """
    schemas = json.dumps(thaw(tool_set.schemas), sort_keys=True)
    words = schemas if tool_set.make is None else next(iter(tool_set.codes))
    settings = tool_set.settings
    return f"{words} {json.dumps(settings, sort_keys=True)}" if settings else words
