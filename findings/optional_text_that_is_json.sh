#!/usr/bin/env bash
# An MCP server of the Python SDK reads texts as JSON where a parameter is `str | None`.
# A tool with `text: str` gets each text as it was sent. With `text: str | None = None` the SDK first
# parses the text as JSON, since some clients send lists and objects as texts. It keeps the text only
# where that is a text or a number. So the text "null" becomes None with no error, and a text that
# is a JSON object or list, as the content of a file may be, is refused: "Input should be a valid
# string". The schema that the client sees says that a string is right. mcp 1.30.0 does the same.
# mcp 2.3.0 and 1.30.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
cat >"$folder/server.py" <<'PYTHON'
try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("notes")


@server.tool()
def plain(text: str) -> str:
    return repr(text)


@server.tool()
def optional(text: str | None = None) -> str:
    return repr(text)


server.run()
PYTHON
cat >"$folder/client.py" <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

from mcp import ClientSession, StdioServerParameters, stdio_client


async def main():
    print(f"mcp {version('mcp')}")
    server = StdioServerParameters(command=sys.executable, args=[sys.argv[1]])
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        shown = {}
        for tool in ("plain", "optional"):
            for text in ("null", '{"a": 1}', "[1]", "12", "words"):
                result = await session.call_tool(tool, {"text": text})
                shown[tool, text] = result.content[0].text
                print(f"  {tool}({text!r}): {shown[tool, text].splitlines()[0]}")
    as_sent = all(shown["plain", text] == repr(text) for _, text in shown)
    refused = all("Input should be a valid string" in shown["optional", text] for text in ('{"a": 1}', "[1]"))
    kept = all(shown["optional", text] == repr(text) for text in ("12", "words"))
    sys.exit(not (as_sent and kept and refused and shown["optional", "null"] == "None"))


asyncio.run(main())
PYTHON

"$python" -m pip install --quiet mcp==2.3.0
"$python" "$folder/client.py" "$folder/server.py"
"$python" -m pip install --quiet mcp==1.30.0
"$python" "$folder/client.py" "$folder/server.py"
echo "A JSON text is None or refused where the parameter is optional, and is kept where it is not."
