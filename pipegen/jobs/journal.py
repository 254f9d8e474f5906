"""The journal of a job: finished rows on disk, as they come.

A folder holds `job.json` and one file of JSON Lines for each writer, `results-0001.jsonl` and so
on. Where rows take several calls, it has as many `steps-0001.jsonl` (see `pipegen.jobs.kept_steps`). A
line is one finished row. It begins with the row's key and a checksum, at fixed places, so that
opening a journal parses no JSON:

    {"key":"<32 hexadecimal digits>","crc":"<8 hexadecimal digits>", ...the slot as plain data...}

The checksum is the CRC-32 of the key and of what follows the checksum.

**Writing.** One `write` for each row, which has returned before the row is given out: what a killed
process had acknowledged is kept. A thread syncs what was written, at most once a second; only a
power loss can take what is not synced. A write that fails is taken back, so no half line stays.

**Several writers.** A writer holds a lock on its file (`flock`), so two processes never write one
file. A writer takes over the first file that nobody holds, and cuts its torn last line, if a kill
left one, before it appends. The files are read together. Of two lines with one key an answer counts
before a failure, whichever file it is in: another writer may have asked a failed row again. Else
the later in its file, or the one in the later file, counts.

**Reading.** A line that does not agree with its checksum, or is no line of a journal, is damaged.
It is left out, a warning names the file and the line, and its row is asked again. A torn last line
of another writer's file is left out without a word: it is being written. A file without anything
like a line of a journal was not written by a job: it is refused, and nothing is written to it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self
from zlib import crc32

from returns.result import Result

from pipegen.core.foreign_calls import attempt
from pipegen.core.slots import is_ok
from pipegen.jobs.new_file import JournalError, new_file, refused, sync_folder
from pipegen.jobs.row_keys import MARK, RULE
from pipegen.records import strict_json

SETTINGS = "job.json"
ROWS, STEPS = "results", "steps"
"""How the names of files begin that hold finished rows, and answers of rows that are not finished
(see `pipegen.jobs.kept_steps`).
"""
FORM = 1
"""The version of the folder's files."""
SYNC_EVERY = 1.0
"""Seconds between two syncs, at least."""
_log = logging.getLogger("pipegen")
_BEGINS, _GOES_ON = b'{"key":"', b'","crc":"'
_KEY, _CRC = slice(8, 40), slice(49, 57)
"""Where the key and the checksum are in a line."""
_DIGITS = 15
"""Hexadecimal digits of a key that the index holds: an int of 60 bits takes little memory. The
whole key is compared when a line is read.
"""
_SHORT = slice(_KEY.start, _KEY.start + _DIGITS)
_MARK = slice(_KEY.stop - MARK, _KEY.stop)
_BETWEEN = slice(_KEY.stop, _CRC.start)
_FIRST = 59
"""Where the values begin in a line."""
_SUMMED = slice(_CRC.stop, None)
"""What is summed with the key."""
_BUFFER = 2**16
"""Bytes that are read at a time."""
_FAILED = b'"id": null, "ok": false,'
"""How the slot of a row begins that failed; those of answers differ."""
_ALIKE = 6
"""How many of the 8 or 9 bytes at a fixed place have to be right in a line that is a damaged one of
a journal.
"""
_NAMED = 5
"""Damaged lines of a file that a warning names."""
_MORE_BITS = 64 - 4 * _DIGITS
"""The bits that the first 8 bytes of a key have besides."""
_OFFSET_BITS = 44
_FAILED_BIT = 1 << 62
"""Set in the place of a row that failed."""


