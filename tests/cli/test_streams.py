"""Standard streams that the caller has closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no shell that closes streams")


def closed(arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command line with some of its streams closed by a shell."""
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -m pipegen {arguments}', sys.executable],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("schema >&-", "stdout is closed"),
        ("doctor >&-", "stdout is closed"),
        ("--version >&-", "stdout is closed"),
        ("--help >&-", "stdout is closed"),
        ("generate in.jsonl --model embedded >&-", "stdout is closed: give -o FILE"),
        ("generate - --model embedded <&-", "stdin is closed: give a file"),
        ("generate - --model embedded <&- >&-", "stdin is closed"),
    ],
)
def test_a_closed_stream_ends_with_a_message(arguments: str, words: str, tmp_path: Path) -> None:
    if "--model" in arguments:
        pytest.importorskip("torch")
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n', encoding="utf-8")
    done = closed(arguments, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_closed_stream_that_is_not_used_does_no_harm(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "in.jsonl").write_text('{"prompt": 3}\n', encoding="utf-8")
    done = closed("generate in.jsonl --model embedded -o out.jsonl <&- >&-", tmp_path)
    assert done.returncode == 1
    assert "1 request" in done.stderr
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8").count("\n") == 1


@pytest.mark.slow
def test_nothing_that_is_printed_goes_into_a_file_in_place_of_a_closed_stream(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "in.jsonl").write_text('{"prompt": 3}\n', encoding="utf-8")
    done = closed("generate in.jsonl --model embedded -o out.jsonl 2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert line.startswith('{"id"')
