"""Hypothesis strategies for pipegen's records, for property tests of one's own stages.

>>> from hypothesis import find
>>> find(results(), lambda result: True).route
''
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin

from hypothesis import strategies as st
from returns.result import Failure, Result, Success

from pipegen.core import errors as kinds
from pipegen.core.errors import GenerationError
from pipegen.core.pipe import Pipe
from pipegen.core.slots import is_ok
from pipegen.engines.capabilities import ENGINES
from pipegen.engines.protocol import TokenEngine, require_token_engine
from pipegen.records.codec import declared, item_of
from pipegen.records.fields import checks_of, schema_of, unchecked_replace
from pipegen.records.frozen import freeze
from pipegen.records.option_groups import (
    ChatTemplateOptions,
    DecodeOptions,
    StopOptions,
    StructuredOptions,
    VlmPreprocessOptions,
)
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import resolve
from pipegen.records.requests import GenerationRequest, TextGenerationRequest, VlmGenerationRequest
from pipegen.records.results import (
    Decoded,
    Encoded,
    GenerationResult,
    Raw,
    ResolvedRequest,
    TokenLogprob,
)
from pipegen.stages.ending import decode
from pipegen.stages.rendering import Rendered, render
from pipegen.stages.resolving import resolve as resolve_stage
from pipegen.stages.tokenizing import tokenize
from pipegen.testing.fake import FakeEngine

__all__ = [
    "batches",
    "decoded",
    "encoded",
    "errors",
    "generation_options",
    "image_requests",
    "raws",
    "rendered",
    "requests",
    "resolved_requests",
    "results",
    "slots",
    "stop_options",
    "text_requests",
    "toy_engine",
]

T = TypeVar("T")

_WORDS = st.sampled_from(("a", "END", "STOP", "\n\n", "<|im_end|>", "ä漢🎈", " ", "0"))
_TEXTS = st.lists(_WORDS, max_size=5).map("".join)
_IDS = st.lists(st.integers(0, 300), max_size=6).map(tuple)


def _maybe(values: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none() | values


def stop_options() -> st.SearchStrategy[StopOptions]:
    """Stops, stop ids and `ignore_eos`, each set or not."""
    return st.builds(
        StopOptions,
        stop=_maybe(st.lists(_WORDS, max_size=3).map(tuple)),
        stop_token_ids=_maybe(_IDS),
        ignore_eos=_maybe(st.booleans()),
    )


def _chat_options() -> st.SearchStrategy[ChatTemplateOptions]:
    ends: tuple[dict[str, bool], ...] = (
        {},
        {"add_generation_prompt": True},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
    )
    switches = st.sampled_from(ends)
    built = st.builds(
        ChatTemplateOptions,
        enable_thinking=_maybe(st.booleans()),
        control_tokens=_maybe(st.sampled_from(("text", "reject", "allow"))),
        trust=_maybe(
            st.lists(
                st.sampled_from(("assistant", "tools", "template_kwargs")), max_size=2, unique=True
            ).map(tuple)
        ),
        template_kwargs=_maybe(
            st.dictionaries(
                st.sampled_from("xyz"),
                st.integers() | _WORDS | st.lists(st.booleans(), max_size=2),
                max_size=2,
            )
        ),
    )
    return st.builds(
        lambda options, chosen: dataclasses.replace(options, **chosen), built, switches
    )


def _preprocess_options() -> st.SearchStrategy[VlmPreprocessOptions]:
    return st.builds(
        VlmPreprocessOptions,
        min_pixels=_maybe(st.integers(1, 999)),
        max_pixels=_maybe(st.integers(1000, 10**6)),
        do_resize=_maybe(st.booleans()),
    )


def _structured_options() -> st.SearchStrategy[StructuredOptions]:
    schemas = st.permutations(("b", "a")).map(
        lambda names: {
            "type": "object",
            "properties": {name: {"type": "integer"} for name in names},
        }
    )
    choices = st.lists(_WORDS, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(StructuredOptions),
        st.builds(StructuredOptions, json_schema=schemas),
        st.builds(StructuredOptions, regex=_WORDS),
        st.builds(StructuredOptions, choice=choices),
    )


def _drawn(name: str) -> st.SearchStrategy[Any]:
    """Values of one option: of its check's range, or of the narrower one that its row has."""
    row, schema = OPTIONS[name].row, schema_of(checks_of(GenerationOptions)[name])
    if "enum" in schema:  # False is refused beside other options
        return st.sampled_from([value for value in schema["enum"] if value is not False])
    above: object = schema.get("exclusiveMinimum")
    low, high = row.draws or (schema.get("minimum", above), schema.get("maximum"))
    if high is None:
        return st.just(row.trial)
    if schema["type"] == "integer":
        return st.integers(int(low), int(high))
    return st.floats(low, high, exclude_min=low == above)


