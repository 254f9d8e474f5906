"""The journal: what a kill, a full disk and a second writer leave behind."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from returns.result import Failure
from toolz import dissoc

from pipegen.core.errors import Timeout
from pipegen.io.jsonl import to_plain
from pipegen.jobs.journal import SYNC_EVERY, Finished, Journal, read_settings, write_settings
from pipegen.jobs.new_file import JournalError, new_file

A, B, C = "a" * 32, "b" * 32, "c" * 32


def lines(folder: Path) -> list[bytes]:
    return [
        line
        for path in sorted(folder.glob("results-*.jsonl"))
        for line in path.read_bytes().splitlines(keepends=True)
    ]


def test_rows_are_there_again(tmp_path: Path) -> None:
    with Journal(tmp_path / "job") as journal:
        journal.append(A, {"id": "é\u2028", "ok": True})
        assert journal.get(A) == {"id": "é\u2028", "ok": True}
        journal.append(A, {"id": "later"})
    with Journal(tmp_path / "job") as journal:
        assert (len(journal), journal.get(A), journal.get(B)) == (1, {"id": "later"}, None)
        assert [*journal.rows()] == [{"id": "later"}]


@pytest.mark.parametrize("kept", range(60))
def test_a_torn_last_line_is_cut_wherever_it_is_torn(tmp_path: Path, kept: int) -> None:
    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "a"})
        journal.append(B, {"id": "b"})
    path = tmp_path / "results-0001.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 + kept][: len(whole)])
    torn = len(whole) // 2 + kept < len(whole)
    with Journal(tmp_path) as journal:
        assert journal.get(A) == {"id": "a"}
        assert journal.get(B) == (None if torn else {"id": "b"})
        journal.append(C, {"id": "c"})
    with Journal(tmp_path) as journal:
        assert journal.get(C) == {"id": "c"}


def test_a_long_torn_line_is_cut_too(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "a"})
        journal.append(B, {"id": "b" * 300_000})
    path = tmp_path / "results-0001.jsonl"
    path.write_bytes(path.read_bytes()[:-2])
    with Journal(tmp_path) as journal:
        assert (journal.get(A), journal.get(B)) == ({"id": "a"}, None)


@pytest.mark.parametrize(
    "text",
    [
        *(b'{"id":"a"}\n', b"\n", b'{"key":"zz"}\n', b'{"key":"' + b"a" * 32 + b'","id"\n'),
        *(bytes(100) + b"\n", b"\xff" * 9 + b"\n"),
    ],
)
def test_a_line_that_is_none_of_a_journal_is_left_out_with_a_warning(
    tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "a"})
        journal.append(B, {"id": "b"})
    path = tmp_path / "results-0001.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + text + second)
    with Journal(tmp_path) as journal:
        assert (journal.get(A), journal.get(B)) == ({"id": "a"}, {"id": "b"})
    assert caplog.messages == [
        f"{path}, line 2: damaged, and left out; missing requests are sent again"
    ]


def test_a_warning_names_the_first_of_many_damaged_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "a"})
    path = tmp_path / "results-0001.jsonl"
    path.write_bytes(path.read_bytes() + b"{}\n" * 8)
    with Finished(tmp_path) as finished:
        assert len(finished) == 1
    assert [message.partition(": ")[0] for message in caplog.messages] == [
        f"{path}, lines 2, 3, 4, 5, 6 and 3 more"
    ]


@pytest.mark.parametrize(
    "text",
    [
        b"my own notes",
        b"my own notes\nand more\n",
        b'{"id": "a", "ok": true}\n',
        b"\n",
        b"x" * 200_000,
    ],
)
def test_a_file_that_is_no_journal_is_refused_and_stays_as_it_is(
    tmp_path: Path, text: bytes
) -> None:
    path = tmp_path / "results-0001.jsonl"
    path.write_bytes(text)
    with pytest.raises(JournalError, match=r"results-0001\.jsonl is no job's journal"):
        Journal(tmp_path)
    assert path.read_bytes() == text


def test_a_last_line_that_is_none_of_a_journal_is_ended_and_not_cut(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "a"})
    path = tmp_path / "results-0001.jsonl"
    before = path.read_bytes() + b"my own notes"
    path.write_bytes(before)
    with Journal(tmp_path) as journal:
        assert journal.get(A) == {"id": "a"}
        journal.append(B, {"id": "b"})
    assert path.read_bytes().startswith(before + b'\n{"key":"')
    with Journal(tmp_path) as journal:
        assert (journal.get(A), journal.get(B)) == ({"id": "a"}, {"id": "b"})


def test_a_line_is_one_json_object_with_its_key_and_the_checksum_of_its_bytes(
    tmp_path: Path,
) -> None:
    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "é", "ok": True})
    (line,) = lines(tmp_path)
    values = json.loads(line)
    assert list(values) == ["key", "crc", "id", "ok"]
    assert values["crc"] == f"{zlib.crc32(A.encode() + line[57:]):08x}"


def test_a_line_that_changes_while_the_journal_is_open_is_not_given_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "a"})
        journal.append(B, {"id": "b"})
        path = tmp_path / "results-0001.jsonl"
        data = path.read_bytes()
        for damaged, why in (
            (data.replace(b'"b"', b'"c"'), "checksum"),
            (data[: data.index(b"\n") + 9] + b"!" * 80 + b"\n", ""),
        ):
            path.write_bytes(damaged)
            assert journal.get(B) is None
            assert journal.has(B) is (why == "")
            if why:
                assert caplog.messages == [
                    (
                        f"{path}, line 2 cannot be read (it does not agree with its checksum): its"
                        " request is sent again"
                    )
                ]
                path.write_bytes(data)
                journal.append(B, {"id": "b"})
        assert journal.get(A) == {"id": "a"}
        journal.forget(C, "it is no row")
        assert len(caplog.messages) == 1


def test_a_line_that_becomes_none_of_a_journal_is_not_given_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "results-0001.jsonl"
    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "a"})
        path.write_bytes(path.read_bytes().replace(b'"crc"', b'"crx"'))
        assert journal.get(A) is None
        assert "line 1 cannot be read (it is no line of a journal)" in caplog.text
        assert not journal.has(A)


def test_a_line_that_is_no_json_is_not_given_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(tmp_path) as journal:
        journal.append(A, '{"id": "a", "ok": tru}')
        assert journal.has(A)
        assert journal.get(A) is None
        assert "line 1 cannot be read (Expecting value" in caplog.text
        assert not journal.has(A)


def test_a_line_that_the_disk_does_not_give_back_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "no more")

    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "a"})
        monkeypatch.setattr(journal, "_line", broken)
        with pytest.raises(JournalError, match="cannot be read: no more"):
            journal.get(A)


def test_two_writers_have_a_file_each_and_are_read_together(tmp_path: Path) -> None:
    with Journal(tmp_path) as first, Journal(tmp_path) as second:
        first.append(A, {"id": "a"})
        second.append(B, {"id": "b"})
        assert [path.name for path in sorted(tmp_path.iterdir())] == [
            "results-0001.jsonl",
            "results-0002.jsonl",
        ]
        assert first.get(B) is None
    with Journal(tmp_path) as both:
        assert (both.get(A), both.get(B), len(both)) == ({"id": "a"}, {"id": "b"}, 2)


def test_the_torn_line_of_a_writer_at_work_is_left_alone(tmp_path: Path) -> None:
    with Journal(tmp_path) as first:
        first.append(A, {"id": "a"})
        with (tmp_path / "results-0001.jsonl").open("ab") as half:
            half.write(b'{"key":"bb')
        with Journal(tmp_path) as second:
            assert (second.get(A), len(second)) == ({"id": "a"}, 1)
    assert (tmp_path / "results-0001.jsonl").read_bytes().endswith(b'{"key":"bb')


@pytest.mark.parametrize("torn", [1, 10, 41, 60])
def test_a_torn_line_that_is_cut_while_it_is_read_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: int
) -> None:
    with Journal(tmp_path) as first:
        first.append(A, {"id": "a"})
        first.append(B, {"id": "b" * 100})
    path = tmp_path / "results-0001.jsonl"
    path.write_bytes(
        path.read_bytes()[: -len(path.read_bytes().splitlines(keepends=True)[1]) + torn]
    )
    opened = [0]

    class Slow(io.FileIO):
        """The first reader of the file: when it comes to the end, another process has taken the
        file over.
        """

        def readinto(self, buffer: Any) -> int:
            count = super().readinto(buffer)
            if not count and opened[0] == 1:
                opened[0] += 1
                with Journal(tmp_path) as second:
                    second.append(C, {"id": "c" * 300})
                    second.append(B, {"id": "b again"})
                count = super().readinto(buffer)
            return count or 0

    def slowly(self: Path, mode: str = "r", **how: Any) -> Any:
        opened[0] += 1
        return io.BufferedReader(Slow(self)) if opened[0] == 1 else path_open(self, mode, **how)

    path_open = Path.open
    monkeypatch.setattr(Path, "open", slowly)
    with Finished(tmp_path) as finished:
        assert opened[0] > 2
        assert finished.get(A) == {"id": "a"}
        assert finished.get(B) in (None, {"id": "b again"})
    monkeypatch.undo()
    with Finished(tmp_path) as finished:
        seen = [finished.get(key) for key in (A, B, C)]
        assert seen == [{"id": "a"}, {"id": "b again"}, {"id": "c" * 300}]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("taken", [0, 7])
def test_a_write_that_fails_leaves_nothing_of_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, taken: int
) -> None:
    write = os.write
    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "a"})
        left = [taken]

        def full(fd: int, data: bytes) -> int:
            if left and left[0]:
                return write(fd, data[: left.pop()])
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(JournalError, match=os.strerror(number)):
                journal.append(B, {"id": "b"})
        assert len(lines(tmp_path)) == 1
        journal.append(C, {"id": "c"})
    with Journal(tmp_path) as journal:
        assert (journal.get(A), journal.get(B), journal.get(C)) == ({"id": "a"}, None, {"id": "c"})


def test_a_row_that_can_neither_be_written_nor_taken_back_ends_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    journal = Journal(tmp_path)

    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "no more")

    taken = [9]

    def half(fd: int, data: bytes) -> int:
        return write(fd, data[: taken.pop()]) if taken else fail()

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(JournalError):
            journal.append(A, {"id": "a"})
    with pytest.raises(JournalError, match="goes on"):
        journal.append(B, {"id": "b"})
    journal.close()
    with Journal(tmp_path) as again:
        assert len(again) == 0
        again.append(B, {"id": "b"})
    assert [line[8:40] for line in lines(tmp_path)] == [B.encode()]


def test_interrupted_and_short_writes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = os.write, [0]

    def slow(fd: int, data: bytes) -> int:
        calls[0] += 1
        if calls[0] % 2:
            raise InterruptedError
        return write(fd, data[:5])

    with Journal(tmp_path) as journal, monkeypatch.context() as patch:
        patch.setattr(os, "write", slow)
        journal.append(A, {"id": "a"})
    with Journal(tmp_path) as journal:
        assert journal.get(A) == {"id": "a"}


def test_what_is_written_is_synced_soon_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    assert SYNC_EVERY == 1.0

    synced, fsync, first = [0], os.fsync, threading.Event()

    def count(fd: int) -> None:
        synced[0] += 1
        fsync(fd)
        first.set()

    journal = Journal(tmp_path, sync_every=3600)
    monkeypatch.setattr(os, "fsync", count)
    journal.append(A, {"id": "a"})
    assert first.wait(60)
    for _ in range(50):
        journal.append(B, {"id": "b"})
    assert synced == [1]
    journal.close()
    assert synced == [2]


class ClosedMeanwhile(threading.Event):
    """An event that the journal's owner sets, to close it, just before it is cleared."""

    def __init__(self, journal: Any) -> None:
        super().__init__()
        self.journal = journal

    def clear(self) -> None:
        self.journal._closed.set()
        self.set()
        super().clear()


