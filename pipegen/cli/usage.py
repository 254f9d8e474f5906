"""Turn flags into records; an error is bad usage (exit code 2) that names the flag."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import typer

from pipegen.backends.checkpoint.locate import NoSuchModel
from pipegen.cli.flags import flag_of, options_of_flags, setting_values
from pipegen.cli.run_flags import AskedFlags
from pipegen.config import BackendConfig, Place, backend_from, read_chat, read_options
from pipegen.core.distribution import MissingExtra
from pipegen.core.errors import CallFailed
from pipegen.core.foreign_calls import attempt
from pipegen.core.functional import without_none
from pipegen.core.names import InvalidField, nearest
from pipegen.engines.model import reader_of
from pipegen.engines.settings import fields_of
from pipegen.io.forms import TableError
from pipegen.records.engine_list import IN_PROCESS, TYPES, shown
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import merge
from pipegen.records.requests import ImagePolicy, RequestPolicy

if TYPE_CHECKING:
    from pipegen.core.pipe import Pipe
    from pipegen.drivers.route import Route
    from pipegen.records.requests import GenerationRequest
    from pipegen.records.results import GenerationResult


class Load(NamedTuple):
    """What `pipegen generate` runs on: a backend as in a chat file, and its system message."""

    backend: BackendConfig
    system: str | None = None
    flag: str = "--backend"
    """What set the backend."""

    @property
    def model(self) -> str:
        return self.backend.model


def runs_here(load: Load) -> bool:
    """Whether the engine is in this process, and not at a server."""
    return load.backend.backend in IN_PROCESS


def refuse(message: str, *flags: str) -> NoReturn:
    """Exit with 2 and this message: bad usage."""
    raise typer.BadParameter(message, param_hint=" / ".join(flags) or None)


@contextlib.contextmanager
def reading(file: Path | str | None, flag: str) -> Iterator[None]:
    """Refuse a file, which this flag names, that cannot be read."""
    try:
        yield
    except OSError as refusal:
        refuse(f"{str(file)!r} cannot be read: {refusal.strerror or refusal}", flag)
    except (TableError, MissingExtra) as refusal:
        refuse(str(refusal), flag)


def run_options(
    flags: dict[str, object], file: Path | None, load: Load
) -> GenerationOptions | None:
    """The options of the whole run: flags win over the options file, which wins over the chat
    file.
    """
    options = options_of_flags(flags) if flags else None
    try:
        options = options if file is None else merge(options, read_options(file))
    except InvalidField as refusal:
        refuse(str(refusal), "--options")
    try:
        return (
            merge(options, load.backend.options)
            if load.backend.options != GenerationOptions()
            else options
        )
    except InvalidField as refusal:
        refuse(f"with the options of the chat file: {refusal}", "--config")


def load_of(
    flags: AskedFlags,
    settings: Mapping[str, object],
    fallback: str | None = None,
    when: Sequence[str] | None = None,
) -> Load:
    """What the flags set to run on: a model of a chat file, or a model with the settings of its
    engine.
    """
    config, agent, model, backend = flags.config, flags.agent, flags.model, flags.backend
    if config is not None:
        for name, value in {"model": model, "backend": backend, **settings}.items():
            if value is not None:
                refuse(
                    "goes without --config: the chat file sets it, or leaves it out", flag_of(name)
                )
        load = _agent_of(config, agent)
        return load._replace(backend=_with_fallback(load.backend, fallback, when))
    if agent is not None:
        refuse("takes --config FILE too", "--agent")
    if model is None:
        refuse(
            "say which model to ask: --model NAME (a folder, a hub name, or embedded), or --config"
            " FILE",
            "--model",
        )
    backend = "hf" if backend is None else backend
    if backend.lower() not in TYPES:
        refuse(
            f"takes one of {', '.join(TYPES)}, not {backend!r}{nearest(backend, TYPES)}",
            "--backend",
        )
    values: dict[str, object] = {
        "type": backend.lower(),
        "model": model,
        **setting_values(settings),
    }
    if backend.lower() == "vllm" and not fields_of("vllm").keys() >= settings.keys():
        values.setdefault("base_url", None)  # what only a server takes asks for one
    for name in settings:  # each is tried alone first, so that the refusal names its flag
        _backend_of(
            {
                key: value
                for key, value in values.items()
                if key in ("type", "model", "base_url", name)
            },
            flag_of(name),
        )
    backend_config = _backend_of(values, "--backend")
    # the help of --max-new-tokens names the default that holds without a file
    if "server_limit" not in settings and "server_limit" in fields_of(backend_config.backend):
        backend_config = _backend_of({**values, "server_limit": False}, "--backend")
    return Load(_with_fallback(backend_config, fallback, when))


def _with_fallback(
    backend: BackendConfig, fallback: str | None, when: Sequence[str] | None
) -> BackendConfig:
    """The backend with what flags say of the engine that takes over; they win over a chat file."""
    fallback_settings: dict[str, Any] = {
        "fallback_backend": fallback,
        "fallback_when": tuple(when or ()) or None,
    }
    try:
        return dataclasses.replace(backend, **without_none(fallback_settings))
    except InvalidField as refusal:
        name, _, words = str(refusal).removeprefix("BackendConfig.").partition(" ")
        refuse(
            words.replace("fallback_backend", "--fallback"), flag_of(name.removesuffix("_backend"))
        )


def _backend_of(values: Mapping[str, object], flag: str) -> BackendConfig:
    try:
        return backend_from(values, Place(flag))
    except InvalidField as refusal:
        refuse(re.sub(rf"^{flag}: (\w+: )?", "", str(refusal)), flag)


def _agent_of(file: Path, name: str | None) -> Load:
    """The model of a chat file, by its id where there are several."""
    try:
        agents = {agent.id: agent for agent in read_chat(file).agents}
    except InvalidField as refusal:
        refuse(str(refusal), "--config")
    if name is None and len(agents) > 1:
        refuse(f"{file} holds {', '.join(agents)}: choose one", "--agent")
    if name is not None and name not in agents:
        refuse(
            f"{file} holds no {name!r}, only {', '.join(agents)}{nearest(name, agents)}", "--agent"
        )
    agent = agents[name] if name is not None else next(iter(agents.values()))
    return Load(agent.backend, agent.system_message, "--config")


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


def policy_of(limits: Sequence[str]) -> RequestPolicy:
    """The request policy, from flags such as `--limit max_samples=5000`."""
    values: dict[str, int] = {}
    for limit in limits:
        name, _, number = limit.partition("=")
        if not number.isdecimal():
            refuse(
                f"takes a name and a whole number, such as max_samples=5000, not {limit!r}",
                "--limit",
            )
        values[name] = int(number)
    try:
        return RequestPolicy(**values)
    except InvalidField as refusal:
        refuse(str(refusal), "--limit")


def shard_of(text: str) -> tuple[int, int]:
    """The shard of `--shard 2/4`: the second of four."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    i, n = map(int, match.groups()) if match else (0, 0)
    if not 1 <= i <= n:
        refuse(
            "takes I/N, such as 2/4; the parts of 4 are 1/4, 2/4, 3/4 and 4/4. It is not"
            f" {text!r:.40}",
            "--shard",
        )
    return i, n


