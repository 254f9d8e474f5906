"""Online backends: engines that run as servers, asked over HTTP.

Each engine is one file of pure functions that build and read its wire records, gathered in a `Wire`; one transport serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipegen.backends.servers.wire import Completion, Facts, ServerRequest, Wire, WireReply, WireRequest

if TYPE_CHECKING:
    from pipegen.drivers.route import Route

__all__ = ["Completion", "Facts", "ServerRequest", "Wire", "WireReply", "WireRequest", "chat_server", "token_server"]


NEEDED = ("aiohttp", "orjson", "tenacity")


def token_server(
    wire: Wire,
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    load: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Route:
    """A route through a server that takes and gives token ids, by any engine's `Wire`: what `vllm_server` and `sglang_server` are made with.

    `load` holds fields of `ModelLoadConfig` for reading the checkpoint here, `settings` those of `ServerSettings`. Raises `InvalidField` for a bad one,
    and `MissingExtra` (an ImportError), which says what to install.
    """
    from pipegen.backends.checkpoint.checkpoint import Checkpoint
    from pipegen.backends.http.access import access_to
    from pipegen.backends.servers.server import ServerEngine
    from pipegen.backends.servers.settings import ServerSettings
    from pipegen.drivers.route import route
    from pipegen.engines.extras import need
    from pipegen.records.results import ModelLoadConfig

    for package in NEEDED:
        need(package, "online", "asking a server")
    access = access_to(base_url, default=wire.default_url, variable=wire.key_variable, api_key=api_key, headers=headers)
    checkpoint = Checkpoint(ModelLoadConfig(model=model, backend=wire.name, **(load or {})))
    return route(ServerEngine(wire, checkpoint, access, ServerSettings(**(settings or {})), model))


def chat_server(
    wire: Wire,
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Route:
    """A route through a server that takes messages and gives text: what `openai_server` is made with. Raises as `token_server` does."""
    from pipegen.backends.http.access import access_to
    from pipegen.backends.servers.chat import ChatEngine, chat_route
    from pipegen.backends.servers.settings import ServerSettings
    from pipegen.engines.extras import need

    for package in NEEDED:
        need(package, "online", "asking a server")
    access = access_to(base_url, default=wire.default_url, variable=wire.key_variable, api_key=api_key, headers=headers)
    said = dict(settings or {})
    if wire.name == "openai_chat" and said.get("served_model_name") is None:
        said["served_model_name"] = model  # a public server need not list its models; a plain one is asked for the very name
    return chat_route(ChatEngine(wire, access, ServerSettings(**said), model))
