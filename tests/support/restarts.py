"""What it costs to go on with a job: `cd tests && python -m support.restarts [ROWS [FINISHED]]`.

Prints, for a job of so many rows (1,000,000) of which one is missing, the seconds from the opening
of the job until the engine is asked for that row, wherever it is; and for a finished job (100,000
rows) the seconds of processor time in which it is written out: the results as `pipegen generate`
writes them again, and `pipegen export`. Each figure is taken with the map of keys and without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pipegen as pg
from pipegen.cli import main
from pipegen.cli.export import Command, note_command
from pipegen.cli.inputs import reading_of, unread_lines
from pipegen.io.jsonl import lines_of, to_plain
from pipegen.io.tables import Columns
from pipegen.jobs.journal import Journal, read_settings
from pipegen.jobs.key_map import KEY_MAP, KeyMap, entry_of
from pipegen.jobs.keys import Keys, context_of
from pipegen.jobs.runner import start_job
from pipegen.records.options import options_from
from pipegen.testing.fake import FakeEngine

OPTIONS = {"max_new_tokens": 16}
ANSWER = "It is what people say of it, and more.<|im_end|>"


def request(number: int) -> dict[str, Any]:
    """A request of about 250 bytes."""
    words = "what would you say about a thing of that kind, if somebody asked? " * 3
    return {"id": f"row {number}", "prompt": f"Question {number}: {words}", "label": number % 7}


def make(folder: Path, rows: int, missing: int | None = None) -> Path:
    """A job of so many rows as `pipegen generate` runs it, finished but for one, of which no engine
    was asked; its input.
    """
    with pg.job(pg.turns(pg.route(FakeEngine(ANSWER))), [request(0)], folder, OPTIONS) as running:
        result = to_plain(next(running))
    options, settings = options_from(OPTIONS), read_settings(folder) or {}
    keys, source = Keys(settings), folder.with_suffix(".jsonl")
    (folder / KEY_MAP).unlink()
    reading = reading_of(Columns(), None)
    with (
        source.open("wb") as out,
        Journal(folder) as journal,
        KeyMap(folder, context_of(settings, None, reading)) as known,
    ):
        for number in range(rows):
            one = request(number)
            line = json.dumps(one).encode()
            out.write(line + b"\n")
            first = keys.first(pg.TextGenerationRequest(prompt=one["prompt"], options=options))
            digest = known.digest(line)
            assert digest is not None
            known.keep(entry_of(digest, first))
            if number == missing:
                continue
            prompt = {"prompt_text": one["prompt"], "prompt_token_ids": list(range(60))}
            journal.append(first.hex(), {**result, **prompt, "id": one["id"]})
    note_command(folder, Command(str(source), None, None, None, "fake", False))
    return source


def asked_after(folder: Path, source: Path) -> tuple[float, float]:
    """The seconds until the job is open, and until the engine is asked."""
    asked: list[float] = []

    def answer(_: Any) -> str:
        asked.append(time.perf_counter())
        return ANSWER

    def lines() -> Any:
        return unread_lines(lines_of(source.open("rb")), Columns(), None)

    route: Any = pg.turns(pg.route(FakeEngine(answer)))
    how: dict[str, Any] = {"reading": reading_of(Columns(), None), "as_written": True}
    began = time.perf_counter()
    with start_job(route, lines(), folder, OPTIONS, again=lines, **how, grace=0) as running:
        opened = time.perf_counter() - began
        for _ in running:
            if asked:
                break
    return opened, asked[0] - began


def written_out(*command: str) -> float:
    """The seconds of processor time of a command."""
    route = pg.route(FakeEngine(ANSWER))
    engine = mock.patch("pipegen.cli.generate.open_routes", return_value=route)
    began = time.process_time()
    with engine, contextlib.suppress(SystemExit):
        main(command)
    return time.process_time() - began


def figures(folder: Path, rows: int, finished: int) -> None:
    """Print them."""
    big = folder / "big.job"
    source = make(big, rows, missing=rows - 1)
    results, known = big / "results-0001.jsonl", big / KEY_MAP
    size = results.stat().st_size
    for name in ("with the map", "without it"):
        opened, asked = asked_after(big, source)
        print(
            f"{rows:,} rows, the last is missing, {name}: open in {opened:.1f} s, asked after {asked:.1f} s",
            flush=True,
        )
        os.truncate(results, size)
        known.unlink(missing_ok=True)
    out = folder / "small.jsonl.out.jsonl"
    small = Path(f"{out}.job")
    source = make(small, finished)
    generate = (
        *("generate", str(source), "-o", str(out), "--model", "embedded"),
        *("--max-new-tokens", "16"),
    )
    for command in (generate, ("export", str(small), "-o", str(out))):
        for name in ("with the map", "without it"):
            print(
                f"{finished:,} finished rows, {command[0]}, {name}: {written_out(*command):.1f} s",
                flush=True,
            )
            (small / KEY_MAP).rename(folder / "map") if name == "with the map" else (
                folder / "map"
            ).replace(small / KEY_MAP)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        figures(
            Path(folder),
            *(
                [*map(int, sys.argv[1:]), 1_000_000, 100_000][:2]
                if len(sys.argv) < 3
                else map(int, sys.argv[1:3])
            ),
        )
