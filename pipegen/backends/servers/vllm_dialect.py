"""vLLM on the wire, ids in and ids out: `/inference/v1/generate`, and `/v1/completions` for text
where a server has that endpoint switched off.

Pure functions; the facts are those of vLLM 0.32.0, and of 0.33.0 where it differs
(`vllm/entrypoints/scale_out/token_in_token_out/`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from returns.result import Failure, Success

from pipegen.answer.barred import ends_barred, spellings
from pipegen.backends.distributions import other_logprobs
from pipegen.backends.grammar import form_of, unsupported_with_form
from pipegen.backends.servers.choices import pieces, read_choice, whole
from pipegen.backends.servers.finishes import gives_up
from pipegen.backends.servers.image_urls import data_url
from pipegen.backends.servers.logprobs import MARGIN
from pipegen.backends.servers.reading import error_message, malformed, merged
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
from pipegen.backends.vllm.vllm_sampling import LOGPROBS_OF, too_many
from pipegen.core.errors import UnsupportedMultimodal, UnsupportedOption
from pipegen.core.functional import without_none
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.engine_list import shown
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import wire_fields
from pipegen.records.options import in_effect

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
LEAST_TEMPERATURE = 0.01
"""vLLM raises a temperature above 0 to at least this, with a warning only."""
MOST_TEMPERATURE = 2.0
MOST_STOPS = 4
"""Stop strings that vLLM takes in one request for text (`VLLM_MAX_STOP_STRINGS`)."""
MODE = (
    "start the server with --logprobs-mode processed_logprobs and VLLM_SERVER_DEV_MODE=1, by which"
    " it reports its mode"
)
"""What to do where the server does not report that it gives those after temperature."""
DRAWN_IS_EXTRA = (0, 33)
"""From this vLLM on, `/inference/v1/generate` gives the drawn token and the likeliest ones that were
asked, so one more where it is not among them; before, it cuts that to the number asked.
"""


@LastCallCache
def sampling_params(
    options: GenerationOptions,
    ending_ids: tuple[int, ...],
    stops: tuple[str, ...],
    facts: Facts,
) -> Slot[Mapping[str, object]]:
    """vLLM's `SamplingParams` for these options, everything set; `None` is not sent. Fails where
    the server would change an option.

    The end tokens are among the stop tokens, so `ignore_eos` switches off what the server itself
    would add.
    """
    drawn_is_extra = gives_drawn_as_extra(facts)
    refusal = unsupported(options, ending_ids, stops, facts, drawn_is_extra)
    if refusal is not None:
        return Failure(refusal)
    params = {
        **wire_fields(options, "vllm"),
        "n": 1,
        "top_k": options.top_k,
        # With nothing to hold back it would only hold back the end token, which ends nothing here.
        "min_tokens": options.min_new_tokens if ending_ids or stops else 0,
        "bad_words": list(options.bad_words or ()) or None,
        "stop": list(stops),
        "stop_token_ids": list(ending_ids),
        "ignore_eos": True,
        "logprobs": logprobs_asked(options, drawn_is_extra),
        "include_stop_str_in_output": True,
        "skip_special_tokens": skips_special(options),
        "spaces_between_special_tokens": False,
        "detokenize": bool(stops),
        "structured_outputs": structured_outputs(options),
    }
    return Success(without_none(params))


def structured_outputs(options: GenerationOptions) -> Mapping[str, object] | None:
    """The form of the answer, in vLLM's words."""
    form = form_of(options)
    return {"json" if name == "json_schema" else name: form[name] for name in form} or None


def logprobs_asked(options: GenerationOptions, drawn_is_extra: bool = False) -> int | None:
    """How many logprobs to ask for: two at least, for the margin. Where the server counts the chosen
    token among them, one more, if that need not be the likeliest."""
    if not options.logprobs:
        return None
    top = max(options.top_logprobs or 0, MARGIN)
    return top if drawn_is_extra or _takes_likeliest(options) else top + 1


def _takes_likeliest(options: GenerationOptions) -> bool:
    """Whether each token is the likeliest one to the model itself: nothing is drawn, nothing is
    barred, and nothing changes how likely a token is.
    """
    return not (
        options.temperature
        or options.structured is not None
        or options.min_new_tokens
        or in_effect(options, "tokens", "bias", "penalty", "repeats")
    )


