"""Tools of MCP servers, for `pg.tools`. Pipegen imports nothing of the package `mcp`: who has a
session has it imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from returns.result import Failure

from pipegen.core.errors import BackendFailed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["McpTool", "mcp"]

_CLOSED = -32000
"""The code of the package `mcp` for a connection that has ended."""


@dataclass(frozen=True, eq=False)
class McpTool:
    """A tool of a session. It is called on the event loop that the session belongs to."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    session: Any
    loop: AbstractEventLoop

    async def __call__(self, /, **arguments: Any) -> Any:
        """What the server gives, or `BackendFailed` where there is no connection to it."""
        from anyio import BrokenResourceError, ClosedResourceError

        try:
            return await self.session.call_tool(self.name, arguments)
        except (BrokenResourceError, ClosedResourceError) as error:
            words = type(error).__name__
        except _kinds("MCPError", "McpError") as error:
            if error.error.code != _CLOSED:
                raise
            words = error.error.message
        return Failure(
            BackendFailed(
                f"the MCP server was lost while the tool {self.name!r} was called: {words}",
                backend="mcp",
                scope="row",
                hint="connect again, and make the tools anew with await pg.mcp(session)",
            )
        )


async def mcp(session: Any) -> list[McpTool]:
    """The tools of an MCP server, for `pg.tools`.

    session: a `Client` or a `ClientSessionGroup` of the package `mcp` that is entered, or a
        `ClientSession` that is initialized.

    The tools are those that the server lists now. Each call runs on the event loop that runs here.
    So that loop has to run while conversations do: use `pg.arun` or `pg.aimap`, or put a job into a
    thread with `asyncio.to_thread`. Where the server is lost, a row fails with `BackendFailed`.

    Raises `TypeError` for what is no session, and what the session raises.

    >>> import asyncio
    >>> asyncio.run(mcp("http://localhost/mcp"))
    Traceback (most recent call last):
    ...
    TypeError: mcp takes a Client, ClientSession or ClientSessionGroup of the package mcp, not 'http://localhost/mcp'
    """
    if isinstance(session, _kinds("ClientSessionGroup")):
        listed = [*session.tools.items()]
    elif isinstance(session, _kinds("Client")):
        listed = await _listed(session.session)
    elif isinstance(session, _kinds("ClientSession")):
        listed = await _listed(session)
    else:
        raise TypeError(
            "mcp takes a Client, ClientSession or ClientSessionGroup of the package mcp, not"
            f" {session!r:.80}"
        )
    from asyncio import get_running_loop  # half of what `import pipegen` would cost

    loop = get_running_loop()
    return [
        McpTool(
            name,
            tool.description or "",
            _either(tool, "input_schema", "inputSchema"),
            session,
            loop,
        )
        for name, tool in listed
    ]


def _kinds(*names: str) -> Any:
    """Those classes of the package, where it is imported: mcp 1 has no `Client`, and names its
    error otherwise than mcp 2.
    """
    package = sys.modules.get("mcp")
    return tuple(getattr(package, name) for name in names if hasattr(package, name))


async def _listed(session: Any) -> list[tuple[str, Any]]:
    """The names and tools of all pages."""
    package: Any = sys.modules["mcp"]
    tools: list[Any] = []
    page = await session.list_tools()
    while True:
        tools += page.tools
        cursor = _either(page, "next_cursor", "nextCursor")
        if not cursor:
            return [(tool.name, tool) for tool in tools]
        page = await session.list_tools(params=package.types.PaginatedRequestParams(cursor=cursor))


def _either(record: object, *names: str) -> Any:
    """A field by its name in mcp 2 or in mcp 1."""
    return next(getattr(record, name) for name in names if hasattr(record, name))
