"""`pipegen generate`: requests in, one line or sidecar out for each, in order, in constant
memory.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from returns.result import Failure

from pipegen.cli.export_command import Command, note_command
from pipegen.cli.inputs import Origin, sidecar_exists
from pipegen.cli.on_ray import OnRay, Stops, ray_slots
from pipegen.cli.outputs import (
    Answered,
    Make,
    Tally,
    check_columns,
    file_of,
    form_of,
    refuse_used,
    results_to,
    say,
    say_shared,
    slot_of,
    words_of,
    write_summary,
)
from pipegen.cli.plugins import attached
from pipegen.cli.progress_line import Meter, is_shown, progress, tells
from pipegen.cli.run_flags import RunFlags
from pipegen.cli.sidecars import (
    NOT_MADE,
    check_sidecars,
    existing_sidecars,
    refuse_sidecars,
    write_sidecar,
)
from pipegen.cli.sources import RunSettings, is_image_folder, open_source, refuse_missing, stamp_of
from pipegen.cli.usage import import_while_waiting, open_routes, refuse
from pipegen.core.distribution import MissingExtra
from pipegen.core.errors import InternalError
from pipegen.core.foreign_calls import guard
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot, is_ok, live
from pipegen.drivers.mapping import imap_keyed
from pipegen.drivers.progress import watched
from pipegen.drivers.turns import turns
from pipegen.engines.model import reader_of
from pipegen.engines.protocol import takes_tokens
from pipegen.io.forms import TableError, form_of as input_form
from pipegen.jobs.job_rows import retry_of
from pipegen.jobs.journal import SETTINGS
from pipegen.jobs.new_file import JournalError, Replaced, new_file, remove_stale
from pipegen.jobs.runner import Job, start_job
from pipegen.records.messages import ImageSource
from pipegen.records.results import GenerationResult

BUG = 3
"""The exit code where a bug of pipegen's failed a request."""
_OTHERS = 3
"""Other settings of finished rows, of which a run speaks."""
_JOB = "takes a file or a folder as IN, and a file as -o OUT: the finished requests are kept in OUT.job"
INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit codes as a shell gives them for SIGINT and SIGPIPE."""


@dataclass(frozen=True, kw_only=True)
class Files(RunFlags):
    """What is read and written, and how: the flags, and what they set."""

    asked: RunSettings
    part: tuple[int, int] | None = None
    """The shard: which part of the requests is asked, and of how many parts. 1 of 4 is the
    first.
    """
    on_ray: OnRay | None = None
    """Where the job runs on replicas of the engine, and not in this process."""

    @property
    def job(self) -> Path | None:
        """Where finished rows are kept. None for what is no job: input from stdin, output to
        stdout, to a device or to a pipe.
        """
        path = file_of(self.out)
        if path is None or self.source == "-" or (path.exists() and not path.is_file()):
            return None
        return Path(f"{path}.job")


def run_generate(files: Files) -> int:
    """Run it and give back the exit code.

    0: all good. 1: requests or samples failed, had no answer or could not be written. 3: a bug of
    pipegen's failed a request. 130 and 141 are as in shells.
    """
    meter = Meter(Tally())
    finished = False
    try:
        _check(files)
        with _terminable(files) as ending:
            code = _generate(files, meter, ending)
        finished = True
    except KeyboardInterrupt:
        goes_on = (
            f"the same command goes on, and `pipegen export {files.job}` writes what is finished"
        )
        say(
            "interrupted; what was written is kept"
            if files.job is None
            else f"interrupted; {goes_on}"
        )
        code = INTERRUPTED
    except (JournalError, TableError, OSError) as refusal:
        say(words_of(refusal))
        code = 1
    if not files.quiet and code != BROKEN_PIPE:
        not_answered = 0 if meter.total is None else meter.total - meter.tally.done
        say(meter.tally.summary(meter.seconds, meter.loading, max(0, not_answered)))
        if finished and files.part is not None:
            say(
                f"shard {files.part[0]}/{files.part[1]} is done; once the others are, `pipegen"
                f" export {files.job} -o {files.out}` writes all answers"
            )
    return write_summary(files.summary, meter.plain(), code)


class _Interrupts:
    """What Ctrl-C and SIGTERM do. The first stops a job that runs: its rows in flight have some
    time to end. The second, and any without a job, ends it all.
    """

    def __init__(self, files: Files) -> None:
        self._files, self._again = files, False
        self._running: Stops | None = None

    def stops(self, running: Stops | None) -> None:
        """What the first signal stops; None where it ends it all."""
        self._running = running if self._files.grace else None

    def _begun(self) -> None:
        say(
            f"ending: the requests in flight have {self._files.grace:g} seconds; interrupt again to"
            " end at once"
        )

    def __call__(self, number: int, frame: object) -> None:
        repeated, self._again = self._again, True
        if self._running is not None:
            self._running.stop(0 if repeated else self._files.grace, self._begun)
        if self._running is None or repeated:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _terminable(files: Files) -> Iterator[_Interrupts]:
    """Let SIGTERM end the run as Ctrl-C does. A signal that is ignored stays so."""
    ending, handlers = _Interrupts(files), dict[int, Any]()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                handlers[number] = signal.signal(number, ending)
    try:
        yield ending
    finally:
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)


def _generate(files: Files, meter: Meter, ending: _Interrupts) -> int:
    tally, request_settings = meter.tally, files.asked
    with contextlib.ExitStack() as stack:
        question = request_settings.question._replace(
            sidecar=files.sidecar, overwrite=files.overwrite or files.job is not None
        )
        where = (question, request_settings.images, request_settings.columns, stack)
        source = open_source(files.source, *where, folder=files.job)
        check_columns(source, files.out)
        total = source.total() if is_shown(not files.quiet) else None
        meter.total = (
            None
            if files.part is not None or (files.quiet and files.summary is None)
            else source.rows()
        )
        route = stack.enter_context(
            turns(attached(open_routes(request_settings.load), request_settings.plugins))
        )
        meter.engines = route.owns
        _say_continued(files, route)
        show_progress = stack.enter_context(progress(total, meter, shown=not files.quiet))
        if not files.quiet or files.summary is not None:
            route = watched(route, tells(show_progress, meter))

        def reopened() -> Iterator[tuple[Origin, Any]]:
            if source.unread is not None:  # which need not be parsed again
                return source.unread()
            return open_source(files.source, *where).items

        slots: Iterable[tuple[Origin, Answered, bool]]
        replaced = files.sidecar is None or files.overwrite
        foreign = [] if replaced else existing_sidecars(reopened())
        if files.restart or files.job is None or not (files.job / SETTINGS).is_file():
            why = "--restart alone keeps them" if files.restart else NOT_MADE
            refuse_sidecars([origin for origin, _ in foreign], why)
        try:
            if files.job is None:
                stream = _open_out(files, stack)
                if files.source == "-":
                    import_while_waiting(route)
                answered = imap_keyed(
                    route,
                    source.items,
                    request_settings.options,
                    in_flight=files.in_flight,
                    image_policy=request_settings.images,
                    policy=request_settings.policy,
                    isolate_bugs=True,
                )
                slots = ((origin, slot, False) for origin, slot in answered)
            else:
                # which is refused then
                if files.part is None and not (files.restart or files.overwrite):
                    say_shared(files.job or Path())
                if files.on_ray is not None:
                    begun = partial(_begun, there=foreign)
                    known = (begun, source.reading, source.stamp)
                    signals = (meter, show_progress, ending.stops)
                    rows = ray_slots(files, files.on_ray, route, reopened, *signals, *known)
                else:
                    settings: dict[str, Any] = {"as_written": True, "part": files.part}
                    settings |= {"needs_folder": False}
                    settings |= {"again": source.unread, "reading": source.reading}
                    settings |= {"stamp": source.stamp, "in_flight": files.in_flight}
                    items = source.items if source.unread is None else source.unread()
                    rows = _job_slots(route, items, files, settings, ending, tally, foreign)
                slots = stack.enter_context(contextlib.closing(rows))
                remove_stale(Path(files.out or "").absolute().parent)
                stream = stack.enter_context(_out_of_job(files)) if files.part is None else None
            make = (
                None
                if stream is None
                else stack.enter_context(
                    results_to(
                        stream,
                        form_of(files.out),
                        source,
                        request_settings.load.model,
                        brief=files.brief,
                        at_once=files.job is None,
                    )
                )
            )
            stack.callback(gc.unfreeze)
            # what has been loaded stays to the end: the collector need not go through it again
            gc.freeze()
            job = files.job  # which looks at the disk
            for origin, slot, is_reused in slots:
                final_slot, write = _finished(slot, origin, make, files, reused=is_reused)
                if job is not None:  # which keeps the row, whatever becomes of its line
                    tally.count(final_slot, origin.id, reused=is_reused)
                if write is not None and stream is not None:
                    try:
                        write()
                    except OSError as refusal:
                        if job is not None:
                            raise JournalError(
                                f"{files.out} cannot be written: {refusal.strerror}; what is"
                                f" finished is kept in {job}"
                            ) from refusal
                        return _unwritable(stream, refusal, files)
                if job is None:
                    tally.count(final_slot, origin.id, reused=is_reused)
                show_progress(origin.read, None)
        except MissingExtra as missing:
            refuse(str(missing), "--model")
    gone = job is not None and not (job / SETTINGS).is_file()
    if gone:
        say(
            f"{job} was removed during the run: no finished request is kept there"
            + (f", and {files.out} is all there is" if stream is not None else "")
        )
    if source.stamp and _stamp_now(files.source) != source.stamp:
        say(f"{files.source} was changed during the run: some answers may be of the old file")
    return (
        BUG
        if tally.bugs
        else (1 if tally.failed or tally.lost_samples or tally.unanswered or gone else 0)
    )


@contextlib.contextmanager
def _out_of_job(files: Files) -> Iterator[BinaryIO]:
    """OUT of a job, written anew. What others have written there meanwhile stays, and is bad
    usage.
    """
    before = _stamp_now(files.out)
    try:
        with new_file(
            Path(files.out or ""), changed=lambda: _stamp_now(files.out) not in (None, before)
        ) as stream:
            yield stream
    except Replaced as replaced:
        refuse(
            f"{replaced}; the answers are kept: pipegen export {files.job} -o FILE writes them",
            "--out",
        )


def _stamp_now(file: str | None) -> str | None:
    """The stamp of a file; None where it is not there."""
    try:
        return stamp_of(file or "")
    except OSError:
        return None


def _say_continued(files: Files, route: Any) -> None:
    """Say so where the lines of a text file are continued by a chat model: most are questions."""
    path = Path(files.source or "-")
    if files.asked.columns.fields or not path.is_file() or input_form(path).kind != "text":
        return
    models = live([reader_of(engine)() for engine in route.owns if takes_tokens(engine)])
    if any(model.renderer.template is not None for model in models):
        say(
            f"{path}: each line is continued as it is, without the model's chat template; if the"
            " lines are questions, add --map user=prompt (--map prompt=prompt says that they are"
            " not)"
        )


def _job_slots(
    route: Any,
    items: Iterator[tuple[Origin, Any]],
    files: Files,
    settings: dict[str, Any],
    ending: _Interrupts,
    tally: Tally,
    there: Sequence[tuple[Origin, object]] = (),
) -> Generator[tuple[Origin, Answered, bool], None, None]:
    """The places and slots of the job, each with whether it was finished before. Raises
    `KeyboardInterrupt` where a signal has stopped it.

    there: see `_begun`.

    Rows that are kept and not given out, since the job ends before, are counted.
    """
    settings = {
        **settings,
        "retry": files.retry,
        "restart": files.restart or files.overwrite,
        "grace": files.grace,
    }
    if not files.overwrite:  # those of finished rows are the job's own
        settings["refuse"] = lambda origin: sidecar_exists(origin.sidecar)
    with (
        contextlib.ExitStack() as after,
        start_job(route, items, files.job or Path(), files.asked.admission, **settings) as running,
        contextlib.ExitStack() as stack,
    ):
        after.callback(lambda: tally.count_all(running.rest()))
        stack.callback(ending.stops, None)
        ending.stops(running)
        _begun(running, files, there)
        reused_count = 0
        for origin, slot in running:
            yield origin, slot, running.reused > reused_count
            reused_count = running.reused
        if running.stopped:
            raise KeyboardInterrupt


def _begun(job: Job[Any], files: Files, there: Sequence[tuple[Origin, object]] = ()) -> None:
    """Keep the command in the job's folder, and say how much was finished before.

    there: the requests whose sidecars exist (see `check_sidecars`).
    """
    if there:
        check_sidecars(there, job, files.asked.admission)
    load, question, _, images, policy, columns, _ = files.asked
    source, root = (
        None if path is None else os.path.abspath(path) for path in (files.source, files.image_root)
    )
    kept_columns = sorted(columns.kept)
    policy_fields = (images.allow_http, images.allowed_hosts, asdict(policy))
    command = Command(
        source,
        question.prompt,
        question.system,
        root,
        load.model,
        files.brief,
        columns.fields,
        kept_columns,
        question.images if root else [*map(_anywhere, question.images)],
        *policy_fields,
        columns.drops_answer,
    )
    note_command(files.job or Path(), command)
    if job.before and not files.quiet:
        alike, other_settings = job.made_before
        sentences = {
            0: "none was made with these settings",
            1: "1 was made with these settings and is reused",
        }
        words = (
            [sentences.get(alike, f"{alike} were made with these settings and are reused")]
            if other_settings
            else []
        )
        words += [
            f"{count} with {settings_words}" for count, settings_words in other_settings[:_OTHERS]
        ]
        words += (
            [f"{sum(count for count, _ in other_settings[_OTHERS:])} with others"]
            if len(other_settings) > _OTHERS
            else []
        )
        say("; ".join([f"{files.job}: {job.before} finished before", *words]))


def _anywhere(name: str) -> str:
    """What names an image from any working directory."""
    return os.path.abspath(name) if name and ImageSource.of(name).path else name


def _finished(
    slot: Answered,
    origin: Origin,
    make: Make | None,
    files: Files,
    *,
    reused: bool,
) -> tuple[Answered, Callable[[], object] | None]:
    """The slot with its sidecar written, and what writes its line. A bug in the making of either
    fails the slot.
    """

    def with_sidecar() -> tuple[Answered, Callable[[], object] | None]:
        file = (
            None
            if reused and origin.sidecar is not None and origin.sidecar.exists()
            else origin.sidecar
        )
        if file is None:
            return slot, make and make(origin, slot, False)
        how: dict[str, Any] = {"brief": files.brief, "overwrite": files.overwrite}
        written_slot = slot_of(slot).bind(partial(write_sidecar, file, name=origin.id, **how))
        return written_slot, make and make(origin, written_slot, False)

    outcome = guard(
        with_sidecar,
        lambda raised: InternalError(
            f"pipegen has a bug: {raised.words}", incident=raised.incident
        ),
    )
    if is_ok(outcome):
        return outcome.unwrap()
    failed: Slot[GenerationResult] = Failure(outcome.failure())
    return failed, make and make(origin, failed, True)


def _unwritable(stream: BinaryIO, refusal: OSError, files: Files) -> int:
    """What to do when a line could not be written. A reader that has gone is no news. What is left of
    stdout is flushed once more at the exit, and must not fail there.
    """
    if stream is sys.stdout.buffer:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    else:
        with contextlib.suppress(OSError):  # what could not be written can still not be written
            stream.close()
    if isinstance(refusal, BrokenPipeError):
        return BROKEN_PIPE
    say(f"{files.out or 'stdout'} cannot be written: {refusal.strerror}; the lines before are kept")
    return 1


def _check(files: Files) -> None:
    """Refuse flags that do not go together, and files that must not be written."""
    try:
        retry_of(files.retry)
    except InvalidField as refusal:
        refuse(str(refusal).removeprefix("retry "), "--retry")
    if not 0 <= files.grace < math.inf:
        refuse(f"takes seconds, 0 or more, not {files.grace}", "--grace")
    for name in ("retry", "restart", "grace") if files.job is None else ():
        if getattr(files, name) != getattr(RunFlags, name):
            refuse(_JOB, f"--{name}")
    if files.overwrite and file_of(files.out) is None and files.sidecar is None:
        refuse("takes a file as -o OUT, or --sidecar", "--overwrite")
    if files.sidecar not in (None, "txt", "json"):
        refuse(f"takes txt or json, not {files.sidecar!r}", "--sidecar")
    if files.source is None:
        if files.prompt is None:
            refuse("say what to ask: IN, a file or a folder, or --prompt with one question", "IN")
        if files.sidecar is not None:
            refuse("goes with a folder of images", "--sidecar")
    elif files.image:
        refuse("goes with --prompt, without IN", "--image")
    elif files.source != "-" and not os.path.exists(files.source):
        refuse_missing(files.source)
    elif files.source == "-" or not is_image_folder(files.source, files.prompt):
        for flag, value in (("--prompt", files.prompt), ("--sidecar", files.sidecar)):
            if value is not None:
                refuse("goes with a folder of images; each line of a file says its own", flag)
    elif files.prompt is None:
        refuse(f"{files.source} is a folder of images: say what to ask of them", "--prompt")
    options = files.asked.options
    if files.sidecar == "txt" and options is not None and (options.samples or 1) > 1:
        refuse(
            "a .txt sidecar holds one answer; take --sidecar json, or -o alone",
            "--sidecar",
            "--samples",
        )
    if files.part is not None or files.on_ray is not None:
        _check_parts(files)
    out = file_of(files.out)
    inputs = [files.source, files.options_file, files.config]
    refuse_used("--out", out, inputs)
    refuse_used("--summary", files.summary, [*inputs, out])
    if out is not None:
        _check_out(out, files)
    if files.summary is not None and (files.summary.is_dir() or not files.summary.parent.is_dir()):
        refuse(f"{files.summary} is a folder, or in none that is there; give a file", "--summary")


def _check_parts(files: Files) -> None:
    """Refuse what does not go with several processes: they need a job, which has all answers."""
    flag = "--shard" if files.on_ray is None else files.on_ray.flag
    if files.part is not None and files.on_ray is not None:
        refuse(f"goes without {flag}: these split the requests themselves", "--shard")
    if files.job is None or files.source is None:
        refuse(_JOB, flag)
    if files.part is not None and files.sidecar is not None:
        refuse("goes without --sidecar: answers go to OUT.job, and from there to OUT", flag)
    if files.part is not None and (files.restart or files.overwrite):
        words = (
            "goes without --restart and --overwrite, which would remove the answers of other shards"
        )
        refuse(f"{words}; to start again, remove {files.job}", flag)
    device = str(getattr(files.asked.load.backend.settings, "device", None) or "")
    if files.on_ray is not None and ":" in device:
        words = f"goes without the number of a device, as in {device}"
        refuse(f"{words}: each replica has devices of its own", flag)


def _check_out(out: Path, files: Files) -> None:
    form = form_of(files.out)
    if out.is_dir():
        refuse(f"{out} is a folder; give a file in it", "--out")
    if (
        out.is_file()
        and out.stat().st_size
        and not files.overwrite
        and not (Path(f"{out}.job") / SETTINGS).is_file()
    ):
        refuse(f"{out} exists already; --overwrite replaces it", "--out")
    if not out.parent.is_dir():
        refuse(f"there is no folder {out.parent}", "--out")
    if form and (files.source == "-" or (out.exists() and not out.is_file())):
        refuse("a table as OUT is a file, and takes a file as IN", "--out")


def _open_out(files: Files, stack: contextlib.ExitStack) -> BinaryIO | None:
    if files.out is None and files.sidecar is not None:
        return None
    path = file_of(files.out)
    if path is None:
        return sys.stdout.buffer
    try:
        return stack.enter_context(
            path.open("wb" if files.overwrite or not path.is_file() else "xb")
        )
    except OSError as refusal:
        refuse(f"{path} cannot be written: {refusal.strerror}", "--out")
