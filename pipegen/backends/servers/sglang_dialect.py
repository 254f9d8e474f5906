"""SGLang on the wire, ids in and ids out: `/generate`.

Pure functions; the facts are those of SGLang 0.5.23 (`srt/managers/io_struct.py`,
`srt/sampling/sampling_params.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from returns.result import Failure, Success

from pipegen.backends import grammar
from pipegen.backends.distributions import other_logprobs, shifts
from pipegen.backends.servers.choices import read_choice, whole
from pipegen.backends.servers.extra_body import unthought_form
from pipegen.backends.servers.finishes import gives_up
from pipegen.backends.servers.image_urls import data_url
from pipegen.backends.servers.logprobs import MARGIN
from pipegen.backends.servers.reading import ids_of, malformed, merged
from pipegen.backends.servers.server_errors import classified, lengths_in
from pipegen.backends.servers.wire import (
    Completion,
    Facts,
    LastCallCache,
    ServerRequest,
    Wire,
    WireRequest,
    skips_special,
)
from pipegen.core.errors import UnsupportedOption
from pipegen.core.functional import without_none
from pipegen.core.slots import Slot
from pipegen.records.engine_list import shown
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import wire_fields

LEAST_TEMPERATURE = 1e-6
"""Below this SGLang decodes greedily."""
MOST_STOPS = 32
"""Stop strings that SGLang takes in one request."""


@LastCallCache
def sampling_params(
    options: GenerationOptions, ending_ids: tuple[int, ...], stops: tuple[str, ...]
) -> Slot[Mapping[str, object]]:
    """SGLang's `sampling_params` for these options, everything set; `None` is not sent. Fails where
    the server would change an option.

    `ignore_eos` switches off every stop by its id there, not only the end tokens; so it is sent
    only where it is asked (see `server_side_stops`).
    """
    refusal = unsupported(options, ending_ids)
    if refusal is not None:
        return Failure(refusal)
    params = {
        **wire_fields(options, "sglang"),
        "top_k": options.top_k or -1,  # 0 means all to pipegen, -1 to SGLang
        # With nothing to hold back it would only hold back the end token, which ends nothing here.
        "min_new_tokens": options.min_new_tokens if ending_ids else 0,
        "stop": list(stops) or None,
        "stop_token_ids": list(ending_ids) or None,
        "ignore_eos": _ignores_eos(options),
        "no_stop_trim": True,
        "skip_special_tokens": skips_special(options),
        "spaces_between_special_tokens": False,
        **form_of(options),
    }
    return Success(without_none(params))


def form_of(options: GenerationOptions) -> dict[str, Any]:
    """The form of the answer, in SGLang's words: a choice is a regular expression of its texts."""
    form = grammar.form_of(options)
    return (
        {"regex": "(" + "|".join(map(re.escape, form["choice"])) + ")"}
        if "choice" in form
        else form
    )


def _ignores_eos(options: GenerationOptions) -> bool:
    return bool(options.stop is not None and options.stop.ignore_eos)


def server_side_stops(options: GenerationOptions) -> frozenset[str]:
    """What SGLang may end a row at. Not at ids where it ignores the end token, and not at stop
    strings where they must not count at first.
    """
    many = options.stop is not None and len(options.stop.stop or ()) > MOST_STOPS
    stops = frozenset() if options.min_new_tokens or many else frozenset({"stops"})
    return stops if _ignores_eos(options) else stops | {"ids"}


def unsupported(
    options: GenerationOptions, ending_ids: tuple[int, ...]
) -> UnsupportedOption | None:
    """The option that this server would change or cannot carry out, if there is one."""
    if options.temperature and options.temperature < LEAST_TEMPERATURE:
        words = (
            f"SGLang does not honour temperature={options.temperature:g}: it decodes greedily below"
            f" {LEAST_TEMPERATURE:g}"
        )
        return UnsupportedOption(
            words, option="temperature", hint="use temperature 0 (greedy), or more"
        )
    if options.min_new_tokens and ending_ids and _ignores_eos(options):
        words = (
            "SGLang holds the model's own end token back for the first min_new_tokens tokens, even"
            " with ignore_eos"
        )
        return UnsupportedOption(
            words, option="min_new_tokens", hint="leave out min_new_tokens, or ignore_eos"
        )
    refusal = grammar.unsupported_with_form(options, "sglang_server")
    if refusal is not None:
        return refusal
    changed = shifts(options, filters=False)  # it takes them before these
    if options.logprobs is True and changed:
        words = (
            f"SGLang's logprobs are taken after {', '.join(changed)}, and so are not the"
            " model's own"
        )
        return UnsupportedOption(
            words,
            option="logprobs",
            hint=(
                "leave out logprobs, or use temperature 0 or 1 without penalties and min_new_tokens"
            ),
        )
    return None


