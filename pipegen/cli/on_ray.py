"""`pipegen generate --replicas N` and `--ray`: the same job on replicas of the engine.

Ray starts them: on this machine, or with `--ray` on the machines of a cluster.

This process reads the input and makes the keys, and hands out the rows that the journal does not
have. Each replica writes what it finishes to a file of its own in the job's folder. At the end OUT
is written from there, in the order of the input, as without Ray.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from returns.result import Failure

from pipegen.cli import log_in_lines
from pipegen.cli.inputs import Origin, sidecar_exists
from pipegen.cli.outputs import Answered, Tally, say
from pipegen.cli.plugins import attached, plugins_of
from pipegen.cli.progress_line import Meter, Moved
from pipegen.cli.usage import Load, open_routes, refuse, runs_here
from pipegen.core.distribution import MissingExtra
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.turns import turns
from pipegen.jobs.job_rows import (
    Again,
    JobRow,
    UnreadRequest,
    kept_slot,
    missing_rows,
    retry_of,
    rows_of,
)
from pipegen.jobs.journal import Finished
from pipegen.jobs.kept_turns import WAITING
from pipegen.jobs.key_map import KeyMap
from pipegen.jobs.new_file import JournalError
from pipegen.jobs.ray import Counts
from pipegen.jobs.row_keys import Keys, context_of
from pipegen.jobs.runner import Job
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult

if TYPE_CHECKING:
    from pipegen.cli.generate import Files


LOCAL = "local"
"""The address of a new Ray on this machine, which no other program uses."""


class Stops(Protocol):
    """What a signal stops."""

    def stop(
        self, grace: float | None = None, begun: Callable[[], object] = lambda: None
    ) -> None: ...


class OnRay(NamedTuple):
    """Where a job runs on Ray, and on how many replicas."""

    make: Callable[[], Pipe[GenerationRequest, GenerationResult]]
    """Makes the route in the process of a replica."""
    address: str | None = None
    """The cluster's; None is the one that is there, or else a new one on this machine."""
    replicas: int | None = None
    """None: as many as the GPUs are enough for, or one."""
    gpus: float | None = None
    """Those of one replica. None: see `gpus_of`."""
    flag: str = "--ray"
    """The flag that asks for it, for messages."""


def on_ray(
    address: str | None,
    replicas: int | None,
    gpus: float | None,
    load: Callable[[], Load],
    plugins: Sequence[str],
) -> OnRay | None:
    """What the flags set: `--replicas` without `--ray` is a new Ray on this machine.

    `load` sets up the model as the flags do: keys of servers do not travel.
    """
    if address is None and replicas is None:
        if gpus is not None:
            refuse("takes --replicas or --ray too", "--gpus-per-replica")
        return None
    if address is not None and address.startswith("ray://"):
        refuse(
            "takes HOST:PORT of a cluster that this machine is a part of; from elsewhere, send the"
            " command there: ray job submit -- pipegen generate ...",
            "--ray",
        )
    make = partial(route_there, os.getcwd(), load, tuple(plugins))
    if address is None:
        return OnRay(make, LOCAL, replicas, gpus, "--replicas")
    return OnRay(make, address or None, replicas, gpus)


def route_there(
    folder: str, load: Callable[[], Load], plugins: Sequence[str]
) -> Pipe[GenerationRequest, GenerationResult]:
    """The route that flags set, made in another process: relative paths start where the command was
    given, and keys of servers are read there.
    """
    if os.path.isdir(folder):
        os.chdir(folder)
    log_in_lines(incidents=False)  # their words are in the errors that rows and commands give
    return turns(attached(open_routes(load()), plugins_of(plugins)))


