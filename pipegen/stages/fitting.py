"""Fit: whether prompt and answer have room in the model, before the engine is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest, PromptTooLong, UnsupportedOption
from pipegen.core.pipe import Pipe, row_stage
from pipegen.core.slots import Slot
from pipegen.engines.capabilities import Capabilities
from pipegen.engines.model import TokenModel, on_model
from pipegen.engines.protocol import TokenEngine, require_token_engine
from pipegen.records.fields import unchecked_replace
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import DEFAULTS, OPTIONS
from pipegen.records.options import unset
from pipegen.records.results import Encoded


def fit(engine: TokenEngine) -> Pipe[Encoded, Encoded]:
    """The stage that refuses prompts which leave no room for an answer, or lowers `max_new_tokens`;
    see `check_fit`.
    """
    require_token_engine("fit", engine)
    return row_stage(
        "fit",
        on_model(engine, _fitted),
        keeps_text=True,
        takes=Encoded,
        gives=Encoded,
        rebind=lambda new: fit(new.engine(engine)),
    )


def _fitted(encoded: Encoded, model: TokenModel) -> Slot[Encoded]:
    """The row as `check_fit` gives it, marked so that its ids are looked at once."""
    size = model.capabilities.vocab_size
    row = check_fit(encoded, model.capabilities)
    if size is None:
        return row
    return row.map(lambda fitted: unchecked_replace(fitted, checked=size))


def remaining_tokens(prompt_tokens: int, capabilities: Capabilities) -> int | None:
    """How many tokens can be generated after a prompt of that length; None where the engine names
    no limit.

    >>> remaining_tokens(10, Capabilities(engine="toy", honours=frozenset(), context_length=12))
    2
    """
    return (
        None if capabilities.context_length is None else capabilities.context_length - prompt_tokens
    )


def check_ids(encoded: Encoded, vocab_size: int | None) -> InvalidRequest | None:
    """The error if the prompt is empty, or if it or an option such as `stop_token_ids` holds an id
    that the model does not have. One such row would end the call for all.

    A tokenizer may have more ids than the model's embedding has rows. While the size of the
    vocabulary is not known, no id is looked at.
    """
    prompt = encoded.prompt
    if not prompt.token_ids:
        return InvalidRequest("the prompt is empty: an engine needs at least one token")
    if vocab_size is None or encoded.checked == vocab_size:
        return None
    # they differ where there are images
    compact = () if prompt.compact_token_ids is prompt.token_ids else prompt.compact_token_ids
    for holder, ids in (
        ("the prompt holds", prompt.token_ids),
        ("the prompt holds", compact),
        *_option_ids(encoded.options),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            position = next(
                position for position, token_id in enumerate(ids) if not 0 <= token_id < vocab_size
            )
            message = (
                f"{holder} id {ids[position]} at position {position}, and the model has ids from 0"
                f" to {vocab_size - 1}"
            )
            return InvalidRequest(
                message,
                hint=(
                    "leave the token out; where the tokenizer has more tokens than the model,"
                    " resize the model's embedding"
                ),
            )
    return None


_OPTIONS_OF_IDS = tuple(
    (entry.group, name)
    for name, entry in OPTIONS.items()
    if name.endswith("token_ids") or entry.role == "bias"
)


def _option_ids(options: GenerationOptions) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The options that hold token ids."""
    for group, name in _OPTIONS_OF_IDS:
        holder = getattr(options, group) if group else options
        ids = None if holder is None else getattr(holder, name)
        if ids:
            yield f"{name} holds", tuple(ids)


def check_options(encoded: Encoded, stage: str) -> InvalidRequest | None:
    """The error if an option has lost its value before the stage."""
    name = unset(encoded.options) if encoded.checked is None else ""
    if not name:
        return None
    return InvalidRequest(
        f"the options that came to the stage {stage} have no value for {name}",
        hint=(
            "correct your stage before it: every option keeps a value, as in"
            " dataclasses.replace(options, temperature=0.0)"
        ),
    )


