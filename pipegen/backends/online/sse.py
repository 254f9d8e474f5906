"""Server-sent events: the `data:` of each event, from bytes that come in any pieces.

>>> events = Events()
>>> events.feed(b'data: {"a"'), events.feed(b': 1}\\r\\n\\r\\n: a comment\\n\\nda'), events.feed(b"ta: [DONE]\\n\\n"), events.done
([], [b'{"a": 1}'], [], True)
"""

from __future__ import annotations

__all__ = ["Events"]

MAX_EVENT = 2**26
"""The longest event that is read, in bytes."""


class Events:
    """A parser of one stream. `done` says that the server has closed it with `[DONE]`."""

    def __init__(self) -> None:
        self.done = False
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that are whole with this piece. Raises `ValueError` for one that is too long."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MAX_EVENT:
            raise ValueError(f"an event of more than {MAX_EVENT} bytes")
        out: list[bytes] = []
        for line in (line.rstrip(b"\r") for line in lines):
            if line.startswith(b"data:"):
                self._data.append(line[5:].lstrip(b" "))
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                if data == b"[DONE]":
                    self.done = True
                elif not self.done:
                    out.append(data)
        return out