def to_wire(request: ServerRequest, facts: Facts) -> Slot[WireRequest]:
    """The request. What SGLang sampled from is in its sampling masks, which a server has that names
    their size; a greedy row has none, and its log probabilities are taken after penalties.
    """
    most = facts.about.get("sampling_mask_max_tokens")
    most = most if type(most) is int else 0
    processed = request.options.logprobs == "processed"
    fits = 0 < (request.options.top_k or 0) <= most if request.options.temperature else most > 0
    refusal = other_logprobs(
        request.options,
        "processed" if processed and fits else "raw",
        "sglang_server",
        f"set top_k, to at most {most}: SGLang gives those of so few tokens alone"
        if most
        else "this server has no sampling masks, which SGLang 0.5.23 has: use hf or vllm",
    )
    if refusal is not None:
        return Failure(refusal)
    params = (
        sampling_params(request.options, request.ending_ids, request.stops)
        if request.params is None
        else Success(request.params)
    )
    images, logprobs = request.images, request.options.logprobs or request.scored
    body: dict[str, object] = {
        "rid": request.rid or None,
        "lora_path": request.options.adapter or None,
        "stream": request.stream or None,
        "image_data": [data_url(image) for image in images] or None,
        "return_prompt_token_ids": True if images else None,
        "return_logprob": True if logprobs else None,
    }
    if processed and request.options.temperature:
        mode = "support" if request.options.top_logprobs else "selected"
        body |= {"return_sampling_mask": True, "sampling_logprobs_mode": mode}
        body |= {"return_logprob": None}
    elif logprobs:
        # from the token before them on: an earlier start would switch SGLang's prefix cache off
        start, tops = -1, max(request.options.top_logprobs or 0, MARGIN)
        if request.scored:
            start, tops = request.prompt_tokens - request.scored - 1, max(1, request.scored_top)
        body |= {"logprob_start_len": start, "top_logprobs_num": tops}
    return params.map(
        lambda sampling: WireRequest(
            path="/generate",
            body=merged(
                {"input_ids": [*request.token_ids], "sampling_params": sampling}
                | without_none(body),
                request.extra_body,
            ),
            stream=request.stream,
            rid=request.rid,
        )
    )


def from_wire(answer: object, request: ServerRequest) -> Slot[tuple[Completion, ...]]:
    """The completion of a whole answer: an object, or an array of one."""
    items = answer if isinstance(answer, list) else [answer]
    if len(items) != 1:
        return malformed(f"the answer holds {len(items)} completions, and 1 was asked")
    return from_event(items[0], request, 0).bind(whole)


def from_event(
    event: object, request: ServerRequest, tokens_before: int
) -> Slot[tuple[Completion, ...]]:
    """What one event of a stream brings. Its ids are all so far, or, as the server may be set, only
    the new ones: `completion_tokens` tells which.
    """
    meta = event.get("meta_info") if isinstance(event, Mapping) else None
    if not isinstance(event, Mapping) or not isinstance(meta, Mapping):
        return malformed("the answer holds no meta_info")
    reason = meta.get("finish_reason")
    end = {"type": None} if reason is None else reason
    if not isinstance(end, Mapping) or not (reason is None or isinstance(end.get("type"), str)):
        return malformed(f"meta_info.finish_reason is {reason!r:.80}")
    if end.get("matched") == "NaN happened":  # what SGLang calls an id outside the vocabulary
        return malformed("SGLang's logits were not numbers")
    ids = event.get("output_ids")
    if ids is None and (request.stream or gives_up(end["type"])):
        ids = []
    words = end.get("message")
    return (
        ids_of(ids, "output_ids")
        .bind(lambda checked: _new(checked, meta.get("completion_tokens"), request, tokens_before))
        .bind(
            lambda new: read_choice(
                {
                    "token_ids": new,
                    "finish_reason": end["type"],
                    "stop_reason": end.get("matched"),
                    "meta_info": meta,
                },
                {**event, "usage": meta},
                request,
                tokens_before,
                words=words if isinstance(words, str) else "",
            )
        )
    )


def _new(
    ids: tuple[int, ...], total: object, request: ServerRequest, tokens_before: int
) -> Slot[list[int]]:
    """The ids that an event brings, of which the server counts `total` so far."""
    if not request.stream or type(total) is not int or total == len(ids):
        return Success([*ids[tokens_before:]])
    if total == tokens_before + len(ids):
        return Success([*ids])
    return malformed(f"an event holds {len(ids)} ids of {total} generated, after {tokens_before}")