def gives_drawn_as_extra(facts: Facts) -> bool:
    """Whether the server gives the drawn token besides the likeliest ones. `/v1/completions` always
    does.

    A version that is no release, or is not known, is taken for an older one: to ask for one more is
    right with every version.

    >>> [
    ...     gives_drawn_as_extra(Facts(about={"version": v}))
    ...     for v in ("0.32.1", "0.33.0", "0.33.0rc1")
    ... ]
    [False, True, False]
    """
    if "generate" in facts.lacks:
        return True
    version = re.fullmatch(
        r"(\d+)\.(\d+)(?:\.\d+)*(?:\.post\d+)?(?:\+[\w.]+)?", str(facts.about.get("version"))
    )
    return version is not None and (int(version[1]), int(version[2])) >= DRAWN_IS_EXTRA


@LastCallCache
def unsupported(
    options: GenerationOptions,
    ending_ids: tuple[int, ...],
    stops: tuple[str, ...],
    facts: Facts,
    drawn_is_extra: bool = False,
) -> UnsupportedOption | None:
    """The option that this server would change or cannot carry out, if there is one."""
    ignores_eos = options.stop is not None and options.stop.ignore_eos
    if options.temperature and options.temperature < LEAST_TEMPERATURE:
        words = (
            f"vLLM does not honour temperature={options.temperature:g}: it would take"
            f" {LEAST_TEMPERATURE:g}, the least above 0"
        )
        return UnsupportedOption(
            words,
            option="temperature",
            hint=f"use temperature 0 (greedy), or {LEAST_TEMPERATURE:g} and above",
        )
    if options.temperature and options.temperature > MOST_TEMPERATURE:
        return UnsupportedOption(
            f"vLLM takes a temperature of at most {MOST_TEMPERATURE:g}, not"
            f" {options.temperature:g}",
            option="temperature",
        )
    most = most_logprobs(facts)
    if most is not None and (logprobs_asked(options, drawn_is_extra) or 0) > most:
        return more_than(most)
    mode = str(facts.about.get("logprobs_mode"))
    other = other_logprobs(options, LOGPROBS_OF.get(mode), "vllm_server", MODE)
    if other is not None:
        return other
    if options.min_new_tokens and ignores_eos and (ending_ids or stops):
        words = (
            "a vLLM server holds the model's own end token back for the first min_new_tokens"
            " tokens, even with ignore_eos"
        )
        return UnsupportedOption(
            words, option="min_new_tokens", hint="leave out min_new_tokens, or ignore_eos"
        )
    return unsupported_with_form(options, "vllm_server")


def most_logprobs(facts: Facts) -> int | None:
    """How many log probabilities of a token the server gives, where it reports a limit."""
    most = facts.about.get("max_logprobs")
    return most if type(most) is int and most >= 0 else None


def more_than(most: int) -> UnsupportedOption:
    """The refusal of more likeliest tokens than the server gives."""
    return UnsupportedOption(
        f"this vLLM server gives at most {most} log probabilities of a token; before"
        f" {'.'.join(map(str, DRAWN_IS_EXTRA))}, and by chat, a drawn token is one of them",
        option="top_logprobs",
        hint="ask for fewer, or start the server with --max-logprobs",
    )


_TOO_MANY_LOGPROBS = re.compile(r"logprobs of \d+, which is greater than max allowed: (\d+)")


def too_many_logprobs(reply: WireReply) -> UnsupportedOption | None:
    """The refusal of more log probabilities than the server gives; None of anything else."""
    most = _TOO_MANY_LOGPROBS.search(error_message(reply)[0])
    return None if most is None else more_than(int(most[1]))


def unsupported_words(words: tuple[str, ...], tokenizer: Tokenizer) -> UnsupportedOption | None:
    """The word of `bad_words` of which a server would leave a spelling, if there is one. It spells
    words itself, and takes one with a space before it only where that has as many tokens, and
    another first one (`vllm/sampling_params.py`).
    """
    for word in words:
        bare = word.lstrip()
        spelled, spaced = tokenizer.encode(bare), tokenizer.encode(f" {bare}")
        barred = {spelled}
        if spaced and len(spaced) == len(spelled) and spaced[0] != spelled[0]:
            barred.add(spaced)
        missed = [ids for ids in spellings((word,), tokenizer) if not ends_barred(ids, barred)]
        if missed:
            return UnsupportedOption(
                f"a vLLM server does not bar {word!r} in each spelling: it would leave"
                f" {tokenizer.decode(missed[0])!r} as the ids {list(missed[0])}",
                option="bad_words",
                hint="leave the word out, or take an engine that bars it: hf, vllm",
            )
    return too_many(spellings(words, tokenizer))


