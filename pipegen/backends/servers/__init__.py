"""Online backends: engines that run as servers, asked over HTTP.

Each engine is one file of pure functions that build and read its wire records, gathered in a
`Wire`; one transport serves them all.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from pipegen.backends.servers.wire import (
    Completion,
    Facts,
    ServerRequest,
    Wire,
    WireReply,
    WireRequest,
)
from pipegen.engines.settings import (
    ChatServerSettings,
    ServerSettings,
    TokenServerSettings,
    config_of,
)

if TYPE_CHECKING:
    from pipegen.backends.http.access import Access
    from pipegen.drivers.route import Route

__all__ = [
    "Completion",
    "Facts",
    "ServerRequest",
    "Wire",
    "WireReply",
    "WireRequest",
    "chat_server",
    "token_server",
]


NEEDED = ("aiohttp", "orjson")


def token_server(wire: Wire, settings: TokenServerSettings) -> Route:
    """A route through a server that takes and gives token ids, by any engine's `Wire`: what
    `vllm_server` and `sglang_server` are made with.

    Raises `InvalidField` for a bad address, and `MissingExtra` (an ImportError), which says what to
    install.
    """
    access = _access(wire, settings)
    from pipegen.backends.checkpoint.checkpoint import Checkpoint
    from pipegen.backends.checkpoint.locate import check_adapters
    from pipegen.backends.servers.sending import Sender
    from pipegen.backends.servers.server import ServerEngine
    from pipegen.drivers.route import route

    load = config_of(settings, wire.name)
    check_adapters(load)
    sender = Sender(wire, access, settings, os.fspath(settings.model))
    return route(ServerEngine(sender, Checkpoint(load)))


def chat_server(wire: Wire, settings: ChatServerSettings) -> Route:
    """A route through a server that takes messages and gives text: what `openai_server` is made
    with. Raises as `token_server` does.
    """
    access = _access(wire, settings)
    from pipegen.backends.servers.chat_engine import ChatEngine
    from pipegen.backends.servers.sending import Sender
    from pipegen.drivers.route import route

    model = os.fspath(settings.model)
    if not wire.known and settings.served_model_name is None:
        # a public server need not list its models
        settings = dataclasses.replace(settings, served_model_name=model)
    if settings.separate_reasoning is not None:
        body = {**settings.extra_body, "separate_reasoning": settings.separate_reasoning}
        settings = dataclasses.replace(settings, extra_body=body, separate_reasoning=None)
    return route(ChatEngine(Sender(wire, access, settings, model)))


def _access(wire: Wire, settings: ServerSettings) -> Access:
    from pipegen.backends.http.access import access_to
    from pipegen.core.distribution import need
    from pipegen.records.secret import revealed

    for package in NEEDED:
        need(package, "online", "asking a server")
    key, headers = revealed(settings.api_key), revealed(settings.headers)
    return access_to(
        settings.base_url,
        default=wire.default_url,
        variable=wire.key_variable,
        api_key=key,
        headers=headers,
    )
