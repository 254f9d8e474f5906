"""The bar of `pipegen generate`."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.cli import progress_line as module
from pipegen.cli.outputs import Tally
from pipegen.cli.progress_line import EVERY, Meter, progress, tells
from pipegen.cli.sources import Question, open_source
from pipegen.io.tables import Columns
from pipegen.records.requests import ImagePolicy


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_words_tell_speed_and_time_left_without_that_of_loading() -> None:
    clock = Clock()
    meter = Meter(Tally(), total=1000, clock=clock)
    assert meter.words() == "0/1,000 done, 0 failed"
    clock.now += 5
    meter.see(pg.Progress("hf", 64, 0, 0))
    clock.now += 40
    assert (meter.words(), meter.loading) == ("0/1,000 done, 0 failed, loading", 45.0)
    meter.see(pg.Progress("hf", 64, 0, 64))
    clock.now += 10
    tally = meter.tally
    tally.succeeded, tally.reused, tally.made_tokens = 300, 200, 5000
    tally.errors["BadImage"], tally.first["BadImage"] = 2, "a: broken"
    assert meter.words() == "302/1,000 done, 2 failed, 500 tok/s, 1:08 left"
    assert (meter.seconds, meter.loading) == (55.0, 45.0)
    assert meter.plain()["tokens_a_second"] == 500.0
    assert "(loading 45.0 s)" in tally.summary(meter.seconds, meter.loading)
    assert "(500.0/s)" in tally.summary(meter.seconds, meter.loading)


def test_rates_leave_out_what_starts_and_ends_engines_elsewhere() -> None:
    clock = Clock()
    meter = Meter(Tally(), clock=clock)
    meter.called, clock.now = clock.now, clock.now + 40
    meter.works_elsewhere(None)
    assert (meter.working, meter.worked) == (None, None)
    for worked in (5.0, 10.0, 2.0):
        meter.works_elsewhere(worked)
    assert (meter.loading, meter.worked) == (30.0, 10.0)
    meter.tally.made_tokens, meter.ending = 500, 20.0
    clock.now += 20
    assert (meter.loading, meter.plain()["tokens_a_second"]) == (50.0, 50.0)
    assert meter.words() == "0 done, 0 failed, 50 tok/s"


def test_an_engine_that_gives_whole_answers_works_from_its_first_call_on() -> None:
    clock = Clock()
    meter = Meter(Tally(), clock=clock)
    clock.now += 5
    meter.see(pg.Progress("server", 2, 0, 0))
    clock.now += 10
    meter.see(pg.Progress("server", 2, 2, 100))
    meter.tally.made_tokens, meter.tally.succeeded = 100, 2
    plain = meter.plain()
    assert (meter.loading, plain["tokens_a_second"], plain["requests_a_second"]) == (5.0, 10.0, 0.2)


def test_a_rate_of_no_time_at_all_is_that_of_the_whole_time() -> None:
    clock = Clock()
    meter = Meter(Tally(), clock=clock)
    meter.see(pg.Progress("hf", 1, 0, 0))
    clock.now += 10
    meter.see(pg.Progress("hf", 1, 0, 5))
    meter.tally.made_tokens = 5
    assert meter.plain()["tokens_a_second"] == 0.5


@pytest.mark.parametrize("texts", [True, False])
def test_a_line_is_told_while_nothing_happens(
    texts: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, told = Clock(), threading.Event()
    meter = Meter(Tally(), total=4, clock=clock)
    meter.see(pg.Progress("hf", 4, 0, 0))
    monkeypatch.setattr(module, "CHECKED", 0.001)
    monkeypatch.setattr(module, "say", lambda line: (print(line), told.set()))
    with progress(None, None if texts else meter) as moved:
        moved(None, "3/4")
        told.clear()
        clock.now += EVERY + 1
        monkeypatch.setattr(module, "EVERY", 0.0 if texts else EVERY)
        assert told.wait(60)
    words = "0:00: 3/4" if texts else "0:31: 0/4 done, 0 failed, loading"
    assert capsys.readouterr().out.splitlines()[0] == words


def test_a_line_is_told_every_thirty_seconds_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    meter = Meter(Tally(), total=100, clock=clock)
    with progress(None, meter) as moved:
        tell = tells(moved, meter)
        for _ in range(13):
            tell(pg.Progress("hf", 1, 0, 5))
            clock.now += EVERY / 4
            meter.tally.succeeded += 1
            meter.tally.made_tokens += 50
            moved(1, "")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "0:30: 4/100 done, 0 failed, 7 tok/s, 12:00 left",
        "1:00: 8/100 done, 0 failed, 7 tok/s, 11:30 left",
        "1:30: 12/100 done, 0 failed, 7 tok/s, 11:00 left",
    ]
    with progress(None, meter, shown=False) as moved:
        clock.now += 1000
        moved(1, "")
    assert capsys.readouterr().err == ""


def test_the_bar_fits_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console
    from rich.progress import Progress

    clock, drawn = Clock(), []
    meter = Meter(Tally(), total=2_000_000, clock=clock)
    meter.see(pg.Progress("hf", 1, 0, 1))
    clock.now += 86_000
    meter.tally.succeeded, meter.tally.made_tokens = 1_234_567, 10**10
    meter.tally.errors["BadImage"] = 765_432
    monkeypatch.setattr(sys, "stderr", Terminal())

    def stopped(bar: Progress) -> None:
        console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
        with console.capture() as captured:
            console.print(bar.get_renderable())
        drawn.extend(captured.get().splitlines())
        plain(bar)

    plain = Progress.stop
    monkeypatch.setattr(Progress, "stop", stopped)
    with progress(100, meter) as moved:
        moved(99, meter.words())
    (line,) = drawn
    assert line.rstrip().endswith("2.0M/2.0M done, 765.4k failed, 116.3k tok/s, 0:00 left")
    assert len(line) <= 80


def test_the_summary_is_written_as_json_too(generate: Any, jsonl: Any, tmp_path: Path) -> None:
    source = jsonl({"id": "a", "prompt": "a"}, {"id": "b", "promt": "b"})
    for _ in range(2):
        ran = generate(source, "-o", tmp_path / "out.jsonl", "--summary", tmp_path / "s.json")
    told = json.loads((tmp_path / "s.json").read_text())
    assert (
        told["requests"],
        told["succeeded"],
        told["failed"],
        told["reused"],
        told["not_answered"],
        told["exit_code"],
    ) == (2, 1, 1, 1, 0, 1)
    assert (
        told["completion_tokens"],
        told["tokens_a_second"],
        told["errors"]["InvalidRequest"]["count"],
    ) == (15, 0.0, 1)
    assert told["seconds"] > 0
    assert "2 requests in" in ran.err
    (tmp_path / "s.json").unlink()
    assert generate(source, "--summary", tmp_path / "s.json", "--quiet").err == ""
    assert json.loads((tmp_path / "s.json").read_text())["tokens_a_second"] > 0
    ran = generate(source, "--summary", tmp_path / "no" / "s.json")
    assert ran.code == 2
    assert "--summary" in ran.err


def test_a_summary_that_cannot_be_written_is_told(
    generate: Any, jsonl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.jobs.new_file import JournalError

    def full(path: Path) -> Any:
        raise JournalError(f"{path} cannot be written: No space left on device")

    monkeypatch.setattr("pipegen.cli.outputs.new_file", full)
    ran = generate(jsonl({"prompt": "a"}), "--summary", tmp_path / "s.json")
    assert ran.code == 1
    assert "No space left on device" in ran.err


def test_the_summary_tells_rates_loading_and_what_was_not_answered() -> None:
    told = Tally(succeeded=2, prompt_tokens=30, completion_tokens=9, made_tokens=9).summary(
        4.0, 1.0, 3
    )
    assert (
        told == "2 requests in 4.0 s (loading 1.0 s): 2 succeeded, 0 failed; 30 prompt tokens, 9"
        " generated (3.0/s); 3 more were not answered"
    )


def test_the_bar_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    seen = []
    plain = Progress.update
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(
        Progress,
        "update",
        lambda self, task, **said: (seen.append(said["completed"]), plain(self, task, **said)),
    )
    with progress(10) as moved:
        for done in (3, None, 2, 5):
            moved(done, "words")
    assert seen == [3, 3, 3, 5]


@pytest.mark.parametrize("name", ["in.csv", "photos", "in.txt", "in.jsonl"])
def test_an_input_is_counted_as_often_as_is_asked(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    if name == "photos":
        source.mkdir()
        (source / "a.png").touch()
        (source / "b.png").touch()
    else:
        source.write_text(
            {
                "in.csv": "prompt\na\nb\n",
                "in.txt": "a\nb\n",
                "in.jsonl": '{"prompt": "a"}\n{"prompt": "b"}\n',
            }[name]
        )
    with contextlib.ExitStack() as stack:
        opened = open_source(str(source), Question(), ImagePolicy(), Columns(), stack)
        opened.total()  # for the bar
        assert (opened.rows(), opened.rows()) == (2, 2)  # for the words beside it