def generation_options() -> st.SearchStrategy[GenerationOptions]:
    """Valid options, every field set or not."""
    flat = {name: _maybe(_drawn(name)) for name, entry in OPTIONS.items() if not entry.group}
    return st.builds(
        GenerationOptions,
        **flat,
        stop=_maybe(stop_options()),
        decode=_maybe(
            st.builds(
                DecodeOptions,
                skip_special_tokens=_maybe(st.booleans()),
                strip_whitespace=_maybe(st.booleans()),
            )
        ),
        chat=_maybe(_chat_options()),
        preprocess=_maybe(_preprocess_options()),
        structured=_maybe(_structured_options()),
    )


def _messages() -> st.SearchStrategy[list[dict[str, Any]]]:
    part = st.builds(lambda text: {"type": "text", "text": text}, _TEXTS)
    content: st.SearchStrategy[Any] = _TEXTS | st.lists(part, min_size=1, max_size=2)
    turn = st.builds(
        lambda role, text: {"role": role, "content": text},
        st.sampled_from(("user", "assistant")),
        content,
    )
    last = st.builds(lambda text: {"role": "user", "content": text}, content)
    return st.builds(lambda turns, end: [*turns, end], st.lists(turn, max_size=2), last)


def text_requests() -> st.SearchStrategy[TextGenerationRequest]:
    """Requests by messages, plain prompt or token ids, with or without options of their own."""
    shared = {"id": _maybe(st.sampled_from("abc")), "options": _maybe(generation_options())}
    return st.one_of(
        st.builds(TextGenerationRequest, messages=_messages(), **shared),
        st.builds(TextGenerationRequest, prompt=_TEXTS, **shared),
        st.builds(TextGenerationRequest, prompt_token_ids=_IDS.filter(bool), **shared),
    )


def image_requests() -> st.SearchStrategy[VlmGenerationRequest]:
    """Requests with one to three images (given as bytes that only a fake engine takes for
    images).
    """
    image_bytes = st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=3)
    return st.builds(
        VlmGenerationRequest,
        messages=_messages(),
        images=image_bytes,
        options=_maybe(generation_options()),
    )


def requests() -> st.SearchStrategy[GenerationRequest]:
    """Any request."""
    return text_requests() | image_requests()


def _through(values: st.SearchStrategy[Any], stage: Pipe[Any, T]) -> st.SearchStrategy[T]:
    """What a stage makes of the values that it takes."""
    return (
        values.map(lambda value: stage.apply((Success(value),))[0])
        .filter(is_ok)
        .map(lambda slot: slot.unwrap())
    )


def toy_engine() -> FakeEngine:
    """An engine with the toy tokenizer and template that honours everything: the stages that are
    bound to it take every record of this module.
    """
    return FakeEngine("", name="toy", honours=frozenset().union(*ENGINES.values()))


def resolved_requests(engine: TokenEngine | None = None) -> st.SearchStrategy[ResolvedRequest]:
    """Requests with their effective options, as `pg.stages.resolve` gives them for the engine (the
    toy one, unless another is given).
    """
    of_one_row = requests().map(
        lambda request: dataclasses.replace(
            request, options=dataclasses.replace(request.options or GenerationOptions(), samples=1)
        )
    )
    return _through(of_one_row, resolve_stage(engine or toy_engine()))


def rendered(engine: TokenEngine | None = None) -> st.SearchStrategy[Rendered]:
    """Prompts as text, with their images, as `pg.stages.render` gives them."""
    return _through(resolved_requests(engine), render(engine or toy_engine()))