def check_changed(encoded: Encoded) -> InvalidRequest | None:
    """The error if a stage since `fit` has taken an option's value, or made ids that are no
    numbers. What the ids are is for `check_ids`.
    """
    ids = encoded.prompt.token_ids
    same = encoded.checked is not None
    if same or (isinstance(ids, (tuple, list)) and set(map(type, ids)) <= {int}):
        return check_options(encoded, "call")
    kinds = {type(token_id).__name__ for token_id in ids} if isinstance(ids, (tuple, list)) else ()
    shown = ", ".join(sorted(kinds)) or type(ids).__name__
    return InvalidRequest(
        f"the prompt that came to the stage call has no token ids, but {shown}",
        hint="correct your stage before it: token_ids is a tuple of int",
    )


def check_fit(encoded: Encoded, capabilities: Capabilities) -> Slot[Encoded]:
    """Check that the prompt is within `max_prompt_tokens` and fits the model with its answer;
    `on_overflow="clip"` lowers `max_new_tokens` to make it fit.

    If the engine fills its context and the request sets no length, `max_new_tokens` becomes what
    the prompt leaves. `PromptTooLong` has the prompt's tokens and the limit that it broke (the
    lower one, if it broke both). An empty prompt and ids that the model does not have are
    `InvalidRequest` (see `check_ids`), and so is an option that lost its value. More `top_logprobs`
    than the model has tokens are `UnsupportedOption`.
    """
    prompt_tokens = len(encoded.prompt.token_ids)
    unknown = check_ids(encoded, capabilities.vocab_size)
    if unknown is not None:
        return Failure(unknown)
    unresolved = check_options(encoded, "fit")
    if unresolved is not None:
        return Failure(unresolved)
    top, size = encoded.options.top_logprobs or 0, capabilities.vocab_size
    if size is not None and top > size:
        words = f"top_logprobs is {top}, and the model has {size} tokens"
        return Failure(UnsupportedOption(words, option="top_logprobs", hint=f"at most {size}"))
    max_prompt_tokens = encoded.options.max_prompt_tokens
    if (
        max_prompt_tokens is not None
        and prompt_tokens > max_prompt_tokens
        and max_prompt_tokens <= (capabilities.context_length or max_prompt_tokens)
    ):
        return Failure(
            PromptTooLong(
                prompt_tokens,
                max_prompt_tokens,
                hint="shorten the prompt, or raise max_prompt_tokens",
            )
        )
    left = remaining_tokens(prompt_tokens, capabilities)
    max_new_tokens, least = encoded.options.max_new_tokens or 0, encoded.options.min_new_tokens or 0
    fills = capabilities.fills_context and _sets_no_length(encoded)
    if left is None or (max_new_tokens <= left and not fills):
        return Success(encoded)
    limit = capabilities.context_length or 0
    if fills and left >= max(1, least):
        return Success(
            dataclasses.replace(
                encoded, options=dataclasses.replace(encoded.options, max_new_tokens=left)
            )
        )
    if encoded.options.on_overflow == "clip" and left >= max(1, least):
        return Success(
            dataclasses.replace(
                encoded,
                options=dataclasses.replace(encoded.options, max_new_tokens=left),
                clipped_from=max_new_tokens,
            )
        )
    if left < 1:
        return Failure(PromptTooLong(prompt_tokens, limit))
    if fills or encoded.options.on_overflow == "clip":
        message = (
            f"the prompt has {prompt_tokens} tokens and at least {least} more are to be generated;"
            f" the limit for both is {limit}"
        )
        return Failure(
            PromptTooLong(
                prompt_tokens,
                limit,
                message=message,
                hint="shorten the prompt, or lower min_new_tokens",
            )
        )
    message = (
        f"the prompt has {prompt_tokens} tokens and up to {max_new_tokens} more are to be"
        f" generated; the limit for both is {limit}"
    )
    return Failure(PromptTooLong(prompt_tokens, limit, message=message))


def _sets_no_length(encoded: Encoded) -> bool:
    """Whether the length of the answer is pipegen's default: neither the request nor the
    checkpoint's settings name one.
    """
    options = encoded.request.options
    return (
        options is None or options.max_new_tokens is None
    ) and encoded.options.max_new_tokens == DEFAULTS.max_new_tokens
