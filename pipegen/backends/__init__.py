"""Engines. The choice is explicit: `hf(...)` is Hugging Face transformers in this process, `vllm(...)` is vLLM in this process, and `vllm_server(...)`,
`sglang_server(...)` and `openai_server(...)` are servers that run already.

Calling one of these loads nothing but (on first need) the tokenizer and the configuration; weights load when the first prompt reaches the engine.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

# The packages of the same names bind themselves here when they are first imported: before the functions below, that is, and not over them later.
import pipegen.backends.hf
import pipegen.backends.servers
import pipegen.backends.vllm
from pipegen.backends.in_process import hf, vllm
from pipegen.backends.keywords import named_settings
from pipegen.core.errors import UnsupportedMultimodal
from pipegen.engines.extras import need
from pipegen.records.fields import InvalidField, nearest
from pipegen.records.results import ModelLoadConfig

if TYPE_CHECKING:
    from pipegen.core.pipe import Pipe
    from pipegen.drivers.route import Route
    from pipegen.records.requests import GenerationRequest
    from pipegen.records.results import GenerationResult

__all__ = ["BACKENDS", "hf", "load", "openai_server", "route_of", "sglang_server", "vllm", "vllm_server"]

BACKENDS = ("hf", "vllm", "vllm_server", "sglang_server", "openai_server")
"""The names that `ModelLoadConfig.backend` takes: those of the functions here."""


@named_settings
def vllm_server(
    model: str | os.PathLike[str],
    *,
    base_url: str | None = None,
    served_model_name: str | None = None,
    api_key: str | None = None,
    timeout: float = 600.0,
    max_in_flight: int = 256,
    retries: int = 3,
    batch_budget: float | None = None,
    headers: Mapping[str, str] | None = None,
    extra_body: Mapping[str, Any] | None = None,
    variant: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Route:
    """A route through a vLLM server that runs already, token ids in and out (`http://localhost:8000` unless `base_url` says otherwise).

    `model` is the checkpoint whose tokenizer, template and processor are used here: a local folder, a hub name, or `embedded`; `served_model_name` is its
    name on the server, found out where it is not said. `api_key` is else that of `VLLM_API_KEY`. The other settings are those of `ServerSettings`.
    Raises `InvalidField` for a bad setting, and `MissingExtra` (an ImportError), which says what to install.

    >>> route = vllm_server("Qwen/Qwen3-4B", base_url="http://localhost:8000")  # doctest: +SKIP
    """
    from pipegen.backends.servers.vllm import VLLM

    said = {"timeout": timeout, "max_in_flight": max_in_flight, "retries": retries, "batch_budget": batch_budget, "extra_body": extra_body or {}}
    load = {"variant": variant, "revision": revision, "trust_remote_code": trust_remote_code}
    return pipegen.backends.servers.token_server(
        VLLM, os.fspath(model), base_url=base_url, api_key=api_key, headers=headers, load=load, settings={**said, "served_model_name": served_model_name}
    )


@named_settings
def sglang_server(
    model: str | os.PathLike[str],
    *,
    base_url: str | None = None,
    served_model_name: str | None = None,
    api_key: str | None = None,
    timeout: float = 600.0,
    max_in_flight: int = 256,
    retries: int = 3,
    batch_budget: float | None = None,
    headers: Mapping[str, str] | None = None,
    extra_body: Mapping[str, Any] | None = None,
    variant: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Route:
    """A route through an SGLang server that runs already, token ids in and out (`http://localhost:30000` unless `base_url` says otherwise).

    As `vllm_server`; the key is else that of `SGLANG_API_KEY`. A seed is passed on, and makes rows repeatable only where the server was started for that.

    >>> route = sglang_server("Qwen/Qwen3-4B")  # doctest: +SKIP
    """
    from pipegen.backends.servers.sglang import SGLANG

    said = {"timeout": timeout, "max_in_flight": max_in_flight, "retries": retries, "batch_budget": batch_budget, "extra_body": extra_body or {}}
    load = {"variant": variant, "revision": revision, "trust_remote_code": trust_remote_code}
    return pipegen.backends.servers.token_server(
        SGLANG, os.fspath(model), base_url=base_url, api_key=api_key, headers=headers, load=load, settings={**said, "served_model_name": served_model_name}
    )


@named_settings
def openai_server(
    model: str,
    *,
    base_url: str | None = None,
    dialect: str = "plain",
    separate_reasoning: bool | None = None,
    server_limit: bool = False,
    served_model_name: str | None = None,
    api_key: str | None = None,
    timeout: float = 600.0,
    max_in_flight: int = 256,
    retries: int = 3,
    batch_budget: float | None = None,
    headers: Mapping[str, str] | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Route:
    """A route through the chat completions of any server like OpenAI's: the server renders the messages, and pipegen cuts the text.

    `dialect` (`vllm`, `sglang` or `plain`) says which fields beyond OpenAI's own it knows (`separate_reasoning` is SGLang's), and `model` is its name
    there. With `server_limit=True` no length is sent where no option says one, and the server's own limit holds. What pipegen promises of ids and prompts
    does not hold here, and `Capabilities` say so. The key is else that of `VLLM_API_KEY`, `SGLANG_API_KEY` or `OPENAI_API_KEY`. Raises as `vllm_server`
    does, and `InvalidField` for another dialect.

    >>> route = openai_server("tiny", base_url="http://localhost:8000/v1", dialect="vllm")  # doctest: +SKIP
    """
    from pipegen.backends.servers.openai import wire_of

    extra = dict(extra_body or {}) | ({} if separate_reasoning is None else {"separate_reasoning": separate_reasoning})
    said = {"timeout": timeout, "max_in_flight": max_in_flight, "retries": retries, "batch_budget": batch_budget, "extra_body": extra}
    said["server_limit"] = server_limit
    return pipegen.backends.servers.chat_server(
        wire_of(dialect), model, base_url=base_url, api_key=api_key, headers=headers, settings={**said, "served_model_name": served_model_name}
    )


def load(config: ModelLoadConfig) -> Pipe[GenerationRequest, GenerationResult]:
    """The route that a configuration describes; with `fallback_backend`, the fallback from it for images that the first engine does not take.

    A server's address and patience stand in `engine_kwargs`, as its function takes them; its key is in the environment. The second engine has the same
    settings but `engine_kwargs`, which are the first one's; it loads only when a request needs it. Where plugins are to be attached, take `route_of`,
    which gives a route with one engine. The checkpoint's configuration is read here, but no weights, and no server is asked: a model that cannot be read
    raises `InvalidField` or `CallFailed` at once, not at the first request.

    >>> load(ModelLoadConfig(model="embedded", backend="hff"))
    Traceback (most recent call last):
    ...
    pipegen.records.fields.InvalidField: ModelLoadConfig.backend takes one of hf, vllm, vllm_server, sglang_server, openai_server, not 'hff'; did you mean 'hf'?
    """
    from pipegen.core.fallback import fallback

    first = route_of(config)
    _ = first.engine.capabilities
    if config.fallback_backend is None:
        return first
    if config.fallback_backend == config.backend:
        raise InvalidField(f"ModelLoadConfig.fallback_backend takes another engine than backend, {config.backend!r}")
    second = route_of(dataclasses.replace(config, backend=config.fallback_backend, fallback_backend=None, engine_kwargs={}))
    return fallback(first, second, when=UnsupportedMultimodal)


def route_of(config: ModelLoadConfig) -> Route:
    """The route through `config.backend` alone. Raises `InvalidField` for a backend that is not there, and as that backend's function does."""
    from pipegen.drivers.route import route

    if not isinstance(config, ModelLoadConfig):
        raise TypeError(f"a ModelLoadConfig is loaded, not {type(config).__name__}: hf(model) and its siblings take a name")
    if config.backend == "hf":
        for package in ("torch", "transformers"):
            need(package, "hf", "the Hugging Face engine")
        from pipegen.backends.hf.engine import HFEngine

        return route(HFEngine(config))
    if config.backend == "vllm":
        from pipegen.backends.vllm.engine import VLLMEngine

        return route(VLLMEngine(config))
    servers: dict[str, Callable[..., Route]] = {"vllm_server": vllm_server, "sglang_server": sglang_server, "openai_server": openai_server}
    if config.backend in servers:
        from pipegen.backends.configured import arguments_of

        return servers[config.backend](config.model, **arguments_of(config, servers[config.backend]))
    raise InvalidField(f"ModelLoadConfig.backend takes one of {', '.join(BACKENDS)}, not {config.backend!r}{nearest(config.backend, BACKENDS)}")
