"""The bar of `pipegen generate`."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import pipegen as pg
from pipegen.cli import main
from pipegen.cli.inputs import Origin
from pipegen.cli.outputs import Tally
from pipegen.cli.progress import progress, tells


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_moves_while_a_window_is_computed() -> None:
    moves: list[tuple[int | None, str]] = []
    under_way = [Origin("a", 100), Origin("b", 250), Origin("c", 300), Origin("prepared meanwhile", 900)]
    tell = tells(lambda done, words: moves.append((done, words)), Tally(succeeded=5, completion_tokens=40), under_way, window=3)
    for done, tokens in ((0, 0), (0, 7), (3, 12), (6, 20)):  # of two samples each
        tell(pg.Progress(engine="hf", rows=6, done=done, tokens=tokens))
    assert [read for read, _ in moves] == [None, None, 100, 300]
    assert moves[2][1] == "5 done, 0 failed, 52 tokens; 3 of 6 ready on Hugging Face transformers"


def test_the_bar_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    seen = []
    plain = Progress.update
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(Progress, "update", lambda self, task, **said: (seen.append(said["completed"]), plain(self, task, **said)))
    with progress(10) as moved:
        for done in (3, None, 2, 5):
            moved(done, "words")
    assert seen == [3, 3, 3, 5]


def test_generate_tells_of_the_call_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"id": str(number), "prompt": "Hi"}) + "\n" for number in range(3)))
    said: list[str] = []
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(
        "pipegen.cli.generate.tells", lambda moved, tally, under_way, window: lambda now: said.append(f"{now.done} of {now.rows}, {len(under_way)}")
    )
    with pytest.raises(SystemExit) as leaving:
        main(["generate", str(source), "-o", str(out), "--model", "embedded", "--max-new-tokens", "2"])
    assert leaving.value.code == 0
    assert (said[0], said[-1]) == ("0 of 3, 3", "3 of 3, 3")
    assert len(out.read_text().splitlines()) == 3
