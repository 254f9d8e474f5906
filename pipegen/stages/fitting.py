"""Preflight: what can be known to fail before the engine is called."""

from __future__ import annotations

import dataclasses
import functools

from returns.result import Failure, Result, Success

from pipegen.core.errors import InvalidRequest, PluginFailed, PromptTooLong, UnsupportedMultimodal, UnsupportedOption, UnsupportedPlugin
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.capabilities import ENGINES, Capabilities, missing
from pipegen.engines.plugin import Plugin
from pipegen.records.engine_list import shown
from pipegen.records.options import GenerationOptions, flat_values, resolve
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Encoded, ResolvedRequest
from pipegen.stages.parts.watching import ask_plugin

__all__ = ["check_fit", "check_ids", "check_support", "remaining_tokens"]

_NEUTRAL = flat_values(resolve(GenerationOptions()))


def check_support(job: ResolvedRequest, capabilities: Capabilities, plugins: tuple[Plugin, ...] = ()) -> Slot[ResolvedRequest]:
    """Whether the engine takes this request at all; needs no prompt.

    Images must be among the engine's capabilities, and not too many of them (`UnsupportedMultimodal`); every option whose value differs from the
    neutral default must be one that the engine honours (`UnsupportedOption`); every plugin must take the request (`UnsupportedPlugin`; `PluginFailed` where
    it raises or gives no reason in words).

    >>> from pipegen.records.options import GenerationOptions, resolve
    >>> from pipegen.records.requests import TextGenerationRequest
    >>> job = ResolvedRequest(request=TextGenerationRequest(prompt="a"), options=resolve(GenerationOptions(no_repeat_ngram_size=2)))
    >>> check_support(job, Capabilities(engine="toy", honours=frozenset({"seed"}))).failure().option
    'no_repeat_ngram_size'
    """
    images = len(job.request.sources)
    if images and "images" not in capabilities.honours:
        because = f": {capabilities.reason}" if capabilities.reason else ""
        return Failure(UnsupportedMultimodal(f"{shown(capabilities.engine)} takes no images{because}"))
    if images and capabilities.max_images is not None and images > capabilities.max_images:
        words = f"{shown(capabilities.engine)} takes at most {capabilities.max_images} images in a request, and this one has {images}"
        return Failure(UnsupportedMultimodal(words))
    for name in missing(_asked(job.options), capabilities):
        others = ", ".join(engine for engine, honours in ENGINES.items() if name in honours and engine != capabilities.engine)
        hint = f"leave it out, or take an engine that honours it: {others}" if others else ""
        if capabilities.engine == "openai_chat" and name in ENGINES["vllm_chat"]:
            hint = "say the dialect (vllm or sglang) where the server is one, put the field into extra_body as the server has it, or leave it out"
        return Failure(UnsupportedOption(f"{shown(capabilities.engine)} does not honour {name}={flat_values(job.options)[name]!r:.80}", option=name, hint=hint))
    for plugin in plugins:
        asked = ask_plugin(plugin, functools.partial(_reason, plugin, job.request))
        if not is_ok(asked):
            return Failure(asked.failure())
        if asked.unwrap() is not None:
            return Failure(UnsupportedPlugin(f"plugin {plugin.name!r} does not fit this request: {asked.unwrap()}", plugin=plugin.name))
    return Success(job)


def _reason(plugin: Plugin, request: GenerationRequest) -> Result[str | None, PluginFailed]:
    """Why the plugin does not take the request; None where it does."""
    reason: object = plugin.refuses(request) if plugin.refuses is not None else None
    if reason is None or isinstance(reason, str):
        return Success(reason)
    return Failure(PluginFailed(f"plugin {plugin.name!r} refused with {type(reason).__name__}; refuses gives a reason or None", plugin=plugin.name))


_EVERYWHERE = frozenset({"samples", "use_generation_config", "max_prompt_tokens", "on_overflow", "strip_whitespace", "skip_special_tokens", "max_new_tokens"})
"""Options that pipegen itself carries out, whatever the engine."""


