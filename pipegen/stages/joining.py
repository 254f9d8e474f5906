"""Join: a context and its continuation as token ids, and where one ends and the other begins.

A text continuation after a text context (a rendered conversation or a plain prompt) is encoded
together with it, by the rule of lm-eval. White space at the end of the context is a part of the
continuation. The context's ids are those of the context alone. The continuation's ids are those of
both together that come after as many ids as the context has. Where a tokenizer joins letters over
the edge, these may spell another text than was given; the result says so (`joined`). After a
context of ids, a text continuation is encoded by itself. Ids are taken as they are.

Control tokens in a continuation count if they count in the context. If they do not count there (in
messages, by default), those of the continuation stay text: it is then encoded by itself.

>>> from pipegen.engines.model import read_model
>>> from pipegen.testing.fake import FakeEngine
>>> from pipegen.records.requests import ScoringRequest
>>> request = ScoringRequest(prompt="To be ", continuation="END")
>>> from pipegen.records.option_records import GenerationOptions
>>> from pipegen.records.options import resolve
>>> made = join_row(
...     Rendered(request=request, options=resolve(GenerationOptions()), text="To be "),
...     read_model(FakeEngine("")),
...     "refuse",
... ).unwrap()
>>> len(made.encoded.prompt.token_ids), made.continuation
(5, (32, 69, 78, 68))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from returns.result import Failure, Success

from pipegen.core.errors import GenerationError, InvalidRequest, PromptTooLong, UnsupportedOption
from pipegen.core.foreign_calls import call_tokenizer
from pipegen.core.pipe import Pipe, batch_stage
from pipegen.core.slots import Slot, is_ok
from pipegen.ending.length import check_length
from pipegen.engines.model import TokenModel, reader_of
from pipegen.engines.protocol import Engine, TokenEngine, scores_tokens, takes_tokens
from pipegen.records.engine_list import shown
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import names_in
from pipegen.records.options import flat_values, resolve
from pipegen.records.requests import GenerationRequest, ScoringRequest
from pipegen.records.results import Encoded, Prompt, ResolvedRequest
from pipegen.records.scores import ScoreInput
from pipegen.stages.fitting import check_ids
from pipegen.stages.rendering import Rendered
from pipegen.stages.resolving import check_support, resolve_row
from pipegen.stages.tokenizing import tokenize_row

EmptyContext: TypeAlias = Literal["refuse", "bos"] | int
"""What the first token of an empty context is scored after: nothing (it is refused), the model's
BOS (its end token where it has none), or that id.
"""

_NEUTRAL = flat_values(resolve(GenerationOptions()))
_OF_PROMPTS = frozenset({"max_prompt_tokens", *names_in("adapter", "chat", "preprocess")})
"""The options that have a meaning without an answer."""


def resolve_scoring(engine: Any) -> Pipe[GenerationRequest, ResolvedRequest]:
    """The stage that gives every option its value for a request that is scored, and refuses what
    the engine does not take.

    Options of an answer (temperature, stops, ...) have no meaning here: one that differs from its
    default is `UnsupportedOption`. Fails too for a request without a continuation, an engine that
    cannot score, and one whose facts cannot be read. The pipe owns its engine.
    """

    read = reader_of(engine)

    def resolved(request: GenerationRequest) -> Slot[ResolvedRequest]:
        if not isinstance(request, ScoringRequest):
            return Failure(
                InvalidRequest(
                    "a request that is scored takes a continuation: a text, or token ids"
                )
            )
        options = flat_values(request.options) if request.options is not None else {}
        for name, value in options.items():
            if value is not None and value != _NEUTRAL[name] and name not in _OF_PROMPTS:
                hint = (
                    "leave it out: log probabilities are the model's own, and the continuation is"
                    " given"
                )
                return Failure(
                    UnsupportedOption(
                        f"scoring does not honour {name}={value!r:.80}", option=name, hint=hint
                    )
                )
        return read().bind(
            lambda model: resolve_row(request, model).bind(
                lambda job: check_support(job, model.capabilities)
            )
        )

    def prepare(
        _: Sequence[GenerationRequest],
    ) -> Callable[[GenerationRequest], Slot[ResolvedRequest]]:
        error = scores_none(engine)
        return resolved if error is None else lambda request: Failure(error)

    return batch_stage(
        "resolve",
        prepare,
        gives=ResolvedRequest,
        owns=(engine,),
        rebind=lambda new: resolve_scoring(new.engine(engine)),
    )


def scores_none(engine: Engine) -> GenerationError | None:
    """Why the engine cannot score; needs no weights."""
    if takes_tokens(engine) and not is_ok(model := reader_of(engine)()):
        return model.failure()
    if not scores_tokens(engine):
        message = f"{shown(engine.name)} does not give the log probabilities of given continuations"
        return UnsupportedOption(
            message, option="continuation", hint="score with hf, vllm, vllm_server or sglang_server"
        )
    return None


def join(engine: TokenEngine, empty_context: EmptyContext = "refuse") -> Pipe[Rendered, ScoreInput]:
    """The stage that encodes contexts with their continuations; contexts that several rows share
    are encoded once. Fails as `join_row` does.

    The rule for empty contexts is a part of the stage's name, so that a job does not reuse scores
    that another rule gave.
    """
    read = reader_of(engine)

    def prepare(_: Sequence[Rendered]) -> Callable[[Rendered], Slot[ScoreInput]]:
        slot, contexts = read(), dict[Hashable, Slot[Prompt]]()
        return lambda rendered: slot.bind(
            lambda model: join_row(rendered, model, empty_context, contexts)
        )

    name = "join" if empty_context == "refuse" else f"join after {empty_context}"
    return batch_stage(
        name,
        prepare,
        gives=ScoreInput,
        rebind=lambda new: join(new.engine(engine), empty_context),
    )


def join_row(
    rendered: Rendered,
    model: TokenModel,
    empty_context: EmptyContext = "refuse",
    contexts: dict[Hashable, Slot[Prompt]] | None = None,
) -> Slot[ScoreInput]:
    """A context and its continuation as ids; `contexts` keeps those that were encoded already.

    `InvalidRequest` for an empty context (unless `empty_context` says what it is conditioned on),
    and for a continuation that has no token of its own. So it is for one with control tokens where
    these are refused, and for ids that the model does not have. `PromptTooLong` where both together
    are longer than the engine takes.
    """
    prompts = {} if contexts is None else contexts
    continuation = cast(ScoringRequest, rendered.request).continuation
    limit = model.longest_scored
    refusal = check_length(
        rendered.to_tokenize + (continuation if isinstance(continuation, str) else ""),
        model.tokenizer,
        limit,
    )
    if refusal is not None:
        return Failure(refusal)
    if not isinstance(continuation, str) or rendered.text is None:
        ids = (
            continuation
            if not isinstance(continuation, str)
            else call_tokenizer(model.tokenizer.encode_plain, continuation, first=False)
        )
        pair = _context(rendered, model, prompts).map(lambda prompt: _Pair(prompt, tuple(ids)))
    else:
        pair = _text_pair(rendered, continuation, model, prompts)
    return pair.bind(lambda joined: _with_first_token(joined, model, empty_context)).bind(
        lambda joined: _checked(rendered, joined, model, limit)
    )


class _Pair(NamedTuple):
    """A context and the ids of its continuation."""

    prompt: Prompt
    continuation: tuple[int, ...]
    joined: bool = False
    """Whether the two spell another text together than was given."""


def _context(
    rendered: Rendered, model: TokenModel, prompts: dict[Hashable, Slot[Prompt]]
) -> Slot[Prompt]:
    """The ids of a prompt, encoded once."""
    key = (
        rendered.text,
        rendered.hidden,
        rendered.marks,
        id(rendered.control),
        rendered.bos,
        rendered.token_ids,
        rendered.before,
        tuple([id(image) for image in rendered.images]),
    )
    if key not in prompts:
        prompts[key] = tokenize_row(
            rendered,
            rendered.images,
            model.tokenizer,
            model.image_placeholder,
            model.video_placeholder,
        )
    return prompts[key]


def _text_pair(
    rendered: Rendered, continuation: str, model: TokenModel, prompts: dict[Hashable, Slot[Prompt]]
) -> Slot[_Pair]:
    """Context and continuation of texts, by the rule of this module."""
    spaces = len(rendered.to_tokenize) - len(rendered.to_tokenize.rstrip())
    bare = rendered.rewritten(str.rstrip) if spaces else rendered
    moved = rendered.to_tokenize[len(rendered.to_tokenize) - spaces :] + continuation

    def paired(context: Prompt) -> Slot[_Pair]:
        if _looks_like_control(bare, moved):
            if rendered.refuses:
                return Failure(
                    InvalidRequest(
                        "the continuation holds a control token",
                        hint='take it out, or set control_tokens="allow"',
                    )
                )
            ids = call_tokenizer(model.tokenizer.encode_plain, moved, first=False)
            return Success(_Pair(context, tuple(ids)))
        joined = tokenize_row(
            bare.rewritten(lambda text: text + moved),
            bare.images,
            model.tokenizer,
            model.image_placeholder,
            model.video_placeholder,
        )
        return joined.map(lambda both: _split(context, both.token_ids, model))

    return _context(bare, model, prompts).bind(paired)


def _split(prompt: Prompt, joined: tuple[int, ...], model: TokenModel) -> _Pair:
    """The continuation: what comes behind as many ids as the context has by itself."""
    before, continuation = prompt.token_ids, joined[len(prompt.token_ids) :]
    other = joined[: len(before)] != before and model.tokenizer.decode(
        before + continuation
    ) != model.tokenizer.decode(joined)
    return _Pair(prompt, continuation, other)


def _looks_like_control(bare: Rendered, moved: str) -> bool:
    """Whether the continuation, alone or with the end of the context, spells a control token in
    words that must not make one.
    """
    if bare.control is None:
        return False
    before, after = (
        bare.control.pieces(bare.to_tokenize),
        bare.control.pieces(bare.to_tokenize + moved),
    )
    return len(before) != len(after) or bare.marks.in_text(moved)


def _with_first_token(pair: _Pair, model: TokenModel, empty_context: EmptyContext) -> Slot[_Pair]:
    """The pair with a context that is not empty."""
    prompt, continuation, _ = pair
    if prompt.token_ids:
        return Success(pair)
    if empty_context == "refuse":
        message = "the context is empty, and the first token of a sequence has no log probability"
        return Failure(
            InvalidRequest(
                message,
                hint=(
                    'set empty_context="bos" to score it after the model\'s BOS (its end token'
                    " where it has none)"
                ),
            )
        )
    first = first_token(model) if empty_context == "bos" else empty_context
    if first is None:
        return Failure(
            InvalidRequest(
                "the context is empty, and the model has neither a BOS nor an end token",
                hint="set empty_context to a token id",
            )
        )
    nonempty = dataclasses.replace(prompt, token_ids=(first,), compact_token_ids=(first,))
    return Success(
        _Pair(nonempty, continuation[1:] if continuation[:1] == (first,) else continuation)
    )


def first_token(model: TokenModel) -> int | None:
    """The id that the first token of a text is scored after: the model's BOS, or its first end
    token where it has none.
    """
    bos = call_tokenizer(model.tokenizer.encode, model.bos_token) if model.bos_token else ()
    return bos[0] if bos else next(iter(model.eos_token_ids), None)


def _checked(
    rendered: Rendered, pair: _Pair, model: TokenModel, limit: int | None
) -> Slot[ScoreInput]:
    prompt, continuation, joined = pair
    if not continuation:
        reason = (
            "the continuation has no token of its own: the tokenizer joins it with the end of the"
            " context"
        )
        return Failure(
            InvalidRequest(
                reason, hint="give the continuation as ids, or begin it where a token begins"
            )
        )
    encoded = Encoded(request=rendered.request, options=rendered.options, prompt=prompt)
    vocab_size: Any = model.capabilities.vocab_size
    size = min(model.tokenizer.vocab_size, vocab_size or model.tokenizer.vocab_size)
    unknown = check_ids(encoded, vocab_size)
    if unknown is None and max(continuation) >= size:
        token_id = next(token_id for token_id in continuation if token_id >= size)
        unknown = InvalidRequest(
            f"the continuation holds id {token_id}, and the model has ids from 0 to {size - 1}"
        )
    if unknown is not None:
        return Failure(unknown)
    tokens, max_prompt_tokens = len(prompt.token_ids), rendered.options.max_prompt_tokens
    if max_prompt_tokens is not None and tokens > max_prompt_tokens:
        return Failure(
            PromptTooLong(
                tokens, max_prompt_tokens, hint="shorten the context, or raise max_prompt_tokens"
            )
        )
    if limit is not None and tokens + len(continuation) > limit:
        message = (
            f"context and continuation have {tokens} and {len(continuation)} tokens; the limit for"
            f" both is {limit}"
        )
        return Failure(PromptTooLong(tokens, limit, message=message, hint="shorten the context"))
    text = rendered.request.continuation if isinstance(rendered.request, ScoringRequest) else None
    return Success(
        ScoreInput(
            encoded=encoded,
            continuation=continuation,
            text=text if isinstance(text, str) else None,
            joined=joined,
        )
    )
