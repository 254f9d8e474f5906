"""Which server answers at an address: vLLM and SGLang say so in their list of models."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

from pipegen.backends.http.access import access_to
from pipegen.backends.http.loops import LoopThread
from pipegen.backends.http.transport import AttemptFailed, HttpStatusError, RowCall, Transport
from pipegen.backends.servers import openai
from pipegen.backends.servers.facts import LOOK_UP_SECONDS
from pipegen.backends.servers.reading import json_of
from pipegen.backends.servers.wire import WireRequest
from pipegen.core.errors import CallFailed
from pipegen.core.slots import is_ok
from pipegen.engines.settings import ServerSettings
from pipegen.records.engine_list import DIALECTS, Dialect
from pipegen.records.secret import revealed


def dialect_of(models: object) -> Dialect:
    """The dialect of the server that lists these models.

    >>> (
    ...     dialect_of({"data": [{"id": "m", "owned_by": "vllm"}]}),
    ...     dialect_of({"data": [{"id": "m", "owned_by": "me"}]}),
    ... )
    ('vllm', 'plain')
    """
    entries = models.get("data") if isinstance(models, Mapping) else None
    owners = (
        [entry.get("owned_by") for entry in entries if isinstance(entry, Mapping)]
        if isinstance(entries, list)
        else []
    )
    for dialect in DIALECTS:
        if dialect in owners:
            return dialect
    return "plain"


def find_dialect(url: str, **settings: Any) -> Dialect:
    """The dialect of the server at this address. Raises `CallFailed` where none answers; one that
    lists no models is plain.

    Without a key among the settings, that of each kind of server is tried.
    """
    field_names = {field.name for field in dataclasses.fields(ServerSettings)}
    server_settings = ServerSettings(
        base_url=url, **{name: value for name, value in settings.items() if name in field_names}
    )
    loop = LoopThread()
    try:
        for wire in openai.DIALECTS.values():
            access = access_to(
                url,
                default="",
                variable=wire.key_variable,
                api_key=revealed(server_settings.api_key),
                headers=revealed(server_settings.headers),
            )
            models = json_of(loop.run(_listed(Transport(access, server_settings))))
            if is_ok(models):
                return dialect_of(models.unwrap())
    except AttemptFailed as failed:
        raise CallFailed(failed.error) from failed
    finally:
        loop.close()
    return "plain"


async def _listed(transport: Transport) -> bytes:
    """The server's list of models; nothing where it refuses."""
    call = RowCall(asyncio.get_running_loop().time() + min(transport.timeout, LOOK_UP_SECONDS))
    try:
        return (await transport.once(WireRequest(path="/v1/models", method="GET"), call)).body
    except HttpStatusError:
        return b""
    finally:
        transport.close()