def server_side_stops(options: GenerationOptions) -> frozenset[str]:
    """What vLLM may end a row at: ids and stop strings. Not at stop strings where it would hold the
    end token back for `min_new_tokens` though `ignore_eos` is asked.
    """
    holds_back = options.min_new_tokens and options.stop is not None and options.stop.ignore_eos
    return frozenset({"ids"} if holds_back else {"ids", "stops"})


def to_wire(request: ServerRequest, facts: Facts) -> Slot[WireRequest]:
    """The request, by the way that the server offers."""
    params = (
        sampling_params(request.options, request.ending_ids, request.stops, facts)
        if request.params is None
        else Success(request.params)
    )
    scored = {"prompt_logprobs": max(1, request.scored_top)} if request.scored else {}
    if (most := most_logprobs(facts)) is not None and request.scored_top > most:
        return Failure(more_than(most))
    if "generate" not in facts.lacks:
        if request.resized and request.features is None and is_ok(params):
            return (
                Failure(unkept("this vLLM server does not keep the sizes of images"))
                if "render" in facts.lacks
                else Success(render_request(request))
            )
        # A server with a reasoning parser would hold the form only once it reads the end of
        # reasoning, which never comes where nothing is thought.
        fields: dict[str, object] = {"reasoning_ended": True if form_of(request.options) else None}
        if request.images and request.features is None:
            parts = [{"type": "image_url", "url": data_url(image)} for image in request.images]
            fields |= {"content_parts": parts, "return_token_ids": True}
        elif request.images:
            fields |= {"features": request.features, "return_token_ids": True}
        return params.map(
            lambda sampling: _request(
                GENERATE,
                {"token_ids": list(request.token_ids), "sampling_params": {**sampling, **scored}}
                | fields,
                request,
                lacks="generate",
            )
        )
    if request.images:
        words = (
            "this vLLM server takes no images by token ids: its endpoint /inference/v1/generate is"
            " switched off"
        )
        return Failure(
            UnsupportedMultimodal(
                words,
                hint=(
                    "start it with `vllm serve ... --enable-scale-out`, or catch it with"
                    " fallback(...)"
                ),
            )
        )
    reports = {
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "add_special_tokens": False,
        "detokenize": None,
    }
    return params.map(
        lambda sampling: _request(
            COMPLETIONS,
            {"prompt": list(request.token_ids), **sampling, **reports, **scored},
            request,
        )
    )


def _request(
    path: str, body: Mapping[str, object], request: ServerRequest, *, lacks: str = ""
) -> WireRequest:
    # an adapter is a model of its own to the server
    model = request.options.adapter or request.model
    body = without_none({"model": model, **body, "stream": request.stream or None})
    return WireRequest(
        path=path,
        body=merged(body, request.extra_body) if request.extra_body else body,
        stream=request.stream,
        rid=request.rid,
        lacks=lacks,
    )


def from_wire(answer: object, request: ServerRequest) -> Slot[tuple[Completion, ...]]:
    """The completions of a whole answer, of either endpoint; or what it made of images, where that
    was asked.
    """
    if request.resized and request.features is None:
        return read_features(answer, request)
    return pieces(answer, lambda choice, answer: _completion(choice, answer, request, 0)).bind(
        whole
    )


def from_event(
    event: object, request: ServerRequest, tokens_before: int
) -> Slot[tuple[Completion, ...]]:
    """What one event of a stream brings: only new tokens."""
    return pieces(
        event,
        lambda choice, answer: _completion(choice, answer, request, tokens_before),
        event=True,
    )


def _completion(
    choice: Mapping[str, object],
    answer: Mapping[str, object],
    request: ServerRequest,
    tokens_before: int,
) -> Slot[tuple[Completion, ...]]:
    if choice.get("token_ids") is None:
        if not request.stream and not gives_up(choice.get("finish_reason")):
            return malformed("choices[0] holds no token_ids: the server is too old to give them")
        choice = {**choice, "token_ids": []}
    return read_choice(choice, answer, request, tokens_before)


