"""A fault at every system call: whatever call of a job fails, is done by half, or is the last one
of the process, the same command goes on.

Each case is run once undisturbed, to count its calls; then once for each call and fault. After a
fault the run has ended with what it should have made, or with a message; a run after it makes the
same as the undisturbed one, and asks for no row that was acknowledged.
"""

from __future__ import annotations

import gc
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.disk import FAULTS, Disk, Killed
from support.rowwise import Fuse, Rowwise

import pipegen as pg
from pipegen.cli import main
from pipegen.jobs.journal import Journal
from pipegen.jobs.new_file import TEMPORARY
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

# a killed process closes nothing
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
EVERY = 1 if os.environ.get("PIPEGEN_EVERY_FAULT") else 12
"""Of the calls of a case so many share one try, at each of the faults another one: `nox -s kills`
tries all of them.
"""
ROWS = 4
HALF = b'{"key":"0123456789abcdef'
"""What a kill leaves of a line."""


def echo(encoded: Encoded) -> str:
    return f"re: {encoded.request.id}<|im_end|>"


class Case:
    """One command in a folder of its own: what stands there before it, and its arguments."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        before: Callable[[Case, Path], None] = lambda case, folder: None,
    ) -> None:
        self.name, self.arguments, self._before = name, arguments, before

    def __repr__(self) -> str:
        return self.name

    def prepare(self, folder: Path) -> None:
        folder.mkdir()
        self._before(self, folder)

    def given(self, source: Path, folder: Path) -> list[str]:
        return [
            argument.replace("IN", str(source)).replace("OUT", str(folder))
            for argument in self.arguments
        ]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The input, outside of the folder whose disk fails."""
    place = tmp_path / "input"
    place.mkdir()
    (place / "rows.jsonl").write_text(
        "".join(
            json.dumps({"id": str(row), "prompt": f"prompt {row}"}) + "\n" for row in range(ROWS)
        )
    )
    return place


class Ran:
    """What a command did: its exit code, what it said, what it asked for, and the keys whose rows
    it acknowledged.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        self.said = ""
        self.asked: list[str] = []
        self.acknowledged: list[str] = []


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Callable[..., Ran]]:
    def ran(arguments: list[str], disk: Disk | None = None) -> Ran:
        engine, found, append = Rowwise(echo, Fuse()), Ran(), Journal.append

        def noted(journal: Journal, key: str, values: Any) -> None:
            append(journal, key, values)
            row = json.loads(values) if isinstance(values, str) else values
            found.acknowledged += [row["id"]] if "id" in row else []

        with monkeypatch.context() as patch:
            patch.setattr("pipegen.cli.generate.open_routes", lambda load: pg.route(engine))
            patch.setattr(Journal, "append", noted)
            # on a slow machine too, the calls come in one order
            patch.setattr("pipegen.drivers.drive_parts.PATIENCE", math.inf)
            patch.setattr("pipegen.jobs.kept_turns._LOOK", math.inf)
            try:
                if disk is None:
                    main(arguments)
                else:
                    with disk.mounted(monkeypatch):
                        main(arguments)
            except SystemExit as leaving:
                found.code = leaving.code if isinstance(leaving.code, int) else 0
            except Killed:
                pass
        out, err = capsysbinary.readouterr()
        found.said = err.decode() + out.decode()
        found.asked = [str(encoded.request.id) for call in engine.calls for encoded in call]
        return found

    yield ran
    gc.collect()  # what a killed command left open is not to be closed in another test


def files_in(folder: Path) -> dict[str, bytes]:
    """What a reader sees: no journal, no files that are being written."""
    found = (
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(TEMPORARY)
    )
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in found
        if path.parent.suffix != ".job" and path.name != "summary.json"
    }


def interrupted(case: Case, folder: Path) -> None:
    """A job that a kill ended after its first two rows, in the middle of the third."""
    finished(case, folder)
    rows = folder / "out.jsonl.job" / "results-0001.jsonl"
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:2]) + HALF)
    (folder / "out.jsonl").unlink()


def finished(case: Case, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipegen.cli.generate.open_routes", lambda load: pg.route(FakeEngine(echo)))
        with pytest.raises(SystemExit):
            main(
                [
                    "generate",
                    str(folder.parents[1] / "input" / "rows.jsonl"),
                    *("-o", str(folder / "out.jsonl"), "--model", "fake", "--quiet"),
                ]
            )


def images(case: Case, folder: Path) -> None:
    (folder / "images").mkdir()
    for name in "ab":
        (folder / "images" / f"{name}.png").write_bytes(name.encode())


GENERATE = [
    "generate",
    "IN/rows.jsonl",
    "-o",
    "OUT/out.jsonl",
    "--model",
    "fake",
    "--in-flight",
    "2",
]
CASES = [
    Case("a first run", [*GENERATE, "--summary", "OUT/summary.json"]),
    Case("a run that goes on", GENERATE, interrupted),
    Case("a run that begins anew", [*GENERATE, "--restart"], finished),
    Case("an export", ["export", "OUT/out.jsonl.job", "-o", "OUT/export.jsonl"], finished),
    Case(
        "sidecars",
        [
            *("generate", "OUT/images", "--prompt", "What?", "--sidecar", "txt"),
            *("-o", "OUT/out.jsonl", "--model", "fake", "--in-flight", "1"),
        ],
        images,
    ),
    Case("several calls", [*GENERATE, "--samples", "2", "--temperature", "1", "--seed", "3"]),
    Case(
        "csv",
        ["generate", "IN/rows.jsonl", "-o", "OUT/out.csv", "--model", "fake", "--in-flight", "2"],
    ),
    Case(
        "parquet",
        [
            *("generate", "IN/rows.jsonl", "-o", "OUT/out.parquet", "--model", "fake"),
            *("--in-flight", "2"),
        ],
    ),
]


SLOW = ("a run that begins anew", "csv")
"""Cases much like others, which take as long: `nox -s slow` and `nox -s kills` run them."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (case.name in SLOW)) for case in CASES],
    ids=repr,
)
def test_a_fault_at_any_call_loses_nothing(
    case: Case, fault: str, source: Path, run: Callable[..., Ran], tmp_path: Path
) -> None:
    if case.name == "parquet":
        pytest.importorskip("pyarrow")
    whole = tmp_path / "whole" / "place"
    whole.parent.mkdir()
    (tmp_path / "disturbed").mkdir()
    case.prepare(whole)
    disk = Disk(whole)
    undisturbed = run(case.given(source, whole), disk)
    assert undisturbed.code == 0
    wanted, calls = files_in(whole), disk.calls
    assert len(calls) > 20
    tried = 0
    for number, name in enumerate(calls):
        if fault in ("short", "EINTR", "kill half") and not name.startswith("write"):
            continue  # nothing else is done by half, and Python itself repeats what is interrupted
        if (number + FAULTS.index(fault)) % EVERY:
            continue
        folder = tmp_path / "disturbed" / "place"
        case.prepare(folder)
        disk = Disk(folder, number, fault)
        first = run(case.given(source, folder), disk)
        where = f"{fault} at call {number}, {name}: {first.said}"
        assert disk.calls[: number + 1] == calls[: number + 1], where
        tried += disk.failed
        if first.code == 0:
            assert files_in(folder) == wanted, where
        elif not disk.dead:
            assert first.said.strip(), where
            assert "bug" not in first.said, where
        again = run(case.given(source, folder), Disk(folder))
        assert (again.code, files_in(folder)) == (0, wanted), f"{where}\nagain: {again.said}"
        if "--restart" not in case.arguments:
            assert not set(first.acknowledged) & set(again.asked), where
        shutil.rmtree(folder)
    assert tried or EVERY > 1