@functools.lru_cache(maxsize=1024)
def _asked(options: GenerationOptions) -> tuple[str, ...]:
    """The options that the engine itself has to honour: those that differ from the neutral default."""
    return tuple(name for name, value in flat_values(options).items() if value is not None and value != _NEUTRAL[name] and name not in _EVERYWHERE)


def remaining_tokens(prompt_tokens: int, capabilities: Capabilities) -> int | None:
    """How many tokens can be generated after a prompt of that length; None where the engine names no limit.

    >>> remaining_tokens(10, Capabilities(engine="toy", honours=frozenset(), context_length=12))
    2
    """
    return None if capabilities.context_length is None else capabilities.context_length - prompt_tokens


def check_ids(encoded: Encoded, vocab_size: int | None) -> InvalidRequest | None:
    """The error where the prompt or `stop_token_ids` hold an id that the model does not have; None where they do not, or its vocabulary is not known.

    A tokenizer may have more ids than the model's embedding has rows. One such id would end the call for every row.
    """
    if vocab_size is None:
        return None
    prompt, stop = encoded.prompt, encoded.options.stop
    told = () if stop is None else stop.stop_token_ids or ()
    for place, ids in (("the prompt holds", prompt.token_ids), ("the prompt holds", prompt.compact_token_ids), ("stop_token_ids holds", told)):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            position = next(position for position, number in enumerate(ids) if not 0 <= number < vocab_size)
            words = f"{place} id {ids[position]} at position {position}, and the model has ids from 0 to {vocab_size - 1}"
            return InvalidRequest(words, hint="leave the token out; where the tokenizer has more tokens than the model, resize the model's embedding")
    return None


def check_fit(encoded: Encoded, capabilities: Capabilities) -> Slot[Encoded]:
    """Whether the prompt keeps to `max_prompt_tokens`, and prompt and answer fit the model; `on_overflow="clip"` lowers `max_new_tokens` until they do.

    Gives `PromptTooLong` with the prompt's tokens and the limit that it broke (the lower one, where it broke both), or `InvalidRequest` for an
    empty prompt and for ids that the model does not have (see `check_ids`), which would crash some engines.
    """
    prompt_tokens = len(encoded.prompt.token_ids)
    if not prompt_tokens:
        return Failure(InvalidRequest("the prompt is empty: an engine needs at least one token"))
    unknown = check_ids(encoded, capabilities.vocab_size)
    if unknown is not None:
        return Failure(unknown)
    asked = encoded.options.max_prompt_tokens
    if asked is not None and prompt_tokens > asked and asked <= (capabilities.context_length or asked):
        return Failure(PromptTooLong(prompt_tokens, asked, hint="shorten the prompt, or raise max_prompt_tokens"))
    left = remaining_tokens(prompt_tokens, capabilities)
    wanted, least = encoded.options.max_new_tokens or 0, encoded.options.min_new_tokens or 0
    if left is None or wanted <= left:
        return Success(encoded)
    limit = capabilities.context_length or 0
    if encoded.options.on_overflow == "clip" and left >= max(1, least):
        return Success(dataclasses.replace(encoded, options=dataclasses.replace(encoded.options, max_new_tokens=left), clipped_from=wanted))
    if left < 1:
        return Failure(PromptTooLong(prompt_tokens, limit))
    if encoded.options.on_overflow == "clip":
        message = f"the prompt has {prompt_tokens} tokens and at least {least} more are to be generated; the limit for both is {limit}"
        return Failure(PromptTooLong(prompt_tokens, limit, message=message, hint="shorten the prompt, or lower min_new_tokens"))
    message = f"the prompt has {prompt_tokens} tokens and up to {wanted} more are to be generated; the limit for both is {limit}"
    return Failure(PromptTooLong(prompt_tokens, limit, message=message))
