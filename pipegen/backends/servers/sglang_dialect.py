"""SGLang on the wire, ids in and ids out: `/generate`.

Pure functions; the facts are those of SGLang 0.5.23 (`srt/managers/io_struct.py`,
`srt/sampling/sampling_params.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from returns.result import Failure, Success

from pipegen.backends import grammar
from pipegen.backends.http.last_call import LastCallCache
from pipegen.backends.servers.finishes import gives_up
from pipegen.backends.servers.image_urls import data_url
from pipegen.backends.servers.logprobs import MARGIN, entries_of_meta, logprobs_of, scores_of_meta
from pipegen.backends.servers.reading import ids_of, malformed, merged, usage_of
from pipegen.backends.servers.server_errors import classified, lengths_in
from pipegen.backends.servers.wire import Completion, Facts, ServerRequest, Wire, WireRequest
from pipegen.core.errors import UnsupportedOption
from pipegen.core.slots import Slot, is_ok
from pipegen.records.finish_words import word_of
from pipegen.records.option_table import wire_fields
from pipegen.records.options import GenerationOptions, in_effect
from pipegen.records.results import TokenLogprob

__all__ = ["SGLANG", "from_event", "from_wire", "sampling_params", "to_wire", "too_long"]

LEAST_TEMPERATURE = 1e-6
"""Below this SGLang decodes greedily."""
MOST_STOPS = 32
"""Stop strings that SGLang takes in one request."""


@LastCallCache
def sampling_params(
    options: GenerationOptions, ending_ids: tuple[int, ...], stops: tuple[str, ...]
) -> Slot[Mapping[str, Any]]:
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
        "skip_special_tokens": (
            options.decode is None or options.decode.skip_special_tokens is not False
        ),
        "spaces_between_special_tokens": False,
        **form_of(options),
    }
    return Success({name: value for name, value in params.items() if value is not None})


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
    changed = in_effect(options, "temperature", "tokens", "bias", "penalty", "repeats")
    if options.min_new_tokens:  # by which SGLang bars the end token
        changed = (*changed, "min_new_tokens")
    if options.logprobs and changed:
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


def to_wire(ask: ServerRequest, facts: Facts) -> Slot[WireRequest]:
    """The request."""
    sampling = sampling_params(ask.options, ask.ending_ids, ask.stops)
    if ask.params is None and not is_ok(sampling):
        return Failure(sampling.failure())
    params = sampling.unwrap() if ask.params is None else ask.params
    body: dict[str, Any] = {"input_ids": list(ask.token_ids), "sampling_params": params}
    if ask.rid:
        body["rid"] = ask.rid
    if ask.stream:
        body["stream"] = True
    if ask.images:
        body |= {
            "image_data": [data_url(image) for image in ask.images],
            "return_prompt_token_ids": True,
        }
    if ask.options.logprobs:
        body |= {
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": max(ask.options.top_logprobs or 0, MARGIN),
        }
    # from the token before them on: an earlier start would switch SGLang's prefix cache off
    if ask.scored:
        body |= {
            "return_logprob": True,
            "logprob_start_len": ask.prompt_tokens - ask.scored - 1,
            "top_logprobs_num": 1,
        }
    return Success(
        WireRequest(
            path="/generate",
            body=merged(body, ask.extra_body) if ask.extra_body else body,
            stream=ask.stream,
            rid=ask.rid,
        )
    )


def from_wire(answer: Any, ask: ServerRequest) -> Slot[tuple[Completion, ...]]:
    """The completion of a whole answer: an object, or an array of one."""
    items = answer if isinstance(answer, list) else [answer]
    if len(items) != 1:
        return malformed(f"the answer holds {len(items)} completions, and 1 was asked")
    parsed = _completion(items[0], ask, 0)
    if is_ok(parsed) and parsed.unwrap().finish is None:
        return malformed("meta_info holds no finish_reason")
    return parsed.map(lambda completion: (completion,))


def from_event(event: Any, ask: ServerRequest, seen: int) -> Slot[tuple[Completion, ...]]:
    """What one event of a stream brings. Its ids are all so far, or, as the server may be set, only
    the new ones: `completion_tokens` tells which.
    """
    return _completion(event, ask, seen).map(lambda piece: (piece,))


def _completion(item: Any, ask: ServerRequest, tokens_before: int) -> Slot[Completion]:
    meta = item.get("meta_info") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(meta, Mapping):
        return malformed("the answer holds no meta_info")
    reason = meta.get("finish_reason")
    if not (
        reason is None or (isinstance(reason, Mapping) and isinstance(reason.get("type"), str))
    ):
        return malformed(f"meta_info.finish_reason is {reason!r:.80}")
    finish, stop = (
        (None, None) if reason is None else (word_of(reason["type"]), reason.get("matched"))
    )
    said = reason.get("message") if reason is not None else None
    if stop == "NaN happened":  # what SGLang calls an id outside the vocabulary
        return malformed("SGLang's logits were not numbers")
    output_ids, total = item.get("output_ids"), meta.get("completion_tokens")
    ids_slot = ids_of(
        [] if output_ids is None and (ask.stream or gives_up(finish)) else output_ids, "output_ids"
    )
    if not is_ok(ids_slot):
        return Failure(ids_slot.failure())
    ids = ids_slot.unwrap()
    if not ask.stream or type(total) is not int or total == len(ids):
        new = ids[tokens_before:]
    elif total == tokens_before + len(ids):
        new = ids
    else:
        return malformed(
            f"an event holds {len(ids)} ids of {total} generated, after {tokens_before}"
        )
    logprobs: Slot[tuple[TokenLogprob, ...] | None] = Success(None)
    if ask.options.logprobs:
        # of all tokens so far, or of the new ones alone
        entries = meta.get("output_token_logprobs")
        first = (
            tokens_before
            if isinstance(entries, list) and len(entries) == tokens_before + len(new)
            else 0
        )
        logprobs = logprobs_of(
            entries_of_meta(meta, first),
            new,
            wanted=ask.options.top_logprobs or 0,
            seen=tokens_before,
        )
    prompt = item.get("prompt_token_ids")
    prompt_ids = ids_of(prompt, "prompt_token_ids") if prompt is not None else Success(None)
    scores = scores_of_meta(meta, ask) if ask.scored else Success(None)
    for parsed in (scores, logprobs, prompt_ids):
        if not is_ok(parsed):
            return Failure(parsed.failure())
    return Success(
        Completion(
            token_ids=new,
            logprobs=logprobs.unwrap(),
            finish=finish,
            words=said if isinstance(said, str) else "",
            stop=stop if isinstance(stop, (int, str)) else None,
            prompt_token_ids=prompt_ids.unwrap(),
            usage=usage_of(meta),
            scores=scores.unwrap(),
        )
    )


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


SGLANG = Wire(
    name="sglang_server",
    default_url="http://localhost:30000",
    key_variable="SGLANG_API_KEY",
    to_wire=to_wire,
    from_wire=from_wire,
    from_event=from_event,
    classify=lambda reply, ask: classified("SGLang", reply, ask, too_long),
    server_side_stops=server_side_stops,
    raw_stops=True,
    scores=True,
    abort=abort,
    about="/server_info",
    paths=("/generate",),
    limit=limit,
)
"""SGLang's wire."""
