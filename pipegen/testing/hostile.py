"""What a server may do besides failing: never end, never answer, send too much, or answers of
another form. `FaultyServer(kinds=HOSTILE)` does it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

COMPLETE = ("open", "torn")
"""A whole answer on a connection that stays open, or breaks before its end."""
ENDLESS = ("keepalive", "flood", "event")
"""Keep-alives without an answer; endless tokens; an endless body or event."""
SHAPES: Mapping[str, Callable[[Any], object]] = {
    "deep": lambda answer: {**answer, "choices": _deep(900), "meta_info": _deep(900)},
    "many": lambda answer: (
        {**answer, "choices": answer["choices"] * 2_000}
        if "choices" in answer
        else [answer] * 2_000
    ),
    "numbers": lambda answer: {
        **answer,
        "choices": [{"index": 10**30}],
        "meta_info": {"completion_tokens": -(10**30), "finish_reason": 10**400},
    },
    "types": lambda answer: {
        **answer,
        "choices": {"0": answer.get("choices")},
        "output_ids": "12",
        "meta_info": [answer.get("meta_info")],
    },
    "nothing": lambda answer: {},
    "call": lambda answer: _with_call(answer, {"id": 7, "type": "function", "function": "look_up"}),
    "nested_call": lambda answer: _with_call(
        answer, {"function": {"name": "look_up", "arguments": "{}", "more": _deep(900)}}
    ),
}
"""Answers of a form that the protocol does not have, made from right ones."""
HOSTILE = (*COMPLETE, *ENDLESS, *SHAPES, "patience")
"""All of them; `patience` is a 429 that asks to wait for thirty years."""
PAUSE = 0.01


def _deep(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


def _with_call(answer: Any, call: object) -> object:
    """With a tool call, if the answer may have one; else as in `types`."""
    choices = answer.get("choices")
    holder = next((name for name in ("message", "delta") if choices and name in choices[0]), None)
    if holder is None:
        return SHAPES["types"](answer)
    return {
        **answer,
        "choices": [
            {
                **choices[0],
                holder: {
                    **choices[0][holder],
                    "tool_calls": [call, {"function": {"name": "x"}, "index": 0}],
                },
            }
        ],
    }


async def respond(
    fault: str,
    events: Sequence[object],
    whole: object,
    writer: asyncio.StreamWriter,
    *,
    stream: bool,
) -> None:
    """Answer in that way; `events` and `whole` are the right stream and answer. The connection ends
    with it.
    """
    if fault == "patience":
        writer.write(
            b"HTTP/1.1 429 Later\r\nRetry-After: 1e9\r\nContent-Length: 2\r\nConnection:"
            b" close\r\n\r\n{}"
        )
        return
    kind = b"text/event-stream" if stream else b"application/json\r\nTransfer-Encoding: chunked"
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: " + kind + b"\r\n\r\n")

    async def send(data: bytes) -> None:
        writer.write(data if stream else b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()

    right = (
        [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
        if stream
        else [json.dumps(whole).encode()]
    )
    if fault in SHAPES:
        answers = (
            [SHAPES[fault](event) for event in events]
            if stream
            else [SHAPES[fault](whole if isinstance(whole, dict) else {})]
        )
        for answer in answers:
            await send(b"data: " + _json(answer) + b"\n\n" if stream else _json(answer))
        await send(b"data: [DONE]\n\n" if stream else b" ")
        writer.write(b"" if stream else b"0\r\n\r\n")
        return
    if fault in COMPLETE:
        for data in right:
            await send(data)
        while fault == "open":
            await send(b": here I am\n\n" if stream else b" ")
            await asyncio.sleep(PAUSE)
        return
    if fault == "event" and stream:
        await send(b"data: ")
    while True:
        if fault == "keepalive":
            await send(b": here I am\n\n" if stream else b" ")
            await asyncio.sleep(PAUSE)
        else:
            await send(right[0] * 100 if fault == "flood" and stream else b"x" * 2**16)


def _json(answer: object) -> bytes:
    """JSON of an answer of any depth, which the standard library does not write."""
    levels = 0
    while isinstance(answer, list) and len(answer) == 1:
        answer, levels = answer[0], levels + 1  # as `_deep` makes them
    if isinstance(answer, dict):
        data = (
            b"{"
            + b",".join(
                json.dumps(name).encode() + b":" + _json(value) for name, value in answer.items()
            )
            + b"}"
        )
    elif isinstance(answer, list):
        data = b"[" + b",".join(map(_json, answer)) + b"]"
    else:
        data = json.dumps(answer).encode()
    return b"[" * levels + data + b"]" * levels
