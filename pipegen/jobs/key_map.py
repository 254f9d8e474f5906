"""The keys of requests that runs of a job have read before: the next run need not parse them.

To make the key of a row, its request is parsed, checked and merged with the options of the run.
The file `keys.map` in the job's folder holds what came of it. For each request it has a digest of
it as it was given (a line of a file, or plain data), its key, and the number of its shard. The digest covers whatever else the
key depends on: the engines, the options and the policy of the run, how lines are read, and the
version of pipegen. So an entry cannot be out of date: it is found for the same request under the
same settings, or not at all.

**A cache, and no more.** A file that is missing, cut off, damaged or of other settings costs time
and nothing else. Each entry has a checksum. An entry is used to tell that a row is finished; a
row that is to be asked is parsed. Requests with images have no entry, since their keys depend on
bytes that have to be read.

**Order.** Entries are in the order of the input, and an entry is looked for behind the last one
that was found. So the map takes 44 bytes of memory for a request, and a request that was moved
far is parsed again. The first run appends as it goes. A run that finds changes writes the map anew
beside it, and puts it in its place at the end. Of several processes one writes.

**The same input.** Where each row of an input has its entry, `keys.input` is written at the end. It
holds the input's stamp, a digest of the settings, and the number of rows. The caller makes the
stamp: a text that changes when the input changes. If all three are the same in the next run, the
missing rows are found in the map, and the others are not looked at. Like the map it is a hint: it
says where to look first, and a row is always known by its own content.
"""

from __future__ import annotations

import contextlib
import copy
import json
import marshal
import os
import struct
import zlib
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Self

from pipegen.jobs.journal import locked
from pipegen.jobs.new_file import JournalError, new_file

KEY_MAP, INPUT = "keys.map", "keys.input"
_FORM = 2
"""The version of the file."""
_DIGEST, _KEY, _NUMBER, _ENTRY = 16, 32, 40, 44
"""Where the digest, the key, the number and the checksum of an entry end."""
_KEY_OF, _NUMBER_OF = ">16xQ20x", ">32xQ4x"
"""Where the first 8 bytes of the key and the number are, for `struct`."""
_TOGETHER = 4096
"""Entries that are written together, and among which one is looked for."""
_BEHIND = 64
"""Entries before these, among which it is looked for too: some requests are looked for together."""


def entry_of(digest: bytes, key: bytes, number: int) -> bytes:
    """The entry of a request: its digest, the key of the first such request, the number that tells
    its shard (see `pipegen.jobs.shards`), and a checksum.
    """
    entry = digest + key + number.to_bytes(8, "big")
    return entry + zlib.crc32(entry).to_bytes(4, "big")


def key_in(entry: bytes) -> bytes:
    """The key in an entry."""
    return entry[_DIGEST:_KEY]


def number_in(entry: bytes) -> int:
    """The number in an entry."""
    return int.from_bytes(entry[_KEY:_NUMBER], "big")


def rows_in(folder: Path, stamp: str) -> int | None:
    """How many rows the input with this stamp has, where a run of the job has read all of it."""
    return next((rows for of, _, rows in _inputs(folder) if of == stamp), None)


def _inputs(folder: Path) -> list[tuple[str, str, int]]:
    """What `keys.input` says, if it can be read: a stamp, the digest of a context, and a count of
    rows.
    """
    try:
        stamp, context, rows = json.loads((folder / INPUT).read_bytes())
    except (OSError, ValueError, TypeError):
        return []
    return [(stamp, context, rows)] if type(rows) is int else []


