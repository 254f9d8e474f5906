"""Which rows a process works on, in a small file of the job's folder: what is left there when the
process is killed.

A row that kills its process would kill the next one too. So each process notes a row before its
engine gets it, and crosses it out when the row has ended. The file of a process that was killed
stays, and names the rows that were in flight. They are the *suspects* of the next process: it asks
them first, and with no others beside them. After one death some are asked together, as many as the
square root of their number; after two deaths each is asked alone.

**Blame.** Whatever kills a process takes many rows along, and no single row is to blame. Only where
one row alone was in flight does the death count against it. A named process that has answered
nothing, and whose namesakes before it had not, blames no row: perhaps its engine cannot load. After `TRIES` such deaths the row is
given up, with `BackendFailed`. So a kill from outside costs some time, and blames nobody. A row
that kills every process costs `DEATHS` of them at most, and the rows beside it are answered.

**Files.** `running-RUN-OWNER-NUMBER` has a place of 33 bytes for each row in flight, which is
written over: it stays as small as the most rows that were in flight at a time. The first place
tells whether a row has succeeded. Its process holds a lock on it: a file without one is that of a
dead process, and it is removed once all its rows are finished. A job that is closed, and a process
that ends in order, leave none.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Generic, TypeVar

from pipegen.core.errors import BackendFailed, GenerationError
from pipegen.jobs.journal import locked
from pipegen.jobs.new_file import refused

T = TypeVar("T")
TRIES = 3
"""How many processes may die while a row is in flight alone, before it is given up."""
DEATHS = TRIES + 2
"""How many processes a row kills at most: with many rows beside it, with some, and alone."""
_HINT = (
    "look for what it asks too much of, such as memory or a broken image; a job asks it again with"
    " retry='BackendFailed' (--retry BackendFailed)"
)
_KEY = re.compile(rb"[0-9a-f]{32}\n")
_NAME = re.compile(r"running-([0-9a-f]{12})-([0-9a-f]{12})-(\d{6})")
_PLACE = 33
_FREE, _WORKED = b"-" * 32 + b"\n", b"+" * 32 + b"\n"


def killed(error: GenerationError) -> bool:
    """Whether this is the error of a row that was given up because processes died of it."""
    return isinstance(error, BackendFailed) and error.hint == _HINT


class InFlight:
    """The rows that this process works on, and those that dead processes worked on.

    `deaths` has the rows that were in flight at deaths and are not finished, each with the number
    of deaths. `alone` has those of them that were in flight alone. `fruitless` is how many
    processes with this one's name died in a row, the last ones, without a row that succeeded.
    `answers` is whether a process of this name has answered a row; true where it has no name.

    run: the name of the run, where its processes are started again. owner: the name of this process
    within it. A restarted one has the name of the one before it. That one is then dead, even if a
    process that was forked off it still holds the lock. None: it takes no other's place.
    finished: whether the row of a key is finished.

    Raises `JournalError` where the folder cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> first = InFlight(folder, "run", "a")
    >>> first.begin("0" * 32), first.begin("1" * 32), first.end("0" * 32), first.worked()
    (None, None, None, None)
    >>> second = InFlight(
    ...     folder, "run", "a"
    ... )  # `first` is taken for dead: there is one process of a name
    >>> second.deaths, second.alone == second.deaths
    (Counter({'11111111111111111111111111111111': 1}), True)
    """

    def __init__(
        self,
        folder: Path,
        run: str = "",
        owner: str | None = None,
        finished: Callable[[str], bool] = lambda key: False,
    ) -> None:
        names = _name(run), _name(owner or "")
        self.deaths, self.alone = Counter[str](), Counter[str]()
        own_records: list[tuple[int, bytes]] = []
        with refused(f"the job's folder {folder}"):
            leftovers = list(_left(folder, names if owner is not None else None, finished))
        answering = set[tuple[str, str]]()
        for of_run, of_owner, number, data in leftovers:
            keys = [key for key in _keys_in(data) if not finished(key)]
            self.deaths.update(keys)
            if data.startswith(_WORKED) or of_owner == _name(""):
                answering.add((of_run, of_owner))
            if len(_keys_in(data)) == 1 and (of_run, of_owner) in answering:
                self.alone.update(keys)
            if owner is not None and (of_run, of_owner) == names:
                own_records.append((number, data))
        self.answers = not owner or names in answering
        self.fruitless = sum(
            1
            for _ in takewhile(
                lambda data: not data.startswith(_WORKED),
                (data for _, data in reversed(own_records)),
            )
        )
        with refused(f"the job's folder {folder}"):
            # no clock is asked which came last
            self._path, self._fd = _new_file(
                folder, "-".join(names), own_records[-1][0] + 1 if own_records else 1
            )
        # also where a program ends without closing its job
        self._remove = weakref.finalize(self, _remove, self._path, self._fd, os.getpid())
        self._places: dict[str, int] = {}
        self._free: list[int] = []
        try:
            self._write(0, _FREE)
        except BaseException:
            self.close()
            raise

    def begin(self, key: str) -> None:
        """Note a row that the engine is about to get. Raises `JournalError` where it cannot be
        written.
        """
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
        self.answers = True

    def given_up(self, key: str, id: str | None, backend: str) -> BackendFailed | None:
        """Why a row is not asked any more; None where it is."""
        times = self.alone[key]
        if times < TRIES:
            return None
        row = "this request" if id is None else f"request {id!r:.200}"
        return BackendFailed(
            f"the process died {times} times while it worked on {row} and on no other",
            backend=backend,
            scope="row",
            hint=_HINT,
        )

    def close(self, finished: Callable[[str], bool] | None = None) -> None:
        """Remove the file: nothing is in flight. May be called again.

        finished: whether the row of a key is finished. Files that dead processes left are removed
            too, where all their rows are.
        """
        if self._remove.alive and finished is not None:
            with contextlib.suppress(OSError):
                list(_left(self._path.parent, None, finished))
        self._remove()

    def _write(self, place: int, data: bytes) -> None:
        with refused(self._path, then="what was finished before is kept"):
            offset = 0
            while offset < _PLACE:
                offset += os.pwrite(self._fd, data[offset:], place * _PLACE + offset)


class SuspectQueue(Generic[T]):
    """Rows that wait to be asked, in their order, but suspects before the others, and only with
    suspects beside them. A process that has answered nothing gets another row before them, alone:
    then its engine works.

    >>> import tempfile
    >>> waiting = SuspectQueue[str](InFlight(Path(tempfile.mkdtemp())))
    >>> waiting.add("0" * 32, "a"), waiting.add("1" * 32, "b")
    (None, None)
    >>> waiting.next(), waiting.next(), waiting.next()
    ('a', 'b', None)
    """

    def __init__(self, noted: InFlight | None) -> None:
        self._deaths, self._blamed = (
            (Counter[str](), Counter[str]()) if noted is None else (noted.deaths, noted.alone)
        )
        self._noted = noted
        self._rest, self._some, self._alone = deque[T](), deque[T](), deque[T]()
        self._running = 0
        self._group: deque[T] | None = None
        """Where the rows in flight come from, when no others may join them."""
        self._may_join = 0

    def __len__(self) -> int:
        return len(self._rest) + len(self._some) + len(self._alone)

    def add(self, key: str | None, item: T, *, alone: bool = False) -> None:
        """A row that is to be asked, and alone where that is said."""
        deaths, blamed = (0, 0) if key is None else (self._deaths[key], self._blamed[key])
        if blamed:
            self._alone.append(item)
        elif alone or deaths > 1:
            # a row that is not to blame clears itself before one that may be
            self._alone.appendleft(item)
        else:
            (self._some if deaths else self._rest).append(item)

    def next(self) -> T | None:
        """The row whose turn it is, which is in flight from now on; none where there is none, or
        those in flight have to end first.
        """
        if not self._running:
            self._group = self._some or self._alone or None
            if self._group and self._rest and self._noted is not None and not self._noted.answers:
                self._group = self._rest
            self._may_join = (
                max(1, math.isqrt(len(self._deaths))) if self._group is self._some else 1
            )
        if self._group is None:
            row = self._rest.popleft() if self._rest and not (self._alone or self._some) else None
        else:
            row = self._group.popleft() if self._group and self._may_join else None
            self._may_join -= row is not None
        self._running += row is not None
        return row

    def ended(self) -> None:
        """A row that was in flight has ended."""
        self._running -= 1


def remove_left(folder: Path) -> None:
    """Remove what dead processes have left in the folder. Raises `JournalError` where that cannot
    be done.
    """
    with refused(f"the files running-* in {folder}", "removed"):
        list(_left(folder, None, lambda key: True))


def is_of_rows_in_flight(name: str) -> bool:
    """Whether a file of this name says which rows are in flight.

    >>> is_of_rows_in_flight("running-0123456789ab-0123456789ab-000001")
    True
    """
    return _NAME.fullmatch(name) is not None


def _name(text: str) -> str:
    from hashlib import blake2b

    return blake2b(text.encode(), digest_size=6).hexdigest()


def _keys_in(data: bytes) -> list[str]:
    return [key[:32].decode() for key in _KEY.findall(data)]


def _new_file(folder: Path, name: str, number: int) -> tuple[Path, int]:
    """A new file, of this number or a later one, with a lock. Another process may find it before it
    has the lock, and remove it: then there is another.
    """
    while True:
        path = folder / f"running-{name}-{number:06}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            number += 1
            continue
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return path, fd
        os.close(fd)


def _remove(path: Path, fd: int, process: int) -> None:
    """Remove the file of this process; that of the process which this one was forked off stays."""
    if os.getpid() == process:
        # it names rows that may be suspected for nothing, and no more
        with contextlib.suppress(OSError):
            path.unlink()
        with contextlib.suppress(OSError):
            os.close(fd)


def _left(
    folder: Path, names: tuple[str, str] | None, finished: Callable[[str], bool]
) -> Iterator[tuple[str, str, int, bytes]]:
    """The files of dead processes: run, owner, number and content; of the processes that had these
    names, whoever holds the lock.

    Those whose rows are all finished are removed, but not while their named run goes on.
    """
    for path in sorted(folder.glob("running-*")):
        match = _NAME.fullmatch(path.name)
        try:
            fd = -1 if match is None else os.open(path, os.O_RDWR)
        except OSError:  # it is gone, or another user's
            continue
        if match is None:
            continue
        try:
            if (match[1], match[2]) == names or locked(fd):
                data = os.pread(fd, os.fstat(fd).st_size, 0)
                if all(map(finished, _keys_in(data))) and not (names and match[1] == names[0]):
                    path.unlink(missing_ok=True)  # while it is locked
                else:
                    yield match[1], match[2], int(match[3]), data
        finally:
            os.close(fd)
