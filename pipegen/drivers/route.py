"""A route: the whole way from a request to its result, through one engine.

    resolve >> render >> tokenize >> fit >> call >> decode >> stop >> trim

Everything but `call` is shared by all engines, which is why their texts agree. Stages are inserted,
replaced and removed by name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from returns.result import Failure, Success

from pipegen.core.errors import CallFailed, UnsupportedOption, UnsupportedPlugin
from pipegen.core.pipe import Pipe, identity, row_stage
from pipegen.core.slots import Slot
from pipegen.core.steps import EngineMap
from pipegen.drivers.arguments import Options, check_settings, merged_into
from pipegen.engines.capabilities import missing
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import Engine, require_members, takes_tokens
from pipegen.records.engine_list import shown
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import flat_values
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.results import Encoded, GenerationResult
from pipegen.stages.calling import call
from pipegen.stages.ending import decode, stop
from pipegen.stages.fitting import fit
from pipegen.stages.gather_samples import expand
from pipegen.stages.rendering import render
from pipegen.stages.resolving import resolve
from pipegen.stages.tokenizing import tokenize
from pipegen.stages.trimming import trim

P = TypeVar("P", bound=Pipe[Any, Any])


@dataclass(frozen=True, repr=False)
class Route(Pipe[GenerationRequest, GenerationResult]):
    """A pipe from request to result that owns its engine.

    As a context manager it releases the engine on exit. Weights load on first need: a route that no
    slot needs never loads.

    >>> from pipegen.core.pipe import pure
    >>> from pipegen.testing.fake import FakeEngine
    >>> plain = route(FakeEngine("a"))
    >>> [part.name for part in plain.parts]
    ['resolve', 'render', 'tokenize', 'fit', 'call', 'decode', 'stop', 'trim']
    >>> own = plain.insert(pure("look", lambda decoded: decoded), after="decode").remove("fit")
    >>> [part.name for part in own.parts]
    ['resolve', 'render', 'tokenize', 'call', 'decode', 'look', 'stop', 'trim']
    """

    engine: Any = dataclasses.field(kw_only=True)
    """The engine, a `TokenEngine` or a `TextEngine`."""

    def with_options(self, options: Options) -> Self:
        """The route with options of its own, for what its requests leave open. Of several routes in
        one pipe, each has those that it is given here.

        The options of a run are for the requests that it is handed, and so for the first route of a
        pipe. Raises as `run` does for bad options.
        """
        return with_options(self, options)

    def rebound(self, new: EngineMap) -> Self:
        """The same route, bound to another engine or name."""
        rebound_pipe: Any = Pipe.rebound(self, new)
        rebound_route: Self = dataclasses.replace(
            rebound_pipe,
            engine=new.engine(self.engine),
            name=rebound_pipe.routes[0] if rebound_pipe.routes else rebound_pipe.name,
        )
        return rebound_route


def with_options(pipe: P, options: Options) -> P:
    """The pipe with options for what its requests leave open; see `Route.with_options`. Without
    any, the pipe itself.
    """
    checked_options = check_settings(options).options
    if not _shown(checked_options):
        return pipe

    def merged(request: GenerationRequest) -> Slot[GenerationRequest]:
        return merged_into(request, checked_options)

    return pipe.with_parts(
        (row_stage(f"options({_shown(checked_options)})", merged, keeps_text=True), *pipe.parts)
    )


def _shown(options: GenerationOptions | None) -> str:
    """Options as a part of a name: others have another."""
    import hashlib

    values = (
        {}
        if options is None
        else {
            name: repr(value) for name, value in flat_values(options).items() if value is not None
        }
    )
    short = {
        name: (
            value
            if len(value) <= 60
            else hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        )
        for name, value in values.items()
    }
    return ", ".join(f"{name}={value}" for name, value in short.items())


def route(engine: Engine, *, name: str | None = None) -> Route:
    """The route through an engine. It is named after it, unless `name` says otherwise, and results
    carry that name. Raises `TypeError` for what is no engine, with the names that it does not have.
    """
    if not isinstance(getattr(engine, "name", None), str) or not callable(
        getattr(engine, "generate", None)
    ):
        raise TypeError(
            f"a route is made of an engine, not {type(engine).__name__}: pg.backends.hf(model)"
            " makes the route of a model"
        )
    require_members(engine)
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"the name of a route is a text that is not empty, not {name!r:.80}")
    pipe: Pipe[GenerationRequest, GenerationResult]
    if takes_tokens(engine):
        before_call, after_call = (
            resolve(engine) >> render(engine) >> tokenize(engine) >> fit(engine),
            decode(engine) >> stop(engine) >> trim(engine, name),
        )
        pipe = before_call >> call(engine) >> after_call
    else:
        pipe = resolve(engine) >> call(engine) >> trim(engine, name)
    return Route(engine.name if name is None else name, pipe.steps, pipe.owns, engine=engine)


def count_tokens(
    of: Pipe[GenerationRequest, Any],
    request: Request,
    options: Options | None = None,
    *,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Slot[int]:
    """How many tokens the request's prompt has on this route, images included, or why it has none.
    Calls no engine.

    Of a pipe of your own, all stages before its call are run but `fit`. Raises `TypeError` for a
    pipe that does not call an engine itself, such as a fallback.

    >>> from pipegen.testing.fake import FakeEngine
    >>> count_tokens(route(FakeEngine("")), {"prompt": "Hi"})
    <Success: 2>
    """
    calls = (
        [place for place, part in enumerate(of.parts) if part.backend is not None]
        if isinstance(of, Pipe)
        else []
    )
    if not calls:
        raise TypeError(
            f"tokens are counted on a route through one engine, not on {_what(of)}: hand over one"
            " of the routes of a fallback"
        )
    backend: Any = of.parts[calls[0]].backend
    hint = "count on the route of an engine that takes token ids, such as hf, with the same model"
    refusal = UnsupportedOption(
        f"{shown(backend.name)} does not tell how many tokens a prompt has",
        option="token_ids",
        hint=hint,
    )
    if isinstance(of, Route) and "token_ids" not in of.engine.capabilities.honours:
        return Failure(refusal)
    start: Pipe[GenerationRequest, Any] = identity()
    prepare = start.with_parts(part for part in of.parts[: calls[0]] if part.name != "fit")
    batch = check_settings(options, image_policy, policy).batch([request])
    expanded = tuple(slot.map(lambda request: expand(request)[0]) for slot in batch)

    def length(prepared: object) -> Slot[int]:
        return (
            Success(len(prepared.prompt.token_ids))
            if isinstance(prepared, Encoded)
            else Failure(refusal)
        )

    return prepare.apply(expanded)[0].bind(length)


def _what(of: object) -> str:
    return of.name if isinstance(of, Pipe) else type(of).__name__


def attach(to: P, *plugins: Plugin) -> P:
    """The route with plugins attached, in that order, after those it has.

    A pipe of several routes, such as a fallback, gets them on every one. This is decided before
    any weights load, and all or nothing. The new route shares the engine's weights.

    Raises `UnsupportedPlugin` for the first plugin that an engine cannot take or has already, or
    that trims where no stage does. Raises `BackendFailed` if an engine's model cannot be read, and
    `TypeError` for what is no plugin, or a pipe without an engine.

    >>> from pipegen.plugins import balanced_json, strip_prefix
    >>> from pipegen.testing.fake import FakeEngine
    >>> both = attach(route(FakeEngine("")), balanced_json(), strip_prefix(["Answer:"]))
    >>> [plugin.name for plugin in both.engine.plugins]
    ['balanced_json', 'strip_prefix']
    """
    if not isinstance(to, Pipe):
        raise TypeError(f"plugins are attached to a route, not to {_what(to)}")
    for plugin in plugins:
        if not isinstance(plugin, Plugin):
            raise TypeError(
                f"plugins are attached, not {type(plugin).__name__}: attach(route, one, another),"
                " such as pg.plugins.balanced_json()"
            )
    engines: dict[int, Any] = {}

    def attached(engine: Any) -> object:
        if id(engine) not in engines:
            engines[id(engine)] = _with_plugins(engine, plugins)
        return engines[id(engine)]

    new = to.rebound(EngineMap(engine=attached))
    if not engines:
        raise TypeError(
            f"{to.name} has no stage that is bound to an engine: plugins are attached to engines"
        )
    for plugin in plugins:
        if plugin.trim is not None and not to.routes:
            words = (
                f"plugin {plugin.name!r} trims the text, and none of the stages of {to.name} does"
            )
            raise UnsupportedPlugin(
                words,
                plugin=plugin.name,
                hint="end the pipe with pg.stages.trim(engine), or trim in a stage of your own",
            )
    return new


def _with_plugins(engine: Engine, plugins: tuple[Plugin, ...]) -> Engine:
    for plugin in plugins:
        try:
            absent = missing(plugin.needs, engine.capabilities)
        except CallFailed as failure:
            raise failure.error from failure
        if any(_same(plugin, other) for other in engine.plugins):
            words = f"plugin {plugin.name!r} is attached to {shown(engine.name)} already"
            raise UnsupportedPlugin(
                words,
                plugin=plugin.name,
                hint="attach it once; one with other arguments may come after it",
            )
        if absent:
            words = (
                f"plugin {plugin.name!r} needs {', '.join(absent)}, which {shown(engine.name)} does"
                " not offer"
            )
            raise UnsupportedPlugin(words, plugin=plugin.name)
        engine = engine.with_plugin(plugin)
    return engine


def _same(plugin: Plugin, other: Plugin) -> bool:
    """Whether two plugins do the same: those that ship, and others that have a version, say by it
    what they do.
    """
    return plugin == other or (
        (plugin.name, plugin.version) == (other.name, other.version) and bool(plugin.version)
    )
