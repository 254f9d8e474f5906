"""One engine of several that work on a job: a process that is handed rows at any time, and keeps
what it finishes.

`ask` hands a row over and gives a future of its slot. All rows that were handed over go through one
loop (`pipegen.drivers.drive`) in a thread. The engine does not wait for a batch to end before it
gets the next one.

With a job, a row that is in the journal is not asked again, and one that ends is written before its
future is done. Turns and samples of a row that has not ended are kept too (see
`pipegen.jobs.kept_steps`). Each process writes files of its own.

A row that kills its process is found as in any job (see `pipegen.jobs.in_flight`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from returns.result import Failure

from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.core.foreign_calls import attempt
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.arguments import Admission
from pipegen.drivers.drive import Drive
from pipegen.drivers.drive_parts import IN_FLIGHT, NoRequest
from pipegen.drivers.mapping import flow_of
from pipegen.io.jsonl import to_plain
from pipegen.jobs.conversations import keep_row
from pipegen.jobs.in_flight import InFlight, SuspectQueue
from pipegen.jobs.job_rows import JobRow, read_row, retry_of
from pipegen.jobs.journal import Journal
from pipegen.jobs.kept_steps import Steps, TakenRow
from pipegen.jobs.runner import GRACE, require_job_folder
from pipegen.records.requests import GenerationRequest

FRUITLESS, UNTRIED = 20, 3
"""How many processes of one name may die in a row without a row that succeeded, after one that had
answered a row, and where none had: it is the engine then that does not work.
"""


class _HandedRow(TakenRow[None]):
    """A row that was handed over and has not ended."""

    def __init__(self, job_row: JobRow[None]) -> None:
        super().__init__(job_row)
        self.future = Future[Slot[Any]]()
        # who waits for it may give up; it ends nevertheless
        self.future.set_running_or_notify_cancel()


class Replica:
    """An engine that is handed rows at any time; see the module.

    route: what the rows go through. It is released when the replica is closed. folder: the job's
    folder; None keeps nothing. run, owner: the name of the run, and that of this process within it.
    retry: which rows that failed before are asked again.

    died: is called when the engine has died, and was loaded, or had answered a row here or in an
    earlier process of this name. Where it returns, and where the engine cannot be loaded, all rows
    raise the failure.

    Raises as `job` does for arguments that make no sense, and for a folder that cannot be written
    or holds other files; `CallFailed` where process after process has died.
    """

    def __init__(
        self,
        route: Pipe[GenerationRequest, Any],
        admission: Admission,
        *,
        folder: Path | None = None,
        run: str = "",
        owner: str = "",
        retry: str = "retryable",
        in_flight: int | None = None,
        died: Callable[[CallFailed], object] = lambda failure: None,
    ) -> None:
        self._route, self._died, self._again = route, died, retry_of(retry)
        if folder is not None:
            require_job_folder(folder)
        drive_settings: dict[str, Any] = {
            "ordered": False,
            "isolate_bugs": True,
            "finished": self._finished,
        }
        self._journal = None if folder is None else Journal(folder)
        self._steps: Steps | None = None
        self._noted: InFlight | None = None
        try:
            if folder is not None and self._journal is not None:
                self._steps = drive_settings["kept"] = Steps(folder)
                self._noted = InFlight(folder, run, owner, self._journal.has)
            self._flow: Drive[_HandedRow] = flow_of(
                route, self._take, admission, in_flight=in_flight, **drive_settings
            )
        except BaseException:
            self._close_files()  # their locks would last as long as this process
            raise
        self.in_flight = in_flight or max(
            (getattr(engine, "in_flight", IN_FLIGHT) for engine in route.owns), default=IN_FLIGHT
        )
        """How many rows in flight keep the engine full."""
        self._lock, self._releasing, self._released = threading.Lock(), threading.Lock(), False
        self._rows = set[_HandedRow]()
        """The rows that have not ended."""
        self._keys: dict[str, _HandedRow] = {}
        """Those of them that have a key: equal ones are one."""
        self._worked, self._closing = False, False
        self._raised: Exception | None = None
        self._grace = GRACE
        self._waiting = SuspectQueue[_HandedRow](self._noted)
        self._thread = threading.Thread(target=self._work, name="pipegen-replica", daemon=True)
        most = FRUITLESS if self._noted is None or self._noted.answers else UNTRIED
        if self._noted is not None and self._noted.fruitless >= most:
            self._flow.close()
            self._release()
            raise CallFailed(
                BackendFailed(
                    f"{most} processes in a row died here before a request succeeded",
                    backend=route.name,
                    hint="look in Ray's log for what ended them; often memory does not suffice",
                )
            )
        self._thread.start()

    def ask(self, key: str | None, request: Slot[GenerationRequest]) -> Future[Slot[Any]]:
        """Hand a row over. A row with a key is kept, and equal keys share one answer. The future
        raises where the engine cannot go on.
        """
        row = _HandedRow(JobRow(None, request, key, None))
        with self._lock:
            if self._raised is not None:
                row.future.set_exception(self._raised)
                return row.future
            if key is not None and key in self._keys:
                return self._keys[key].future
            if key is not None and self._journal is not None:
                row.row = read_row(None, request, request.unwrap(), key, self._journal, self._again)
                slot = self._known(self._journal, row.row, key)
                if slot is not None:
                    row.future.set_result(slot)
                    return row.future
            self._rows.add(row)
            if key is not None:
                self._keys[key] = row
            self._waiting.add(key, row, alone=row.row.alone)
        self._flow.wake()
        return row.future

    def close(self, grace: float = GRACE) -> None:
        """End: rows in flight have so many seconds. What is finished is kept. Another thread may
        call it again meanwhile: then all ends at once. Raises `JournalError` where the last rows cannot be
        synced.
        """
        if self._closing:
            self._flow.drain(0.0)
        self._grace, self._closing = grace, True
        self._flow.wake()
        self._thread.join()
        self._fail(RuntimeError("the replica was closed"))
        with self._releasing:
            self._release()

    def _release(self) -> None:
        if not self._released:
            self._released = True
            with self._route:
                self._close_files()

    def _close_files(self) -> None:
        for file in (self._noted, self._steps, self._journal):
            if file is not None:
                file.close()

    def _known(self, journal: Journal, job_row: JobRow[None], key: str) -> Slot[Any] | None:
        """The slot of a row that is not to be asked: it is in the journal, or has killed its
        process too often.
        """
        slot = None if job_row.kept is None else job_row.kept()
        died = (
            None
            if slot is not None or self._noted is None
            else self._noted.given_up(key, job_row.request.unwrap().id, self._route.name)
        )
        if died is None:
            return slot
        journal.append(key, to_plain(Failure(died)))
        return Failure(died)

    def _work(self) -> None:
        """The thread: run the loop until the end, and tell all who wait when it raises."""
        driven = attempt(self._drive)
        if not is_ok(driven):
            self._fail(driven.failure())
            if self._noted is not None:  # this process has not died
                self._noted.close()

    def _drive(self) -> None:
        try:
            while not self._closing:
                for _ in self._flow.round():
                    pass
            self._flow.drain(self._grace)
        finally:
            self._flow.close()

    def _fail(self, raised: Exception) -> None:
        """Let all rows that have not ended, and all later ones, raise."""
        with self._lock:
            self._raised, rows = self._raised or raised, self._rows
            self._rows, self._keys = set(), {}
        for row in rows:
            row.future.set_exception(self._raised)

    def _take(self) -> tuple[_HandedRow, Slot[GenerationRequest]] | NoRequest:
        with self._lock:
            row = self._waiting.next()
        if row is None:
            return NoRequest.NOW
        key = row.row.key
        if self._noted is not None and key is not None:
            self._noted.begin(key)
        return row, row.row.request

    def _finished(self, handed_row: _HandedRow, slot: Slot[object]) -> None:
        """Keep the slot of a row that has ended, and hand it to who waits. Raises `CallFailed`
        where the engine has died.
        """
        failed = slot.swap().value_or(None)
        if isinstance(failed, BackendFailed) and failed.scope == "batch":
            failure = CallFailed(failed)
            loaded = any(getattr(engine, "loaded", False) for engine in self._route.owns)
            if loaded or self._worked or (self._noted is not None and self._noted.answers):
                self._died(failure)
            raise failure
        if failed is None and not self._worked:
            self._worked = True
            if self._noted is not None:
                self._noted.worked()
        key = handed_row.row.key
        if key is not None and self._journal is not None and self._noted is not None:
            slot = keep_row(self._journal, key, slot, handed_row.row.request)
            self._noted.end(key)
        with self._lock:
            self._waiting.ended()
            self._rows.discard(handed_row)
            if key is not None:
                self._keys.pop(key, None)
        handed_row.future.set_result(slot)
