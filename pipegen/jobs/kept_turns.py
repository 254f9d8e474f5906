"""The rows of a job between the input and the caller: taken in order, asked as there is room, and
given out in order.

A row that is finished costs little until it is given out: then its line is read. One whose line
cannot be read is asked after all. Rows that were in flight when a process died are looked for
first, and asked before the others (see `pipegen.jobs.in_flight`). At most `WAITING` rows are taken
and not given out, and of rows with images fewer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from returns.result import Failure

from pipegen.core.errors import GenerationError
from pipegen.core.foreign_calls import attempt
from pipegen.core.slots import Slot
from pipegen.drivers.drive_parts import NoRequest
from pipegen.io.jsonl import to_plain
from pipegen.jobs.conversations import keep_row
from pipegen.jobs.in_flight import InFlight, SuspectQueue
from pipegen.jobs.job_rows import JobRow
from pipegen.jobs.journal import Journal
from pipegen.jobs.kept_steps import TakenRow
from pipegen.records.requests import GenerationRequest

K = TypeVar("K")
WAITING, WAITING_BYTES = 4096, 256 * 2**20
"""Rows that may be taken and wait for their turn, and the bytes of their images."""
_LOOK = 0.5
"""Seconds in which rows are taken that are not to be asked now, while there are some to be given
out.
"""


class Turns(Generic[K]):
    """The rows that were taken and not given out.

    rows: the rows of the job, in order.
    ahead: rows of it that are to be asked, found by one who runs ahead: they are asked before
        `rows` comes to them.
    refuse: for the name of a row that is not finished, why it is not asked for; None where it is.
    backend: the name in the error of a row that processes died of.
    """

    def __init__(
        self,
        rows: Iterator[JobRow[K]],
        journal: Journal,
        noted: InFlight,
        *,
        ahead: Iterator[JobRow[K]],
        refuse: Callable[[K], GenerationError | None],
        backend: str,
    ) -> None:
        self._rows, self._journal, self._noted, self._refuse, self._backend = (
            rows,
            journal,
            noted,
            refuse,
            backend,
        )
        self.wake: Callable[[], None] = lambda: None
        """Is called where there is something to give out or to ask, and nobody else would look."""
        self._turns = deque[TakenRow[K]]()
        self._bytes = 0
        """Of the images of these rows."""
        self._waiting = SuspectQueue[TakenRow[K]](noted)
        """Those of them that are to be asked."""
        self._suspects = set(noted.deaths)
        """Rows that were in flight when a process died, and were not taken yet."""
        self._ahead: Iterator[JobRow[K]] | None = islice(ahead, WAITING)
        self._early: dict[str, TakenRow[K]] = {}
        """The rows from there that were not taken yet, by their keys."""
        self._raised: Exception | None = None
        """What the input raised: that is the end of it."""
        self._more = True

    def take(self) -> tuple[TakenRow[K], Slot[GenerationRequest]] | NoRequest:
        """The next row that is to be asked; none now where others have to end, or are to be given
        out first. Raises what the input raised, at its end.
        """
        began = time.monotonic()
        while True:
            room = self._more and len(self._turns) < WAITING and self._bytes < WAITING_BYTES
            ahead = self._ahead
            if not (self._suspects and (room or ahead is not None)):
                turn = self._waiting.next()
                if turn is not None:
                    if turn.row.key is not None:
                        self._noted.begin(turn.row.key)
                    return turn, turn.row.request
                if self._waiting:
                    break
            if ahead is not None:
                self._look_ahead(ahead)
                if self._ahead is None and self._early:  # they are asked before others are taken
                    self.wake()
                    return NoRequest.NOW
                continue
            if not room or (self._is_ready and time.monotonic() - began > _LOOK):
                break
            self._add()
        if self._is_ready:
            self.wake()
        if self._more or self._turns:
            return NoRequest.NOW
        if self._raised is not None:
            raise self._raised
        return NoRequest.MORE

    def keep(self, turn: TakenRow[K], slot: Slot[object]) -> Slot[Any]:
        """Write a row that has ended to the journal at once, though rows before it may still
        run. Gives its slot as it is kept.
        """
        if turn.row.key is not None:
            slot = keep_row(self._journal, turn.row.key, slot, turn.row.request)
            self._noted.end(turn.row.key)
        self._waiting.ended()
        turn.slot = slot
        return slot

    def ended(self) -> Iterator[tuple[K, Slot[Any], bool]]:
        """The names and slots of the rows whose turn has come, and whether each was finished
        before.
        """
        while self._is_ready:
            turn = self._turns[0]
            read_slot = turn.row.kept
            slot = turn.slot if read_slot is None else read_slot()
            if slot is None:
                turn.row = turn.row.missing
                self._ask(turn)
                self.wake()
            else:
                self._turns.popleft()
                self._bytes -= _bytes_of(turn.row)
                yield turn.row.name, slot, read_slot is not None

    def rest(self) -> Iterator[tuple[K, Slot[Any]]]:
        """The names and slots of the rows that have ended in this run, are kept, and were not given
        out.
        """
        return (
            (turn.row.name, turn.slot)
            for turn in (*self._turns, *self._early.values())
            if turn.slot is not None and turn.row.key is not None
        )

    @property
    def done(self) -> bool:
        """Whether all rows were taken and given out, and the input raised nothing."""
        return not self._more and not self._turns and self._raised is None

    @property
    def _is_ready(self) -> bool:
        """Whether the first row can be given out."""
        return bool(self._turns) and (
            self._turns[0].slot is not None or self._turns[0].row.kept is not None
        )

    def _add(self) -> None:
        """Take a row: it is finished, refused, or to be asked."""
        outcome = attempt(lambda: next(self._rows, None))
        row = outcome.value_or(None)
        if row is None:
            self._more, self._raised = False, outcome.swap().value_or(None)
            return
        early = None if row.key is None else self._early.pop(row.key, None)
        if early is not None:
            early.row = early.row._replace(name=row.name)
            self._turns.append(early)
            return
        why = None if row.kept is not None else self._refuse(row.name)
        turn = TakenRow(row if why is None else row._replace(key=None, request=Failure(why)))
        self._turns.append(turn)
        self._bytes += _bytes_of(turn.row)
        if self._suspects and row.key is not None:
            self._suspects.discard(row.key)
        if row.kept is None:
            self._ask(turn)

    def _look_ahead(self, rows: Iterator[JobRow[K]]) -> None:
        """Take a row that is to be asked before its turn. What the input raises, it will raise
        again.
        """
        row = attempt(lambda: next(rows, None)).value_or(None)
        if row is None:
            self._ahead = None
        elif row.key is not None and self._refuse(row.name) is None:
            turn = self._early[row.key] = TakenRow(row)
            self._suspects.discard(row.key)
            self._ask(turn)

    def _ask(self, turn: TakenRow[K]) -> None:
        """A row is to be asked, unless too many processes have died of it."""
        key = turn.row.key
        died = (
            None
            if key is None
            else self._noted.given_up(key, turn.row.request.unwrap().id, self._backend)
        )
        if key is None or died is None:
            self._waiting.add(key, turn, alone=turn.row.alone)
            return
        turn.slot = Failure(died)
        self._journal.append(key, to_plain(turn.slot))


def _bytes_of(job_row: JobRow[Any]) -> int:
    """The bytes of a row's images."""
    if job_row.unread is not None:
        return 0
    sources = job_row.request.map(lambda request: request.sources).value_or(())
    return sum(len(piece) for source in sources for piece in source.contents)