@pytest.mark.parametrize("synced", range(ROWS + 1))
def test_a_power_loss_takes_only_what_was_not_synced(
    synced: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, requests = (
        tmp_path / "whole",
        [{"id": str(row), "prompt": f"prompt {row}"} for row in range(ROWS)],
    )
    whole.mkdir()
    monkeypatch.setattr(Journal, "_sync", lambda journal, every: None)  # the test says when
    with Disk(whole).mounted(monkeypatch) as disk:
        running = pg.job(pg.route(FakeEngine(echo)), requests, whole / "job", in_flight=1)
        for number in range(ROWS + 1):
            if number == synced:
                os.fsync(running.journal._fd)
            if number < ROWS:
                next(running)
        disk.dead = True
        with pytest.raises(Killed):
            running.close()
    lines = (whole / "job" / "results-0001.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == ROWS
    more = sum(map(len, lines[synced:]))
    for cut in [*range(min(more, 60)), *range(60, more, 97), more]:
        place = tmp_path / f"after {cut}"
        disk.after_power_loss(place, cut)
        engine = FakeEngine(echo)
        with pg.job(pg.route(engine), requests, place / "job") as again:
            texts = [slot.unwrap().text for slot in again]
        assert texts == [f"re: {row}" for row in range(ROWS)]
        there = b"".join(lines)[: sum(map(len, lines)) - more + cut]
        assert again.reused == there.count(b"\n") >= synced


def test_zeros_in_place_of_what_was_not_synced_are_cut(tmp_path: Path) -> None:
    requests = [{"id": str(row), "prompt": f"prompt {row}"} for row in range(2)]
    with pg.job(pg.route(FakeEngine(echo)), requests, tmp_path / "job") as running:
        list(running)
    rows = tmp_path / "job" / "results-0001.jsonl"
    data = rows.read_bytes()
    second = data.index(b"\n") + 1
    for kept in range(0, 60, 7):
        rows.write_bytes(data[: second + kept] + bytes(100))
        with pg.job(pg.route(FakeEngine(echo)), requests, tmp_path / "job") as running:
            assert [slot.unwrap().text for slot in running] == ["re: 0", "re: 1"]
        assert running.reused == 1
