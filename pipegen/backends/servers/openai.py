"""Chat completions on the wire, where the server renders, tokenises and decodes:
`/v1/chat/completions` of vLLM, of SGLang, and of anything like OpenAI's.

Pure functions; a dialect says which fields beyond OpenAI's own a server knows, and where they go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from returns.result import Failure, Success

from pipegen.answer.split_thought import thinking_beside_form
from pipegen.backends.grammar import form_of, unsupported_with_form
from pipegen.backends.http.last_call import LastCallCache
from pipegen.backends.servers import sglang_dialect, vllm_dialect
from pipegen.backends.servers.extra_body import SERVERS, check_extra_body
from pipegen.backends.servers.finishes import gives_up, refuses
from pipegen.backends.servers.logprobs import MARGIN, entries_in, entries_of_meta, logprobs_of
from pipegen.backends.servers.reading import (
    error_message,
    ids_of,
    malformed,
    merged,
    pieces,
    usage_of,
    whole,
)
from pipegen.backends.servers.server_errors import classified
from pipegen.backends.servers.wire import (
    Completion,
    Facts,
    ServerRequest,
    Wire,
    WireReply,
    WireRequest,
)
from pipegen.core.errors import GenerationError, PromptTooLong, Refused, UnsupportedOption
from pipegen.core.slots import Slot, is_ok
from pipegen.records.engine_list import shown
from pipegen.records.fields import unchecked_replace
from pipegen.records.finish_words import word_of
from pipegen.records.frozen import freeze
from pipegen.records.option_table import wire_fields
from pipegen.records.options import GenerationOptions

__all__ = ["DIALECTS", "asks_to_think", "from_event", "from_wire"]

PATH = "/v1/chat/completions"


def body_of(ask: ServerRequest, dialect: str) -> dict[str, Any]:
    """The body of a request: OpenAI's own fields, those of the dialect, and `extra_body` merged in
    last; `None` is not sent.

    The tools of a request win over those of `extra_body`, which are those of all requests.
    """
    extra = {
        name: value for name, value in ask.extra_body.items() if name != "tools" or not ask.tools
    }
    thinking = (
        extra.pop("enable_thinking", None)
        if dialect != "plain" and ask.options.chat is not None
        else None
    )
    request_fields = {
        "model": ask.model,
        "messages": [dict(message) for message in ask.messages],
        "tools": list(ask.tools) or None,
        "rid": (ask.rid or None) if dialect == "sglang" else None,
    }
    body = {name: value for name, value in request_fields.items() if value is not None} | _fixed(
        ask.options, ask.stops, ask.stream, thinking, dialect
    )
    return merged(body, extra) if extra else body


@LastCallCache
def _fixed(
    options: GenerationOptions, stops: tuple[str, ...], stream: bool, thinking: Any, dialect: str
) -> dict[str, Any]:
    """What the rows of a batch have in common in their bodies."""
    chat = options.chat
    standard_fields = {
        **wire_fields(options, "chat", DIALECTS[dialect if chat is not None else "plain"].name),
        "stream": stream or None,
        "stream_options": {"include_usage": True} if stream else None,
        **_form(options, dialect),
    }
    dialect_fields: dict[str, Any] = {}
    if dialect != "plain" and chat is not None:
        dialect_fields = {
            "top_k": options.top_k or (0 if dialect == "vllm" else -1),
            "min_tokens": options.min_new_tokens,
            "stop": list(stops) or None,
            "stop_token_ids": (
                list(options.stop.stop_token_ids or ()) or None
                if options.stop is not None
                else None
            ),
            "ignore_eos": False,
            # neutral where the server has another one: a checkpoint's own default must not count
            "repetition_penalty": options.repetition_penalty,
            "skip_special_tokens": (
                options.decode is None or options.decode.skip_special_tokens is not False
            ),
            "spaces_between_special_tokens": False if dialect == "vllm" else None,
            "chat_template_kwargs": {
                **(
                    {}
                    if chat.enable_thinking is None
                    else {"enable_thinking": chat.enable_thinking}
                ),
                **(chat.template_kwargs or {}),
                **({} if thinking is None else {"enable_thinking": thinking}),
            },
            "continue_final_message": True if chat.continue_final_message else None,
            "add_generation_prompt": (
                (False if not chat.add_generation_prompt else None) if dialect == "vllm" else None
            ),
            "no_stop_trim": True if dialect == "sglang" and stops else None,
            "return_token_ids": True if dialect == "vllm" else None,
        }
        if options.logprobs:
            dialect_fields |= {
                "logprobs": True,
                "top_logprobs": (
                    vllm_dialect.logprobs_asked(options)
                    if dialect == "vllm"
                    else max(options.top_logprobs or 0, MARGIN)
                ),
            }
            dialect_fields |= (
                {"return_tokens_as_token_ids": True}
                if dialect == "vllm"
                else {"return_token_ids": True, "return_meta_info": True}
            )
    return {
        name: value
        for name, value in {**standard_fields, **dialect_fields}.items()
        if value is not None
    }


def _form(options: GenerationOptions, dialect: str) -> dict[str, Any]:
    """The form of the answer, as each server has it."""
    form = form_of(options) if dialect == "vllm" else sglang_dialect.form_of(options)
    if dialect == "vllm":
        return (
            {
                "structured_outputs": {
                    "json" if name == "json_schema" else name: value for name, value in form.items()
                }
            }
            if form
            else {}
        )
    if "json_schema" in form:
        return {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "answer",
                    "schema": json.loads(form["json_schema"]),
                    "strict": True,
                },
            }
        }
    return form


def from_wire(answer: Any, ask: ServerRequest) -> Slot[tuple[Completion, ...]]:
    """The completions of a whole answer."""
    return whole(
        answer, lambda choice, place: _completion(choice, answer, ask, "message", place, 0)
    )


def from_event(event: Any, ask: ServerRequest, seen: int) -> Slot[tuple[Completion, ...]]:
    """What one event of a stream brings: new text, new reasoning, pieces of tool calls, the end;
    or, last, the usage alone. A server that makes no streams gives all of it at once.
    """
    completions = pieces(
        event,
        lambda choice, place: _completion(
            choice, event, ask, "message" if "message" in choice else "delta", place, seen
        ),
        event=True,
    )
    return completions.map(lambda parts: parts or (Completion(usage=usage_of(event.get("usage"))),))


def _completion(
    choice: Mapping[str, Any],
    answer: Mapping[str, Any],
    ask: ServerRequest,
    holder: str,
    place: str,
    tokens_before: int,
) -> Slot[Completion]:
    parsed = _read(choice, answer, holder, place)
    return (
        parsed.bind(lambda completion: _with_logprobs(completion, choice, ask, tokens_before))
        if ask.options.logprobs
        else parsed
    )


def _read(
    choice: Mapping[str, Any], answer: Mapping[str, Any], holder: str, place: str
) -> Slot[Completion]:
    message, finish = choice.get(holder), choice.get("finish_reason")
    if message is None and (holder == "delta" or gives_up(finish)):
        message = {}
    if not isinstance(message, Mapping):
        return malformed(f"{place}.{holder} is {type(message).__name__}, not an object")
    text, thought = _texts_of(message.get("content"))
    reasoning = next(
        (
            message[name]
            for name in ("reasoning_content", "reasoning")
            if message.get(name) is not None
        ),
        thought,
    )
    calls, index = message.get("tool_calls") or [], choice.get("index")
    function, refusal = message.get("function_call"), message.get("refusal")
    if isinstance(function, Mapping) and isinstance(calls, list):  # the older form of one call
        calls = [*calls, {"type": "function", "function": function}]
    for name, value in (
        ("content", text),
        ("reasoning", reasoning),
        ("finish_reason", finish),
        ("refusal", refusal),
    ):
        if value is not None and not isinstance(value, str):
            return malformed(f"{place}.{name} is {type(value).__name__}, not a string")
    if (
        not isinstance(calls, list)
        or not all(isinstance(call, Mapping) for call in calls)
        or type(index) not in (int, type(None))
    ):
        return malformed(f"{place}.tool_calls is not a list of objects, or its index no number")
    stop = next(
        (choice[name] for name in ("stop_reason", "matched_stop") if choice.get(name) is not None),
        None,
    )
    prompt = answer.get("prompt_token_ids", choice.get("prompt_token_ids"))
    # vLLM's name, and SGLang's
    ids = (
        choice["token_ids"]
        if choice.get("token_ids") is not None
        else choice.get("response_token_ids")
    )
    prompt_ids = ids_of(prompt, "prompt_token_ids") if prompt is not None else None
    token_ids = ids_of(ids, f"{place}.token_ids") if ids is not None else None
    for parsed in (prompt_ids, token_ids):
        if parsed is not None and not is_ok(parsed):
            return Failure(parsed.failure())
    return Success(
        Completion(
            token_ids=None if token_ids is None else token_ids.unwrap(),
            prompt_token_ids=None if prompt_ids is None else prompt_ids.unwrap(),
            finish=word_of(finish),
            stop=stop if isinstance(stop, (int, str)) else None,
            text=text,
            reasoning=reasoning,
            tool_calls=tuple(
                [
                    # a whole call has its place
                    freeze({**call, "index": position} if holder == "message" else call)
                    for position, call in enumerate(calls)
                ]
            ),
            refusal=refusal,
            answer_id=answer_id if isinstance(answer_id := answer.get("id"), str) else "",
            usage=usage_of(answer.get("usage")),
            index=index or 0,
        )
    )


def _texts_of(content: Any) -> tuple[Any, str | None]:
    """The text of a message, and what it thought, where its content is a list of parts.

    >>> _texts_of([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi"}])
    ('Hi', 'Hm.')
    """
    if not isinstance(content, list):
        return content, None
    text, thought = "", ""
    for part in content:
        if isinstance(part, str):
            text += part
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            text += part["text"]
        elif isinstance(part, Mapping) and part.get("type") == "thinking":
            inner, _ = _texts_of(part.get("thinking"))
            thought += inner if isinstance(inner, str) else ""
        else:
            return content, None
    return text, thought or None


def _with_logprobs(
    completion: Completion, choice: Mapping[str, Any], ask: ServerRequest, tokens_before: int
) -> Slot[Completion]:
    """With the logprobs of its tokens: as vLLM's choice names them, by id; as SGLang's `meta_info`
    does.
    """
    meta = choice.get("meta_info")
    entries = (
        entries_of_meta(meta) if isinstance(meta, Mapping) else entries_in(choice.get("logprobs"))
    )
    parsed = logprobs_of(
        entries,
        completion.token_ids or (),
        wanted=ask.options.top_logprobs or 0,
        seen=tokens_before,
    )
    return parsed.map(lambda logprobs: unchecked_replace(completion, logprobs=logprobs))


def asks_to_think(options: GenerationOptions, extra_body: Mapping[str, Any]) -> bool:
    """Whether a server is asked to think: by the option, or by a field of `extra_body`.

    >>> asks_to_think(GenerationOptions(), {"chat_template_kwargs": {"enable_thinking": True}})
    True
    """
    variables = extra_body.get("chat_template_kwargs")
    switches = (
        variables if isinstance(variables, Mapping) else {},
        extra_body,
        {"enable_thinking": options.chat is not None and options.chat.enable_thinking},
    )
    return any(fields.get("enable_thinking") is True for fields in switches)


def _unsupported(ask: ServerRequest, dialect: str, facts: Facts) -> UnsupportedOption | None:
    """The option that such a server would change, or cannot carry out."""
    if (
        dialect == "sglang"
        and facts.about.get("reasoning_parser", "") is None
        and asks_to_think(ask.options, ask.extra_body)
    ):
        # SGLang says that it has no reasoning parser, which would hold the form back
        unthought = thinking_beside_form(ask.options)
        if unthought is not None:
            return unthought
    if dialect == "sglang" and ask.stream and ask.options.logprobs:
        words = (
            f"{shown('sglang_chat')} does not honour logprobs in a stream: there the server names"
            " tokens by their texts alone"
        )
        return UnsupportedOption(
            words,
            option="logprobs",
            hint="ask for the whole answer with run(...), or use sglang_server",
        )
    if dialect == "vllm":
        return vllm_dialect.unsupported(ask.options, ask.ending_ids, ask.stops)
    if dialect == "sglang":
        return sglang_dialect.unsupported(ask.options, ask.ending_ids)
    return unsupported_with_form(ask.options, "openai_chat")


def _lacking(reply: WireReply, request: WireRequest) -> str:
    """`images` where vLLM says that its model takes none."""
    message, _ = error_message(reply)
    return "images" if reply.status == 400 and "is not a multimodal model" in message else ""


def _halts(options: GenerationOptions, dialect: str) -> frozenset[str]:
    """What such a server may end a row at. A plain one names no stop; vLLM takes few of them; and
    SGLang, asked to leave a stop string in the text, leaves a stop token there too.
    """
    if dialect == "vllm":
        many = options.stop is not None and len(options.stop.stop or ()) > vllm_dialect.MOST_STOPS
        return frozenset({"ids"} if many else {"ids", "stops"})
    by_ids = options.stop is not None and bool(options.stop.stop_token_ids)
    return (
        frozenset({"ids"})
        if dialect == "plain" or by_ids
        else sglang_dialect.server_side_stops(options)
    )


def _classify(server: str, reply: WireReply, ask: ServerRequest) -> GenerationError:
    message, holder = error_message(reply)
    if holder.get("code") == "context_length_exceeded" and _too_long(message) is None:
        return PromptTooLong(
            ask.prompt_tokens or None,
            message=f"{server} says that the prompt is too long: {message}",
        )
    if any(refuses(holder.get(name)) for name in ("code", "type")):
        return Refused(f"{server} refused to answer: {message}", refusal=message)
    return classified(server, reply, ask, _too_long)


def _too_long(message: str) -> tuple[int, int] | None:
    return vllm_dialect.too_long(message) or sglang_dialect.too_long(message)


def _wire(dialect: str, name: str, default_url: str, key_variable: str, about: str | None) -> Wire:
    def to_wire(ask: ServerRequest, facts: Facts) -> Slot[WireRequest]:
        refusal = check_extra_body(ask.extra_body, dialect) or _unsupported(ask, dialect, facts)
        if refusal is not None:
            return Failure(refusal)
        return Success(
            WireRequest(
                path=PATH,
                body=body_of(ask, dialect),
                stream=ask.stream,
                rid=ask.rid if dialect == "sglang" else "",
            )
        )

    return Wire(
        name=name,
        default_url=default_url,
        key_variable=key_variable,
        to_wire=to_wire,
        from_wire=from_wire,
        from_event=from_event,
        lacking=_lacking,
        server_side_stops=lambda options: _halts(options, dialect),
        classify=lambda reply, ask: _classify(SERVERS[dialect], reply, ask),
        abort=sglang_dialect.abort if dialect == "sglang" else None,
        about=about,
        paths=() if dialect == "plain" else (PATH,),
    )


DIALECTS: Mapping[str, Wire] = {
    "vllm": _wire(
        "vllm",
        "vllm_chat",
        vllm_dialect.VLLM.default_url,
        vllm_dialect.VLLM.key_variable,
        vllm_dialect.VLLM.about,
    ),
    "sglang": _wire(
        "sglang",
        "sglang_chat",
        sglang_dialect.SGLANG.default_url,
        sglang_dialect.SGLANG.key_variable,
        "/model_info",
    ),
    "plain": _wire("plain", "openai_chat", "http://localhost:8000", "OPENAI_API_KEY", None),
}
"""The wires of chat servers, by dialect; each is named after its row in the capability table."""
