"""A server on the loopback that answers every request after a fixed time: `python stub_server.py
SECONDS`; its port is the first line that it prints.

It costs as little as a server can: a protocol on bare sockets that reads the length, waits, and
writes an answer made beforehand.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

TOKENS = list(range(300, 332))
_LOGPROBS: dict[str, Any] = {
    "content": [
        {
            "token": f"token_id:{token}",
            "token_id": token,
            "logprob": -0.5,
            "bytes": None,
            "top_logprobs": [],
        }
        for token in TOKENS
    ]
}
# of answers to token ids it is left out: prompts have different lengths, and pipegen counts them
_USAGE = {"prompt_tokens": 100, "completion_tokens": len(TOKENS), "total_tokens": 132}
_CHAT = {
    "index": 0,
    "message": {"role": "assistant", "content": "sun moon star lake " * 16},
    "finish_reason": "stop",
    "logprobs": None,
}
_IDS = {"index": 0, "token_ids": TOKENS, "finish_reason": "length"}
ANSWERS = {
    "/v1/models": {
        "object": "list",
        "data": [
            {
                "id": "stub",
                "object": "model",
                "created": 1,
                "owned_by": "stub",
                "max_model_len": 8192,
            }
        ],
    },
    "/version": {"version": "0.32.0"},
    "/v1/chat/completions": {
        "id": "chat-1",
        "object": "chat.completion",
        "created": 1,
        "model": "stub",
        "choices": [_CHAT],
        "usage": _USAGE,
    },
    "/inference/v1/generate": {"request_id": "1", "choices": [_IDS]},
    "/logprobs/inference/v1/generate": {
        "request_id": "1",
        "choices": [{**_IDS, "logprobs": _LOGPROBS}],
    },
}


def _answer(body: object, status: str = "200 OK") -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status.encode(),
        len(data),
        data,
    )


READY = {path.encode(): _answer(body) for path, body in ANSWERS.items()}
MISSING = _answer({"error": {"message": "not here"}}, "404 Not Found")


class Stub(asyncio.Protocol):
    """One connection, one request after the other."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.held = seconds, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.held += data
        while (end := self.held.find(b"\r\n\r\n")) >= 0:
            head = self.held[:end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.held) < end + 4 + length:
                return
            self.held = self.held[end + 4 + length :]
            path = head.split(b" ", 2)[1]
            wait = self.seconds if path not in (b"/v1/models", b"/version") else 0.0
            asyncio.get_running_loop().call_later(wait, self._write, READY.get(path, MISSING))

    def _write(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)


async def main() -> None:
    seconds = float(sys.argv[1])
    server = await asyncio.get_running_loop().create_server(
        lambda: Stub(seconds), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
