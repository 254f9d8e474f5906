"""Sixteen processes on one job's folder: whatever their clocks say and a kill left in their files,
no row is lost and none is asked twice.
"""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support import writer
from support.writer import ROWS, answer, requests

import pipegen as pg
import pipegen.jobs
from pipegen.testing.fake import FakeEngine

pytestmark = pytest.mark.slow

WRITERS = 16
DAY = 86_400.0


def together(folder: Path, n: int, seed: int) -> list[str]:
    """Run all n shards at a time, each with a wrong clock; the ids of the rows that were asked."""
    rng = random.Random(seed)
    script = str(writer.__file__)
    skews = [rng.choice([0, 1, -1]) * rng.uniform(0, 20 * 365 * DAY) for _ in range(n)]
    commands = [
        [sys.executable, script, str(folder), str(i), str(n), str(skew)]
        for i, skew in enumerate(skews, 1)
    ]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    output = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * n
    return [name for text in output for name in json.loads(text)["asked"]]


def keys_in(folder: Path) -> Counter[bytes]:
    return Counter(
        line[8:40]
        for path in folder.glob("results-*.jsonl")
        for line in path.read_bytes().splitlines()
    )


def tear(folder: Path, seed: int) -> int:
    """Leave a part of the last line of each file, as a kill does; how many rows that takes."""
    rng, files = random.Random(seed), sorted(folder.glob("results-*.jsonl"))
    torn = 0
    for path in files:
        *before, last = path.read_bytes().splitlines(keepends=True) or [b""]
        kept = rng.randint(0, max(0, len(last) - 1))
        path.write_bytes(b"".join(before) + last[:kept])
        torn += last.endswith(b"\n")  # else the row was torn before
    return torn


def test_sixteen_processes_write_one_job(tmp_path: Path) -> None:
    folder, alone = tmp_path / "job", FakeEngine(answer)
    with pg.job(pg.route(alone), requests(), tmp_path / "alone") as running:
        wanted = [slot.unwrap() if pg.is_ok(slot) else slot.failure().message for slot in running]
    valid = [request["id"] for request in requests() if "id" in request]

    assert Counter(together(folder, WRITERS, seed=0)) == Counter(valid)
    assert len(list(folder.glob("results-*.jsonl"))) == WRITERS

    for seed, n in ((1, WRITERS), (2, 5)):
        torn = tear(folder, seed)
        assert 5 <= torn <= WRITERS
        assert len(together(folder, n, seed)) == torn
    assert together(folder, WRITERS, seed=3) == []

    assert set(keys_in(folder).values()) == {1}
    assert len(keys_in(folder)) == len(valid) == ROWS - ROWS // 40
    found = [slot for _, slot in pg.finished_rows(folder, enumerate(requests()))]
    assert [
        slot if slot is None else slot.unwrap() if pg.is_ok(slot) else slot.failure().message
        for slot in found
    ] == wanted


@pytest.mark.parametrize(
    "path", sorted(Path(pipegen.jobs.__path__[0]).glob("*.py")), ids=lambda path: path.name
)
def test_no_code_of_jobs_reads_a_clock_of_the_day_or_a_time_of_a_file(path: Path) -> None:
    read = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Attribute, ast.Name))
    }
    assert read.isdisjoint({"time_ns", "st_mtime", "st_mtime_ns", "st_ctime", "datetime", "utime"})
    assert "time.time(" not in path.read_text()
