"""Progress on stderr, if that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from pipegen.cli.inputs import Origin
from pipegen.cli.outputs import Tally
from pipegen.drivers.progress import Progress
from pipegen.records.engine_list import shown

__all__ = ["Moved", "is_shown", "progress", "tells"]

Moved = Callable[[int | None, str], None]
"""Moves the bar to so many units done (None: does not move it), and shows a text."""


def is_shown(wanted: bool) -> bool:
    """Whether progress is wanted, and stderr is a terminal."""
    return wanted and sys.stderr.isatty()


@contextlib.contextmanager
def progress(total: int | None, *, shown: bool = True) -> Iterator[Moved]:
    """A progress bar over `total` units (None if unknown). Call the result with the units done so far and a text. The bar never goes back."""
    if not is_shown(shown):
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [SpinnerColumn(), BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=total)
        yield lambda done, text: bar.update(task, completed=max(done or 0, bar.tasks[task].completed), description=text)


def tells(moved: Moved, tally: Tally, under_way: Sequence[Origin], window: int) -> Callable[[Progress], None]:
    """Moves the bar while a window of requests is computed, as if those that are done were the first ones.

    The first `window` running requests are at the engine; others are being prepared.
    """

    def tell(now: Progress) -> None:
        done = now.done * min(window, len(under_way)) // now.rows
        line = f"{tally.words(now.tokens)}; {now.done} of {now.rows} ready on {shown(now.engine)}"
        moved(under_way[done - 1].read if done else None, line)

    return tell
