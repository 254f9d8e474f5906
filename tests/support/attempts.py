"""Attempts at a row of a chat server, with what a test puts in the place of the HTTP client."""

from __future__ import annotations

from typing import Any

import pytest

from pipegen.backends.http.access import access_to
from pipegen.backends.servers.wire import Completion
from pipegen.engines.settings import ServerSettings
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve

__all__ = ["Row", "sender_to"]


async def sender_to(server: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    from pipegen.backends.http import transport
    from pipegen.backends.servers.openai import DIALECTS
    from pipegen.backends.servers.sending import Sender
    from pipegen.backends.servers.wire import Facts

    monkeypatch.setattr(transport, "Client", lambda limit, headers: server)
    made = Sender(
        DIALECTS["plain"],
        access_to("http://h", default="", variable="NO_SUCH_KEY"),
        ServerSettings(**settings),
        "m",
    )

    async def facts() -> Facts:
        return Facts()

    monkeypatch.setattr(made.directory, "facts", facts)
    return made


class Row:
    """A row that is asked for whole."""

    heavy = False

    def ask(self, facts: Any) -> Any:
        from returns.result import Success

        from pipegen.backends.servers.wire import ServerRequest

        return Success(
            ServerRequest(
                messages=({"role": "user", "content": "Hi"},), options=resolve(GenerationOptions())
            )
        )

    def read(self, completions: tuple[Completion, ...]) -> Any:
        from returns.result import Success

        return Success(completions)
