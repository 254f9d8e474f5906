"""The command line: `pipegen generate`, `pipegen demo`, `pipegen doctor`.

Asking for help loads no torch, transformers, vllm or PIL; each command imports what it needs when it runs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

__all__ = ["main"]


class _Line(logging.Formatter):
    """A log record in one line, without its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return f"pipegen: {record.getMessage()}"


def _log_in_lines() -> None:
    """Show pipegen's log on stderr, unless logging is configured."""
    log = logging.getLogger("pipegen")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(_Line())
        log.addHandler(handler)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with these arguments (those of the process, if None) and exit: 0 all good, 1 something failed, 2 bad usage."""
    from pipegen.cli.app import app
    from pipegen.cli.streams import StreamClosed, standard_streams

    standard_streams()
    _log_in_lines()
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        app(args=given, prog_name="pipegen", obj=given)
    except StreamClosed as closed:
        print(f"Error: {closed}", file=sys.stderr)
        sys.exit(2)