class KeyMap:
    """The map of a job's folder.

    context: what a key depends on besides the request.
    stamp: what tells whether the input is as it was; empty where nothing does.
    writes: whether requests are added, if no other process does that.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with KeyMap(folder, "settings") as keys:
    ...     keys.keep(entry_of(keys.digest({"prompt": "Hi"}), b"key of 16 bytes!", 7))
    >>> keys = KeyMap(folder, "settings", writes=False)
    >>> key_in(keys.find(keys.digest({"prompt": "Hi"}))), keys.find(keys.digest({"prompt": "Ho"}))
    (b'key of 16 bytes!', None)
    """

    def __init__(
        self, folder: Path, context: object, *, stamp: str = "", writes: bool = True
    ) -> None:
        from hashlib import blake2b  # importing pipegen loads no hashlib

        from pipegen import __version__

        words = json.dumps([_FORM, __version__, context], sort_keys=True).encode()
        context_digest = blake2b(words, digest_size=16).digest()
        self._digest = blake2b(digest_size=16, person=context_digest)
        """Copied for each request: that is faster than to make one."""
        self._path = folder / KEY_MAP
        self._input = (stamp, context_digest.hex())
        self._rows: int | None = None
        """The rows of the input, once it was read to its end."""
        self._noted = 0
        """Those that have entries."""
        self._entries, self._at = b"", 0
        """The file as it was at the start, and where the next entry is in it."""
        self._kept = 0
        """Where the entries end that are as they were."""
        self._open = contextlib.ExitStack()
        self._own: int | None = None
        """The file to append to, if this process writes the map."""
        self._anew: BinaryIO | None = None
        """The file that takes its place, if the input has changed."""
        self._added = bytearray()
        """Entries that are not written yet."""
        self._checks = True
        with contextlib.suppress(OSError):
            if writes:
                self._own = _own_file(self._path, self._open)
            data = self._path.read_bytes()
            self._entries = data[: len(data) - len(data) % _ENTRY]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rows(self) -> tuple[Iterator[int], Iterator[int]] | None:
        """For each row of the input the first 8 bytes of its key, and its number; None where the
        map may have others than these.
        """
        input_record = (*self._input, len(self._entries) // _ENTRY)
        if not self._input[0] or input_record not in _inputs(self._path.parent):
            return None
        keys, numbers = (struct.iter_unpack(form, self._entries) for form in (_KEY_OF, _NUMBER_OF))
        return map(itemgetter(0), keys), map(itemgetter(0), numbers)

    @property
    def writes(self) -> bool:
        """Whether requests are added."""
        return self._own is not None

    def digest(self, request: Any) -> bytes | None:
        """The digest of a request as it was given: a line, the cells of a row, or plain data; None
        for any other.
        """
        if type(request) is not bytes:
            if type(request) not in (dict, list):
                return None
            try:
                request = marshal.dumps(request, 2)  # fast, and different for 1 and true
            except ValueError:  # it holds something else than plain data
                return None
        digest = self._digest.copy()
        digest.update(request)
        return digest.digest()

    def find(self, digest: bytes) -> bytes | None:
        """The entry of the request with this digest; None if there is none."""
        at = self._at
        if self._entries.startswith(digest, at):  # most often it is the next one
            if not self._checks:
                self._at = at + _ENTRY
                return self._entries[at : self._at]
        else:
            first, last = max(0, at - _BEHIND * _ENTRY), at + _TOGETHER * _ENTRY
            at = self._entries.find(digest, first, last)
            if at < 0 or at % _ENTRY:
                return None
        entry = self._entries[at : at + _ENTRY]
        if self._checks and entry != entry_of(digest, key_in(entry), number_in(entry)):
            return None
        if at >= self._at:
            self._at = at + _ENTRY
        return entry

    def ahead(self) -> KeyMap:
        """The same map, for another reader of the input, who begins at its start and adds nothing.

        What it finds is a hint: checksums are left to the first reader.
        """
        reader = copy.copy(self)
        reader._at, reader._own, reader._anew, reader._checks = 0, None, None, False
        return reader

    def keep(self, entry: bytes) -> None:
        """Note the entry of a request, in the order of the input: it is added where it is new."""
        self._noted += 1
        if self._anew is None and self._entries.startswith(entry, self._kept):
            self._kept += _ENTRY
        elif self._own is not None:
            self._begin_anew()
            self._add(entry)

    def end(self, rows: int) -> None:
        """Note that the input was read to its end, and how many rows it has: other entries are of
        requests that are gone.
        """
        self._rows = rows
        if self._own is not None:
            self._begin_anew()
        self._at = len(self._entries)

    def close(self) -> None:
        """Write what was added, and let go of the files. May be called again."""
        if self._anew is not None:
            self._added += self._entries[self._at :]  # of requests that this run did not come to
        self._write()
        own_file, self._own, self._anew = self._own, None, None
        input_record = (*self._input, self._rows)
        with contextlib.suppress(OSError, JournalError):
            self._open.close()
            complete = own_file is not None and input_record[0] and self._rows == self._noted
            if complete and input_record not in _inputs(self._path.parent):
                with new_file(self._path.parent / INPUT) as stream:
                    stream.write(json.dumps(input_record).encode())

    def _begin_anew(self) -> None:
        """Begin the file that takes the place of this one, unless all of this one is kept."""
        if self._anew is None and self._kept < len(self._entries):
            with contextlib.suppress(OSError, JournalError):
                self._anew = self._open.enter_context(new_file(self._path))
                self._added += self._entries[: self._kept]

    def _add(self, entry: bytes) -> None:
        self._added += entry
        if len(self._added) >= _TOGETHER * _ENTRY:
            self._write()

    def _write(self) -> None:
        """Write the entries that were added; after a failure no more are."""
        added, self._added = bytes(self._added), bytearray()
        try:
            if self._anew is not None:
                self._anew.write(added)
            elif self._own is not None:
                os.write(self._own, added)
        except (OSError, JournalError):
            self._own = self._anew = None


def _own_file(path: Path, opened: contextlib.ExitStack) -> int | None:
    """The file, open for appending and without a torn last entry; None if another process writes
    it. Raises `OSError`.
    """
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    opened.callback(os.close, fd)
    if not locked(fd):
        return None
    size = os.fstat(fd).st_size
    os.ftruncate(fd, size - size % _ENTRY)
    return fd
