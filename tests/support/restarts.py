"""What it costs to go on with a job: `cd tests && python -m support.restarts [ROWS [FINISHED]]`.

Prints, for a job of so many rows (1,000,000) of which one is missing, the seconds from the opening
of the input and of the job until the engine is asked for that row, wherever it is: of JSON Lines,
of a Parquet table and of CSV, in one process and in the shard that has it; and for a finished job (100,000
rows) the seconds of processor time in which it is written out: the results as `pipegen generate`
writes them again, and `pipegen export`. Each figure is taken with the map of keys and without it.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pipegen as pg
from pipegen.cli import main
from pipegen.cli.export_command import Command, note_command
from pipegen.cli.sources import Question, open_source
from pipegen.drivers.arguments import check_settings
from pipegen.io.jsonl import to_plain
from pipegen.io.tables import Columns
from pipegen.jobs.journal import Journal, read_settings
from pipegen.jobs.key_map import INPUT, KEY_MAP, KeyMap, entry_of
from pipegen.jobs.row_keys import Keys, context_of
from pipegen.jobs.runner import start_job
from pipegen.jobs.shards import numbers_of
from pipegen.records.options import options_from
from pipegen.testing.fake import FakeEngine

OPTIONS = {"max_new_tokens": 16}
BLOCK = 10_000
ROWS_OF: dict[Path, int] = {}
"""How many requests the input of a job has."""
ANSWER = "It is what people say of it, and more.<|im_end|>"


def request(number: int) -> dict[str, Any]:
    """A request of about 250 bytes."""
    words = "what would you say about a thing of that kind, if somebody asked? " * 3
    return {"id": f"row {number}", "prompt": f"Question {number}: {words}", "label": number % 7}


def write(source: Path, rows: int) -> None:
    """An input of so many requests, in the form that its name says."""
    if source.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([("id", pa.string()), ("prompt", pa.string()), ("label", pa.int64())])
        with pq.ParquetWriter(source, schema) as table:
            for start in range(0, rows, BLOCK):
                block = [request(number) for number in range(start, min(rows, start + BLOCK))]
                table.write_table(pa.Table.from_pylist(block, schema))
    elif source.suffix == ".csv":
        with source.open("w", newline="") as out:
            table = csv.DictWriter(out, list(request(0)))
            table.writeheader()
            table.writerows(map(request, range(rows)))
    else:
        with source.open("wb") as out:
            out.writelines(json.dumps(request(number)).encode() + b"\n" for number in range(rows))


def opened(source: Path, folder: Path, stack: contextlib.ExitStack) -> Any:
    """The input, as `pipegen generate` opens it."""
    where = (Question(), pg.ImagePolicy(), Columns(), stack)
    return open_source(str(source), *where, folder=folder)


def make(folder: Path, rows: int, missing: int | None = None, form: str = ".jsonl") -> Path:
    """A job of so many rows as `pipegen generate` runs it, finished but for one, of which no engine
    was asked; its input.
    """
    with pg.job(pg.turns(pg.route(FakeEngine(ANSWER))), [request(0)], folder, OPTIONS) as running:
        result = to_plain(next(running))
    options, settings = options_from(OPTIONS), read_settings(folder) or {}
    keys, source = Keys(settings), folder.with_suffix(form)
    (folder / KEY_MAP).unlink()
    write(source, rows)
    with contextlib.ExitStack() as stack:
        given = opened(source, folder, stack)
        journal = stack.enter_context(Journal(folder))
        context = context_of(settings, pg.RequestPolicy(), given.reading)
        known = stack.enter_context(KeyMap(folder, context, stamp=given.stamp))
        for number, (_, row) in enumerate(given.unread()):
            one = request(number)
            asked = pg.TextGenerationRequest(prompt=one["prompt"], options=options)
            first = keys.first(asked)
            digest = known.digest(row.data)
            assert digest is not None
            known.keep(entry_of(digest, first, *numbers_of([pg.Success(asked)], pg.ImagePolicy())))
            if number == missing:
                continue
            prompt = {"prompt_text": one["prompt"], "prompt_token_ids": list(range(60))}
            journal.append(first.hex(), {**result, **prompt, "id": one["id"]})
        known.end(rows)
    note_command(folder, Command(str(source), None, None, None, "fake", False))
    return source


def asked_after(folder: Path, source: Path, parts: int = 1) -> tuple[float, float, float]:
    """The seconds until input and job are open, until the engine is asked, and those of
    processor time until then; with several parts,
    by the shard that has the missing row.
    """
    asked: list[float] = []

    def answer(_: Any) -> str:
        asked.extend((time.perf_counter(), time.process_time()))
        return ANSWER

    route: Any = pg.turns(pg.route(FakeEngine(answer)))
    how: dict[str, Any] = {"as_written": True, "grace": 0}
    if parts > 1:
        last = request(ROWS_OF[folder] - 1)
        (number,) = numbers_of([pg.request_from(last)], pg.ImagePolicy())
        how["part"] = (number % parts + 1, parts)
    began, busy = time.perf_counter(), time.process_time()
    with contextlib.ExitStack() as stack:
        given = opened(source, folder, stack)
        how |= {"again": given.unread, "reading": given.reading, "stamp": given.stamp}
        running = stack.enter_context(
            start_job(route, given.unread(), folder, check_settings(OPTIONS), **how)
        )
        ready = time.perf_counter() - began
        for _ in running:
            if asked:
                break
    return ready, asked[0] - began, asked[1] - busy


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
    for form in (".jsonl", ".parquet", ".csv"):
        big = folder / f"big{form}.job"
        source = make(big, rows, rows - 1, form)
        ROWS_OF[big] = rows
        results, known = big / "results-0001.jsonl", big / KEY_MAP
        size = results.stat().st_size
        ways = {"with the map": 1, "one of 4 shards": 4, "without the map": 1}
        for name, parts in ways.items():
            if name == "without the map":
                known.unlink()
                (big / INPUT).unlink()
            ready, asked, busy = asked_after(big, source, parts)
            print(
                f"{rows:,} rows ({form}), the last is missing, {name}:"
                f" open in {ready:.1f} s, asked after {asked:.1f} s"
                f" ({busy:.1f} s of processor time)",
                flush=True,
            )
            os.truncate(results, size)
        shutil.rmtree(big)
        source.unlink()
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
        given = [*map(int, sys.argv[1:])]
        figures(Path(folder), *given, *(1_000_000, 100_000)[len(given) :])
