"""A route: the whole way from a request to its result, through one engine.

    resolve >> support >> encode >> fit >> call >> decode >> stop >> trim

Everything but `call` is shared by all engines, which is why their texts agree.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar, cast

from returns.result import Failure, Success

from pipegen.core.border import EXHAUSTED, guard_slot
from pipegen.core.errors import BackendFailed, BadImage, CallFailed, GenerationError, InvalidRequest, UnsupportedOption, UnsupportedPlugin
from pipegen.core.parallel import parallel
from pipegen.core.pipe import Pipe, Steps, call, each
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.drivers.arguments import Options
from pipegen.drivers.batch import prepare_batch
from pipegen.drivers.samples import samples
from pipegen.engines.capabilities import missing
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import Engine
from pipegen.records.engine_list import shown
from pipegen.records.fields import InvalidField
from pipegen.records.messages import ImageSource
from pipegen.records.options import ChatTemplateOptions, VlmPreprocessOptions, resolve
from pipegen.records.plain import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.results import Encoded, GenerationResult, PreparedImage, Prompt, Raw, ResolvedRequest
from pipegen.stages.decoding import decode
from pipegen.stages.fitting import check_fit, check_support
from pipegen.stages.parts.length import check_length
from pipegen.stages.rendering import Rendered, is_guarded, render
from pipegen.stages.stopping import stop
from pipegen.stages.tokenizing import encode, image_tokens
from pipegen.stages.trimming import trim

__all__ = ["Route", "attach", "count_tokens", "route"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Route(Pipe[GenerationRequest, GenerationResult]):
    """A pipe from request to result that owns its engine.

    As a context manager it releases the engine on exit. Weights load on first need: a route that no slot needs never loads.
    """

    engine: Engine = dataclasses.field(kw_only=True)
    maker: Callable[[Engine], Route] | None = dataclasses.field(default=None, kw_only=True)
    """What makes such a route of an engine, where that is not `route`."""

    def __enter__(self) -> Self:
        return self


def route(engine: Engine) -> Route:
    """The route through an engine. It is named after it, and results carry that name."""

    if not isinstance(getattr(engine, "name", None), str) or not callable(getattr(engine, "generate", None)):
        raise TypeError(f"a route is made of an engine, not {type(engine).__name__}: pg.backends.hf(model) makes the route of a model")

    def fitted(encoded: Encoded) -> Slot[Encoded]:
        return check_fit(encoded, engine.capabilities)

    def finished(raw: Raw) -> Slot[GenerationResult]:
        text = decode(raw, engine.tokenizer, engine.eos_token_ids)
        cut = stop(text.unwrap(), engine.tokenizer, engine.plugins) if is_ok(text) else text
        return trim(cut.unwrap(), engine.name, engine.plugins) if is_ok(cut) else Failure(cut.failure())

    # Row by row: what lies between two of these stages is gone before the next row is looked at, and there may be a hundred thousand rows.
    whole = samples(_prepare(engine) >> each("fit", fitted) >> call(engine) >> each("decode, stop, trim", finished))
    return Route(engine.name, whole.steps, keeps_text=True, owns=(contextlib.closing(engine),), engine=engine)


def _prepare(engine: Engine) -> Pipe[GenerationRequest, Encoded]:
    """From the request to its encoded prompt: everything that needs no room in the model's context yet."""

    def supported(request: GenerationRequest) -> Slot[ResolvedRequest]:
        job = _resolve(request, engine)
        return check_support(job.unwrap(), engine.capabilities, engine.plugins) if is_ok(job) else job

    return _known(engine) >> each("resolve, support", supported) >> _encode_once(engine)


def _known(engine: Engine) -> Pipe[GenerationRequest, GenerationRequest]:
    """Read what is known of the model without its weights. Where that fails, every live request fails with the reason, so that a fallback sees it."""

    def steps(batch: Batch[GenerationRequest]) -> Steps[GenerationRequest]:
        error = _unreadable(engine) if any(map(is_ok, batch)) else None
        return batch if error is None else tuple([Failure(error) if is_ok(slot) else slot for slot in batch])
        yield  # a generator without effects

    return Pipe("model", steps)


