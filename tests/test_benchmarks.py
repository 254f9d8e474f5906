"""What the benchmarks' page is made of: the rows of docs/contributing/benchmarks.json, and whose memory is
written beside them.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
ROWS: list[dict[str, Any]] = json.loads(
    (HERE.parent / "docs" / "contributing" / "benchmarks.json").read_text(encoding="utf-8")
)
PEAK = "import measure; print(measure.peak_memory())"


def judged(row: dict[str, Any]) -> bool | None:
    """Whether the ratio meets the target of the row; None where nothing was measured."""
    kind, _, bound = row["target"].rpartition(" ")
    if row["ratio"] is None:
        return None
    return {
        "at least": row["ratio"] >= float(bound),
        "at most": row["ratio"] <= float(bound),
        "exactly": abs(row["ratio"] - float(bound)) < 5e-4,
    }[kind]


def has_memory(row: dict[str, Any]) -> bool:
    """Whether a row has the peak memory of both sides; a count compares no two processes, so it has
    pipegen's alone.
    """
    ours, theirs = row["memory"]
    return bool(
        ours > 0 and (theirs is None if row["note"] == "a count, not a clock" else theirs > 0)
    )


def test_a_row_has_the_verdict_of_its_ratio_or_a_note_why_there_is_none() -> None:
    assert len(ROWS) > 100
    wrong = [
        row
        for row in ROWS
        if row["meets"] is not judged(row) or (row["ratio"] is None and not row["note"])
    ]
    assert [(row["work"], row["peer"]) for row in wrong] == []


def test_a_row_that_was_measured_has_the_peak_memory_of_each_side() -> None:
    # there one process has both
    beside = ("Continuous feeding", "Shared beginnings", "Adapters")
    rows = [row for row in ROWS if row["ratio"] is not None and row["group"] not in beside]
    assert [(row["work"], row["peer"]) for row in rows if not has_memory(row)] == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a program's own peak")
@pytest.mark.parametrize(
    "command",
    [("-c", PEAK), ("launch.py", sys.executable, "-c", "")],
    ids=["from inside", "from outside"],
)
def test_the_memory_of_a_process_is_not_what_its_parent_held(command: tuple[str, ...]) -> None:
    held = bytearray(b"1") * (300 << 20)
    output = subprocess.run(
        [sys.executable, *command],
        cwd=HERE / "programs" / "bench",
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert 1 < float(output.split()[-1]) < 100 < len(held) >> 20


def test_a_command_that_fails_is_not_measured() -> None:
    launched = [sys.executable, "launch.py", sys.executable, "-c", "raise SystemExit(3)"]
    assert (
        subprocess.run(
            launched, cwd=HERE / "programs" / "bench", check=False, capture_output=True
        ).returncode
        == 3
    )


@pytest.fixture(scope="module")
def headlines() -> Iterator[ModuleType]:
    sys.path.insert(0, str(HERE / "programs" / "bench"))
    yield importlib.import_module("headlines")
    sys.path.remove(str(HERE / "programs" / "bench"))


def test_the_page_begins_with_a_few_ratios_that_were_measured_and_none_is_quoted_higher(
    headlines: ModuleType,
) -> None:
    quoted = headlines.headlines(ROWS)
    measured = {(row["work"], row["peer"]): row["ratio"] for row in ROWS}
    assert 0 < len(quoted) <= 8
    for headline, shown in zip(headlines.HEADLINES, quoted, strict=True):
        assert shown.ratio == min(
            filter(None, (measured[headline.row], *(headline.elsewhere or ())[:1]))
        )
        assert shown.machine in headlines.MACHINES


def test_a_headline_that_was_not_measured_ends_the_report_with_what_to_do(
    headlines: ModuleType,
) -> None:
    rows = [row for row in ROWS if row["work"] != headlines.HEADLINES[0].row[0]]
    with pytest.raises(SystemExit, match=r"no such row\. .*measure the group again"):
        headlines.headlines(rows)


def test_a_headline_whose_peer_is_not_installed_is_left_out(headlines: ModuleType) -> None:
    first, *others = headlines.HEADLINES
    rows = [
        {**row, "ratio": None} if (row["work"], row["peer"]) == first.row else row for row in ROWS
    ]
    quoted = headlines.headlines(rows)
    assert [one.label for one in quoted] == [headline.label for headline in others]
    assert headlines.chart(quoted).count("<rect") == 1 + len(others)


def test_a_row_of_the_page_that_was_not_measured_says_so(headlines: ModuleType) -> None:
    report = importlib.import_module("report")
    row = next(row for row in ROWS if row["group"] == "Shared beginnings")
    table = report.table([{**row, "ratio": None, "meets": None}])
    assert f"| {row['peer']} | not measured | {row['target']} |" in table


def test_the_chart_and_the_table_of_the_page_are_those_of_the_rows(headlines: ModuleType) -> None:
    quoted = headlines.headlines(ROWS)
    docs = HERE.parent / "docs"
    assert (docs / "images" / "benchmarks.svg").read_text(encoding="utf-8") == headlines.chart(
        quoted
    ), "out of date: python tests/programs/bench/report.py"
    assert headlines.headline_table(quoted) in (docs / "contributing" / "benchmarks.md").read_text(
        encoding="utf-8"
    )
