"""Server-sent events: the `data:` of each event, from bytes that come in any pieces.

>>> events = Events()
>>> events.feed(b'data: {"a"'), events.feed(b': 1}\\r\\n\\r\\n: a comment\\n\\nda'), events.feed(b"ta: [DONE]\\n\\n"), events.done
([], [b'{"a": 1}'], [], True)
"""

from __future__ import annotations

from pipegen.backends.http.bounds import BASE
from pipegen.backends.http.client import TooLong

__all__ = ["Events"]

LINE = 64
"""Bytes that a line of an event takes beside its own."""


class Events:
    """A parser of one stream, whose events have at most `most` bytes each. `done` says that the server has closed it with `[DONE]`."""

    def __init__(self, most: int = BASE) -> None:
        self.done = False
        self._most = most
        self._line = bytearray()
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that are whole with this piece. Raises `TooLong` for one that is too long."""
        out: list[bytes] = []
        start = 0
        while not self.done and (end := piece.find(b"\n", start)) >= 0:
            self._line += piece[start:end]
            line, self._line, start = bytes(self._line).rstrip(b"\r"), bytearray(), end + 1
            if line.startswith(b"data:"):
                self._data.append(line[5:].lstrip(b" "))
                self._hold(len(line) + LINE)
            elif not line and self._data:
                data, self._data, self._held = b"\n".join(self._data), [], 0
                self.done = data == b"[DONE]"
                if not self.done:
                    out.append(data)
        if not self.done:
            self._line += piece[start:]
            self._hold(0)
        return out

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held + len(self._line) > self._most:
            raise TooLong(f"an event of more than {self._most} bytes")
