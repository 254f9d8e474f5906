"""Memory does not grow with the length of a table, in or out. Each measurement has a process of its
own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

BENCH = Path(__file__).parents[1] / "programs" / "bench" / "tables.py"
pytestmark = pytest.mark.slow

IMAGES = """
import resource, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
import pipegen as pg
from pipegen.cli.inputs import ReadSettings, items_of, table_rows
from pipegen.io.table_out import arrow_out
from pipegen.io.tables import Columns, read_table

source, out = map(Path, sys.argv[1:])
answer = pg.Failure(pg.Timeout("slow"))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
def trip(rows):
    table = read_table(source)
    with out.open("wb") as stream, arrow_out(stream, table.schema, Columns(), form=".parquet", model="none") as write:
        for item, _ in zip(items_of(table_rows(table, ReadSettings.of(Columns(), None, table.schema.names))), range(rows)):
            assert len(item.slot.unwrap().sources[0].data) == 2**20
            write(item.origin.row, item.origin.id, answer)
trip(40)
before = peak()
trip(10**9)
print(pq.ParquetFile(out).metadata.num_rows, peak() - before)
"""


def test_a_hundred_thousand_rows_go_in_and_out_in_little_memory() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "100000"], capture_output=True, text=True, check=True
    )
    measured = json.loads(done.stdout)
    assert measured["rows"] == 100_000
    assert measured["more_MiB"] < 100


def test_many_large_images_go_in_and_out_in_little_memory(tmp_path: Path) -> None:
    import random

    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("prompt", pa.string()), ("image", stored)])
    draw = random.Random(0)
    with pq.ParquetWriter(tmp_path / "in.parquet", schema, compression="none") as writer:
        for _ in range(3):  # groups of 100 MiB
            writer.write_table(
                pa.table(
                    [
                        ["a"] * 100,
                        [{"bytes": draw.randbytes(2**20), "path": None} for _ in range(100)],
                    ],
                    schema=schema,
                )
            )
    done = subprocess.run(
        [sys.executable, "-c", IMAGES, str(tmp_path / "in.parquet"), str(tmp_path / "out.parquet")],
        capture_output=True,
        text=True,
        check=True,
    )
    count, more = map(int, done.stdout.split())
    assert count == 300
    assert more < 100
