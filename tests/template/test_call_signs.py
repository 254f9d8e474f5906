"""What an answer that looks like a tool call says of itself where no call was read."""

from __future__ import annotations

import pytest

from pipegen.template.call_signs import unread_by_server

TOOLS = [{"type": "function", "function": {"name": "add"}}]
CALL = '{"name": "add", "arguments": {}}'
CUT = "max_new_tokens=4 ended it"


@pytest.mark.parametrize(
    ("text", "tools", "cut", "beginning"),
    [
        (CALL, TOOLS, "", "the server gave the call as text"),
        (CALL, TOOLS, CUT, f"the answer was cut within a tool call: {CUT}"),
    ],
)
def test_a_call_that_a_server_gave_as_text_says_why(
    text: str, tools: list[object], cut: str, beginning: str
) -> None:
    assert (unread_by_server(text, tools, cut) or "").startswith(beginning)


@pytest.mark.parametrize(("text", "tools"), [("I could add them.", TOOLS), (CALL, [])])
def test_a_text_without_a_call_and_one_without_tools_are_texts(
    text: str, tools: list[object]
) -> None:
    assert unread_by_server(text, tools, "") is None
