"""What the benchmarks' page is made of: the rows of docs/benchmarks.json, and whose memory is written beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROWS: list[dict[str, Any]] = json.loads((HERE.parent / "docs" / "benchmarks.json").read_text(encoding="utf-8"))
PEAK = "import measure; print(measure.peak_memory())"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['work']} / {row['peer']}")
def test_a_row_says_what_was_measured_and_whether_it_is_what_was_aimed_at(row: dict[str, Any]) -> None:
    words, bound = row["target"].rsplit(" ", 1)
    if row["ratio"] is None:
        assert row["meets"] is None
        assert row["note"]
    else:
        met = {"at least": row["ratio"] >= float(bound), "at most": row["ratio"] <= float(bound), "exactly": abs(row["ratio"] - float(bound)) < 5e-4}
        assert row["meets"] is met[words]


@pytest.mark.parametrize("row", [row for row in ROWS if row["ratio"] is not None], ids=lambda row: f"{row['work']} / {row['peer']}")
def test_the_most_memory_of_each_side_stands_beside_what_was_measured(row: dict[str, Any]) -> None:
    """A count compares no two processes, so it has pipegen's alone."""
    ours, theirs = row["memory"]
    assert ours > 0
    assert theirs is None if row["note"] == "a count, not a clock" else theirs > 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a program's own peak")
@pytest.mark.parametrize("command", [("-c", PEAK), ("launch.py", sys.executable, "-c", "")], ids=["from inside", "from outside"])
def test_the_memory_of_a_process_is_not_what_its_parent_held(command: tuple[str, ...]) -> None:
    held = bytearray(b"1") * (300 << 20)
    said = subprocess.run([sys.executable, *command], cwd=HERE / "bench", check=True, capture_output=True, text=True).stdout
    assert 1 < float(said.split()[-1]) < 100 < len(held) >> 20


def test_a_command_that_fails_is_not_measured() -> None:
    launched = [sys.executable, "launch.py", sys.executable, "-c", "raise SystemExit(3)"]
    assert subprocess.run(launched, cwd=HERE / "bench", check=False, capture_output=True).returncode == 3
