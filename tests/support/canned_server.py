"""A server on loopback that gives the answers it was handed, one after the other and the last one
again, whatever it is asked.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

__all__ = ["Canned", "CannedServer", "events"]


class Canned(NamedTuple):
    """An answer: plain data is sent as JSON, bytes as they are. A status of 0 resets the
    connection.
    """

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = {}


def events(*pieces: Any, done: bool = True) -> Canned:
    """A stream of these events: plain data, or lines as they are."""
    lines = [
        piece if isinstance(piece, bytes) else b"data: " + json.dumps(piece).encode() + b"\n\n"
        for piece in pieces
    ]
    tail = b"data: [DONE]\n\n" if done else b""
    return Canned(b"".join(lines) + tail, headers={"Content-Type": "text/event-stream"})


class CannedServer(ThreadingHTTPServer):
    """The server. `bodies` are the requests as they came; `most` is how many were there at once.

    `models` is what its `/v1/models` answers, and `looks` how often that was asked.
    """

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, *answers: Canned) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answers: Sequence[Canned] = answers
        self.bodies: list[Any] = []
        self.models: Any = None
        self.looks = 0
        self.lock = threading.Lock()
        threading.Thread(target=lambda: self.serve_forever(0.01), daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no news."""

    def answer(self, body: Any) -> Canned:
        """What is answered to this request."""
        with self.lock:
            self.bodies.append(body)
            return self.answers[min(len(self.bodies), len(self.answers)) - 1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CannedServer

    def log_message(self, *words: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.server.models is not None:
            self.server.looks += 1
            self._send(Canned(self.server.models))
        else:
            self._send(Canned({"detail": "Not Found"}, status=404))

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        answer = self.server.answer(json.loads(self.rfile.read(length)))
        if answer.status:
            self._send(answer)
        else:
            self.close_connection = True
            self.connection.close()

    def _send(self, answer: Canned) -> None:
        body = answer.body
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
