"""Engines. The choice is explicit. `hf(...)` is Hugging Face transformers in this process, and
`vllm(...)` is vLLM in this process. `vllm_server(...)`, `sglang_server(...)` and
`openai_server(...)` are servers that run already. Their keywords are the fields of the records in
`pipegen.engines.settings`.

Calling one of these loads nothing but (on first need) the tokenizer and the configuration; weights
load when the first prompt reaches the engine. Each raises `InvalidField` for a bad setting and
`UnknownField` with the nearest name for an unknown one. `MissingExtra` (an ImportError) says what
to install.

>>> route = openai_server(
...     "tiny", base_url="http://localhost:8000/v1", dialect="vllm"
... )  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, cast, get_type_hints, overload

from returns.result import Failure

# The packages of the same names bind themselves here when they are first imported: before the
# functions below, that is, and not over them later.
import pipegen.backends.hf
import pipegen.backends.vllm  # noqa: F401 - as above
from pipegen.core import errors
from pipegen.core.distribution import MissingExtra, need
from pipegen.core.fallback import fallback, warn_of
from pipegen.core.names import InvalidField, nearest
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch
from pipegen.drivers.arguments import Options
from pipegen.drivers.batch import run
from pipegen.engines.settings import (
    FALLBACK_WHEN,
    ChatServerSettings,
    EngineSettings,
    HFSettings,
    ModelLoadConfig,
    TokenServerSettings,
    VLLMSettings,
    config_of,
    settings_of,
)
from pipegen.records.engine_list import BACKENDS
from pipegen.records.fields import help_of
from pipegen.records.frozen import printed
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.results import GenerationResult

if TYPE_CHECKING:
    from pipegen.drivers.route import Route

__all__ = ["BACKENDS", "hf", "load", "openai_server", "sglang_server", "vllm", "vllm_server"]

P = ParamSpec("P")


def _function(backend: str, settings: Callable[P, EngineSettings]) -> Callable[P, Route]:
    """The function that makes a route, with the settings of its record for arguments."""

    def make(*args: P.args, **kwargs: P.kwargs) -> Route:
        return route_with(backend, settings(*args, **kwargs))

    kind = cast(type[EngineSettings], settings)
    make.__name__ = make.__qualname__ = backend
    make.__doc__ = "\n".join(
        [
            kind.__doc__ or "",
            "",
            "Args:",
            *(f"    {name}: {words}" for name, words in help_of(kind).items()),
        ]
    )
    types, made = get_type_hints(kind), inspect.signature(kind)
    parameters = [
        parameter.replace(annotation=types[name]) for name, parameter in made.parameters.items()
    ]
    # what `help` and `inspect` show
    make.__signature__ = made.replace(parameters=parameters, return_annotation="Route")  # type: ignore[attr-defined]
    return make


class _HF(Protocol[P]):
    """`hf` takes the settings of its record, or a model that is in memory already."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Route: ...

    @overload
    def __call__(
        self,
        model: object,
        *,
        tokenizer: object,
        processor: object | None = None,
        batch_size: int | None = None,
        compile: bool = False,
        deterministic: bool = False,
        image_memory_bytes: int | None = None,
        prefix_memory_bytes: int | None = None,
        self_check: bool = True,
    ) -> Route: ...


def _hf(settings: Callable[P, HFSettings]) -> _HF[P]:
    named = _function("hf", settings)

    @functools.wraps(named)
    def make(*args: Any, **kwargs: Any) -> Route:
        model = args[0] if args else kwargs.get("model")
        in_memory = bool(kwargs.keys() & {"tokenizer", "processor"}) or hasattr(model, "state_dict")
        return _route_in_memory(*args, **kwargs) if in_memory else named(*args, **kwargs)

    others = ", ".join(f"`{name}`" for name in _IN_MEMORY)
    make.__doc__ = f"""{named.__doc__}

A model of transformers that is in memory already is taken with its tokenizer, and with its
processor where it takes images: `hf(model, tokenizer=tokenizer, processor=processor)`. Of the other
settings it takes {others}. It is put into eval mode, and its weights are used as they are at each
call."""
    return cast("_HF[P]", make)