_TOO_LONG = (
    re.compile(
        r"input \((?P<prompt>\d+) tokens\) is longer than the model's context length"
        r" \((?P<limit>\d+) tokens\)"
    ),
    re.compile(
        r"maximum context length of (?P<limit>\d+) tokens.*?: (?P<prompt>\d+) tokens from the"
        r" input",
        re.DOTALL,
    ),
    re.compile(
        r"Input length \((?P<prompt>\d+) tokens\) exceeds the maximum allowed length"
        r" \((?P<limit>\d+) tokens\)"
    ),
)


def too_long(message: str) -> tuple[int, int] | None:
    """The prompt's length and the limit that a refusal names, in any of SGLang's wordings; None
    where it is about something else.

    >>> too_long("The input (3000 tokens) is longer than the model's context length (2048 tokens).")
    (3000, 2048)
    """
    return lengths_in(message, _TOO_LONG)


def abort(rid: str) -> WireRequest:
    """The request that ends another by its name."""
    return WireRequest(path="/abort_request", body={"rid": rid})


def limit(facts: Facts) -> int | None:
    """The tokens that SGLang has room for in one row.

    It is two less than the context length, or less where the whole cache is smaller. The server
    would end a longer row early, without a word (`srt/managers/scheduler.py`). Its longest prompt,
    which it tells, is shorter by four tokens.

    >>> limit(Facts(about={"max_req_input_len": 4090}))
    4094
    """
    longest = facts.about.get("max_req_input_len")
    return longest + 4 if type(longest) is int and longest > 0 else None


def response_format(options: GenerationOptions) -> Mapping[str, object]:
    """The form of the answer, as OpenAI has it, and SGLang besides."""
    form = form_of(options)
    if "json_schema" not in form:
        return form
    schema = {"name": "answer", "schema": json.loads(form["json_schema"]), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def chat_fields(options: GenerationOptions, stops: tuple[str, ...]) -> Mapping[str, object]:
    """The fields that no other chat server has."""
    logprobs = True if options.logprobs else None
    return {
        "top_k": options.top_k or -1,
        "no_stop_trim": True if stops else None,
        "logprobs": logprobs,
        "top_logprobs": max(options.top_logprobs or 0, MARGIN) if logprobs else None,
        "return_token_ids": logprobs,
        "return_meta_info": logprobs,
        **response_format(options),
    }


def chat_unsupported(request: ServerRequest, facts: Facts) -> UnsupportedOption | None:
    """The option that SGLang's chat route would change or cannot carry out, if there is one."""
    options, chat, unthought = request.options, request.options.chat, None
    option, words, hint = "", "", ""
    if chat is not None and not (chat.add_generation_prompt or chat.continue_final_message):
        option, words = "add_generation_prompt", "always opens the assistant's turn"
    if request.stream and options.logprobs:
        option, words = (
            "logprobs",
            (
                "does not honour logprobs in a stream: there the server names tokens by their texts"
                " alone"
            ),
        )
        hint = "ask for the whole answer with run(...), or use sglang_server"
    if option:
        return UnsupportedOption(f"{shown('sglang_chat')} {words}", option=option, hint=hint)
    refusal = other_logprobs(options, "raw", "sglang_chat", "use sglang_server, hf or vllm")
    if refusal is not None:
        return refusal
    if facts.about.get("reasoning_parser", "") is None:  # it would hold the form back
        unthought = unthought_form(options, request.extra_body)
    return unthought or unsupported(options, request.ending_ids)


def chat_stops(options: GenerationOptions) -> frozenset[str]:
    """What SGLang's chat route may end a row at. Asked to leave a stop string in the text, it
    leaves a stop token there too.
    """
    by_ids = options.stop is not None and bool(options.stop.stop_token_ids)
    return frozenset({"ids"}) if by_ids else server_side_stops(options)


SGLANG = Wire(
    name="sglang_server",
    default_url="http://localhost:30000",
    key_variable="SGLANG_API_KEY",
    to_wire=to_wire,
    from_wire=from_wire,
    from_event=from_event,
    classify=lambda reply, request: classified("SGLang", reply, request, too_long),
    server_side_stops=server_side_stops,
    raw_stops=True,
    scores=lambda facts, adapter: True,
    abort=abort,
    not_deterministic=lambda facts: (
        ""
        if facts.about.get("enable_deterministic_inference") is True
        else "start it with --enable-deterministic-inference"
    ),
    about="/server_info",
    paths=("/generate",),
    limit=limit,
)
"""SGLang's wire."""
