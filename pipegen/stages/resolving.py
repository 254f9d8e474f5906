"""Resolve: a request's effective options, and whether the engine takes the request at all; needs no
prompt.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from returns.result import Failure, Result, Success

from pipegen.core.backend import require_backend
from pipegen.core.errors import (
    BackendFailed,
    BadImage,
    CallFailed,
    GenerationError,
    InvalidRequest,
    PluginFailed,
    UnsupportedMultimodal,
    UnsupportedOption,
    UnsupportedPlugin,
)
from pipegen.core.pipe import Pipe, batch_stage, guarded
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.capabilities import ENGINES, Capabilities, missing
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import Engine, TokenEngine, takes_tokens
from pipegen.records.engine_list import shown
from pipegen.records.fields import InvalidField
from pipegen.records.options import (
    ChatTemplateOptions,
    GenerationOptions,
    flat_values,
    resolve as resolve_options,
)
from pipegen.records.requests import GenerationRequest, ScoringRequest
from pipegen.records.results import ResolvedRequest
from pipegen.stages.parts.plugin_state import ask_plugin
from pipegen.stages.parts.samples import SAMPLING
from pipegen.stages.rendering import is_guarded

__all__ = ["check_support", "resolve", "resolve_row", "unreadable_facts"]


def resolve(engine: Engine) -> Pipe[GenerationRequest, ResolvedRequest]:
    """The stage that gives every option its value, and refuses what the engine does not take; see
    `resolve_row` and `check_support`.

    It opens samples: if a later stage of the pipe puts samples together (`trim` does), a request
    for several becomes that many rows here; otherwise it is refused. If the model's configuration
    cannot be read, every request fails with the reason, so that a fallback can take over. The pipe
    owns its engine.
    """
    require_backend("resolve", engine)
    own: Callable[[GenerationRequest], Slot[ResolvedRequest]]
    own, reads = (
        (functools.partial(resolve_row, engine=engine), engine)
        if takes_tokens(engine)
        else (engine.resolve, None)
    )

    def resolved(request: GenerationRequest) -> Slot[ResolvedRequest]:
        if isinstance(request, ScoringRequest):
            return Failure(
                InvalidRequest(
                    "a request with a continuation is scored, not answered",
                    hint="hand it to pg.score, or leave the continuation out",
                )
            )
        job = own(request)
        if not is_ok(job):
            return job
        count = job.unwrap().options.samples or 1
        if count > 1:
            words = f"samples={count} takes a pipe that puts them together: none of its stages does"
            return Failure(
                UnsupportedOption(
                    words,
                    option="samples",
                    hint="end it with pg.stages.trim(engine), or put it into pg.samples(...)",
                )
            )
        if job.unwrap().options.max_new_tokens == 0 and not takes_tokens(engine):
            words = (
                f"{shown(engine.name)} generates at least one token: max_new_tokens=0 takes an"
                " engine that takes token ids"
            )
            return Failure(UnsupportedOption(words, option="max_new_tokens"))
        return check_support(job.unwrap(), engine.capabilities, engine.plugins)

    def batch(requests: Sequence[GenerationRequest]) -> list[Slot[ResolvedRequest]]:
        error = unreadable_facts(reads) if reads is not None else None
        if error is not None:
            return [Failure(error) for _ in requests]
        return [guarded("resolve", resolved, request) for request in requests]

    return batch_stage(
        "resolve",
        batch,
        takes=GenerationRequest,
        owns=(engine,),
        sampling=SAMPLING,
        opens=True,
        rebind=lambda new: resolve(new.engine(engine)),
    )


def unreadable_facts(engine: TokenEngine) -> GenerationError | None:
    """Why the facts of the model cannot be read; needs no weights."""
    try:
        for name in (
            "capabilities",
            "tokenizer",
            "renderer",
            "eos_token_ids",
            "bos_token",
            "image_placeholder",
            "generation_config",
        ):
            getattr(engine, name)
    except CallFailed as failure:
        return failure.error
    except InvalidField as refusal:
        return BackendFailed(
            str(refusal), backend=engine.name, hint="correct the setting that the message names"
        )
    return None


def resolve_row(request: GenerationRequest, engine: TokenEngine) -> Slot[ResolvedRequest]:
    """The request with its effective options: what it says, then (only if asked) the checkpoint's
    settings, then pipegen's defaults.
    """
    asked = request.options is not None and request.options.use_generation_config
    try:
        options = (
            resolve_options(request.options, checkpoint=engine.generation_config)
            if asked
            else resolve_options(request.options)
        )
    except InvalidField as refusal:
        return Failure(InvalidRequest(f"options: {refusal}"))
    chat = options.chat or ChatTemplateOptions()
    if (
        request.prompt is not None
        and chat.control_tokens == "text"
        and not is_guarded(request, chat)
    ):
        # sent again, it is as little asked for
        options = dataclasses.replace(options, chat=dataclasses.replace(chat, control_tokens=None))
    return Success(ResolvedRequest(request=request, options=options))


_NEUTRAL = flat_values(resolve_options(GenerationOptions()))


def check_support(
    job: ResolvedRequest, capabilities: Capabilities, plugins: tuple[Plugin, ...] = ()
) -> Slot[ResolvedRequest]:
    """Whether the engine takes this request at all; needs no prompt.

    Images must be among the engine's capabilities, and not too many of them
    (`UnsupportedMultimodal`), and read (`BadImage`); every option whose value differs from the
    neutral default must be one that the engine honours (`UnsupportedOption`); every plugin must
    take the request (`UnsupportedPlugin`; `PluginFailed` where it raises or gives no reason in
    words).

    >>> from pipegen.records.options import GenerationOptions, resolve
    >>> from pipegen.records.requests import TextGenerationRequest
    >>> job = ResolvedRequest(
    ...     request=TextGenerationRequest(prompt="a"),
    ...     options=resolve(GenerationOptions(no_repeat_ngram_size=2)),
    ... )
    >>> check_support(job, Capabilities(engine="toy", honours=frozenset({"seed"}))).failure().option
    'no_repeat_ngram_size'
    """
    sources = job.request.sources
    images = len(sources)
    if images and "images" not in capabilities.honours:
        because = f": {capabilities.reason}" if capabilities.reason else ""
        return Failure(
            UnsupportedMultimodal(f"{shown(capabilities.engine)} takes no images{because}")
        )
    if images and capabilities.max_images is not None and images > capabilities.max_images:
        words = (
            f"{shown(capabilities.engine)} takes at most {capabilities.max_images} images in a"
            f" request, and this one has {images}"
        )
        return Failure(UnsupportedMultimodal(words))
    for index, source in enumerate(sources):
        if source.data is None:
            words = (
                f"image {index}: {source!r} was not read: only images of the requests handed to a"
                " run are, before the first stage"
            )
            return Failure(
                BadImage(
                    index,
                    message=words,
                    hint=(
                        "give the bytes of the image to a request that a stage makes:"
                        " Path(name).read_bytes()"
                    ),
                )
            )
    for name in missing(_asked(job.options), capabilities):
        others = ", ".join(
            engine
            for engine, honours in ENGINES.items()
            if name in honours and engine != capabilities.engine
        )
        hint = f"leave it out, or take an engine that honours it: {others}" if others else ""
        if capabilities.engine == "openai_chat" and name in ENGINES["vllm_chat"]:
            hint = (
                "set the dialect (vllm or sglang) where the server is one, put the field into"
                " extra_body as the server has it, or leave it out"
            )
        return Failure(
            UnsupportedOption(
                f"{shown(capabilities.engine)} does not honour"
                f" {name}={flat_values(job.options)[name]!r:.80}",
                option=name,
                hint=hint,
            )
        )
    for plugin in plugins:
        asked = ask_plugin(plugin, functools.partial(_reason, plugin, job.request))
        if not is_ok(asked):
            return Failure(asked.failure())
        if asked.unwrap() is not None:
            return Failure(
                UnsupportedPlugin(
                    f"plugin {plugin.name!r} does not fit this request: {asked.unwrap()}",
                    plugin=plugin.name,
                )
            )
    return Success(job)


def _reason(plugin: Plugin, request: GenerationRequest) -> Result[str | None, PluginFailed]:
    """Why the plugin does not take the request; None where it does."""
    reason: object = plugin.refuses(request) if plugin.refuses is not None else None
    if reason is None or isinstance(reason, str):
        return Success(reason)
    return Failure(
        PluginFailed(
            f"plugin {plugin.name!r} refused with {type(reason).__name__}; refuses gives a reason"
            " or None",
            plugin=plugin.name,
        )
    )


_EVERYWHERE = frozenset(
    {
        "samples",
        "use_generation_config",
        "max_prompt_tokens",
        "on_overflow",
        "strip_whitespace",
        "skip_special_tokens",
        "max_new_tokens",
    }
)
"""Options that pipegen itself carries out, whatever the engine."""


@functools.lru_cache(maxsize=1024)
def _asked(options: GenerationOptions) -> tuple[str, ...]:
    """The options that the engine itself has to honour: those that differ from the neutral
    default.
    """
    return tuple(
        name
        for name, value in flat_values(options).items()
        if value is not None and value != _NEUTRAL[name] and name not in _EVERYWHERE
    )
