"""`pg.mcp`: the tools of real MCP servers, over stdio."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import io
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from support.tool_talks import asked, calls, replies

import pipegen as pg
from pipegen.testing.fake import FakeEngine

if importlib.util.find_spec("mcp") is None:
    pytest.skip("the package mcp is not installed here", allow_module_level=True)

import mcp

IS_2 = metadata.version("mcp").startswith("2")
SERVER = """
import asyncio, base64, os, sys
try:
    from mcp.server.mcpserver import Image, MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer, Image
from mcp.types import BlobResourceContents, EmbeddedResource, ResourceLink, TextResourceContents

server = MCPServer("things")
RED = base64.b64decode(sys.argv[1])
meeting = {"here": 0}

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

@server.tool()
def look(name: str) -> list:
    return [f"This is {name}:", Image(data=RED, format="png")]

@server.tool(structured_output=False)
def scan() -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=BlobResourceContents(
        uri="file:///scan.png", mimeType="image/png", blob=sys.argv[1]))

@server.tool(structured_output=False)
def read() -> list:
    text = TextResourceContents(uri="file:///a.txt", mimeType="text/plain", text="in a file")
    link = ResourceLink(type="resource_link", uri="file:///b.txt", name="b")
    return [EmbeddedResource(type="resource", resource=text), link]

@server.tool()
def fail() -> str:
    raise ValueError("no such thing")

@server.tool()
async def meet() -> str:
    meeting["here"] += 1
    while meeting["here"] < 3:
        await asyncio.sleep(0.001)
    return "all are here"

@server.tool()
async def wait() -> str:
    await asyncio.Event().wait()

@server.tool()
def die() -> str:
    os._exit(3)

