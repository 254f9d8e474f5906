"""The command line: `pipegen generate`, `pipegen demo`, `pipegen doctor`.

Asking for help loads no torch, transformers, vllm or PIL; each command imports what it needs when
it runs.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

__all__ = ["main"]


class _LineFormatter(logging.Formatter):
    """A log record in one line, without its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return f"pipegen: {record.getMessage()}"


def log_in_lines(*, incidents: bool = True) -> None:
    """Show pipegen's log on stderr, unless logging is configured; without `incidents`, no records
    that have a traceback.
    """
    log = logging.getLogger("pipegen")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(_LineFormatter())
        handler.addFilter(lambda record: incidents or not record.exc_info)
        log.addHandler(handler)


class StreamClosed(BaseException):
    """A closed standard stream was used. Not an `Exception`: code that probes streams must not
    catch it.
    """


class _Closed(io.TextIOBase):
    """Replaces a closed stream, for which Python has None; any use raises `StreamClosed`."""

    def __init__(self, name: str, advice: str) -> None:
        self._words = f"{name} is closed: {advice}"

    def _refuse(self, *_: object) -> NoReturn:
        raise StreamClosed(self._words)

    read = readline = write = isatty = fileno = __iter__ = __next__ = _refuse

    @property
    def buffer(self) -> NoReturn:
        self._refuse()


STDOUT = "stdout"
"""The file of an `OSError` of stdout: by itself it would name none."""


class _Stdout(io.FileIO):
    """stdout, whose errors name it."""

    def write(self, data: Any, /) -> int:
        try:
            return os.write(self.fileno(), data)
        except BrokenPipeError:
            raise
        except OSError as refusal:
            raise OSError(refusal.errno, refusal.strerror, STDOUT) from None


def _is_plain(stream: object) -> bool:
    """Whether this is the stream that Python opened for stdout, and none that a test put there."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # without buffering there is one thing only
    return type(raw) is io.FileIO and raw.fileno() == 1


def standard_streams() -> None:
    """Make any use of a closed stream an error with a message, and keep its number from being used
    for another file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = _Closed("stdin", "give a file, or something to read from")
    if sys.stdout is None:
        sys.stdout = _Closed("stdout", "give -o FILE, or let it go to a file, a pipe or a terminal")
    elif _is_plain(sys.stdout) and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Stdout(1, "w", closefd=False)),
            encoding=sys.stdout.encoding,
            errors=sys.stdout.errors,
            line_buffering=sys.stdout.line_buffering or sys.stdout.write_through,
        )
    if sys.stderr is None:
        # open until the process ends
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


@functools.cache
def _command() -> Any:
    """The commands and their flags as typer makes them of `app`: once, for many calls of `main`."""
    from typer.main import get_command

    from pipegen.cli.app import app

    return get_command(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with these arguments (those of the process, if None) and exit: 0 all
    good, 1 something failed, 2 bad usage.
    """
    standard_streams()
    log_in_lines()
    try:
        argv = sys.argv[1:] if arguments is None else list(arguments)
        try:
            _command()(args=argv, prog_name="pipegen", obj=argv)
        finally:
            sys.stdout.flush()
    except StreamClosed as closed:
        print(f"Error: {closed}", file=sys.stderr)
        sys.exit(2)
    except OSError as refusal:
        if refusal.filename != STDOUT and not isinstance(refusal, BrokenPipeError):
            raise
        # what is left cannot be written at the exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(refusal, BrokenPipeError):  # its reader has gone, which is no news
            sys.exit(141)
        print(f"Error: {STDOUT} cannot be written: {refusal.strerror}", file=sys.stderr)
        sys.exit(1)
