"""What every HTTP server of the tests has: it listens on loopback while its block runs, reads JSON,
and sends JSON.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["JsonHandler", "Loopback"]

EVENTS = {"Content-Type": "text/event-stream"}


class JsonHandler(BaseHTTPRequestHandler):
    """Subclasses answer in `do_GET` and `do_POST`."""

    server: Any
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def body(self) -> Any:
        """The request's body."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def send(self, value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        """Answer with plain data as JSON without spaces, as servers write it, or with bytes as they
        are.
        """
        data, kind = value, dict[str, str]()
        if not isinstance(value, bytes):
            data = json.dumps(value, separators=(",", ":")).encode()
            kind = {"Content-Type": "application/json"}
        self.send_response(status)
        for name, header in {**kind, **headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, header)
        self.end_headers()
        self.wfile.write(data)

    def send_events(self, *events: Any, done: bool = True) -> None:
        """Answer with a stream of these."""
        self.send(stream_of(*events, done=done), headers=EVENTS)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def stream_of(*events: Any, done: bool = True) -> bytes:
    """The body of a stream of these events: plain data, or lines as they are."""
    lines = [
        event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n"
        for event in events
    ]
    return b"".join([*lines, b"data: [DONE]\n\n" if done else b""])


class Loopback(ThreadingHTTPServer):
    """A server at `url`, from when it is made until its block ends. `state` becomes attributes,
    which handlers see.
    """

    daemon_threads = True
    request_queue_size = 512
    url: str

    def __init__(self, handler: type[JsonHandler], **state: Any) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.__dict__ |= {"url": f"http://127.0.0.1:{self.server_port}", **state}
        threading.Thread(target=lambda: self.serve_forever(0.01), daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no news."""
