"""A job: any number of requests, whose finished rows outlive the process.

A row is written to the journal before it is given out. The same job again, in the same folder,
gives out what is finished and asks for the rest. So a kill costs the running rows and nothing else.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from returns.result import Failure, Success

from pipegen.core.errors import GenerationError, StageFailed
from pipegen.core.foreign_calls import report
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.arguments import (
    Admission,
    Options,
    check_run,
    pairs,
    require_iterable,
    with_option_words,
)
from pipegen.drivers.drive import Drive
from pipegen.drivers.mapping import flow_of
from pipegen.jobs.history import Made, changes, made_before, note_run, settings_of
from pipegen.jobs.in_flight import InFlight, is_of_rows_in_flight, remove_left
from pipegen.jobs.job_rows import JobRow, Requests, missing_rows, retry_of, rows_of
from pipegen.jobs.journal import SETTINGS, Journal, SettingsDamaged, files_of, locked, read_settings
from pipegen.jobs.kept_steps import Steps, TakenRow
from pipegen.jobs.kept_turns import Turns
from pipegen.jobs.key_map import KeyMap
from pipegen.jobs.new_file import TEMPORARY, JournalError, refused, remove_stale
from pipegen.jobs.row_keys import Keys, context_of
from pipegen.records.option_records import GenerationOptions
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.results import GenerationResult
from pipegen.records.scores import Scored

K = TypeVar("K")
T = TypeVar("T")
Answer = TypeVar("Answer", GenerationResult, Scored)
GRACE = 5.0
"""Seconds that requests in flight have to end, where a job ends early."""


class Job(Iterator[T], Generic[T]):
    """The slots of a job, in the order of its requests, with counts that grow as it goes. Close it,
    or use it as a context manager, to end it early.
    """

    before: int
    """Rows that were finished when the job began."""
    changed: tuple[str, ...]
    """What differs from the run before, in words. Answers of earlier runs with the same settings are
    reused.
    """
    made_before: Made
    """The requests that were finished when the job began: how many have the settings of this run,
    and how many have others, which are named.
    """
    finished: int
    """Slots that were returned, failed ones included."""
    reused: int
    """Those of them that an earlier run had finished."""
    answered: int
    """Requests that this run has answered."""
    failed: int
    """Slots that were returned with an error."""
    stopped: bool
    """Whether it ended before its last request, because of `stop`."""

    def __init__(
        self,
        route: Pipe[Any, Any],
        folder: Path,
        options: GenerationOptions | None,
        retry: str,
        version: str,
        *,
        restart: bool,
    ) -> None:
        self._again = retry_of(retry)
        settings = settings_of(route, options, version)
        if restart:
            begin_anew(folder)
        require_job_folder(folder)
        self.journal = Journal(folder)
        """The finished rows on disk."""
        try:
            remove_stale(folder)
            self.settings, last_settings = note_run(folder, settings, rows=len(self.journal))
            self.changed = (
                () if last_settings is None else tuple(changes(last_settings, self.settings))
            )
            self.made_before = made_before(self.journal, last_settings, self.settings)
            self._steps = Steps(folder, self.settings)
            self._noted = InFlight(folder, finished=self.journal.has)
        except BaseException:
            self.journal.close()
            raise
        self._known: KeyMap | None = None
        self.before = len(self.journal)
        self.finished = self.reused = self.failed = self.answered = 0
        self._begun: Callable[[], object] | None = None
        """Where the job is to stop: what is called when it begins to."""
        self.stopped = False
        self._grace = GRACE
        self._needs_folder = True
        self._wake: Callable[[], None] = lambda: None
        self._rest: Callable[[], Iterator[tuple[Any, Slot[Any]]]] = lambda: iter(())
        none: tuple[T, ...] = ()
        self._slots: Generator[T, None, None] = (slot for slot in none)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> T:
        return next(self._slots)

    @property
    def removed(self) -> bool:
        """Whether its folder is not there any more: then no finished request is kept."""
        return not (self.journal.folder / SETTINGS).is_file()

    def rest(self) -> Iterator[tuple[Any, Slot[Any]]]:
        """The names and slots of requests that ended in this run and are kept, but were not given
        out, because the job ended before. `pg.job` has no names.
        """
        return self._rest()

    def stop(self, grace: float | None = None, begun: Callable[[], object] = lambda: None) -> None:
        """Ask no more requests. Those in flight have the job's `grace` to end, or as many seconds as
        are given here. Then the iterator ends.

        Any thread and a signal handler may call it, again too, with less time. `begun` is called by
        the thread that iterates, when it stops.
        """
        self._grace = self._grace if grace is None else grace
        self._begun = self._begun or begun
        self._wake()

    def close(self) -> None:
        """End the job: requests in flight have its `grace` to end. What is finished is kept. Raises
        `JournalError` where the last rows cannot be synced, or the folder was removed.
        """
        try:
            self._slots.close()
        finally:
            self._close_files()

    def tidy(self, finished: Callable[[str], bool]) -> None:
        """Remove what dead processes have left of requests that are finished by now."""
        self._noted.close(finished)

    def _close_files(self) -> None:
        """Sync and close the journals. Nothing is in flight from now on."""
        try:
            self._noted.close(finished=self.journal.has)
            if self._known is not None:
                self._known.close()
            self._steps.close()
        finally:
            self.journal.close()
        if self._needs_folder and self.removed:
            self._needs_folder = False  # it is reported once
            raise JournalError(
                f"{self.journal.folder} was removed during the run: no finished request is kept there;"
                " start the job again, it begins anew"
            )


@with_option_words
def job(
    route: Pipe[GenerationRequest, Answer],
    requests: Iterable[Request],
    folder: str | os.PathLike[str],
    options: Options | None = None,
    *,
    in_flight: int | None = None,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
    retry: str = "retryable",
    version: str = "",
    restart: bool = False,
    grace: float = GRACE,
) -> Job[Slot[Answer]]:
    """Generate for any number of requests, as `imap` does, and keep finished answers in `folder`.
    The same call resumes. The other arguments are those of `imap`.

    A request is known by its content: prompt, images, options, model and plugins. So the input may
    change between two runs: requests that are in both are asked once.

    A pipe of `scoring` is taken as a route is: its scores are kept.

    folder: where answers are kept. It is made if it is missing.
    retry: which failed requests are retried: those whose error is "retryable", "all", "none", or one
    type of error.
    version: what else the answers depend on, such as your stages. Another version sends all again.
    restart: remove finished answers, and start from the first request.
    grace: the seconds that requests in flight have to end if the job is closed early.

    A bug fails its request, which is asked again. In a stage of your own it is `StageFailed`, in
    an engine of your own `BackendFailed`, else `InternalError`. Raises `JournalError` where the
    folder holds results that no job has written, cannot be written, or is removed during the run.
    Other files in it stay.

    >>> import tempfile
    >>> from pipegen.drivers.route import route
    >>> from pipegen.testing.fake import FakeEngine
    >>> engine, folder = FakeEngine("Hello<|im_end|>"), tempfile.mkdtemp()
    >>> for _ in range(2):
    ...     with job(route(engine), [{"prompt": "Hi"}, {"prompt": "Ho"}], folder) as running:
    ...         texts = [slot.unwrap().text for slot in running]
    ...     print(texts, running.reused, len(engine.calls))
    ['Hello', 'Hello'] 0 1
    ['Hello', 'Hello'] 2 1
    """
    require_iterable(requests)

    def keyed() -> Iterator[tuple[None, Request]]:
        return ((None, request) for request in requests)

    running: Job[Any] = start_job(
        route,
        keyed(),
        folder,
        check_run(route, options, image_policy, policy),
        in_flight=in_flight,
        retry=retry,
        version=version,
        restart=restart,
        grace=grace,
        again=keyed if _is_sequence(requests) else None,
    )
    running._slots = _without_names(running._slots)
    return running


@with_option_words
def job_keyed(
    route: Pipe[GenerationRequest, Answer],
    requests: Iterable[tuple[K, Request]],
    folder: str | os.PathLike[str],
    options: Options | None = None,
    *,
    in_flight: int | None = None,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
    retry: str = "retryable",
    version: str = "",
    restart: bool = False,
    grace: float = GRACE,
    refuse: Callable[[K], GenerationError | None] = lambda key: None,
) -> Job[tuple[K, Slot[Answer]]]:
    """As `job`, for pairs of a key and a request, as `imap_keyed` takes them: gives pairs of that
    key and the slot.

    refuse: for the key of a request that is not finished, why it is not sent; None where it is.
    Nothing is kept of a request that is refused.
    """
    return start_job(
        route,
        requests,
        folder,
        check_run(route, options, image_policy, policy),
        in_flight=in_flight,
        retry=retry,
        version=version,
        restart=restart,
        grace=grace,
        refuse=refuse,
        again=(lambda: iter(requests)) if _is_sequence(requests) else None,
    )


def _is_sequence(requests: object) -> bool:
    """Whether requests may be walked twice: an iterator, or what draws from one, may not."""
    return hasattr(requests, "__len__") and hasattr(requests, "__getitem__")


def start_job(
    route: Pipe[GenerationRequest, Answer],
    requests: Requests[K],
    folder: str | os.PathLike[str],
    admission: Admission,
    *,
    in_flight: int | None = None,
    retry: str = "retryable",
    version: str = "",
    restart: bool = False,
    grace: float = GRACE,
    refuse: Callable[[K], GenerationError | None] = lambda key: None,
    again: Callable[[], Requests[K]] | None = None,
    reading: str = "",
    stamp: str = "",
    as_written: bool = False,
    part: tuple[int, int] | None = None,
    needs_folder: bool = True,
) -> Job[tuple[K, Any]]:
    """As `job_keyed`, for who knows more of the requests.

    again: gives the requests from the start, where they may be read twice. Then rows that are
        missing are asked at once, wherever they are.
    reading: how requests that are `UnreadRequest` are read: what else they depend on than their data.
    stamp: tells whether the input is as it was when it was read before (see `KeyMap`).
    as_written: finished rows may be given as `Written`, which need not be parsed.
    part: the shard whose rows are the job's, and of how many.
    needs_folder: whether the job ends with `JournalError` where its folder is removed.
    """
    pairs(requests)
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(
            f"folder takes the path where the job keeps its answers, not {type(folder).__name__};"
            " options come after it"
        )
    if type(grace) not in (int, float) or not 0 <= grace < math.inf:
        raise ValueError(f"grace takes seconds, 0 or more, not {grace!r:.80}")
    running: Job[tuple[K, Any]] = Job(
        route, Path(folder), admission.options, retry, version, restart=restart
    )
    journal, settings, retried = running.journal, running.settings, running._again
    try:
        context = context_of(settings, admission.policy, reading)
        key_map = running._known = KeyMap(journal.folder, context, stamp=stamp)
    except BaseException:
        running.close()  # its lock would last as long as this process
        raise
    rows = rows_of(
        requests,
        journal,
        Keys(settings),
        admission,
        again=retried,
        known=key_map,
        as_written=as_written,
        part=part,
    )
    ahead: Iterator[JobRow[K]] = iter(())
    if again is not None and running.before:
        keys = Keys(settings)
        ahead = missing_rows(
            again,
            journal,
            keys,
            admission,
            again=retried,
            known=key_map.ahead(),
            part=part,
        )
    turns = Turns(rows, journal, running._noted, ahead=ahead, refuse=refuse, backend=route.name)
    last = route.parts[-1].name if route.parts else route.name

    def keep(turn: TakenRow[K], slot: Slot[object]) -> None:
        kept = turns.keep(turn, slot.bind(partial(_result, last)))
        running.answered += turn.row.key is not None and is_ok(kept)

    flow: Drive[TakenRow[K]] = flow_of(
        route,
        turns.take,
        admission,
        in_flight=in_flight,
        ordered=False,
        isolate_bugs=True,
        finished=keep,
        kept=running._steps,
        admits=False,
    )
    running._grace, running._rest = grace, turns.rest
    running._needs_folder = needs_folder
    running._wake = turns.wake = flow.wake
    running._slots = _slots(running, turns, flow)
    return running


def _slots(
    running: Job[Any], turns: Turns[K], flow: Drive[TakenRow[K]]
) -> Generator[tuple[K, Slot[Any]], None, None]:
    """Run a job, and give out its rows in their turn."""
    try:
        while not (running.stopped or turns.done or flow.exhausted):
            if running._begun is None:
                for _ in flow.round():
                    pass
            else:
                running.stopped = True
                running._begun()
                flow.drain(running._grace)
            for name, slot, is_reused in turns.ended():
                running.finished += 1
                running.reused += is_reused
                running.failed += isinstance(slot, Failure)
                yield name, slot
            if running._needs_folder and running.removed:
                break
    except GeneratorExit:
        flow.drain(running._grace)
        raise
    finally:
        flow.close()
    running._close_files()


def _result(stage: str, value: object) -> Slot[GenerationResult | Scored]:
    """What a row's last stage gave; `StageFailed` where that is nothing that a job can keep. The
    stage is to be corrected, and then the row is asked again: the error has an incident.
    """
    if isinstance(value, (GenerationResult, Scored)):
        return Success(value)
    words = f"the stage {stage!r} gave {type(value).__name__}, not a GenerationResult or Scored"
    return Failure(
        StageFailed(
            f"{words}: those are what a job keeps",
            stage=stage,
            hint="end the job's pipe before this stage, and apply it to the slots that the job gives",
            incident=report(TypeError(words)).incident,
        )
    )


def _without_names(
    pairs_of_job: Generator[tuple[object, Slot[Answer]], None, None],
) -> Generator[Slot[Answer], None, None]:
    with contextlib.closing(pairs_of_job):
        for _, slot in pairs_of_job:
            yield slot


def begin_anew(folder: Path) -> None:
    """Remove the finished rows of a job. Raises `JournalError` for a folder that is no job's, and
    while another process runs the job: nothing is removed.
    """
    with refused(folder, "read"):
        if not folder.is_dir():
            return
        rows = set(files_of(folder))
        begun = all(
            path.name.startswith(TEMPORARY) or (path in rows and not path.stat().st_size)
            for path in folder.iterdir()
        )
    try:
        settings = read_settings(folder)
    except SettingsDamaged as damaged:
        raise JournalError(
            f"{damaged}; nothing is removed: run the job without restart, or remove the folder"
            " yourself"
        ) from damaged
    if settings is None and not begun:
        raise JournalError(
            f"{folder} holds no job.json: it is no job's folder, and nothing of it is removed"
        )
    _remove_rows(folder)
    remove_left(folder)


def require_job_folder(folder: Path) -> None:
    """Raise `JournalError` for a folder of other files: nothing is written among them. Rows of a job
    whose `job.json` is missing have an error of their own.
    """
    with refused(folder, "read"):
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        rows = {path.name for path in files_of(folder)} if names else set()
    other_names = sorted(
        name for name in names - rows if not name.startswith(".") and not is_of_rows_in_flight(name)
    )
    # looked at last: another process may be writing it
    if other_names and not rows and not (folder / SETTINGS).exists():
        raise JournalError(
            f"{folder} holds other files ({', '.join(map(repr, other_names[:3]))}) and no {SETTINGS}:"
            " it is no job's folder; give one that is new or empty"
        )


def _remove_rows(folder: Path) -> None:
    """Empty the files of a folder's rows. Raises `JournalError`, and removes nothing, where another
    run writes one of them, or one cannot be written.

    The files stay: a run that opens one meanwhile would write to a file without a name.
    """
    with refused(f"the answers in {folder}", "removed"), contextlib.ExitStack() as cleanup:
        files = []
        for path in files_of(folder):
            fd = os.open(path, os.O_RDWR)
            cleanup.callback(os.close, fd)
            if not locked(fd):
                raise JournalError(
                    f"{folder}: another run of this job is running ({path.name} is locked), and"
                    " nothing is removed; end that one first"
                )
            files.append(fd)
        for fd in files:
            os.ftruncate(fd, 0)