def test_a_journal_that_is_closed_while_it_syncs_is_closed(tmp_path: Path) -> None:
    journal: Any = Journal(tmp_path)
    waiting, journal._written = journal._written, ClosedMeanwhile(journal)
    waiting.set()
    journal._syncing.join(60)
    assert not journal._syncing.is_alive()
    journal._closed.clear()
    journal.close()


@pytest.mark.parametrize("mended", [False, True])
def test_a_sync_that_fails_is_an_error_at_the_next_row_and_at_the_end(
    mended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end too where a later sync would succeed: what the first has lost stays lost."""
    import threading

    tried = threading.Event()

    def fail(fd: int) -> None:
        tried.set()
        raise OSError(errno.EIO, "the disk is gone")

    journal = Journal(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        journal.append(A, {"id": "a"})
        assert tried.wait(60)
        journal._syncing.join(60)
        with pytest.raises(JournalError, match="the disk is gone"):
            journal.append(B, {"id": "b"})
        if mended:
            patch.undo()
        with pytest.raises(JournalError, match="the disk is gone; start the job again"):
            journal.close()
    with Journal(tmp_path) as again:
        assert again.get(A) == {"id": "a"}


def test_what_cannot_be_a_journal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JournalError, match="there is no folder"):
        Journal(tmp_path / "no" / "such")
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be written"):
        Journal(tmp_path / "file")

    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(JournalError, match="Read-only file system"):
            Journal(tmp_path / "job")


def test_keys_of_the_same_beginning_are_told_apart(tmp_path: Path) -> None:
    near = A[:15] + "f" * 17
    with Journal(tmp_path) as journal:
        journal.append(A, {"id": "a"})
        assert journal.get(near) is None


SETTINGS = {
    "pipeline": "fake",
    "plugins": [],
    "version": "",
    "options": {},
    "engines": [],
    "keys": 2,
}


def test_settings_are_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings(tmp_path) is None
    write_settings(tmp_path, {**SETTINGS, "model": "a"})

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(JournalError, match="No space left"):
                write_settings(tmp_path, {**SETTINGS, "model": "b"})
    assert read_settings(tmp_path) == {"form": 1, **SETTINGS, "model": "a"}
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_settings_that_cannot_be_read_are_no_settings_of_another(tmp_path: Path) -> None:
    (tmp_path / "job.json").mkdir()
    with pytest.raises(JournalError, match=r"job\.json cannot be read: Is a directory"):
        read_settings(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not|no job"),
        ("[]", "no job's"),
        ('{"form": 99}', "another version"),
        ('{"form": 1, "keys": 1}', "another version"),
        (json.dumps({"form": 1, **SETTINGS, "keys": 1}), "another version"),
        (json.dumps({"form": 1, **dissoc(SETTINGS, "keys")}), "another version"),
        ("\udcff", "is damaged"),
    ],
)
def test_settings_of_others_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "job.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(JournalError, match=words):
        read_settings(tmp_path)


def test_sixteen_writers_lose_and_double_nothing(tmp_path: Path) -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor

    together = threading.Barrier(16)

    def key(writer: int, row: int) -> str:
        return hashlib.blake2b(f"{writer} {row}".encode(), digest_size=16).hexdigest()

    def write(writer: int) -> None:
        with Journal(tmp_path) as journal:
            for row in range(30):
                journal.append(key(writer, row), {"id": f"{writer} {row}"})
            together.wait(60)  # all are open at once

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(16)))
    written = [line[8:40] for line in lines(tmp_path)]
    assert len(written) == len(set(written)) == 16 * 30
    with Journal(tmp_path) as journal:
        assert len(journal) == 16 * 30
        assert all(
            journal.get(key(writer, row)) == {"id": f"{writer} {row}"}
            for writer in range(16)
            for row in range(30)
        )


def test_what_cannot_be_read_written_or_locked_is_an_error_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results-0002.jsonl").mkdir()
    with pytest.raises(JournalError, match=r"results-0002\.jsonl cannot be read: Is a directory"):
        Journal(tmp_path)
    with (
        pytest.raises(JournalError, match=r"out\.jsonl cannot be written: No such file"),
        new_file(tmp_path / "no" / "out.jsonl"),
    ):
        raise AssertionError("it is refused before anything is written")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(JournalError, match="No locks available"):
        Journal(tmp_path / "other")


def test_a_disk_that_takes_nothing_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path) as journal:
        monkeypatch.setattr(os, "write", lambda fd, data: 0)
        with pytest.raises(JournalError, match="Input/output error"):
            journal.append(A, {"id": "a"})


def test_an_answer_counts_before_a_failure_whichever_file_it_is_in(tmp_path: Path) -> None:
    answer, failure = {"id": "a", "ok": True}, to_plain(Failure(Timeout("slow")))
    for number, (first, second) in enumerate(((answer, failure), (failure, answer))):
        with Journal(tmp_path / str(number)) as one, Journal(tmp_path / str(number)) as other:
            one.append(A, first)
            other.append(A, second)
        with Journal(tmp_path / str(number)) as journal:
            assert journal.get(A) == answer
