"""The journal of a job: finished rows on disk, as they come.

A folder holds `job.json` and one file of JSON Lines for each writer, `results-0001.jsonl` and so on; where rows take several calls, as many
`steps-0001.jsonl` (see `pipegen.jobs.steps`). A line is one finished row. It begins with the row's key, at a fixed place, so that opening a journal parses
no JSON:

    {"key":"<32 hexadecimal digits>", ...the slot as plain data...}

**Writing.** One `write` for each row, which has returned before the row is given out: what a killed process had acknowledged is kept. A thread syncs what
was written, at most once a second; only a power loss can take what is not synced. A write that fails is taken back, so no half line stays.

**Several writers.** A writer holds a lock on its file (`flock`), so two processes never write one file. A writer takes over the first file that nobody
holds, and cuts its torn last line, if a kill left one, before it appends. The files are read together; of two lines with one key an answer counts before a
failure, whichever file it is in: a row that failed may have been asked again by another writer. Else the later in its file, or the one in the later file,
counts.

**Reading.** A torn last line of another writer's file is left out: it is being written. Anything else that is not such a line is an error that names the
file and the line: it was not written by a job.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from pipegen.jobs.keys import MARK
from pipegen.jobs.new_file import JournalError, new_file, refused, sync_folder
from pipegen.records import strict_json

__all__ = ["Journal", "JournalError", "ROWS", "SETTINGS", "STEPS", "files_of", "locked", "read_settings", "remove_rows", "write_settings"]

SETTINGS = "job.json"
ROWS, STEPS = "results", "steps"
"""How the names of files begin that hold finished rows, and answers of rows that are not finished (see `pipegen.jobs.steps`)."""
FORM = 1
"""The version of the folder's files."""
SYNC_EVERY = 1.0
"""Seconds between two syncs, at least."""
_HEAD = re.compile(rb'\{"key":"([0-9a-f]{32})",')
_KEY = slice(8, 40)
"""Where the key is in a line."""
_FAILED = re.compile(rb'.{42}"id": null, "ok": false,', re.DOTALL)
"""How the line of a row begins that failed; those of answers differ."""
_DIGITS = 15
"""Hexadecimal digits of a key that the index holds: an int of 60 bits takes little memory. The whole key is compared when a line is read."""
_OFFSET_BITS = 44


