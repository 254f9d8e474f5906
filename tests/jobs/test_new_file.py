"""Files that take the place of others when they are whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipegen.jobs.new_file import TEMPORARY, JournalError, Replaced, new_file, remove_stale


def test_a_new_file_has_the_rights_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with new_file(path) as stream:
        stream.write(b"one")
    rights = path.stat().st_mode & 0o777
    assert rights & 0o600 == 0o600
    path.chmod(0o640)
    with new_file(path) as stream:
        stream.write(b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o640)
    (tmp_path / "link").symlink_to(path)
    with new_file(tmp_path / "link") as stream:
        stream.write(b"three")
    assert ((tmp_path / "link").is_symlink(), path.read_bytes()) == (True, b"three")


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(JournalError, match="no regular file"), new_file(path):
            raise AssertionError("it is refused before anything is written")


def test_what_a_killed_process_was_writing_is_removed_and_what_others_write_is_kept(
    tmp_path: Path,
) -> None:
    import subprocess
    import sys

    script = """
import os, pathlib
from pipegen.jobs.new_file import new_file
with new_file(pathlib.Path("out.jsonl")) as stream:
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), 9)
"""
    assert (
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False).returncode == -9
    )
    assert len(list(tmp_path.iterdir())) == 1
    with new_file(tmp_path / "out.jsonl") as stream:
        stream.write(b"whole")
        remove_stale(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    (tmp_path / f"{TEMPORARY}{os.uname().nodename}-notes").write_text("mine")
    remove_stale(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_another_users_process_is_writing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(process: int, number: int) -> None:
        raise PermissionError

    (tmp_path / f"{TEMPORARY}{os.uname().nodename}-7-abc").write_text("theirs")
    monkeypatch.setattr(os, "kill", refused)
    remove_stale(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_others_wrote_meanwhile_is_replaced_only_by_the_same_bytes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"theirs")
    with (
        pytest.raises(Replaced, match="was written by others"),
        new_file(path, changed=lambda: True) as stream,
    ):
        stream.write(b"ours")
    assert ([file.name for file in tmp_path.iterdir()], path.read_bytes()) == (
        ["out.jsonl"],
        b"theirs",
    )
    with new_file(path, changed=lambda: True) as stream:
        stream.write(b"theirs")
    assert path.read_bytes() == b"theirs"