def _unreadable(engine: Engine) -> GenerationError | None:
    try:
        for name in ("capabilities", "tokenizer", "renderer", "eos_token_ids", "bos_token", "image_placeholder", "generation_config"):
            getattr(engine, name)
    except CallFailed as failure:
        return failure.error
    except InvalidField as refusal:
        return BackendFailed(str(refusal), backend=engine.name, hint="correct the setting that the message names")
    return None


def count_tokens(
    of: Route, request: Request, options: Options | None = None, *, images: ImagePolicy | None = None, policy: RequestPolicy | None = None
) -> Slot[int]:
    """How many tokens the request's prompt has on this route, images included, or why it has none. Calls no engine.

    >>> from pipegen.testing.fake import FakeEngine
    >>> count_tokens(route(FakeEngine("")), {"prompt": "Hi"})
    <Success: 2>
    """
    _one_engine(of)
    if "token_ids" not in of.engine.capabilities.honours:
        return Failure(UnsupportedOption(f"{shown(of.engine.name)} does not tell how many tokens a prompt has", option="token_ids"))
    return _prepare(of.engine).apply(prepare_batch([request], options, images, policy))[0].map(lambda encoded: len(encoded.prompt.token_ids))


def _resolve(request: GenerationRequest, engine: Engine) -> Slot[ResolvedRequest]:
    asked = request.options is not None and request.options.use_generation_config
    try:
        options = resolve(request.options, checkpoint=engine.generation_config) if asked else resolve(request.options)
    except InvalidField as refusal:
        return Failure(InvalidRequest(f"options: {refusal}"))
    chat = options.chat or ChatTemplateOptions()
    if request.prompt is not None and chat.control_tokens == "text" and not is_guarded(request, chat):
        options = dataclasses.replace(options, chat=dataclasses.replace(chat, control_tokens=None))  # sent again, it is as little asked for
    return Success(ResolvedRequest(request=request, options=options))


def _encode_once(engine: Engine) -> Pipe[ResolvedRequest, Encoded]:
    """Render and encode; requests of a batch with equal prompts and equal settings share one prompt, and equal images are prepared once."""

    def steps(batch: Batch[ResolvedRequest]) -> Steps[Encoded]:
        jobs = [slot.unwrap() for slot in batch if is_ok(slot)]
        prepared_images = _images(jobs, engine)
        first: dict[Hashable, int] = {}
        same = [first.setdefault(_key(job), place) for place, job in enumerate(jobs)]  # for each job, the first with its prompt; hashed once
        rendered = {place: _within(partial(_rendered, jobs[place], engine, prepared_images), "the prompt") for place in first.values()}
        # All are rendered before the first is encoded: taken in turn, templates and tokenizer push each other out of the processor's caches.
        prompts = {place: _within(partial(_encoded, made, jobs[place], engine), "the prompt") for place, made in rendered.items()}
        places = iter(same)

        def encoded(job: ResolvedRequest) -> Slot[Encoded]:
            prompt = prompts[next(places)]
            return Success(Encoded(request=job.request, options=job.options, prompt=prompt.unwrap())) if is_ok(prompt) else Failure(prompt.failure())

        return tuple([encoded(slot.unwrap()) if is_ok(slot) else cast("Slot[Encoded]", slot) for slot in batch])
        yield  # a generator without effects

    return Pipe("encode", steps)


def _within(work: Callable[[], Slot[T]], what: str) -> Slot[T]:
    """`work` for one row, which may be too large or nested too deep for it."""
    return guard_slot(work, lambda raised: InvalidRequest(f"{what} cannot be made ready: {raised.words}", incident=raised.incident), only=EXHAUSTED)


