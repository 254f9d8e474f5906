"""The standard streams of the process, which its caller may have closed (`>&-`, `<&-`)."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, NoReturn

__all__ = ["StreamClosed", "standard_streams"]


class StreamClosed(BaseException):
    """A standard stream was used that is closed. No `Exception`: whoever tries streams out for what they can do must not take it for an answer."""


class _Closed(io.TextIOBase):
    """Stands for a closed stream: whoever wants to read or write learns of it, where Python itself has None."""

    def __init__(self, name: str, advice: str) -> None:
        self._words = f"{name} is closed: {advice}"

    def _refuse(self, *_: Any) -> NoReturn:
        raise StreamClosed(self._words)

    read = readline = write = isatty = fileno = __iter__ = __next__ = _refuse  # type: ignore[assignment]

    @property
    def buffer(self) -> NoReturn:
        """Its bytes, which nobody can read or write."""
        self._refuse()


def standard_streams() -> None:
    """Make sure that using a closed stream is an error with a message, and that no file takes its number: what is printed would go into that file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stdin is None:
        sys.stdin = _Closed("stdin", "give a file, or something to read from")
    if sys.stdout is None:
        sys.stdout = _Closed("stdout", "give -o FILE, or let it go to a file, a pipe or a terminal")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for as long as the process lives
