"""The command line: `pipegen generate`, `pipegen demo`, `pipegen doctor`.

Asking for help loads no torch, transformers, vllm or PIL; each command imports what it needs when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with these arguments (those of the process, if None) and exit: 0 all good, 1 something failed, 2 bad usage."""
    from pipegen.cli.app import app
    from pipegen.cli.streams import StreamClosed, standard_streams

    standard_streams()
    try:
        app(args=None if arguments is None else list(arguments), prog_name="pipegen")
    except StreamClosed as closed:
        print(f"Error: {closed}", file=sys.stderr)
        sys.exit(2)
