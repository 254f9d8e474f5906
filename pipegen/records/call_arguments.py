"""The arguments of tool calls in messages: mappings for chat templates, JSON text for chat servers.

Callers write either form. A template writes a mapping as its model was trained to read it, and text
as a string with quotes. The wire of chat servers has text.

>>> messages = [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"a": 1}'}}]}]
>>> read = arguments_read(messages)
>>> read[0]["tool_calls"][0]["function"]["arguments"]
{'a': 1}
>>> arguments_written(read) == messages
True
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipegen.records import strict_json

Message = dict[str, Any]
Messages = Sequence[Message]


def arguments_read(messages: Messages) -> list[Message]:
    """The plain messages with arguments as mappings. Text that is no JSON object stays text, and
    null is no arguments.
    """
    return _changed(messages, _read)


def arguments_written(messages: Messages) -> list[Message]:
    """The plain messages with arguments as JSON text. Raises `ValueError` or `TypeError` for what
    JSON has no form for.
    """
    return _changed(messages, _written)


def unread_arguments(messages: Messages) -> str | None:
    """The place of the first arguments that are text, after `arguments_read`."""
    for row, message in enumerate(messages):
        for path, call in _calls_of(message) if message["role"] == "assistant" else ():
            if isinstance(call["arguments"], str):
                return f"messages[{row}].{path}.arguments"
    return None


def without_unread(messages: Messages) -> list[Message]:
    """The messages with no arguments in the place of those that are text."""
    return _changed(messages, lambda value: {} if isinstance(value, str) else value)


def _read(value: object) -> object:
    return {} if value is None else strict_json.loaded(value, dict)


def _written(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps({} if value is None else value, ensure_ascii=False, allow_nan=False)


def _changed(messages: Messages, change: Callable[[object], object]) -> list[Message]:
    return [
        _with_arguments(message, change) if message["role"] == "assistant" else message
        for message in messages
    ]


def _with_arguments(message: Message, change: Callable[[object], object]) -> Message:
    if not any(_calls_of(message)):
        return message

    def changed(call: object) -> object:
        if not isinstance(call, dict):
            return call
        call = {**call, "arguments": change(call["arguments"])} if "arguments" in call else call
        return {**call, "function": changed(call["function"])} if "function" in call else call

    calls = message.get("tool_calls")
    message = (
        {**message, "tool_calls": [*map(changed, calls)]} if isinstance(calls, list) else message
    )
    legacy = message.get("function_call")
    return message if legacy is None else {**message, "function_call": changed(legacy)}


def _calls_of(message: Message) -> Iterator[tuple[str, Message]]:
    """What has arguments in an assistant's message, with its place."""
    calls = message.get("tool_calls")
    places = [
        (f"tool_calls[{n}]", call)
        for n, call in enumerate(calls if isinstance(calls, list) else ())
    ]
    for path, call in (*places, ("function_call", message.get("function_call"))):
        if not isinstance(call, dict):
            continue
        if "arguments" in call:
            yield path, call
        function = call.get("function")
        if isinstance(function, dict) and "arguments" in function:
            yield f"{path}.function", function