server.run()
"""


def red() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(file, "PNG")
    return file.getvalue()


@contextlib.asynccontextmanager
async def session_of(folder: Path) -> AsyncIterator[mcp.ClientSession]:
    """A session with a server in a process of its own."""
    import base64

    program = folder / "server.py"
    program.write_text(SERVER, encoding="utf-8")
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=[str(program), base64.b64encode(red()).decode()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    async with (
        mcp.stdio_client(parameters) as (read, write),
        mcp.ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


def in_session(folder: Path, work: Callable[[mcp.ClientSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with session_of(folder) as session:
            await work(session)

    asyncio.run(main())


def agent(tools: Any, *wanted: tuple[str, dict[str, Any]]) -> Any:
    """An agent that makes these calls in one answer, and then says what it was answered."""

    def script(row: Any) -> str:
        answers = replies(row)
        return f"{answers!r}<|im_end|>" if answers else calls(*wanted)

    return pg.turns(pg.route(FakeEngine(script)), tools)


def contents(slot: Any) -> list[Any]:
    """What the tools of a conversation answered."""
    return [one.content for one in slot.unwrap().turn.request.messages if one.role == "tool"]


async def run(pipe: Any, requests: list[Any]) -> list[Any]:
    return [*await pg.arun(pipe, requests)]


async def amap(pipe: Any, requests: list[Any]) -> list[Any]:
    return [slot async for slot in pg.aimap(pipe, requests)]


async def run_in_a_thread(pipe: Any, requests: list[Any]) -> list[Any]:
    return [*await asyncio.to_thread(pg.run, pipe, requests)]


@pytest.mark.parametrize("drive", [run, amap, run_in_a_thread])
def test_a_model_calls_the_tools_of_a_server(drive: Any, tmp_path: Path) -> None:
    async def work(session: mcp.ClientSession) -> None:
        tools = pg.tools(await pg.mcp(session))
        schema = next(one["function"] for one in tools.schemas if one["function"]["name"] == "add")
        assert schema["description"] == "Add two numbers."
        assert set(schema["parameters"]["properties"]) == {"a", "b"}
        pipe = agent(tools, ("add", {"a": 1, "b": 2}), ("add", {"a": "x"}), ("fail", {}))
        slots = await drive(pipe, [asked(number) for number in range(5)])
        for slot in slots:
            added, wrong, failed = contents(slot)
            assert added == "3" and wrong.startswith("error: wrong arguments")
            assert failed.startswith("error: Error executing tool fail")

    in_session(tmp_path, work)


def test_the_texts_of_resources_are_text(tmp_path: Path) -> None:
    async def work(session: mcp.ClientSession) -> None:
        (slot,) = await run(agent(pg.tools(await pg.mcp(session)), ("read", {})), [asked()])
        assert contents(slot) == ["in a file\nfile:///b.txt"]

    in_session(tmp_path, work)


def test_images_are_parts_of_the_answer_and_images_of_the_next_prompt(tmp_path: Path) -> None:
    async def work(session: mcp.ClientSession) -> None:
        tools = pg.tools(await pg.mcp(session))
        (slot,) = await run(agent(tools, ("look", {"name": "it"}), ("scan", {})), [asked()])
        assert len(slot.unwrap().image_digests) == 2 == slot.unwrap().prompt_text.count("image_pad")
        for call, words in ((("look", {"name": "it"}), ["This is it:"]), (("scan", {}), [])):
            (answer,) = await asyncio.to_thread(answers_of, tools, call)
            assert [part["text"] for part in answer if part["type"] == "text"] == words
            assert [part["type"] for part in answer][-1] == "image_url"

    in_session(tmp_path, work)


def answers_of(tools: Any, *wanted: tuple[str, dict[str, Any]]) -> list[Any]:
    return [tools.answer(*call).unwrap() for call in wanted]


def test_calls_of_one_answer_are_in_flight_together(tmp_path: Path) -> None:
    async def work(session: mcp.ClientSession) -> None:
        tools = pg.tools(await pg.mcp(session), parallel=True)
        (slot,) = await run(agent(tools, *[("meet", {})] * 3), [asked()])
        assert contents(slot) == ["all are here"] * 3

    in_session(tmp_path, work)


def test_a_call_that_takes_too_long_is_cancelled_and_the_session_serves_the_next(
    tmp_path: Path,
) -> None:
    async def work(session: mcp.ClientSession) -> None:
        tools = pg.tools(await pg.mcp(session), timeout=0.5)
        (slot,) = await run(agent(tools, ("wait", {}), ("add", {"a": 1, "b": 1})), [asked()])
        late, added = contents(slot)
        assert late.startswith("error: TimeoutError") and added == "2"

    in_session(tmp_path, work)


def test_a_lost_server_fails_the_rows_and_is_no_answer(tmp_path: Path) -> None:
    async def work(session: mcp.ClientSession) -> None:
        tools = pg.tools(await pg.mcp(session), timeout=20)
        for wanted in ("die", {}), ("add", {"a": 1, "b": 1}):
            (slot,) = await run(agent(tools, wanted), [asked()])
            error = slot.failure()
            assert type(error) is pg.BackendFailed and error.scope == "row", error
            assert "the MCP server was lost" in error.message and "pg.mcp" in error.hint

    in_session(tmp_path, work)


def test_each_conversation_may_ask_for_the_tools_itself(tmp_path: Path) -> None:
    async def work(session: mcp.ClientSession) -> None:
        tools = pg.tools(make=lambda request: pg.mcp(session))
        slots = await run(agent(tools, ("add", {"a": 1, "b": 2})), [asked(0), asked(1)])
        assert [contents(slot) for slot in slots] == [["3"], ["3"]]

    in_session(tmp_path, work)


def test_a_caller_that_blocks_the_loop_of_its_session_is_refused(tmp_path: Path) -> None:
    kept: list[Any] = []

    async def work(session: mcp.ClientSession) -> None:
        kept.append(agent(pg.tools(await pg.mcp(session)), ("add", {"a": 1, "b": 2})))
        (slot,) = pg.run(kept[0], [asked()])
        assert type(slot.failure()) is pg.StageFailed
        assert "await pg.arun(...)" in slot.failure().message

    in_session(tmp_path, work)
    (slot,) = pg.run(kept[0], [asked()])
    assert "its event loop has ended" in slot.failure().message


def test_a_group_of_servers_names_their_tools(tmp_path: Path) -> None:
    async def work(session: mcp.ClientSession) -> None:
        group = mcp.ClientSessionGroup(component_name_hook=lambda name, _: f"things_{name}")
        info = mcp.types.Implementation(name="things", version="1")
        await group.connect_with_session(info, session)
        tools = pg.tools(await pg.mcp(group))
        (slot,) = await run(agent(tools, ("things_add", {"a": 1, "b": 2})), [asked()])
        assert contents(slot) == ["3"]

    in_session(tmp_path, work)


@pytest.mark.skipif(not IS_2, reason="mcp 1 has no Client")
def test_a_client_and_all_pages_of_its_tools() -> None:
    from mcp.server import Server

    async def list_tools(context: Any, params: Any) -> Any:
        number = int(params.cursor or 0) if params is not None else 0
        tool = mcp.Tool(name=f"tool{number}", input_schema={"type": "object"})
        return mcp.ListToolsResult(
            tools=[tool], next_cursor=str(number + 1) if number < 2 else None
        )

    async def call_tool(context: Any, params: Any) -> Any:
        text = mcp.types.TextContent(type="text", text=f"{params.name} was called")
        return mcp.types.CallToolResult(content=[text])

    async def main() -> None:
        server: Any = Server("pages", on_list_tools=list_tools, on_call_tool=call_tool)
        async with mcp.Client(server) as client:
            tools = await pg.mcp(client)
            assert [tool.name for tool in tools] == ["tool0", "tool1", "tool2"]
            (slot,) = await run(agent(pg.tools(tools), ("tool2", {})), [asked()])
            assert contents(slot) == ["tool2 was called"]

    asyncio.run(main())


@pytest.mark.parametrize("wrong", ["http://localhost/mcp", None])
def test_what_is_no_session_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="mcp takes a Client, ClientSession"):
        asyncio.run(pg.mcp(wrong))