def _encoded(rendered: Slot[tuple[Rendered, tuple[PreparedImage, ...]]], job: ResolvedRequest, engine: Engine) -> Slot[Prompt]:
    """The prompt's ids, unless its text is known to be too long before it is tokenised."""
    if not is_ok(rendered):
        return Failure(rendered.failure())
    text, images = rendered.unwrap()
    limits = [limit for limit in (engine.capabilities.context_length, job.options.max_prompt_tokens) if limit is not None]
    refusal = check_length(text.hidden or "", engine.tokenizer, min(limits, default=None))
    return Failure(refusal) if refusal is not None else encode(text, images, engine.tokenizer, engine.image_placeholder)


def _key(job: ResolvedRequest) -> Hashable:
    """What a prompt is made of, and how long it may be."""
    request, options = job.request, job.options
    return request.messages, request.prompt, request.prompt_token_ids, request.tools, options.chat, options.preprocess, options.max_prompt_tokens


_Image = tuple[ImageSource, VlmPreprocessOptions]


def _images(jobs: Sequence[ResolvedRequest], engine: Engine) -> dict[_Image, Slot[PreparedImage]]:
    """Every image of the jobs, prepared once for each of the settings that are asked for."""
    wanted: dict[_Image, int] = {}
    for job in jobs:
        for index, source in enumerate(job.request.sources):
            wanted.setdefault((source, _preprocess(job)), index)

    def prepared(item: tuple[_Image, int]) -> Slot[PreparedImage]:
        (source, options), index = item
        return _within(lambda: engine.prepare_image(source, options, index), f"image {index}")

    return dict(zip(wanted, parallel(prepared, [*wanted.items()]), strict=True))


def _preprocess(job: ResolvedRequest) -> VlmPreprocessOptions:
    return job.options.preprocess or VlmPreprocessOptions()


def _rendered(job: ResolvedRequest, engine: Engine, prepared_images: Mapping[_Image, Slot[PreparedImage]]) -> Slot[tuple[Rendered, tuple[PreparedImage, ...]]]:
    """The prompt as text, with its images."""
    prepared: list[PreparedImage] = []
    for index, source in enumerate(job.request.sources):
        image = prepared_images[source, _preprocess(job)]
        if not is_ok(image):
            error = image.failure()
            return Failure(dataclasses.replace(error, index=index) if isinstance(error, BadImage) else error)
        prepared.append(image.unwrap())
    images = tuple(prepared)
    written = image_tokens(images, engine.tokenizer, engine.image_placeholder)
    return render(job, engine.tokenizer, engine.renderer, bos_token=engine.bos_token, written=written).map(lambda text: (text, images))


def attach(to: Route, *plugins: Plugin) -> Route:
    """The route with plugins attached, in that order, after those it has.

    Decided before any weights load, and all or nothing. The new route shares the engine's weights. Raises `UnsupportedPlugin` for the first plugin that
    the engine cannot take, `BackendFailed` where the engine's model cannot be read, and `TypeError` for what is no plugin.

    >>> from pipegen.plugins import balanced_json, strip_prefix
    >>> from pipegen.testing.fake import FakeEngine
    >>> both = attach(route(FakeEngine("")), balanced_json(), strip_prefix(["Answer:"]))
    >>> [plugin.name for plugin in both.engine.plugins]
    ['balanced_json', 'strip_prefix']
    """
    _one_engine(to)
    engine = to.engine
    for plugin in plugins:
        if not isinstance(plugin, Plugin):
            raise TypeError(f"plugins are attached, not {type(plugin).__name__}")
        try:
            lacking = missing(plugin.needs, engine.capabilities)
        except CallFailed as failure:
            raise failure.error from failure
        if lacking:
            words = f"plugin {plugin.name!r} needs {', '.join(lacking)}, which {shown(engine.name)} does not offer"
            raise UnsupportedPlugin(words, plugin=plugin.name)
        engine = engine.with_plugin(plugin)
    return (to.maker or route)(engine)


def _one_engine(of: object) -> None:
    if not isinstance(of, Route):
        raise TypeError(f"a route through one engine is wanted, not {type(of).__name__}: take it before >> or fallback joins it with others")
