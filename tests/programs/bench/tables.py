"""What tables cost on top of generation: 100,000 rows of Parquet in and out, in processor time and
in memory. `python tests/programs/bench/tables.py [rows]`.

Requests are made and answers are there, so what is measured is reading, making rows, and writing.
Prints one line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pipegen as pg
from pipegen.cli.inputs import ReadSettings, items_of, table_rows
from pipegen.io.table_out import arrow_out
from pipegen.io.tables import Columns, read_table
from pipegen.records.options import resolve


def resident() -> float:
    """The most memory that this process had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make(path: Path, rows: int) -> None:
    """A table of chats with a label, in groups of 10,000."""
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("label", pa.int64()),
        ]
    )
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 10_000):
            numbers = range(start, min(rows, start + 10_000))
            chats = [
                [{"role": "user", "content": f"question {n}: " + "words of a question " * 10}]
                for n in numbers
            ]
            writer.write_table(
                pa.table([list(numbers), chats, [n % 3 for n in numbers]], schema=schema)
            )


def round_trip(source: Path, out: Path) -> dict[str, Any]:
    """Read all rows as requests, and write each with an answer."""
    answer = pg.Success(
        pg.GenerationResult(
            text="an answer of some words " * 8,
            raw_text="an answer of some words " * 8,
            finish=pg.Finish.EOS,
            options=resolve(pg.GenerationOptions()),
        )
    )
    before, began, count, reading = resident(), time.process_time(), 0, 0.0
    table = read_table(source)
    with (
        out.open("wb") as stream,
        arrow_out(stream, table.schema, Columns(), form=".parquet", model="none") as write,
    ):
        items = items_of(table_rows(table, ReadSettings.of(Columns(), None, table.schema.names)))
        while True:
            since = time.process_time()
            item = next(items, None)
            reading += time.process_time() - since
            if item is None:
                break
            assert item.slot.unwrap().messages
            write(item.origin.row, item.origin.id, answer)
            count += 1
    seconds = time.process_time() - began
    first = next(table.blocks()).rows[:1000]
    since = time.process_time()
    for row in first:
        pg.request_from(row)
    # what a line of JSON, or a dict, costs too
    request = (time.process_time() - since) / len(first)
    assert pq.ParquetFile(out).metadata.num_rows == count
    each = {
        "all": seconds / count,
        "reading": reading / count,
        "making_the_request": request,
        "on_top": seconds / count - request,
    }
    return {
        "rows": count,
        "microseconds_a_row": {name: round(value * 1e6, 1) for name, value in each.items()},
        "more_MiB": round(resident() - before, 1),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        size = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
        child = len(sys.argv) > 2
        make(path / "warm.parquet", 3000)
        # what is imported and allocated once is not what rows cost
        round_trip(path / "warm.parquet", path / "warm.out")
        source = Path(sys.argv[2]) if child else path / "in.parquet"
        if not child:
            make(source, size)
        print(json.dumps(round_trip(source, path / "out.parquet")))
