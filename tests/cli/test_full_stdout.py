"""stdout on a full disk, and stdout whose reader has gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pipegen as pg
from pipegen.cli.export_command import Command, note_command
from pipegen.testing.fake import FakeEngine

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of bash; `$0 -m pipegen` is the command line."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}", sys.executable],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished job of so many rows that a pipe does not hold what it writes."""
    rows = [{"id": f"{number}", "prompt": f"{number} " * 300} for number in range(300)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pg.job(pg.route(FakeEngine("fine<|im_end|>")), rows, tmp_path / "out.job") as running:
        assert all(map(pg.is_ok, running))
    source = str(tmp_path / "in.jsonl")
    note_command(tmp_path / "out.job", Command(source, None, None, None, "fake", False))
    return tmp_path


COMMANDS = ["export out.job", "schema", "doctor --json", "--version"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_said_in_a_line(command: str, folder: Path) -> None:
    done = shell(f"$0 -m pipegen {command} > /dev/full", folder)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "stdout" in done.stderr
    assert "No space left on device" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_gone_is_no_news(command: str, folder: Path) -> None:
    done = shell(f"$0 -m pipegen {command} | head -c 1", folder)
    assert len(done.stdout) == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "stdout" not in done.stderr


@pytest.mark.slow
def test_an_estimate_on_a_full_disk_is_said_in_a_line(folder: Path) -> None:
    pytest.importorskip("torch")
    done = shell("$0 -m pipegen estimate in.jsonl --model embedded --json > /dev/full", folder)
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1] == "Error: stdout cannot be written: No space left on device"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_answers_on_a_full_disk_are_said_in_a_line(folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "one.jsonl").write_text('{"prompt": "Hi"}')
    asked = "generate one.jsonl --model embedded --max-new-tokens 2 --quiet"
    done = shell(f"$0 -m pipegen {asked} > /dev/full", folder)
    assert (done.returncode, done.stderr) == (
        1,
        "stdout cannot be written: No space left on device; the lines before are kept\n",
    )
