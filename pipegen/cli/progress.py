"""Progress on stderr, where that is a terminal: constant work for each request."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["is_shown", "progress"]


def is_shown(wanted: bool) -> bool:
    """Whether progress is shown: where it is wanted, and stderr is a terminal."""
    return wanted and sys.stderr.isatty()


@contextlib.contextmanager
def progress(total: int | None, *, shown: bool = True) -> Iterator[Callable[[int, str], None]]:
    """A bar over `total` units (bytes, pictures; None where unknown): call what it gives with the units done so far and a few words."""
    if not is_shown(shown):
        yield lambda done, words: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [SpinnerColumn(), BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=total)
        yield lambda done, words: bar.update(task, completed=done, description=words)
