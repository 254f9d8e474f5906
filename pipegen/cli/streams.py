"""The standard streams, which the caller of the process may have closed (`>&-`, `<&-`)."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, NoReturn

__all__ = ["StreamClosed", "standard_streams"]


class StreamClosed(BaseException):
    """A closed standard stream was used. Not an `Exception`: code that probes streams must not catch it."""


class _Closed(io.TextIOBase):
    """Replaces a closed stream, for which Python has None; any use raises `StreamClosed`."""

    def __init__(self, name: str, advice: str) -> None:
        self._words = f"{name} is closed: {advice}"

    def _refuse(self, *_: Any) -> NoReturn:
        raise StreamClosed(self._words)

    read = readline = write = isatty = fileno = __iter__ = __next__ = _refuse

    @property
    def buffer(self) -> NoReturn:
        self._refuse()


def standard_streams() -> None:
    """Make any use of a closed stream an error with a message, and keep its number from being used for another file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = _Closed("stdin", "give a file, or something to read from")
    if sys.stdout is None:
        sys.stdout = _Closed("stdout", "give -o FILE, or let it go to a file, a pipe or a terminal")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open until the process ends
