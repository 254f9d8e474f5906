"""Nulls in the tools and calls of a row that can only be those of a table.

A struct of a table has the keys of all its rows, with null where a row has none. Libraries give
such rows to Python as plain dicts, which do not say who made a null. Two kinds are sure: a schema
has no property that is null, and a call no argument that its tool does not know and that is null.

>>> tool = {"function": {"name": "look", "parameters": {"properties": {"a": {}, "b": None}}}}
>>> call = {"function": {"name": "look", "arguments": {"a": None, "b": None}}}
>>> fields = {"tools": [tool], "messages": [{"role": "assistant", "tool_calls": [call]}]}
>>> clean = without_table_nulls(fields)
>>> clean["tools"][0]["function"]["parameters"]
{'properties': {'a': {}}}
>>> clean["messages"][0]["tool_calls"][0]["function"]["arguments"]
{'a': None}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.records.frozen import freeze


def without_table_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request without such nulls. One property that is null shows that the tools
    are of a table; then all entries of theirs that are null go.
    """
    tools = fields.get("tools")
    if not isinstance(tools, (list, tuple)) or not tools:
        return fields
    try:
        tools = freeze(tools)  # which bounds their depth and size
    except ValueError:  # the record says what is wrong
        return fields
    if any(map(_has_null_property, tools)):
        tools = tuple(map(_dense, tools))
        fields = {**fields, "tools": tools}
    properties = {
        function.get("name"): _mapping(_mapping(function.get("parameters")).get("properties"))
        for function in (_mapping(_mapping(tool).get("function", tool)) for tool in tools)
    }
    messages = fields.get("messages")
    if isinstance(messages, (list, tuple)):
        fields = {**fields, "messages": [_of_message(turn, properties) for turn in messages]}
    return fields


def _has_null_property(value: object) -> bool:
    if isinstance(value, Mapping):
        properties = value.get("properties")
        if isinstance(properties, Mapping) and None in properties.values():
            return True
        return any(map(_has_null_property, value.values()))
    return isinstance(value, tuple) and any(map(_has_null_property, value))


def _dense(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _dense(entry) for name, entry in value.items() if entry is not None}
    return tuple(map(_dense, value)) if isinstance(value, tuple) else value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _of_message(message: Any, properties: Mapping[Any, Mapping[str, object]]) -> Any:
    calls = _mapping(message).get("tool_calls")
    if not isinstance(calls, (list, tuple)):
        return message
    return {**message, "tool_calls": [_of_call(call, properties) for call in calls]}


def _of_call(call: Any, properties: Mapping[Any, Mapping[str, object]]) -> Any:
    function = _mapping(call).get("function")
    arguments = _mapping(_mapping(function).get("arguments"))
    known = properties.get(_mapping(function).get("name"))
    if not known or not arguments:
        return call
    own = {name: entry for name, entry in arguments.items() if entry is not None or name in known}
    return {**call, "function": {**_mapping(function), "arguments": own}}