class Finished:
    """The finished rows of a job's folder, to read. Raises `JournalError` where it is no job's folder."""

    def __init__(self, folder: str | os.PathLike[str], kind: str = ROWS) -> None:
        self.folder = Path(folder)
        self._index: dict[int, int] = {}
        self._files: list[BinaryIO] = []
        self._lock = threading.Lock()
        try:
            with refused(self.folder, "read"):
                paths = sorted(self.folder.glob(f"{kind}-*.jsonl"))
            for path in paths:
                with refused(path, "read"):
                    self._read(path)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many rows are finished."""
        return len(self._index)

    def get(self, key: str) -> dict[str, Any] | None:
        """What was written for the key last; None where nothing was."""
        place = self._index.get(int(key[:_DIGITS], 16))
        if place is None:
            return None
        number, offset = place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1)
        with self._lock, refused(self.folder, "read"):
            stream = self._files[number]
            stream.seek(offset)
            line = stream.readline()
        if line[_KEY] != key.encode():
            return None  # another key with the same first digits: the row is asked again
        values: dict[str, Any] = strict_json.load(line.decode())
        del values["key"]
        return values

    def marks(self) -> Iterator[bytes]:
        """The end of each key, which tells with what settings the row was made (see `pipegen.jobs.history`)."""
        files, mask, start, pread = [stream.fileno() for stream in self._files], (1 << _OFFSET_BITS) - 1, _KEY.stop - MARK, os.pread
        with refused(self.folder, "read"):
            for place in self._index.values():
                yield pread(files[place >> _OFFSET_BITS], MARK, (place & mask) + start)

    def close(self) -> None:
        """Let go of the files."""
        for stream in self._files:
            stream.close()

    def _read(self, path: Path) -> None:
        stream = path.open("rb")
        number, offset, index = len(self._files) << _OFFSET_BITS, 0, self._index
        self._files.append(stream)
        matches = _HEAD.match
        for count, line in enumerate(stream, 1):
            found = matches(line)
            if not line.endswith(b"\n"):
                return  # the last line is torn: it is being written, or its writer was killed
            if found is None or not line.endswith(b"}\n"):
                raise JournalError(f"{path}, line {count}: this is no line of a job's journal; move the file away, or give another folder")
            short = int(found[1][:_DIGITS], 16)
            if not (short in index and _FAILED.match(line) and self._answered(index[short])):
                index[short] = number | offset
            offset += len(line)

    def _answered(self, place: int) -> bool:
        """Whether the line at a place of the index is an answer. A file that is being read goes on where it was."""
        fd = self._files[place >> _OFFSET_BITS].fileno()
        return not _FAILED.match(os.pread(fd, 64, place & ((1 << _OFFSET_BITS) - 1)))


class Journal(Finished):
    """The finished rows of a job's folder, and one file of it to write to.

    `sync_every` is in seconds. Raises `JournalError` where the folder is no journal, or cannot be written.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Journal(folder) as journal:
    ...     journal.append("0" * 32, {"id": "a", "ok": True})
    >>> with Journal(folder) as journal:
    ...     len(journal), journal.get("0" * 32), journal.get("1" * 32)
    (1, {'id': 'a', 'ok': True}, None)
    """

    def __init__(self, folder: str | os.PathLike[str], kind: str = ROWS, *, sync_every: float = SYNC_EVERY) -> None:
        self._fd, own = _own_file(Path(folder), kind)
        self._closed, self._written = threading.Event(), threading.Event()
        self._failed: OSError | None = None
        self._unsynced: OSError | None = None
        try:
            super().__init__(folder, kind)
            self._own = next(number for number, stream in enumerate(self._files) if stream.name == str(own))
            with refused(own, "read"):
                self._end = os.fstat(self._fd).st_size
        except BaseException:
            os.close(self._fd)
            raise
        self._syncing = threading.Thread(target=self._sync, args=(sync_every,), name="pipegen-journal", daemon=True)
        self._syncing.start()

    def append(self, key: str, values: Mapping[str, Any]) -> None:
        """Write a finished row. It is kept when this returns. Raises `JournalError` where it could not be written; nothing of it stays then."""
        line = f'{{"key":"{key}",{strict_json.dump(dict(values))[1:]}\n'.encode()
        with self._lock:
            if self._failed is not None:
                raise JournalError(f"{self.folder} cannot be written: {self._failed.strerror}; start the job again, it goes on") from self._failed
            try:
                _write(self._fd, line)
            except OSError as refusal:
                try:
                    os.ftruncate(self._fd, self._end)
                except OSError:  # half a line stays: the next writer cuts it, and this one must not write behind it
                    self._failed = refusal
                raise JournalError(f"{self.folder} cannot be written: {refusal.strerror}; what was finished before is kept") from refusal
            self._index[int(key[:_DIGITS], 16)] = self._own << _OFFSET_BITS | self._end
            self._end += len(line)
        self._written.set()

    def close(self) -> None:
        """Sync, and let go of the files. May be called again. Raises `JournalError` where the last rows cannot be synced."""
        if not hasattr(self, "_syncing") or self._closed.is_set():
            super().close()
            return
        self._closed.set()
        self._written.set()
        self._syncing.join()
        try:
            with refused(self.folder, "synced", "start the job again, it goes on"), contextlib.ExitStack() as held:
                held.callback(os.close, self._fd)
                if self._unsynced is not None:  # a later sync may succeed without what this one has lost
                    raise self._unsynced
                os.fsync(self._fd)
        finally:
            super().close()

    def _sync(self, every: float) -> None:
        """Sync what was written, at most once in so many seconds, until the journal is closed."""
        while True:
            self._written.wait()
            if self._closed.is_set():
                return
            self._written.clear()
            try:
                os.fsync(self._fd)
            except OSError as refusal:
                self._failed = self._unsynced = refusal
                return
            self._closed.wait(every)


def _write(fd: int, data: bytes) -> None:
    """All of the data; a write may take a part only."""
    while data:
        try:
            written = os.write(fd, data)
        except InterruptedError:
            continue
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data = data[written:]


def _own_file(folder: Path, kind: str) -> tuple[int, Path]:
    """A file of the folder that nobody else writes, open for appending, locked, and without a torn last line."""
    try:
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # what may not be read cannot be synced
            sync_folder(folder.parent)
        number = 0
        while True:
            number += 1
            path = folder / f"{kind}-{number:04}.jsonl"
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                if locked(fd):
                    _cut_torn_line(fd, path)
                    sync_folder(folder)
                    return fd, path
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
    except FileNotFoundError:
        raise JournalError(f"there is no folder {folder.parent}, in which the job's folder {folder.name} would lie") from None
    except OSError as refusal:
        raise JournalError(f"the job's folder {folder} cannot be written: {refusal.strerror}") from refusal


def locked(fd: int) -> bool:
    """Take the lock on an open file, which is held until it is closed; whether nobody else holds it."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as refusal:
        if refusal.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def files_of(folder: Path) -> list[Path]:
    """The files of a folder that journals write."""
    return sorted(path for kind in (ROWS, STEPS) for path in folder.glob(f"{kind}-*.jsonl"))


