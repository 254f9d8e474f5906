"""Which rows a process works on, in a small file of the job's folder: what is left there when the process is killed.

A row that kills its process would kill the next one too. So each process notes a row before its engine gets it, and crosses it out when the row has ended.
The file of a killed process stays. It tells how often a row was in flight at a death.

The file has a place of 33 bytes for each row in flight, which is written over: it stays as small as the most rows that were in flight at a time. The first
place tells whether a row has succeeded. Its owner holds a lock on it. A file whose owner has the name of this process is that of a dead one too, even
if its lock is still held: by a process that was forked off it.

Only the deaths of one run count. When a run is killed as a whole, its processes die, and no row is to blame.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from pipegen.jobs.journal import locked
from pipegen.jobs.new_file import refused

__all__ = ["InFlight"]

_KEY = re.compile(rb"[0-9a-f]{32}\n")
_PLACE = 33
_FREE, _WORKED = b"-" * 32 + b"\n", b"+" * 32 + b"\n"


class InFlight:
    """The rows that this process works on. `deaths` has those of processes of the same run that died, each with the number of deaths.

    `fruitless` is how many processes with this one's name died in a row, the last ones, without a row that succeeded.

    run: the name of the run.
    owner: the name of this process within it. Where processes take each other's place, such as a restarted actor, they have one name.

    Raises `JournalError` where the folder cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> first = InFlight(folder, "run", "a")
    >>> first.begin("0" * 32), first.begin("1" * 32), first.end("0" * 32)
    (None, None, None)
    >>> InFlight(folder, "run", "a").deaths  # `first` is taken for dead: there is one process of a name
    Counter({'11111111111111111111111111111111': 1})
    """

    def __init__(self, folder: Path, run: str, owner: str) -> None:
        left = [(path, _read(path)) for path in _left(folder, run, owner)]
        self.deaths = Counter(key[:32].decode() for _, data in left for key in _KEY.findall(data))
        begins = f"running-{_name(run)}-{_name(owner)}-"
        own = [(path, data) for path, data in left if path.name.startswith(begins)]
        self.fruitless = sum(1 for _ in takewhile(lambda data: not data.startswith(_WORKED), (data for _, data in reversed(own))))
        number = int(own[-1][0].name.removeprefix(begins)) + 1 if own else 1  # no clock is asked which came last
        self._path = folder / f"{begins}{number:06}"
        with refused(f"the job's folder {folder}"):
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        locked(self._fd)
        self._places: dict[str, int] = {}
        self._free: list[int] = []
        self._write(0, _FREE)

    def begin(self, key: str) -> None:
        """Note a row that the engine is about to get. Raises `JournalError` where it cannot be written."""
        place = self._free.pop() if self._free else len(self._places) + 1
        self._write(place, key.encode() + b"\n")
        self._places[key] = place

    def end(self, key: str) -> None:
        """Cross out a row that has ended, and is in the journal. Raises as `begin` does."""
        place = self._places.pop(key)
        self._write(place, _FREE)
        self._free.append(place)

    def worked(self) -> None:
        """Note that a row has succeeded. Raises as `begin` does."""
        self._write(0, _WORKED)

    def close(self) -> None:
        """Remove the file: nothing is in flight. May be called again."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def _write(self, place: int, data: bytes) -> None:
        with refused(self._path, then="what was finished before is kept"):
            os.pwrite(self._fd, data, place * _PLACE)


def _name(text: str) -> str:
    from hashlib import blake2b

    return blake2b(text.encode(), digest_size=6).hexdigest()


def _left(folder: Path, run: str, owner: str) -> Iterator[Path]:
    """The files of processes of this run that are dead. Those of other runs are removed."""
    for path in sorted(folder.glob("running-*")):
        _, of_run, of_owner, *_ = path.name.split("-")
        if (of_run, of_owner) == (_name(run), _name(owner)):
            yield path
        elif _is_dead(path):
            if of_run == _name(run):
                yield path
            else:
                path.unlink(missing_ok=True)


def _is_dead(path: Path) -> bool:
    """Whether nobody holds the file's lock. One that is gone is nobody's."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return locked(fd)
    finally:
        os.close(fd)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