_TOO_LONG = (
    # where max_tokens is not set
    re.compile(
        r"[Ii]nput length \((?P<prompt>\d+)\) exceeds (?:the )?model's maximum context length"
        r" \((?P<limit>\d+)\)"
    ),
    re.compile(
        r"decoder prompt \(length (?P<prompt>\d+)\).*longer than the maximum model length of"
        r" (?P<limit>\d+)",
        re.DOTALL,
    ),
    re.compile(
        r"maximum context length is (?P<limit>\d+) tokens.*?prompt contains (?:at least"
        r" )?(?P<prompt>\d+)",
        re.DOTALL,
    ),
    re.compile(
        r"maximum context length is (?P<limit>\d+) tokens.*?\((?P<prompt>\d+) in the"
        r" (?:messages|prompt)",
        re.DOTALL,
    ),
    re.compile(
        r"maximum context length is (?P<limit>\d+) tokens.*?(?:request has|resulted"
        r" in|requested|contains?) (?:at least )?(?P<prompt>\d+)",
        re.DOTALL,
    ),
    re.compile(
        r"prompt \((?:length )?(?P<prompt>\d+)(?:"
        r" tokens)?\).*?(?:maximum|max_model_len|limit)\D*(?P<limit>\d+)",
        re.DOTALL,
    ),
)


def too_long(message: str) -> tuple[int, int] | None:
    """The prompt's length and the limit that a refusal names, in any of vLLM's wordings; None where
    it is about something else.

    >>> too_long(
    ...     "The decoder prompt (length 300) is longer than the maximum model length of 256. Make sure that ..."
    ... )
    (300, 256)
    """
    return lengths_in(message, _TOO_LONG)


_TOO_MANY = re.compile(r"'too_long'.*'stop'.*at most \d+ items", re.DOTALL)
"""What vLLM says of more stop strings than it takes."""


def lacking(reply: WireReply, wire_request: WireRequest) -> str:
    """`generate`, `render` where the endpoint is not there or is switched off; `stops` where the
    server halts at ids alone.
    """
    message, holder = error_message(reply)
    missing = reply.status in (403, 404, 405, 501) and not (
        "model" in message and "does not exist" in message
    )
    if wire_request.lacks == "render":  # or the server takes nobody's word for sizes
        return (
            "render"
            if missing or (reply.status == 400 and "mm_processor_kwargs" in message)
            else ""
        )
    if wire_request.lacks == "generate" and missing and reply.status != 501:
        return "generate"
    return (
        "stops"
        if reply.status in (400, 422)
        and holder
        and ("stop strings are not supported" in message or _TOO_MANY.search(message))
        else ""
    )


def shows_special(options: GenerationOptions, engine: str) -> UnsupportedOption | None:
    """The refusal of special tokens in a text that a server decodes."""
    return (
        None
        if skips_special(options)
        else UnsupportedOption(
            f"{shown(engine)} does not honour skip_special_tokens=False",
            option="skip_special_tokens",
        )
    )


def chat_fields(options: GenerationOptions, stops: tuple[str, ...]) -> Mapping[str, object]:
    """The fields that no other chat server has."""
    chat, logprobs = options.chat, True if options.logprobs else None
    return {
        "spaces_between_special_tokens": False,
        "add_generation_prompt": (
            None if chat is None or chat.add_generation_prompt is not False else False
        ),
        "return_token_ids": True,
        "logprobs": logprobs,
        "top_logprobs": logprobs_asked(options),
        "return_tokens_as_token_ids": logprobs,
        "structured_outputs": structured_outputs(options),
    }


def chat_unsupported(request: ServerRequest, facts: Facts) -> UnsupportedOption | None:
    """The option that vLLM's chat route would change or cannot carry out, if there is one."""
    return shows_special(request.options, "vllm_chat") or unsupported(
        request.options, request.ending_ids, request.stops, facts
    )


def chat_stops(options: GenerationOptions) -> frozenset[str]:
    """What vLLM's chat route may end a row at. It takes few stop strings."""
    many = options.stop is not None and len(options.stop.stop or ()) > MOST_STOPS
    return frozenset({"ids"} if many else {"ids", "stops"})