def remove_rows(folder: Path) -> None:
    """Empty the files of a folder's rows. Raises `JournalError`, and removes nothing, where another run writes one of them, or one cannot be written.

    The files stay: a run that opens one meanwhile would write to a file without a name.
    """
    with refused(f"the rows in {folder}", "removed"), contextlib.ExitStack() as held:
        files = []
        for path in files_of(folder):
            fd = os.open(path, os.O_RDWR)
            held.callback(os.close, fd)
            if not locked(fd):
                raise JournalError(f"{folder}: another run of this job is running ({path.name} is locked), and nothing is removed; end that one first")
            files.append(fd)
        for fd in files:
            os.ftruncate(fd, 0)


def _cut_torn_line(fd: int, path: Path) -> None:
    """Cut what follows the last line end. Raises `JournalError` where that is more than a line may have been."""
    end = os.fstat(fd).st_size
    start = end
    while start > 0:
        step = min(start, 2**16)
        block = os.pread(fd, step, start - step)
        if start == end and block.endswith(b"\n"):
            return
        found = block.rfind(b"\n")
        if found >= 0:
            start = start - step + found + 1
            break
        start -= step
    if start < end:
        head = os.pread(fd, 40, start)
        if not b'{"key":"'.startswith(head[:8].rstrip(b"\0")):  # after a power loss, zeros may stand for what was not synced
            raise JournalError(f"{path}: its last line is no line of a job's journal; move the file away, or give another folder")
        os.ftruncate(fd, start)


def read_settings(folder: Path) -> dict[str, Any] | None:
    """What `job.json` holds; None where there is none. Raises `JournalError` where it is not one."""
    try:
        text = (folder / SETTINGS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as refusal:
        raise JournalError(f"{folder / SETTINGS} cannot be read: {refusal}") from refusal
    try:
        values = strict_json.load(text)
    except strict_json.NotStrict as refusal:
        raise JournalError(f"{folder / SETTINGS} is no job's: {refusal}; give another folder") from None
    if not isinstance(values, dict) or values.get("form") != FORM:
        raise JournalError(f"{folder / SETTINGS} is of another version of pipegen, or no job's; give another folder")
    return values


def write_settings(folder: Path, values: Mapping[str, Any]) -> None:
    """Write `job.json`, whole or not at all. Raises `JournalError`."""
    with new_file(folder / SETTINGS) as stream:
        stream.write(strict_json.dump({"form": FORM, **values}).encode() + b"\n")