class Finished:
    """The finished rows of a job's folder, to read. Raises `JournalError` where it is no job's
    folder.
    """

    def __init__(self, folder: str | os.PathLike[str], kind: str = ROWS) -> None:
        self.folder = Path(folder)
        self._index: dict[int, int] = {}
        self.marks: dict[bytes, int] = {}
        """How many rows were finished at the start, by the end of their keys, which tells with what
        settings a row was made (see `pipegen.jobs.history`).
        """
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

    def has(self, key: str) -> bool:
        """Whether the row is finished, as far as that can be told without its line."""
        return int(key[:_DIGITS], 16) in self._index

    def failed(self, key: str) -> bool:
        """Whether the row is finished and failed, as far as that can be told without its line."""
        return bool(self._index.get(int(key[:_DIGITS], 16), 0) & _FAILED_BIT)

    def succeeded(self, key: bytes) -> bool:
        """The same of a row that is finished and did not fail, by its key as 16 bytes."""
        return (
            not self._index.get(int.from_bytes(key[:8], "big") >> _MORE_BITS, _FAILED_BIT)
            & _FAILED_BIT
        )

    def unfinished(self, keys: Iterable[int]) -> Iterator[int]:
        """0 for each key that `succeeded`; they are given as the numbers of their first 8 bytes."""
        get = self._index.get
        return (get(key >> _MORE_BITS, _FAILED_BIT) & _FAILED_BIT for key in keys)

    def get(self, key: str) -> dict[str, Any] | None:
        """What was written for the key last; None where nothing was, or where it cannot be read:
        then it is no longer a finished row, and a warning says so.
        """
        text = self.text(key)
        if text is None:
            return None
        parsed: Result[dict[str, Any], Exception] = attempt(lambda: json.loads(b"{" + text))
        if is_ok(parsed):
            return parsed.unwrap()
        self.forget(key, str(parsed.failure()))
        return None

    def text(self, key: str) -> bytes | None:
        """As `get`, as JSON text without the opening brace."""
        place = self._index.get(int(key[:_DIGITS], 16))
        if place is None:
            return None
        try:
            line = self._line(place)
        except OSError:
            with refused(self.folder, "read"):
                raise
        if line[_KEY] != key.encode():
            return None  # another key with the same first digits: the row is asked again
        if _is_whole(line):
            return line[_FIRST:]
        begins = line.startswith(_BEGINS) and line[_BETWEEN] == _GOES_ON
        self.forget(
            key, "it does not agree with its checksum" if begins else "it is no line of a journal"
        )
        return None

    def rows(self) -> Iterator[dict[str, object]]:
        """What was written for each finished row last. Raises `OSError` where it cannot be read."""
        lines = map(self._line, list(self._index.values()))
        return (json.loads(b"{" + line[_FIRST:]) for line in lines if _is_whole(line))

    def forget(self, key: str, why: str) -> None:
        """Take a row whose line cannot be read for one that is not finished, with a warning: it is
        of another version, or damaged.
        """
        place = self._index.pop(int(key[:_DIGITS], 16), None)
        if place is not None:
            number, offset = _file_and_offset(place)
            with self._lock, refused(self.folder, "read"):
                stream = self._files[number]
                stream.seek(0)
                line = 1 + sum(
                    stream.read(min(2**20, offset - start)).count(b"\n")
                    for start in range(0, offset, 2**20)
                )
            _log.warning(
                "%s, line %d cannot be read (%s): its request is sent again", stream.name, line, why
            )

    def close(self) -> None:
        """Let go of the files."""
        for stream in self._files:
            stream.close()

    def _line(self, place: int) -> bytes:
        number, offset = _file_and_offset(place)
        with self._lock:
            stream = self._files[number]
            stream.seek(offset)
            return stream.readline()

    def _read(self, path: Path) -> None:
        stream = path.open("rb", buffering=_BUFFER)
        number, offset, index = len(self._files) << _OFFSET_BITS, 0, self._index
        self._files.append(stream)
        row_count, marks = len(index), self.marks
        damaged: list[int] = []
        for count, line in enumerate(stream, 1):
            if not (  # as `_is_whole` tells it, without a call for each line
                b"%08x" % crc32(line[_SUMMED], crc32(line[_KEY])) == line[_CRC]
                and line[_BETWEEN] == _GOES_ON
                and line.startswith(_BEGINS)
            ):
                if not line.endswith(b"\n"):
                    break  # the last line is torn: it is being written, or its writer was killed
                damaged.append(count)
            elif not line.startswith(_FAILED, _FIRST):
                index[int(line[_SHORT], 16)] = number | offset
            elif index.get(short := int(line[_SHORT], 16), _FAILED_BIT) & _FAILED_BIT:
                index[short] = number | offset | _FAILED_BIT
            if len(index) > row_count:
                row_count += 1
                mark = line[_MARK]
                marks[mark] = marks.get(mark, 0) + 1
            offset += len(line)
        if damaged:
            _check_journal(path)
            remainder = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
            names = (
                f"line{'s' if len(damaged) > 1 else ''}"
                f" {', '.join(map(str, damaged[:_NAMED]))}{remainder}"
            )
            _log.warning(
                "%s, %s: damaged, and left out; missing requests are sent again", path, names
            )


def _file_and_offset(place: int) -> tuple[int, int]:
    place &= ~_FAILED_BIT
    return place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1)


def _is_whole(line: bytes) -> bool:
    """Whether a line is as it was written, by its checksum."""
    checksum = b"%08x" % crc32(line[_SUMMED], crc32(line[_KEY]))
    return checksum == line[_CRC] and line[_BETWEEN] == _GOES_ON and line.startswith(_BEGINS)