def open_route(load: Load, *, falls_back: bool = False) -> Route:
    """The route to the model, with the light facts of its checkpoint read (no weights): a model
    that is not there is bad usage.

    So is a package that is missing, unless another engine takes over (`falls_back`): then
    `MissingExtra` raises.
    """
    prefix = (
        f"{shown(load.backend.type)}: "
        if load.flag == "--config" or not runs_here(load)
        else f"{load.model!r} cannot be used: "
    )
    try:
        route = load.backend.first()
        if runs_here(load):
            _ = route.engine.capabilities
    except (NoSuchModel, ImportError) as refusal:  # a missing extra is an ImportError
        if falls_back and isinstance(refusal, MissingExtra):
            raise
        refuse(f"{prefix}{refusal}", load.flag if load.flag == "--config" else "--model")
    except InvalidField as refusal:
        setting = (
            re.match(r"ModelLoadConfig\.(\w+)(?:\[.*?\])?: ", str(refusal))
            if load.flag == "--backend"
            else None
        )
        refuse(
            str(refusal)[setting.end() :] if setting else str(refusal),
            flag_of(setting[1]) if setting else load.flag,
        )
    except CallFailed as failure:
        refuse(f"{prefix}{_reason(failure)}", load.flag if load.flag == "--config" else "--model")
    return route


def _reason(failure: CallFailed) -> str:
    return f"{failure.error.message}; {failure.error.hint}"


def open_routes(load: Load) -> Pipe[GenerationRequest, GenerationResult]:
    """As `open_route`, with the engine to fall back to, where there is one."""
    from pipegen import backends

    config = load.backend.load_config
    flags = ("--fallback",) if load.flag == "--backend" else ("--fallback", load.flag)
    try:
        return backends.with_fallback(
            partial(open_route, load, falls_back=config.fallback_backend is not None),
            config,
            lambda _, second, why: typer.echo(f"{why}; until then {second} answers", err=True),
        )
    except (InvalidField, ImportError) as refusal:
        refuse(str(refusal), *flags)
    except CallFailed as failure:
        refuse(_reason(failure), *flags)


def import_while_waiting(route: Any) -> None:
    """Where stdin has nothing to read yet, since another program still makes it, read the model of a
    route's first engine and import what computes it: the others are fallbacks. What fails here
    fails the first request, which says why.

    Of a file, the first lines import it, and the others are read after that. A thread that imports
    gains nothing there: reading and checking lines is Python too, which one thread runs at a time.
    """
    try:
        ready = bool(select.select([sys.stdin], [], [], 0)[0])
    except (OSError, ValueError):  # no file of the system, or none that the platform tells of
        ready = True
    if not ready:
        for engine in route.owns[:1]:
            reader_of(engine)()
            attempt(getattr(engine, "import_packages", lambda: None))
