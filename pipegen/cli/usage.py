"""Turn flags into records; an error is bad usage (exit code 2) that names the flag."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import typer

from pipegen.backends.checkpoint.locate import NoSuchModel
from pipegen.cli.flags import flag_of, options_of_flags
from pipegen.config import BackendConfig, Place, backend_from, read_chat, read_options
from pipegen.config.keys import TYPES
from pipegen.core.errors import CallFailed, UnsupportedMultimodal
from pipegen.core.fallback import fallback
from pipegen.engines.names import shown
from pipegen.records.fields import InvalidField, nearest
from pipegen.records.options import GenerationOptions, merge
from pipegen.records.requests import ImagePolicy, RequestPolicy
from pipegen.records.results import ModelLoadConfig

if TYPE_CHECKING:
    from pipegen.core.pipe import Pipe
    from pipegen.drivers.route import Route
    from pipegen.records.requests import GenerationRequest
    from pipegen.records.results import GenerationResult

__all__ = [
    "Load",
    "Server",
    "images_of",
    "load_config_of",
    "load_of",
    "open_route",
    "open_routes",
    "policy_of",
    "refuse",
    "run_options",
    "runs_here",
    "server_of",
    "window_of",
]


_IN_PROCESS = ("hf", "vllm")
_SERVERS = frozenset(TYPES) - set(_IN_PROCESS)
"""The values of `--backend` besides the engines that run in this process."""
Load: TypeAlias = "ModelLoadConfig | Server"
"""The engine of `pipegen generate`."""


class Server(NamedTuple):
    """A backend as in a chat file, the engine for images that it does not take, and the system message of its requests."""

    backend: BackendConfig
    fallback: str | None
    system: str | None = None
    flag: str = "--backend"
    """The flag that described it."""

    @property
    def model(self) -> str:
        return self.backend.model


def runs_here(load: Load) -> bool:
    """Whether the engine runs in this process."""
    return not isinstance(load, Server) or load.backend.constructor in _IN_PROCESS


def window_of(load: Load) -> int:
    """How many requests go to the engine at a time."""
    return 64 if runs_here(load) else 1024


def refuse(message: str, *flags: str) -> NoReturn:
    """Exit with 2 and this message: bad usage."""
    raise typer.BadParameter(message, param_hint=" / ".join(flags) or None)


def run_options(flags: dict[str, Any], file: Path | None, load: Load) -> GenerationOptions | None:
    """The options of the whole run: flags win over the options file, which wins over the chat file."""
    options = options_of_flags(flags) if flags else None
    try:
        options = options if file is None else merge(options, read_options(file))
    except InvalidField as refusal:
        refuse(str(refusal), "--options")
    try:
        return merge(options, load.backend.options) if isinstance(load, Server) and load.backend.options != GenerationOptions() else options
    except InvalidField as refusal:
        refuse(f"with the options of the chat file: {refusal}", "--config")


def load_of(
    config: Path | None, agent: str | None, model: str | None, backend: str, fallback: str | None, there: dict[str, Any], local: dict[str, Any]
) -> Load:
    """The engine that the flags name: a model of a chat file, a server (`there`), or a model in this process (`local`)."""
    settings = {"model": model, "backend": None if backend == "hf" else backend, **there, **local}
    if config is not None:
        for name, value in settings.items():
            if value is not None and value is not False and value != "auto":
                refuse("goes with --model; with --config the chat file sets it", flag_of(name))
        return _agent_of(config, agent, fallback)
    if agent is not None:
        refuse("takes --config FILE too", "--agent")
    if model is None:
        refuse("say which model to ask: --model NAME (a folder, a hub name, or embedded), or --config FILE", "--model")
    if backend.lower() not in TYPES:
        refuse(f"takes one of {', '.join(TYPES)}, not {backend!r}{nearest(backend, TYPES)}", "--backend")
    backend = backend.lower()
    if backend in _SERVERS or any(value is not None for value in there.values()):
        return server_of(backend, model, fallback, **there, **local)
    return load_config_of(model=model, backend=backend, fallback_backend=fallback, **local)


def _agent_of(file: Path, name: str | None, fallback: str | None) -> Server:
    """The model of a chat file, by its id if there are several."""
    try:
        agents = {agent.id: agent for agent in read_chat(file).agents}
    except InvalidField as refusal:
        refuse(str(refusal), "--config")
    if name is None and len(agents) > 1:
        refuse(f"{file} holds {', '.join(agents)}: choose one", "--agent")
    if name is not None and name not in agents:
        refuse(f"{file} holds no {name!r}, only {', '.join(agents)}{nearest(name, agents)}", "--agent")
    agent = agents[name] if name is not None else next(iter(agents.values()))
    return Server(agent.backend, fallback, agent.system_message, "--config")


def load_config_of(**settings: Any) -> ModelLoadConfig:
    """The load settings of the model. Each is checked alone first, so that the error names its flag."""
    for name, value in settings.items():
        try:
            ModelLoadConfig(**{"model": "embedded", name: value})
        except InvalidField as refusal:
            refuse(str(refusal), "--fallback" if name == "fallback_backend" else flag_of(name))
    return ModelLoadConfig(**settings)


def server_of(backend: str, model: str, fallback: str | None, **settings: Any) -> Server:
    """The server that the flags describe; unset ones are None or their defaults."""
    values = {name: value for name, value in settings.items() if value is not None and value is not False and value != "auto"}
    for name in ("base_url", *values):
        flag = flag_of(name)
        try:
            backend_from({"type": backend, "model": model, "base_url": settings.get("base_url"), name: settings.get(name)}, Place(flag))
        except InvalidField as refusal:
            refuse(str(refusal).removeprefix(f"{flag}: {name}: ").removeprefix(f"{flag}: "), flag if name in values else "--backend")
    described = backend_from({"type": backend, "model": model, "base_url": None, **values}, Place("flags"))
    if described.constructor == "openai_server":  # the default of --max-new-tokens applies
        described = dataclasses.replace(described, settings={**described.settings, "server_limit": False})
    return Server(described, fallback)


def images_of(root: str | None, allow_http: bool, allowed_hosts: Sequence[str]) -> ImagePolicy:
    """Which image sources may be read."""
    if root is not None and not Path(root).is_dir():
        refuse(f"there is no folder {root!r}", "--image-root")
    if allowed_hosts and not allow_http:
        refuse("takes --allow-http too", "--allow-host")
    try:
        return ImagePolicy(root=root, allow_http=allow_http, allowed_hosts=tuple(allowed_hosts))
    except InvalidField as refusal:
        refuse(str(refusal), "--allow-host")


def policy_of(allow_templates: bool, limits: Sequence[str]) -> RequestPolicy:
    """The request policy, from flags such as `--limit max_samples=5000`."""
    values: dict[str, int] = {}
    for limit in limits:
        name, _, number = limit.partition("=")
        if not number.isdecimal() or name == "allow_templates":
            refuse(f"takes a name and a whole number, such as max_samples=5000, not {limit!r}", "--limit")
        values[name] = int(number)
    try:
        return RequestPolicy(allow_templates=allow_templates, **values)
    except InvalidField as refusal:
        refuse(str(refusal), "--limit")


def open_route(load: ModelLoadConfig) -> Route:
    """The route to the model. Its checkpoint's files are read, without weights; a missing model is bad usage."""
    from pipegen import backends

    try:
        route = backends.route_of(load)
        _ = route.engine.capabilities
    except NoSuchModel as refusal:
        refuse(f"{load.model!r} cannot be used: {refusal}", "--model")
    except InvalidField as refusal:
        refuse(str(refusal), "--backend")
    except ImportError as refusal:  # a missing extra
        refuse(f"{load.model!r} cannot be used: {refusal}", "--model")
    except CallFailed as failure:
        refuse(_reason(failure), "--model")
    return route