def encoded(engine: TokenEngine | None = None) -> st.SearchStrategy[Encoded]:
    """Prompts as token ids, as `pg.stages.tokenize` gives them; not all of them fit an engine."""
    return _through(rendered(engine), tokenize(engine or toy_engine()))


def raws(engine: TokenEngine | None = None) -> st.SearchStrategy[Raw]:
    """What an engine may give back: any ids of the tokenizer, some of words and some that end rows.
    It may have gone on too long, or given up.
    """
    engine = engine or toy_engine()
    require_token_engine("raws", engine)
    tokenizer = engine.tokenizer
    word_ids = _WORDS.map(lambda word: tuple(tokenizer.encode(word)))
    piece = word_ids | st.integers(0, tokenizer.vocab_size - 1).map(lambda token_id: (token_id,))
    ids = st.lists(piece, max_size=8).map(
        lambda pieces: tuple(token_id for piece_ids in pieces for token_id in piece_ids)
    )
    return st.builds(Raw, encoded=encoded(engine), token_ids=ids, aborted=st.booleans()).map(
        _with_prompt_logprobs
    )


def _with_prompt_logprobs(raw: Raw) -> Raw:
    """The log probabilities of the prompt, where the options ask for them."""
    first, *others = raw.encoded.prompt.token_ids or (0,)
    noted = (
        None,
        *(
            TokenLogprob(token_id=token_id, logprob=-1.0, top=((first, -0.5),))
            for token_id in others
        ),
    )
    return (
        unchecked_replace(raw, prompt_logprobs=noted)
        if raw.encoded.options.prompt_logprobs
        else raw
    )


def decoded(engine: TokenEngine | None = None) -> st.SearchStrategy[Decoded]:
    """Generated text before it is cut and trimmed, as `pg.stages.decode` gives it."""
    return _through(raws(engine), decode(engine or toy_engine()))


def errors() -> st.SearchStrategy[GenerationError]:
    """Any error, with up to two before it."""
    every = [
        kind
        for name in kinds.__all__
        if isinstance(kind := getattr(kinds, name), type) and issubclass(kind, GenerationError)
    ]
    plain = st.builds(lambda kind, message: kind(message=message), st.sampled_from(every), _TEXTS)
    return st.builds(
        lambda error, earlier: error.after(tuple(earlier)), plain, st.lists(plain, max_size=2)
    )


def _values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type that a record declares."""
    args, item = get_args(hint), item_of(hint)
    known: Mapping[object, st.SearchStrategy[Any]] = {
        str: _TEXTS,
        int: st.integers(0, 300),
        bool: st.booleans(),
        float: st.floats(-50, 0),
        object: _WORDS | st.integers(0, 300),
        Mapping[str, Any]: st.builds(freeze, st.just(_CALL)),
        GenerationError: errors(),
        GenerationOptions: st.builds(resolve, generation_options()),
    }
    if hint in known:
        return known[hint]
    if item is not None:
        return st.lists(_values(item), max_size=3).map(tuple)
    if get_origin(hint) is tuple:
        return st.tuples(*map(_values, args))
    if args or issubclass(hint, Enum):
        return st.sampled_from(args or hint)
    return _records(hint)


def _records(kind: Any) -> st.SearchStrategy[Any]:
    """Records of a kind, by their declaration; none holds others of its kind."""
    fields = {
        field.name: _maybe(_values(field.hint)) if field.nullable else _values(field.hint)
        for field in declared(kind)
        if kind not in (field.hint, item_of(field.hint)) and not field.row.source
    }
    return st.builds(kind, **fields)


_CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}


def results() -> st.SearchStrategy[GenerationResult]:
    """Any result; its parts agree in type, not in meaning."""
    return _records(GenerationResult).map(
        lambda result: unchecked_replace(result, failed_samples=())
    )


def slots(values: st.SearchStrategy[T]) -> st.SearchStrategy[Result[T, GenerationError]]:
    """A slot that holds one of the values, or an error."""
    return values.map(Success) | errors().map(Failure)


def batches(
    values: st.SearchStrategy[T], *, max_size: int = 8
) -> st.SearchStrategy[tuple[Result[T, GenerationError], ...]]:
    """A batch of such slots."""
    return st.lists(slots(values), max_size=max_size).map(tuple)