def ray_slots(
    files: Files,
    on: OnRay,
    route: Pipe[GenerationRequest, GenerationResult],
    opened: Callable[[], Iterable[tuple[Origin, Slot[GenerationRequest] | UnreadRequest]]],
    meter: Meter,
    moved: Moved,
    stops: Callable[[Stops | None], object],
    begun: Callable[[Job[Any], Files], object],
    reading: str = "",
    stamp: str = "",
) -> Generator[tuple[Origin, Answered, bool], None, None]:
    """The origins and slots of the job, each with whether it was finished before: once all are, or
    the run was stopped.

    route: as this process has it: it tells what the keys are made of, and loads no weights.
    opened: opens the input. It is read up to three times: for some missing rows ahead of the
        others, to hand out all that are missing, and to write all. Where the map of keys has a
        finished row, its request is not parsed.
    reading: how rows of it that are `UnreadRequest` are read.
    stamp: tells whether it is as it was when it was read before.
    stops: called with what a signal is to stop.

    Until all is written, the meter shows the counts of the replicas. Raises `KeyboardInterrupt`
    where the run was stopped, and `JournalError` where a row was not answered. Where no replica can
    begin, that is bad usage.
    """
    request_settings, output_tally, retry_rule = files.asked, meter.tally, retry_of(files.retry)
    run: Job[Any] = Job(
        route,
        files.job or Path(),
        request_settings.options,
        files.retry,
        "",
        restart=files.restart or files.overwrite,
    )

    context = context_of(run.settings, request_settings.policy, reading)

    def rows(finished: Finished, key_map: KeyMap, retry: Again) -> Iterator[JobRow[Origin]]:
        how: dict[str, Any] = {"again": retry, "known": key_map, "as_written": True}
        return rows_of(opened(), finished, Keys(run.settings), request_settings.admission, **how)

    def refused(job_row: JobRow[Origin]) -> JobRow[Origin]:
        why = None if files.overwrite else sidecar_exists(job_row.name.sidecar)
        missing = job_row.missing
        return missing if why is None else missing._replace(key=None, request=Failure(why))

    with contextlib.closing(run):
        journal, folder = run.journal, run.journal.folder
        begun(run, files)
        with KeyMap(folder, context, stamp=stamp) as job_map:
            ahead: Iterator[JobRow[Origin]] = iter(())
            if run.before:
                keys, admission = Keys(run.settings), request_settings.admission
                how: dict[str, Any] = {"again": retry_rule, "known": job_map.ahead()}
                ahead = missing_rows(opened, journal, keys, admission, **how)
            all_rows = rows(journal, job_map, retry_rule)
            _answer(files, on, ahead, all_rows, refused, meter, moved, stops)
        with Finished(folder) as finished, KeyMap(folder, context, writes=False) as job_map:
            for row in rows(finished, job_map, retry_of("none")):
                slot = None if row.kept is None else row.kept()
                request = row.request if slot is not None else refused(row).request
                if slot is None and is_ok(request):
                    raise JournalError(
                        f"{row.name.id} was not answered: it, or an image of it, was changed while"
                        " the job ran; run the same command again"
                    )
                is_reused = row.key is not None and (
                    journal.succeeded(bytes.fromhex(row.key))
                    or kept_slot(journal, row.key, None, retry_rule) is not None
                )
                yield row.name, Failure(request.failure()) if slot is None else slot, is_reused
            run.tidy(finished.has)
    meter.tally = output_tally