class Journal(Finished):
    """The finished rows of a job's folder, and one file of it to write to.

    `sync_every` is in seconds. Raises `JournalError` where the folder is no journal, or cannot be
    written.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Journal(folder) as journal:
    ...     journal.append("0" * 32, {"id": "a", "ok": True})
    >>> with Journal(folder) as journal:
    ...     len(journal), journal.get("0" * 32), journal.get("1" * 32)
    (1, {'id': 'a', 'ok': True}, None)
    """

    def __init__(
        self, folder: str | os.PathLike[str], kind: str = ROWS, *, sync_every: float = SYNC_EVERY
    ) -> None:
        self._fd, own_path = _own_file(Path(folder), kind)
        self._closed, self._written = threading.Event(), threading.Event()
        self._failed: OSError | None = None
        self._unsynced: OSError | None = None
        try:
            super().__init__(folder, kind)
            self._own = next(
                number for number, stream in enumerate(self._files) if stream.name == str(own_path)
            )
            with refused(own_path, "read"):
                self._end = os.fstat(self._fd).st_size
        except BaseException:
            os.close(self._fd)
            raise
        self._syncing = threading.Thread(
            target=self._sync, args=(sync_every,), name="pipegen-journal", daemon=True
        )
        self._syncing.start()

    def append(self, key: str, values: Mapping[str, object] | str) -> None:
        """Write a finished row, or its line of JSON. It is kept when this returns. Raises
        `JournalError` where it could not be written; nothing of it stays then.
        """
        text = values if isinstance(values, str) else strict_json.dump(dict(values))
        row = f'",{text[1:]}\n'.encode()
        line = f'{{"key":"{key}","crc":"{crc32(row, crc32(key.encode())):08x}'.encode() + row
        with self._lock:
            if self._failed is not None:
                raise JournalError(
                    f"{self.folder} cannot be written: {self._failed.strerror}; start the job"
                    " again, it goes on"
                ) from self._failed
            try:
                _write(self._fd, line)
            except OSError as refusal:
                try:
                    os.ftruncate(self._fd, self._end)
                except OSError:
                    # half a line stays: the next writer cuts it, and this one must not write behind
                    # it
                    self._failed = refusal
                raise JournalError(
                    f"{self.folder} cannot be written: {refusal.strerror}; what was finished before"
                    " is kept"
                ) from refusal
            failed = _FAILED_BIT if row.startswith(_FAILED, 2) else 0
            self._index[int(key[:_DIGITS], 16)] = self._own << _OFFSET_BITS | self._end | failed
            self._end += len(line)
        self._written.set()

    def close(self) -> None:
        """Sync, and let go of the files. May be called again. Raises `JournalError` where the last
        rows cannot be synced.
        """
        if not hasattr(self, "_syncing") or self._closed.is_set():
            super().close()
            return
        self._closed.set()
        self._written.set()
        self._syncing.join()
        try:
            with (
                refused(self.folder, "synced", "start the job again, it goes on"),
                contextlib.ExitStack() as cleanup,
            ):
                cleanup.callback(os.close, self._fd)
                # a later sync may succeed without what this one has lost
                if self._unsynced is not None:
                    raise self._unsynced
                os.fsync(self._fd)
        finally:
            super().close()

    def _sync(self, every: float) -> None:
        """Sync what was written, at most once in so many seconds, until the journal is closed."""
        while True:
            self._written.wait()
            # in this order: `close` sets both, and what it sets must not be cleared unseen
            self._written.clear()
            if self._closed.is_set():
                return
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
            count = os.write(fd, data)
        except InterruptedError:
            continue
        if not count:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data = data[count:]


def _own_file(folder: Path, kind: str) -> tuple[int, Path]:
    """A file of the folder that nobody else writes, open for appending, locked, and without a torn
    last line.
    """
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
                    _end_torn_line(fd, path)
                    sync_folder(folder)
                    return fd, path
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
    except FileNotFoundError:
        raise JournalError(
            f"there is no folder {folder.parent}, in which the job's folder {folder.name} would lie"
        ) from None
    except OSError as refusal:
        raise JournalError(
            f"the job's folder {folder} cannot be written: {refusal.strerror}"
        ) from refusal


def locked(fd: int) -> bool:
    """Take the lock on an open file, which is held until it is closed; whether nobody else holds
    it.
    """
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as refusal:
        if refusal.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def writers_of(folder: Path) -> int:
    """How many processes write to a job's folder now. Raises `JournalError` where that cannot be
    told.
    """
    count = 0
    with refused(folder, "read"):
        for path in folder.glob(f"{ROWS}-*.jsonl"):
            fd = os.open(path, os.O_RDONLY)
            try:
                count += not locked(fd)
            finally:
                os.close(fd)
    return count


