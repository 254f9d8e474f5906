"""Probes of chat templates: short conversations whose words stand for others, and the texts that a
template writes between them.

>>> text = "Hello there [zqname] zqid."
>>> between(text, "zqname", "zqid"), between(text, "zqid", "zqname")
(('Hello there [', '] ', '.'), None)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A message, a call or a tool as plain data."""
USER: JsonObject = {"role": "user", "content": "Hello there"}


def numbered_id(index: int) -> str:
    """The id of a call that has none. Some templates take nine letters and digits only."""
    return f"call{index:05d}"


FIRST_ID = numbered_id(0)


def between(text: str, *holes: str) -> tuple[str, ...] | None:
    """The texts before, between and behind the holes; None where these are not in the text, one
    after the other.
    """
    texts: list[str] = []
    for hole in holes:
        before, found, text = text.partition(hole)
        if not found:
            return None
        texts.append(before)
    return (*texts, text)


def assistant(content: str | None, *calls: Mapping[str, Any]) -> JsonObject:
    """A message of the assistant."""
    message: JsonObject = {"role": "assistant", "content": content}
    return {**message, "tool_calls": [*calls]} if calls else message


def call(name: str, arguments: object, call_id: str = FIRST_ID) -> JsonObject:
    """A tool call."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def result(name: str, content: object) -> JsonObject:
    """The result of a call with the first id."""
    return {"role": "tool", "content": content, "name": name, "tool_call_id": FIRST_ID}


def tool(name: str, *keys: str) -> JsonObject:
    """A tool that takes strings of these names; each is described by its name."""
    properties = {key: {"type": "string", "description": key} for key in keys}
    parameters = {"type": "object", "properties": properties, "required": []}
    function = {"name": name, "description": name, "parameters": parameters}
    return {"type": "function", "function": function}
