"""Resolve: a request's effective options, and whether the engine takes the request at all; needs no
prompt.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from returns.result import Failure, Success

from pipegen.core.backend import require_backend
from pipegen.core.errors import (
    InvalidRequest,
    PluginFailed,
    UnsupportedMultimodal,
    UnsupportedOption,
    UnsupportedPlugin,
)
from pipegen.core.names import InvalidField, nearest
from pipegen.core.pipe import Pipe, batch_stage, pipe_of
from pipegen.core.slots import Slot
from pipegen.ending.plugin_state import ask_plugin
from pipegen.engines.capabilities import ENGINES, Capabilities, missing
from pipegen.engines.model import Model, TokenModel, reader_of
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import Engine, takes_tokens
from pipegen.media.source import bad_source
from pipegen.records.engine_list import UNKNOWN_SERVERS, shown
from pipegen.records.frozen import NOTHING, printed
from pipegen.records.messages import ImageSource, VideoSource, numbered
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import flat_values, resolve as resolve_options
from pipegen.records.requests import GenerationRequest, ScoringRequest
from pipegen.records.results import ResolvedRequest
from pipegen.stages.gather_samples import EXPAND
from pipegen.stages.rendering import is_guarded_prompt


def resolve(engine: Engine) -> Pipe[GenerationRequest, ResolvedRequest]:
    """The stage that gives every option its value, and refuses what the engine does not take; see
    `resolve_row` and `check_support`.

    If a later stage of the pipe puts samples together (`trim` does), a request for several becomes
    that many rows here. Otherwise it is refused. If the model's configuration
    cannot be read, every request fails with the reason, so that a fallback can take over. The pipe
    owns its engine.
    """
    require_backend("resolve", engine)
    read = reader_of(engine)
    engine_resolve = None if takes_tokens(engine) else engine.resolve

    def resolved(request: GenerationRequest, model: Model) -> Slot[ResolvedRequest]:
        if isinstance(request, ScoringRequest):
            hint = "hand it to pg.score, or leave the continuation out"
            message = "a request with a continuation is scored, not answered"
            return Failure(InvalidRequest(message, hint=hint))
        if request.turns:
            hint = "ask with pg.turns(route), as pipegen generate does"
            message = f"a route asks one turn, and this request has {len(request.turns)} more"
            return Failure(InvalidRequest(message, hint=hint))
        resolved = (
            resolve_row(request, cast(TokenModel, model))
            if engine_resolve is None
            else engine_resolve(request)
        )
        return resolved.bind(functools.partial(_supported_by, model, engine_resolve is None))

    def prepare(
        _: Sequence[GenerationRequest],
    ) -> Callable[[GenerationRequest], Slot[ResolvedRequest]]:
        slot = read()
        return lambda request: slot.bind(functools.partial(resolved, request))

    return pipe_of(EXPAND) >> batch_stage(
        "resolve",
        prepare,
        takes=GenerationRequest,
        gives=ResolvedRequest,
        owns=(engine,),
        rebind=lambda new: resolve(new.engine(engine)),
    )


def _supported_by(
    model: Model, of_tokens: bool, resolved: ResolvedRequest
) -> Slot[ResolvedRequest]:
    """A request as the engine may be asked it; `of_tokens` is whether it takes token ids."""
    options = resolved.options
    if (options.samples or 1) > 1:
        message = f"samples={options.samples} takes a pipe that puts them together"
        message += ": none of its stages does"
        hint = "end it with pg.stages.trim(engine), or put it into pg.samples(...)"
        return Failure(UnsupportedOption(message, option="samples", hint=hint))
    if options.max_new_tokens == 0 and not of_tokens:
        message = (
            f"{shown(model.name)} generates at least one token: max_new_tokens=0 takes an engine"
            " that takes token ids"
        )
        return Failure(UnsupportedOption(message, option="max_new_tokens"))
    return check_support(resolved, model.capabilities, model.plugins)


def resolve_row(request: GenerationRequest, model: TokenModel) -> Slot[ResolvedRequest]:
    """The request with its effective options: what it says, then (only if asked) the checkpoint's
    settings, then pipegen's defaults.
    """
    uses_checkpoint = request.options is not None and request.options.use_generation_config
    try:
        effective = _effective(
            request.options, model.generation_config if uses_checkpoint else NOTHING
        )
    except InvalidField as refusal:
        return Failure(InvalidRequest(f"options: {refusal}"))
    options = effective.options if request.prompt is None else effective.of_prompt
    return Success(ResolvedRequest(request=request, options=options))


class _Effective(NamedTuple):
    """The effective options of requests with equal ones."""

    options: GenerationOptions
    of_prompt: GenerationOptions
    """Those of a plain prompt: where control tokens in it count, no option says otherwise. So it
    can be sent again.
    """


@functools.lru_cache(maxsize=1024)
def _effective(requested: GenerationOptions | None, checkpoint: object) -> _Effective:
    """Raises `InvalidField` where the options contradict each other."""
    options = resolve_options(requested, checkpoint=checkpoint)
    chat = options.chat or ChatTemplateOptions()
    if chat.control_tokens != "text" or is_guarded_prompt(requested, chat):
        return _Effective(options, options)
    unguarded = dataclasses.replace(chat, control_tokens=None)
    return _Effective(options, dataclasses.replace(options, chat=unguarded))


_NEUTRAL = flat_values(resolve_options(GenerationOptions()))


def check_support(
    resolved: ResolvedRequest, capabilities: Capabilities, plugins: tuple[Plugin, ...] = ()
) -> Slot[ResolvedRequest]:
    """Whether the engine takes this request at all; needs no prompt.

    - Messages must not end with an answer, unless it is continued (`InvalidRequest`).
    - Images and videos must be among the engine's capabilities, and not too many
      (`UnsupportedMultimodal`). They must be read (`BadImage`, `BadVideo`).
    - Every option whose value differs from the neutral default must be one that the engine honours
      (`UnsupportedOption`).
    - Every plugin must take the request (`UnsupportedPlugin`). One that raises, or gives no reason
      in words, is `PluginFailed`.

    >>> from pipegen.records.option_records import GenerationOptions
    >>> from pipegen.records.options import resolve
    >>> from pipegen.records.requests import TextGenerationRequest
    >>> resolved = ResolvedRequest(
    ...     request=TextGenerationRequest(prompt="a"),
    ...     options=resolve(GenerationOptions(no_repeat_ngram_size=2)),
    ... )
    >>> check_support(
    ...     resolved, Capabilities(engine="toy", honours=frozenset({"seed"}))
    ... ).failure().option
    'no_repeat_ngram_size'
    """
    refusal = _answered(resolved)
    if refusal is not None:
        return Failure(refusal)
    sources = resolved.request.sources
    words = _not_taken(sources, capabilities) if sources else None
    if words is not None:
        return Failure(UnsupportedMultimodal(f"{shown(capabilities.engine)} takes {words}"))
    for index, source in numbered(sources):
        frames = source.frames if isinstance(source, VideoSource) else ()
        if source.unread is not None:
            return Failure(source.unread)
        if any(frame.data is None for frame in frames or (source,)):
            message = (
                f": {source!r} was not read: only images and videos of the requests handed to a run"
                " are, before the first stage"
            )
            hint = (
                "give the bytes of the file to a request that a stage makes:"
                " Path(name).read_bytes()"
            )
            return Failure(bad_source(source, index, message, hint=hint))
    supported = _supported(resolved.options, capabilities).map(lambda _: resolved)
    for plugin in plugins:
        supported = supported.bind(functools.partial(_takes, plugin))
    return supported


def _not_taken(sources: Sequence[ImageSource], capabilities: Capabilities) -> str | None:
    """What of images and videos the engine does not take, in words."""
    videos = sum(isinstance(source, VideoSource) for source in sources)
    foreign = (
        ""
        if capabilities.engine not in ENGINES
        else "chosen frames and their times cannot be sent to it"
    )
    for kind, count, most, because in (
        (
            "videos",
            videos,
            capabilities.max_videos,
            capabilities.no_videos_because or capabilities.reason or foreign,
        ),
        ("images", len(sources) - videos, capabilities.max_images, capabilities.reason),
    ):
        if count and kind not in capabilities.honours:
            return f"no {kind}{f': {because}' if because else ''}"
        if most is not None and count > most:
            return f"at most {most} {kind} in a request, and this one has {count}"
    return None


def _answered(resolved: ResolvedRequest) -> InvalidRequest | None:
    """Why a request that ends with an answer is not asked: a second answer would follow it."""
    messages, chat = resolved.request.messages, resolved.options.chat
    if (
        not messages
        or messages[-1].role != "assistant"
        or chat is None
        or chat.continue_final_message
        or not chat.add_generation_prompt
    ):
        return None
    return InvalidRequest(
        f"messages[{len(messages) - 1}], the last one, is an assistant's: a second answer would"
        " follow it",
        hint=(
            "set the option continue_final_message to continue it; leave it out if it is a data"
            " set's answer, as pipegen generate --drop-final-answer does"
        ),
    )


def _takes(plugin: Plugin, resolved: ResolvedRequest) -> Slot[ResolvedRequest]:
    """The request, where the plugin takes it."""
    return ask_plugin(plugin, functools.partial(_judged, plugin, resolved))


def _judged(plugin: Plugin, resolved: ResolvedRequest) -> Slot[ResolvedRequest]:
    refuses = plugin.refuses
    reason: object = refuses(resolved.request) if refuses is not None else None
    if reason is None:
        return Success(resolved)
    if isinstance(reason, str):
        message = f"plugin {plugin.name!r} does not fit this request: {reason}"
        return Failure(UnsupportedPlugin(message, plugin=plugin.name))
    return Failure(
        PluginFailed(
            f"plugin {plugin.name!r} refused with {type(reason).__name__}; refuses gives a reason"
            " or None",
            plugin=plugin.name,
        )
    )


@functools.lru_cache(maxsize=1024)
def _supported(options: GenerationOptions, capabilities: Capabilities) -> Slot[None]:
    """Whether the engine honours what these options ask of it: those that differ from the neutral
    default.
    """
    adapter, known = options.adapter or "", capabilities.adapters
    if adapter and known is not None and adapter not in known:
        return Failure(_no_adapter(adapter, known, shown(capabilities.engine)))
    values = flat_values(options)
    names = [
        name
        for name, value in values.items()
        if value is not None and value != _NEUTRAL[name] and (name != "adapter" or adapter)
    ]
    absent = missing((name for name in names if not OPTIONS[name].row.anywhere), capabilities)
    if not absent:
        return Success(None)
    # which turns enable_thinking on
    name = "max_thinking_tokens" if "max_thinking_tokens" in absent else absent[0]
    engine = capabilities.engine
    others = ", ".join(
        other for other, honours in ENGINES.items() if name in honours and other != engine
    )
    hint = f"leave it out, or take an engine that honours it: {others}" if others else ""
    if engine in UNKNOWN_SERVERS and name in ENGINES["vllm_chat"]:
        hint = (
            "set the dialect (vllm or sglang) where the server is one, put the field into"
            " extra_body as the server has it, or leave it out"
        )
    if (
        engine == "vllm_chat"
        and OPTIONS[name].row.fields
        and "vllm_server" in OPTIONS[name].row.engines
    ):
        hint += "; or put the field into extra_body, where it means what the server makes of it"
    message = f"{shown(engine)} does not honour {name}={values[name]!r:.80}"
    return Failure(UnsupportedOption(message, option=name, hint=hint))


def _no_adapter(name: str, known: Sequence[str], engine: str) -> UnsupportedOption:
    has = f"its adapters are {', '.join(map(repr, known))}"[:500] if known else "it was given none"
    return UnsupportedOption(
        f"{engine} has no adapter {printed(name)}: {has}{nearest(name, known)}",
        option="adapter",
        hint=(
            "name one of them, or give it to the engine: adapters={NAME: FOLDER}"
            if known
            else "give it to the engine: adapters={NAME: FOLDER}, or leave the option out"
        ),
    )
