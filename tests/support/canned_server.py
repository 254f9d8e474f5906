"""A server on loopback that gives the answers it was handed, one after the other and the last one
again, whatever it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

from support.loopback import EVENTS, JsonHandler, Loopback, stream_of

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
    return Canned(stream_of(*pieces, done=done), headers=EVENTS)


class CannedServer(Loopback):
    """The server. `bodies` are the requests as they came.

    `models` is what its `/v1/models` answers, and `looks` how often that was asked.
    """

    def __init__(self, *answers: Canned) -> None:
        super().__init__(_Handler)
        self.answers: Sequence[Canned] = answers
        self.bodies: list[Any] = []
        self.models: Any = None
        self.looks = 0
        self.lock = Lock()

    def answer(self, body: Any) -> Canned:
        """What is answered to this request."""
        with self.lock:
            self.bodies.append(body)
            return self.answers[min(len(self.bodies), len(self.answers)) - 1]


class _Handler(JsonHandler):
    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.server.models is not None:
            self.server.looks += 1
            self.send(self.server.models)
        else:
            self.send({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        answer = self.server.answer(self.body())
        if answer.status:
            self.send(answer.body, answer.status, answer.headers)
        else:
            self.close_connection = True
            self.connection.close()
