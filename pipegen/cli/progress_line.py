"""How far a run is: a bar on stderr where that is a terminal, elsewhere a line now and then; and
its rates at the end.

>>> short(950), short(12_345), short(2_000_000), shown_time(3725)
('950', '12.3k', '2.0M', '1:02:05')
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pipegen.cli.outputs import Tally, say
from pipegen.drivers.progress import Progress

EVERY = 30.0
"""Seconds between two lines, where stderr is no terminal."""
CHECKED = 3.0
"""Seconds after which it is looked whether a line is due, also while nothing happens."""
_LEAST = 0.05
"""Seconds of work below which a rate is that of the whole time."""
_SOON = 1.0
"""Seconds of work before its speed is shown."""
Moved = Callable[[int | None, str | None], None]
"""Moves the bar to so many units done (None: does not move it), and shows a text (None: that of the
meter, which is made only if it is shown).
"""


def short(count: float) -> str:
    """A count in few characters."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= size:
            return f"{count / (1e3 if letter == 'k' else size):.1f}{letter}"
    return f"{count:,.0f}"


def shown_time(seconds: float) -> str:
    """A duration, as clocks show it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass
class Meter:
    """What the clock says of a run. Its time begins when the meter is made.

    Loading is the time before the engine's first token. Of an engine that gives whole answers, such
    as a server, it is the time before its first call.
    """

    tally: Tally
    total: int | None = None
    """How many requests the input has, where it is known."""
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    called: float | None = None
    """When the engine was called first."""
    working: float | None = None
    """When its work began, as far as it is known."""
    ending: float = 0.0
    """Seconds in which the replicas of the engine were ended."""
    shown: float = field(init=False)
    """When the last line was shown."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Lets one thread show a line at a time."""
    engines: Iterable[object] = ()
    """Those that are asked: one may say why requests wait (`waits`)."""

    def __post_init__(self) -> None:
        self.began = self.shown = self.clock()

    def see(self, now: Progress) -> None:
        """Note how far a call is."""
        if self.called is None:
            self.called = self.clock()
        if self.working is None and (now.done or now.tokens):
            self.working = self.called if now.done else self.clock()

    @property
    def worked(self) -> float | None:
        """Seconds since the engine's work began; None before."""
        return None if self.working is None else self.clock() - self.working

    def works_elsewhere(self, worked: float | None) -> None:
        """Note for how many seconds an engine of another process has worked."""
        if worked is not None:
            began = self.clock() - worked
            self.working = began if self.working is None else min(began, self.working)

    @property
    def loading(self) -> float:
        """Seconds until the engine's work began, and those in which replicas were ended; 0 where
        it was not called.
        """
        if self.called is None:
            return 0.0
        return self.ending + (self.clock() if self.working is None else self.working) - self.began

    @property
    def seconds(self) -> float:
        """Seconds of the run so far."""
        return self.clock() - self.began

    def words(self) -> str:
        """How far the run is, in words that fit beside a bar of 80 columns."""
        tally = self.tally
        done = tally.done
        parts = [
            (
                f"{short(done)}/{short(self.total)} done"
                if self.total is not None
                else f"{short(done)} done"
            ),
            f"{short(tally.failed)} failed",
        ]
        if self.working is None:
            return ", ".join([*parts, "loading"] if self.called is not None else parts)
        worked = self.seconds - self.loading
        if worked >= _SOON:
            parts.append(f"{short(tally.made_tokens / worked)} tok/s")
            new_answers = done - tally.reused
            if self.total is not None and new_answers > 0:
                parts.append(f"{shown_time((self.total - done) / new_answers * worked)} left")
        else:
            parts.append(f"{short(tally.made_tokens)} tokens")
        return ", ".join(parts)

    def __str__(self) -> str:
        """Why requests wait; empty where they do not."""
        waits = (getattr(engine, "waits", "") for engine in self.engines)
        return next((f", {why}" for why in waits if why), "")

    def tell(self) -> None:
        """Show a line about the run, where the last one is `EVERY` seconds ago."""
        with self.lock:
            moment = self.clock()
            if moment - self.shown >= EVERY:
                self.shown = moment
                say(f"{shown_time(moment - self.began)}: {self.words()}{self}")

    def plain(self) -> dict[str, Any]:
        """The run's counts, times and rates as plain data. Rates are of what was asked in this run,
        without the time of loading.
        """
        tally, seconds, loading = self.tally, self.seconds, self.loading
        done, worked = tally.done, seconds - loading
        worked = worked if worked > _LEAST else max(seconds, 1e-9)
        return {
            "requests": self.total if self.total is not None else done,
            "succeeded": tally.succeeded,
            "failed": tally.failed,
            "reused": tally.reused,
            "not_answered": 0 if self.total is None else max(0, self.total - done),
            "fell_back": tally.fell_back,
            "lost_samples": tally.lost_samples,
            "thinking_unfinished": tally.unanswered,
            "prompt_tokens": tally.prompt_tokens,
            "completion_tokens": tally.completion_tokens,
            "seconds": round(seconds, 3),
            "loading_seconds": round(loading, 3),
            "requests_a_second": round((done - tally.reused) / worked, 3),
            "prompt_tokens_a_second": round(tally.made_prompt_tokens / worked, 1),
            "tokens_a_second": round(tally.made_tokens / worked, 1),
            "errors": tally.of_errors(),
        }


@dataclass
class _TextMeter(Meter):
    """Shows the last text that it was given."""

    text: str = ""

    def words(self) -> str:
        return self.text


def is_shown(wanted: bool) -> bool:
    """Whether progress is wanted, and stderr is a terminal."""
    return wanted and sys.stderr.isatty()


@contextlib.contextmanager
def progress(
    total: int | None, meter: Meter | None = None, *, shown: bool = True
) -> Iterator[Moved]:
    """A progress bar over `total` units (None if unknown). Call the result with the units done so
    far and a text. The bar never goes back.

    Without a terminal, a line is shown in its place every `EVERY` seconds, also while nothing
    happens, such as while a model loads. It is the meter's, or the last text.
    """
    if not shown:
        yield lambda done, text: None
        return
    if not is_shown(shown):
        with _lines(meter) as moved:
            yield moved
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = [
        SpinnerColumn(),
        BarColumn(bar_width=8),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        # the last is asked each time that the bar is drawn: nothing happens while requests wait
        TextColumn("{task.description}{task.fields[waits]}", markup=False),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("preparing", total=total, waits="" if meter is None else meter)

        def update(done: int | None, text: str | None) -> None:
            words = meter.words() if text is None and meter is not None else text
            completed = max(done or 0, bar.tasks[task].completed)
            bar.update(task, completed=completed, description=words)

        yield update


@contextlib.contextmanager
def _lines(meter: Meter | None) -> Iterator[Moved]:
    """Lines about the run, of a thread that looks whether one is due."""
    texts, ended = _TextMeter(Tally()), threading.Event()

    def moved(done: int | None, text: str | None) -> None:
        texts.text = text or texts.text
        if meter is not None:
            meter.tell()
        elif texts.text:
            texts.tell()

    def look() -> None:
        while not ended.wait(CHECKED):
            moved(None, None)

    thread = threading.Thread(target=look, name="pipegen-progress", daemon=True)
    thread.start()
    try:
        yield moved
    finally:
        ended.set()
        thread.join()


def tells(moved: Moved, meter: Meter) -> Callable[[Progress], None]:
    """Notes how far the calls of the engine are, and shows it."""

    def tell(call_progress: Progress) -> None:
        meter.see(call_progress)
        moved(None, None)

    return tell