def _reason(failure: CallFailed) -> str:
    return f"{failure.error.message}; {failure.error.hint}"


def open_routes(load: Load) -> Pipe[GenerationRequest, GenerationResult]:
    """As `open_route`, with the fallback route, if there is one."""
    from pipegen import backends

    if isinstance(load, Server):
        return _open_server(load)
    route = open_route(load)
    if load.fallback_backend is None:
        return route
    try:
        return backends.load(load)
    except (InvalidField, ImportError) as refusal:
        refuse(str(refusal), "--fallback")
    except CallFailed as failure:
        refuse(_reason(failure), "--fallback")


def _open_server(load: Server) -> Pipe[GenerationRequest, GenerationResult]:
    from pipegen import backends

    try:
        first = load.backend.open()
        if load.backend.constructor in _IN_PROCESS:
            _ = first.engine.capabilities
        if load.fallback is None:
            return first
        return fallback(first, backends.route_of(ModelLoadConfig(model=load.model, backend=load.fallback)), when=UnsupportedMultimodal)
    except (ImportError, InvalidField) as refusal:  # as for open_route
        refuse(f"{shown(load.backend.type)}: {refusal}", load.flag)
    except CallFailed as failure:
        refuse(f"{shown(load.backend.type)}: {_reason(failure)}", load.flag)
