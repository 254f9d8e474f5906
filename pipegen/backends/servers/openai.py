"""Chat completions on the wire, where the server renders, tokenises and decodes:
`/v1/chat/completions` of vLLM, of SGLang, and of anything like OpenAI's.

Pure functions; a dialect says which fields beyond OpenAI's own a server knows, and where they go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from returns.result import Failure, Success

from pipegen.backends.grammar import unsupported_with_form
from pipegen.backends.servers import sglang_dialect, vllm_dialect
from pipegen.backends.servers.choices import pieces, read_choice, whole
from pipegen.backends.servers.extra_body import check_extra_body
from pipegen.backends.servers.finishes import gives_up, refuses
from pipegen.backends.servers.reading import error_message, malformed, merged, usage_of
from pipegen.backends.servers.server_errors import classified, lengths_in
from pipegen.backends.servers.wire import (
    Completion,
    Facts,
    LastCallCache,
    ServerRequest,
    Wire,
    WireReply,
    WireRequest,
    skips_special,
)
from pipegen.core.errors import GenerationError, PromptTooLong, Refused, UnsupportedOption
from pipegen.core.functional import without_none
from pipegen.core.slots import Slot
from pipegen.records.answer_parts import texts_of
from pipegen.records.engine_list import DIALECTS as ENGINES, UNKNOWN_SERVERS, Dialect, shown
from pipegen.records.frozen import freeze
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import wire_fields

PATH = "/v1/chat/completions"


def _known_fields(
    options: GenerationOptions, stops: tuple[str, ...], thinking: object
) -> dict[str, object]:
    """The fields that vLLM and SGLang have beyond OpenAI's own. They are set where they are neutral
    too: a checkpoint's own default must not count.
    """
    chat, stop = options.chat or ChatTemplateOptions(), options.stop
    return {
        "top_k": options.top_k,
        "min_tokens": options.min_new_tokens,
        "stop": list(stops) or None,
        "stop_token_ids": (list(stop.stop_token_ids or ()) or None) if stop is not None else None,
        "ignore_eos": False,
        "repetition_penalty": options.repetition_penalty,
        "skip_special_tokens": skips_special(options),
        "spaces_between_special_tokens": None,  # but for vLLM
        "chat_template_kwargs": {
            **without_none({"enable_thinking": chat.enable_thinking}),
            **(chat.template_kwargs or {}),
            **without_none({"enable_thinking": thinking}),
        },
        "continue_final_message": True if chat.continue_final_message else None,
    }


def from_wire(answer: object, request: ServerRequest) -> Slot[tuple[Completion, ...]]:
    """The completions of a whole answer."""
    read = pieces(answer, lambda choice, answer: _completion(choice, answer, request, 0, "message"))
    return read.bind(whole)


def from_event(
    event: Any, request: ServerRequest, tokens_before: int
) -> Slot[tuple[Completion, ...]]:
    """What one event of a stream brings: new text, new reasoning, pieces of tool calls, the end;
    or, last, the usage alone. A server that makes no streams gives all of it at once.
    """
    completions = pieces(
        event,
        lambda choice, answer: _completion(
            choice,
            answer,
            request,
            tokens_before,
            "delta" if choice.get("message") in (None, {}) else "message",
        ),
        event=True,
    )
    return completions.map(lambda parts: parts or (Completion(usage=usage_of(event.get("usage"))),))


def _completion(
    choice: Mapping[str, object],
    answer: Mapping[str, object],
    request: ServerRequest,
    tokens_before: int,
    holder: str,
) -> Slot[tuple[Completion, ...]]:
    message = choice.get(holder)
    if message is None and (holder == "delta" or gives_up(choice.get("finish_reason"))):
        message = {}
    if not isinstance(message, dict):
        return malformed(f"choices[0].{holder} is {type(message).__name__}, not an object")
    text, thought = texts_of(message.get("content"))
    names = [
        name for name in ("reasoning_content", "reasoning") if message.get(name) not in (None, "")
    ]
    reasoning, refusal = message[names[0]] if names else thought, message.get("refusal")
    for name, value in (("content", text), ("reasoning", reasoning), ("refusal", refusal)):
        if not isinstance(value, (str, type(None))):
            return malformed(f"choices[0].{name} is {type(value).__name__}, not a string")
    calls = message.get("tool_calls") or []
    function = message.get("function_call")
    if isinstance(function, dict) and isinstance(calls, list):  # the older form of one call
        calls = [*calls, {"type": "function", "function": function}]
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return malformed("choices[0].tool_calls is not a list of objects")
    answer_id = answer.get("id")
    return read_choice(
        choice,
        answer,
        request,
        tokens_before,
        text=text,
        reasoning=reasoning,
        refusal=refusal,
        tool_calls=tuple(
            [
                # a whole call has its place
                freeze({**call, "index": position} if holder == "message" else call)
                for position, call in enumerate(calls)
            ]
        ),
        answer_id=answer_id if isinstance(answer_id, str) else "",
    )


def _lacking(reply: WireReply, wire_request: WireRequest) -> str:
    """`images` where vLLM says that its model takes none."""
    message, _ = error_message(reply)
    return "images" if reply.status == 400 and "is not a multimodal model" in message else ""


def _classify(server: str, reply: WireReply, request: ServerRequest) -> GenerationError:
    message, holder = error_message(reply)
    codes = holder.get("code"), holder.get("type")
    if any(code in _TOO_LONG_CODES for code in codes) and too_long(message) is None:
        return PromptTooLong(
            request.prompt_tokens or None,
            message=f"{server} says that the prompt is too long: {message}",
        )
    if any(map(refuses, codes)):
        return Refused(f"{server} refused to answer: {message}", refusal=message)
    return vllm_dialect.too_many_logprobs(reply) or classified(server, reply, request, too_long)


def too_long(message: str) -> tuple[int, int] | None:
    """The prompt's length and the limit that a refusal names, in the words of any server.

    >>> too_long("prompt is too long: 210000 tokens > 200000 maximum")
    (210000, 200000)
    """
    return (
        vllm_dialect.too_long(message)
        or sglang_dialect.too_long(message)
        or lengths_in(message, _TOO_LONG)
    )


_TOO_LONG = (
    re.compile(r"prompt is too long: (?P<prompt>\d+) tokens > (?P<limit>\d+)"),  # Anthropic
    # llama.cpp
    re.compile(
        r"request \((?P<prompt>\d+) tokens\) exceeds the available context size"
        r" \((?P<limit>\d+) tokens\)"
    ),
    # text-generation-inference
    re.compile(r"must be <= (?P<limit>\d+)\. Given: (?P<prompt>\d+) `inputs` tokens"),
    # Gemini
    re.compile(
        r"input token count \((?P<prompt>\d+)\) exceeds the maximum number of tokens allowed"
        r" \((?P<limit>\d+)\)"
    ),
    # Mistral
    re.compile(
        r"Prompt contains (?P<prompt>\d+) tokens.*too large for model with (?P<limit>\d+)"
        r" maximum context length"
    ),
)
_TOO_LONG_CODES = ("context_length_exceeded", "exceed_context_size_error")
"""The codes and types of errors of prompts that are too long: OpenAI's and llama.cpp's."""


def _plain_fields(options: GenerationOptions, stops: tuple[str, ...]) -> Mapping[str, object]:
    return sglang_dialect.response_format(options)


def _unsupported(request: ServerRequest, facts: Facts) -> UnsupportedOption | None:
    engine = ENGINES["plain"]
    return vllm_dialect.shows_special(request.options, engine) or unsupported_with_form(
        request.options, engine
    )


def _wire(
    name: Dialect,
    default_url: str,
    key_variable: str,
    fields: Callable[[GenerationOptions, tuple[str, ...]], Mapping[str, object]],
    unsupported: Callable[[ServerRequest, Facts], UnsupportedOption | None],
    stops: Callable[[GenerationOptions], frozenset[str]] = lambda options: frozenset({"ids"}),
    **more: Any,
) -> Wire:
    """The wire of a dialect.

    fields: those that no other dialect has in this form. unsupported: the option that such a server
    would change, or cannot carry out.
    """
    known = ENGINES[name] not in UNKNOWN_SERVERS
    server = shown(name) if known else "the server"

    @LastCallCache
    def fixed(
        options: GenerationOptions, stops: tuple[str, ...], stream: bool, thinking: object
    ) -> dict[str, object]:
        """What the rows of a batch have in common in their bodies."""
        return without_none(
            {
                **wire_fields(options, "chat", ENGINES[name]),
                "stream": stream or None,
                "stream_options": {"include_usage": True} if stream else None,
                **(_known_fields(options, stops, thinking) if known else {}),
                **fields(options, stops),
            }
        )

    def to_wire(request: ServerRequest, facts: Facts) -> Slot[WireRequest]:
        """OpenAI's own fields, those of the dialect, and `extra_body` merged in last, but that the
        tools of a request win over those of `extra_body`, which are those of all requests.
        """
        extra = dict(request.extra_body)
        refusal = check_extra_body(extra, name) or unsupported(request, facts)
        if refusal is not None:
            return Failure(refusal)
        if request.tools:
            extra.pop("tools", None)
        thinking = extra.pop("enable_thinking", None) if known else None
        own = {
            "model": request.model,
            "messages": [dict(message) for message in request.messages],
            "tools": list(request.tools) or None,
            "rid": request.rid or None,
        }
        body = without_none(own) | fixed(request.options, request.stops, request.stream, thinking)
        return Success(
            WireRequest(
                path=PATH,
                body=merged(body, extra),
                stream=request.stream,
                rid=request.rid,
            )
        )

    return Wire(
        name=ENGINES[name],
        default_url=default_url,
        key_variable=key_variable,
        to_wire=to_wire,
        from_wire=from_wire,
        from_event=from_event,
        lacking=_lacking,
        classify=lambda reply, request: _classify(server, reply, request),
        server_side_stops=stops,
        paths=(PATH,) if known else (),
        known=known,
        **more,
    )


DIALECTS: Mapping[Dialect, Wire] = {
    "vllm": _wire(
        "vllm",
        vllm_dialect.VLLM.default_url,
        vllm_dialect.VLLM.key_variable,
        vllm_dialect.chat_fields,
        vllm_dialect.chat_unsupported,
        vllm_dialect.chat_stops,
        about=vllm_dialect.VLLM.about,
        started=vllm_dialect.VLLM.started,
        exact_limit=True,
    ),
    "sglang": _wire(
        "sglang",
        sglang_dialect.SGLANG.default_url,
        sglang_dialect.SGLANG.key_variable,
        sglang_dialect.chat_fields,
        sglang_dialect.chat_unsupported,
        sglang_dialect.chat_stops,
        about="/model_info",
        abort=sglang_dialect.abort,
    ),
    "plain": _wire("plain", "http://localhost:8000", "OPENAI_API_KEY", _plain_fields, _unsupported),
}
"""The wires of chat servers, by dialect; each is named after its row in the capability table."""