VLLM = Wire(
    name="vllm_server",
    default_url="http://localhost:8000",
    key_variable="VLLM_API_KEY",
    to_wire=to_wire,
    from_wire=from_wire,
    from_event=from_event,
    classify=lambda reply, request: (
        too_many_logprobs(reply) or classified("vLLM", reply, request, too_long)
    ),
    lacking=lacking,
    server_side_stops=server_side_stops,
    unsupported_words=unsupported_words,
    keeps_sizes=True,
    scores=lambda facts, adapter: not (facts.adapters or adapter),
    not_deterministic=lambda facts: (
        ""
        if facts.about.get("VLLM_BATCH_INVARIANT") is True
        and facts.about.get("device_type") == "cuda"
        else "start it on a GPU with VLLM_BATCH_INVARIANT=1, and with VLLM_SERVER_DEV_MODE=1, without"
        " which it does not report that"
    ),
    about="/version",
    started="/server_info?config_format=json",
    paths=(GENERATE, COMPLETIONS),
)
"""vLLM's wire."""


RENDER = "/v1/chat/completions/render"


def render_request(request: ServerRequest) -> WireRequest:
    """The request for the images alone. Between the smallest and the largest of them as its budget,
    a processor has nothing to resize.
    """
    areas = [image.width * image.height for image in request.images]
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(image)}} for image in request.images
    ]
    body = {
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 1,
        "mm_processor_kwargs": {"min_pixels": min(areas), "max_pixels": max(areas)},
    }
    return WireRequest(
        path=RENDER,
        body=body if request.model is None else {"model": request.model, **body},
        lacks="render",
    )


def read_features(answer: object, request: ServerRequest) -> Slot[tuple[Completion, ...]]:
    """The images as the server prepared them, for the places that they have in pipegen's prompt;
    each takes as many tokens as there.

    >>> from pipegen.records.option_records import GenerationOptions
    >>> from pipegen.records.options import resolve
    >>> made = {
    ...     "features": {
    ...         "mm_hashes": {"image": ["h"]},
    ...         "mm_placeholders": {"image": [{"offset": 4, "length": 9}]},
    ...         "kwargs_data": {"image": ["AA=="]},
    ...     }
    ... }
    >>> (found,) = read_features(
    ...     made, ServerRequest(options=resolve(GenerationOptions()), places=((2, 9),))
    ... ).unwrap()
    >>> found.features["mm_placeholders"]
    {'image': [{'offset': 2, 'length': 9}]}
    >>> read_features(
    ...     made, ServerRequest(options=resolve(GenerationOptions()), places=((2, 4),))
    ... ).failure().message
    'the server prepared an image to 9 tokens, and it has 4 for pipegen: the server did not keep its size'
    """
    features = answer.get("features") if isinstance(answer, Mapping) else None
    columns = [_images(features, name) for name in ("mm_hashes", "kwargs_data", "mm_placeholders")]
    if any(len(column) != len(request.places) for column in columns) or not all(
        isinstance(entry, str) for entry in (*columns[0], *columns[1])
    ):
        return malformed(
            f"the server rendered {[len(column) for column in columns]} hashes, images and places"
            f" for {len(request.places)} images"
        )
    for place, (_, length) in zip(columns[2], request.places, strict=True):
        tokens = place.get("length") if isinstance(place, Mapping) else None
        if tokens != length:
            words = (
                f"the server prepared an image to {tokens!r:.40} tokens, and it has {length} for"
                " pipegen: the server did not keep its size"
            )
            return Failure(unkept(words))
    places = [{"offset": offset, "length": length} for offset, length in request.places]
    return Success(
        (
            Completion(
                features={
                    "mm_hashes": {"image": columns[0]},
                    "mm_placeholders": {"image": places},
                    "kwargs_data": {"image": columns[1]},
                }
            ),
        )
    )


def _images(features: object, name: str) -> list[object]:
    column = features.get(name) if isinstance(features, Mapping) else None
    images = column.get("image") if isinstance(column, Mapping) else None
    return images if isinstance(images, list) else []


def unkept(words: str) -> UnsupportedOption:
    """The error where a server does not keep the sizes."""
    return UnsupportedOption(
        words, option="max_pixels", hint="keep within the checkpoint's own pixel budget"
    )