def files_of(folder: Path) -> list[Path]:
    """The files of a folder that journals write."""
    return sorted(path for kind in (ROWS, STEPS) for path in folder.glob(f"{kind}-*.jsonl"))


def _end_torn_line(fd: int, path: Path) -> None:
    """Cut what follows the last line end: a part of a line. What never was one is ended by a line
    end, and so is a damaged line.

    Raises `JournalError` where the file is no journal.
    """
    _check_journal(path)
    start = end = os.fstat(fd).st_size
    while start > 0:
        step = min(start, 2**16)
        block = os.pread(fd, step, start - step)
        if start == end and block.endswith(b"\n"):
            return
        line_end = block.rfind(b"\n")
        if line_end >= 0:
            start = start - step + line_end + 1
            break
        start -= step
    if start < end:
        head = os.pread(fd, len(_BEGINS), start)
        # after a power loss, zeros may stand for what was not synced
        if _BEGINS.startswith(head.rstrip(b"\0")):
            os.ftruncate(fd, start)
        else:
            _write(fd, b"\n")


def _check_journal(path: Path) -> None:
    """Raise `JournalError` for a file in which there is nothing like a line of a journal, not even
    a damaged one.
    """
    with path.open("rb") as stream:
        heads = _heads(stream)
        if not any(map(_resembles, heads)) and stream.tell():
            raise JournalError(
                f"{path} is no job's journal: from the first to the last line, none is one of a"
                " journal; move it away, or give another folder"
            )


def _heads(stream: BinaryIO) -> Iterator[bytes]:
    """The beginnings of a file's lines."""
    begins = True
    while part := stream.readline(2**16):
        if begins:
            yield part[: _CRC.start]
        begins = part.endswith(b"\n")


def _resembles(head: bytes) -> bool:
    """Whether this is the beginning of a journal's line, or was: some bytes may be others, and any
    may be zeros or missing.
    """
    places = (head[: len(_BEGINS)], _BEGINS), (head[_KEY.stop : _CRC.start], _GOES_ON)
    torn = head[: len(_BEGINS)] == _BEGINS[: len(head)]
    return torn or any(
        sum(actual_byte in (byte, 0) for actual_byte, byte in zip(part, expected, strict=False))
        >= _ALIKE
        for part, expected in places
    )


class SettingsDamaged(JournalError):
    """`job.json` was read, and holds something else than settings: it is damaged, or no job's."""


_SETTINGS: Mapping[str, type[Any]] = {
    "pipeline": str,
    "plugins": list,
    "version": str,
    "options": dict,
    "engines": list,
    "rewrites": list,
    "adapters": dict,
}


def read_settings(folder: Path) -> dict[str, Any] | None:
    """What `job.json` holds; None where there is none. Raises `JournalError` where it cannot be
    read, and `SettingsDamaged` where it is not one.
    """
    path = folder / SETTINGS
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as refusal:
        raise JournalError(f"{path} cannot be read: {refusal.strerror}") from refusal
    try:
        values: dict[str, Any] | None = strict_json.load(data.decode())
    except (strict_json.NotStrict, UnicodeDecodeError) as refusal:
        raise SettingsDamaged(f"{path} is damaged, or no job's: {refusal}") from None
    if isinstance(values, dict) and (values.get("form"), values.get("keys")) != (FORM, RULE):
        raise JournalError(
            f"{path} is of another version of pipegen, or no job's; give another folder"
        )
    runs = values.get("runs", {}) if isinstance(values, dict) else None
    if not isinstance(runs, dict) or not all(map(_are_settings, (values, *runs.values()))):
        raise SettingsDamaged(
            f"{path} is damaged, or no job's: it does not hold the settings of a run"
        )
    return values


def _are_settings(values: Any) -> bool:
    """Whether this has the form of a run's settings."""
    if not isinstance(values, dict):
        return False
    values = {"rewrites": [], "adapters": {}, **values}
    return (
        all(isinstance(values.get(name), kind) for name, kind in _SETTINGS.items())
        and all(isinstance(engine, dict) for engine in values["engines"])
        and all(
            isinstance(text, str) for text in (*values["rewrites"], *values["adapters"].values())
        )
    )


def write_settings(folder: Path, values: Mapping[str, object]) -> None:
    """Write `job.json`, whole or not at all. Raises `JournalError`."""
    with new_file(folder / SETTINGS) as stream:
        stream.write(strict_json.dump({"form": FORM, **values}).encode() + b"\n")