def _route_in_memory(
    model: Any, *, tokenizer: object = None, processor: object = None, **settings: Any
) -> Route:
    for package in ("torch", "transformers"):
        need(package, "hf", "the Hugging Face engine")
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipegen.backends.checkpoint.in_memory import CheckpointInMemory
    from pipegen.backends.hf.hf_engine import HFEngine
    from pipegen.drivers.route import route

    if not isinstance(model, PreTrainedModel):
        raise InvalidField(
            "hf takes tokenizer and processor with a model of transformers that is in memory, not"
            f" with {printed(model)}"
        )
    if tokenizer is None:
        raise InvalidField(
            "hf takes the tokenizer of a model that is in memory, too: hf(model, tokenizer=...)"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InvalidField(
            "hf takes a tokenizer of transformers with a model that is in memory, not"
            f" {printed(tokenizer)}"
        )
    if processor is not None and not callable(processor):
        raise InvalidField(
            "hf takes a processor of transformers with a model that is in memory, not"
            f" {printed(processor)}"
        )
    for name in settings:
        if name not in _IN_MEMORY:
            raise InvalidField(
                f"hf takes no {name!r} for a model that is in memory{nearest(name, _IN_MEMORY)}; it"
                f" takes {', '.join(_IN_MEMORY)}"
            )
    load = ModelLoadConfig(model=f"{type(model).__name__} in memory", **settings)
    try:
        checkpoint = CheckpointInMemory(load, model, tokenizer, processor)
    except ValueError as refusal:  # a tokenizer in pure Python
        raise InvalidField(f"hf: {refusal}") from None
    return route(HFEngine(load, checkpoint))


_IN_MEMORY = (
    "batch_size",
    "compile",
    "deterministic",
    "image_memory_bytes",
    "prefix_memory_bytes",
    "self_check",
)
hf = _hf(HFSettings)
vllm = _function("vllm", VLLMSettings)
vllm_server = _function("vllm_server", TokenServerSettings)
sglang_server = _function("sglang_server", TokenServerSettings)
openai_server = _function("openai_server", ChatServerSettings)


def route_with(backend: str, settings: EngineSettings) -> Route:
    from pipegen.drivers.route import route

    if backend == "hf":
        for package in ("torch", "transformers"):
            need(package, "hf", "the Hugging Face engine")
        from pipegen.backends.hf.hf_engine import HFEngine

        return route(HFEngine(config_of(settings, backend)))
    if backend == "vllm":
        from pipegen.backends.vllm.vllm_engine import VLLMEngine

        return route(VLLMEngine(config_of(settings, backend)))
    from pipegen.backends.servers import (
        chat_server,
        openai,
        sglang_dialect,
        token_server,
        vllm_dialect,
    )

    if isinstance(settings, ChatServerSettings):
        return chat_server(openai.DIALECTS[settings.dialect], settings)
    return token_server(
        {"vllm_server": vllm_dialect.VLLM, "sglang_server": sglang_dialect.SGLANG}[backend],
        cast(TokenServerSettings, settings),
    )


def _route_of(config: ModelLoadConfig) -> Route:
    return route_with(config.backend, settings_of(config))


def load(config: ModelLoadConfig) -> Pipe[GenerationRequest, GenerationResult]:
    """The route that a configuration describes; with `fallback_backend`, the fallback from it, for
    the errors that `fallback_when` names.

    The second engine has the same settings but `engine_kwargs`, which are the first one's; it loads
    only when a request needs it. Where a package of the first engine is not installed, it answers
    everything, a warning of the logger `pipegen` says so, and results say why (`tried`). `pg.attach` attaches plugins to both. The
    checkpoint's configuration is read here, but no weights, and no server is asked. A model that
    cannot be read raises `InvalidField` or `CallFailed` at once.

    >>> load(ModelLoadConfig(model="embedded", backend="hff"))
    Traceback (most recent call last):
    ...
    pipegen.core.names.InvalidField: ModelLoadConfig.backend takes one of hf, vllm, vllm_server, sglang_server, openai_server, not 'hff'; did you mean 'hf'?
    """
    if not isinstance(config, ModelLoadConfig):
        raise TypeError(
            f"a ModelLoadConfig is loaded, not {type(config).__name__}: the functions such as"
            " hf(model) take a name"
        )

    def first() -> Route:
        route = _route_of(config)
        _ = route.engine.capabilities
        return route

    return with_fallback(first, config)


def with_fallback(
    first: Callable[[], Route],
    config: ModelLoadConfig,
    tell: Callable[[str, str, str], object] = warn_of,
) -> Pipe[GenerationRequest, GenerationResult]:
    """The fallback from a route to the second engine of its configuration; the route itself where
    there is none.

    Where a package of the first engine is missing, each request is answered by the second one,
    after an error that says what to install. `tell(first, second, why)` is told of it once.
    """

    if config.fallback_backend is None:
        return first()
    alone = dataclasses.replace(
        config,
        backend=config.fallback_backend,
        fallback_backend=None,
        fallback_when=FALLBACK_WHEN,
        engine_kwargs={},
    )
    when: Any = tuple(getattr(errors, str(name)) for name in config.fallback_when)
    primary: Pipe[GenerationRequest, GenerationResult]
    try:
        primary = first()
    except MissingExtra as missing:
        tell(config.backend, config.fallback_backend, str(missing))
        primary, when = _unavailable(config.backend, missing), errors.BackendFailed
    return fallback(primary, _route_of(alone), when=when)


def _unavailable(backend: str, missing: MissingExtra) -> Pipe[GenerationRequest, GenerationResult]:
    """A route through an engine whose package is not installed."""
    from pipegen.core.pipe import row_stage

    error = errors.BackendFailed(
        str(missing),
        backend=backend,
        lasting=True,
        hint="install it, or leave the request to the engine to fall back to",
    )
    return row_stage(backend, lambda request: Failure(error), keeps_text=True, routes=(backend,))


class GenerationEngine(contextlib.AbstractContextManager["GenerationEngine"]):
    """A route (or the configuration of one) as an object with two methods.

    Both methods are `run`, and give one slot for each request, in order. They take requests with
    images and without, even in one batch. All that are valid go to the engine in one call. A request
    with an image at a model that takes none fails in its own slot, with `UnsupportedMultimodal`.

    >>> from pipegen.core.pipe import pure
    >>> GenerationEngine(pure("echo", lambda request: request.prompt)).generate_text_batch(
    ...     [{"prompt": "Hi"}]
    ... )
    (<Success: Hi>,)
    """

    def __init__(
        self,
        route: Pipe[GenerationRequest, GenerationResult] | ModelLoadConfig,
        *,
        image_policy: ImagePolicy | None = None,
        policy: RequestPolicy | None = None,
    ) -> None:
        made = load(route) if isinstance(route, ModelLoadConfig) else route
        if not isinstance(made, Pipe):
            raise TypeError(
                "a GenerationEngine is made of a route or a ModelLoadConfig, not of"
                f" {type(made).__name__}: ModelLoadConfig(model=...)"
            )
        self.route, self.image_policy, self.policy = made, image_policy, policy

    def generate_text_batch(
        self, requests: Iterable[Request], options: Options | None = None
    ) -> Batch[GenerationResult]:
        """Generate, as `run` does: one slot for each request, in order."""
        return run(
            self.route, requests, options, image_policy=self.image_policy, policy=self.policy
        )

    def generate_vlm_batch(
        self, requests: Iterable[Request], options: Options | None = None
    ) -> Batch[GenerationResult]:
        """The same as `generate_text_batch`, for code that has images."""
        return self.generate_text_batch(requests, options)

    def __exit__(self, *error: object) -> None:
        self.route.__exit__(*error)


def __getattr__(name: str) -> object:
    if name == "servers":  # `pg.backends.servers` needs no import of its own
        import importlib

        return importlib.import_module("pipegen.backends.servers")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