def _answer(
    files: Files,
    on: OnRay,
    ahead: Iterator[JobRow[Origin]],
    rows: Iterator[JobRow[Origin]],
    refused: Callable[[JobRow[Origin]], JobRow[Origin]],
    meter: Meter,
    moved: Moved,
    stops: Callable[[Stops | None], object],
) -> None:
    """Hand out the rows that are not finished, until there is none: first those that were found
    ahead of the others. Ray is started for the first one.

    refused: a row that is missing, without a key where it is not to be asked.
    """
    from pipegen.jobs.ray_actors import BLOCK_ROWS, Actors, NoReplica, blocks_of, connect

    tally, request_settings = Tally(), files.asked
    meter.tally = tally

    def counted_rows() -> Iterator[JobRow[Origin]]:
        early = set[str | None]()
        for row in filter(attrgetter("is_asked"), map(refused, islice(ahead, WAITING))):
            early.add(row.key)
            yield row
        for row in rows:
            slot = None if row.kept is None else row.kept()
            if slot is not None:
                tally.count(slot, row.name.id, reused=True)
                yield row
            elif row.key not in early:
                missing = refused(row)  # also where its line cannot be read
                if not is_ok(missing.request):
                    tally.count(Failure(missing.request.failure()), row.name.id)
                yield missing

    last = meter.clock()

    def shown(counts: Counts[Tally], partial: Mapping[str, Tally]) -> None:
        nonlocal last
        for block in counts.blocks.values():
            tally.add(block)
            last = meter.clock()
        meter.tally = Tally()
        for part in (tally, *partial.values()):
            meter.tally.add(part)
        meter.works_elsewhere(counts.worked)
        moved(None, None)

    row_stream = counted_rows()
    first = next((row for row in row_stream if row.is_asked), None)
    if first is None:
        return
    try:
        ends = connect(on.address, quiet=files.quiet, replicas=on.replicas or 1)
    except ConnectionError as refusal:
        refuse(str(refusal), on.flag)
    except MissingExtra as missing:
        refuse(f"{missing}; or give --shard I/N to each of N commands, which needs no Ray", on.flag)
    on_cpu = str(getattr(request_settings.load.backend.settings, "device", None)) == "cpu"
    actor_settings = {"retry": files.retry, "in_flight": files.in_flight}
    folder = (files.job or Path()).absolute()
    with contextlib.ExitStack() as stack:
        stack.callback(ends)
        replicas, gpus = _size(on, here=runs_here(request_settings.load) and not on_cpu)
        given = (on.make, request_settings.admission, folder, actor_settings, Tally, _meter_there)
        actors = Actors(*given, replicas=replicas, gpus=gpus, tell=say)
        stack.callback(lambda: shown(Counts(actors.partial), {}))
        stack.callback(actors.close)
        stops(actors)
        meter.called = meter.clock()
        moved(None, None)
        most = min(BLOCK_ROWS, files.in_flight or BLOCK_ROWS)
        blocks = blocks_of(chain([first], row_stream), most, replicas, request_settings.images)
        try:
            for counts in actors.counts(blocks):
                shown(counts, actors.partial)
        except NoReplica as failure:
            if failure.answered:
                raise JournalError(f"{failure}; the same command goes on") from None
            refuse(str(failure), "--config" if files.config else "--model")
    meter.ending = meter.clock() - last
    stops(None)
    if actors.stopped:
        raise KeyboardInterrupt


def gpus_of(on: OnRay, there: float) -> float:
    """The GPUs of one replica: what is set, else one where there are any.

    On a new Ray on this machine, N replicas have like parts of the GPUs. Fewer GPUs than replicas
    are bad usage then.

    >>> gpus_of(OnRay(dict, LOCAL, 4), 8), gpus_of(OnRay(dict, "head:6379", 4), 8)
    (2.0, 1.0)
    """
    if on.gpus is not None or not there:
        return on.gpus or 0.0
    if on.address != LOCAL or on.replicas is None:
        return 1.0
    if there < on.replicas:
        share = 1 / math.ceil(on.replicas / there)
        words = f"{on.replicas} replicas and {there:g} GPUs; for several replicas on a GPU"
        refuse(f"{words}, set --gpus-per-replica {share:g}", on.flag)
    return float(there // on.replicas)


def _size(on: OnRay, *, here: bool) -> tuple[int, float]:
    """How many replicas there are, and the GPUs of each."""
    from pipegen.jobs.ray_actors import itself

    cluster_gpus = float(itself().cluster_resources().get("GPU", 0.0))
    gpus = gpus_of(on, cluster_gpus if here else 0.0)
    replicas = on.replicas or max(1, int(cluster_gpus // gpus) if gpus else 1)
    kind, each = ("GPU", gpus) if gpus else ("CPU", 1.0)
    free = float(itself().available_resources().get(kind, 0.0))
    waiting = replicas - int(free / each)
    if waiting > 0:
        say(
            f"{waiting} of {replicas} replicas wait: each takes {each:g} {kind}, and {free:g} of the"
            f" cluster's {itself().cluster_resources().get(kind, 0.0):g} are free now"
        )
    return replicas, gpus


def _meter_there() -> Meter:
    return Meter(Tally())
