"""`pipegen generate ... --replicas N`: one job, run by N processes on this machine, each with its
own engine.

The first process, here the parent, loads no engine. It starts the same command N times; each child
runs one shard of the job, on its own part of the visible GPUs, and writes its rows to the job's
folder. A child tells how far it is over a pipe, in lines of JSON. What it prints is shown with its
number.

A child that dies is started again and goes on, since what it finished is in the job. A row that
kills it is found, as in any job, and fails. A child that dies more often in a row, without an
answer, is given up; the others go on. When all have ended, the parent writes OUT from the job, in
the order of the input; a missing row is an error, and OUT is not written.

The first Ctrl-C or SIGTERM is handed to the children, whose rows in flight have their grace; the
second too, and ends them at once. A child is in a group of processes of its own, so a terminal's
Ctrl-C reaches the parent alone. A child whose parent is gone ends as at Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipegen.cli.inputs import Origin
from pipegen.cli.outputs import Tally, say
from pipegen.cli.progress import Meter, Moved
from pipegen.cli.usage import refuse, runs_here
from pipegen.core.slots import Slot
from pipegen.drivers.progress import Progress
from pipegen.jobs.export import finished_rows
from pipegen.jobs.in_flight import DEATHS
from pipegen.jobs.journal import JournalError
from pipegen.jobs.runner import Job, begin_anew
from pipegen.records.requests import GenerationRequest

if TYPE_CHECKING:
    from pipegen.cli.generate import Files

__all__ = [
    "Child",
    "Replicas",
    "check_parts",
    "child_of_environment",
    "devices_of",
    "replica_slots",
    "visible_devices",
]

VARIABLE = "PIPEGEN_REPLICA"
"""What tells a child its shard and its pipe: 2/4:7 is shard 2 of 4, and file descriptor 7."""
SELF = (sys.executable, "-P", "-m", "pipegen")
"""This program, in a process of its own."""
TRIES = DEATHS + 1
"""Deaths in a row, without an answer, after which a child is given up: they are more than one row
costs that kills its process.
"""
_LOOK = 0.2
"""Seconds between two looks at whether a child has ended, where none of them says anything."""
_LAST = 10.0
"""Seconds that children have to end once all is ended, before they are killed."""
_BAD_USAGE = 2


class Child:
    """What a child does in its own process: it runs one shard, and tells its parent how far it
    is.
    """

    def __init__(self, shard: tuple[int, int], pipe: int) -> None:
        self.shard, self._pipe = shard, pipe
        self.job: Job[Any] | None = None
        self._lock = threading.Lock()

    def moved(self, meter: Meter) -> Moved:
        """In the place of a bar."""
        return lambda done, text: self.tell(meter)

    def tell(self, meter: Meter, *, ended: bool = False) -> None:
        """Tell how far the shard is. Where the parent is gone, this process ends as at Ctrl-C."""
        answered = 0 if self.job is None else self.job.answered
        stages = {
            "answered": answered,
            "called": meter.called is not None,
            "working": meter.working is not None,
            "ended": ended,
        }
        line = json.dumps({"tally": vars(meter.tally), **stages}).encode() + b"\n"
        try:
            with self._lock:  # the engine's thread tells too
                while line:
                    line = line[os.write(self._pipe, line) :]
        except BrokenPipeError:
            signal.raise_signal(signal.SIGTERM)


def child_of_environment() -> Child | None:
    """What the parent has set for this process; None where it is no child."""
    value = os.environ.pop(VARIABLE, None)
    if value is None:
        return None
    i, n, pipe = map(int, value.replace("/", ":").split(":"))
    os.set_inheritable(pipe, False)
    return Child((i, n), pipe)


def visible_devices() -> list[str]:
    """The GPUs that CUDA programs see, by their names in CUDA_VISIBLE_DEVICES; by their numbers
    where that is not set.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return list(
            takewhile(
                lambda name: name not in ("", "-1"), (name.strip() for name in named.split(","))
            )
        )
    tool = shutil.which("nvidia-smi")
    # NVIDIA's own tool
    listed = (
        subprocess.run([tool, "-L"], capture_output=True, text=True, check=False).stdout  # noqa: S603
        if tool
        else ""
    )
    return [
        str(number)
        for number, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))
    ]


def devices_of(n: int, visible: Sequence[str]) -> list[dict[str, str]]:
    """The environment of each of n replicas: like parts of the GPUs, in their order. Fewer GPUs
    than replicas are bad usage.

    >>> devices_of(2, ["0", "1"])[1], devices_of(2, [])[1]
    ({'CUDA_VISIBLE_DEVICES': '1', 'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}, {})
    """
    if not visible:
        return [{} for _ in range(n)]
    if len(visible) < n:
        several = ",".join(visible[number % len(visible)] for number in range(n))
        refuse(
            f"{n} replicas and {len(visible)} GPUs; for several replicas on a GPU, set"
            f" CUDA_VISIBLE_DEVICES={several}",
            "--replicas",
        )
    each = len(visible) // n
    order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # that of nvidia-smi
    return [
        {
            "CUDA_VISIBLE_DEVICES": ",".join(visible[i * each : (i + 1) * each]),
            "CUDA_DEVICE_ORDER": order,
        }
        for i in range(n)
    ]


class _Lines:
    """The lines of a pipe, as far as they have come. `torn` is whether a last line without its end
    is seen too.
    """

    def __init__(self, stream: Any, see: Callable[[str], object], *, torn: bool) -> None:
        self.fd, self._stream, self._see, self._torn, self._rest = (
            stream.fileno(),
            stream,
            see,
            torn,
            b"",
        )
        os.set_blocking(self.fd, False)

    def read(self) -> bool:
        """Read what is there; whether more may come."""
        while True:
            try:
                data = os.read(self.fd, 2**16)
            except BlockingIOError:
                return True
            *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
            lines += [self._rest] if self._rest and self._torn and not data else []
            for line in lines:
                self._see(line.decode(errors="replace"))
            if not data:
                return False

    def close(self) -> None:
        self._stream.close()


class _Replica:
    """One shard: the process that runs it now, and what those before it have done."""

    def __init__(
        self, number: int, n: int, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.number, self._n, self._command, self._environment = number, n, command, environment
        self.now: dict[str, Any] = {}
        """The last report of the process."""
        self.tally, self.shown = Tally(), Tally()
        """The counts of the process, and the furthest that the shard came: a process that is
        started again counts from the beginning.
        """
        self.before: Counter[str] = Counter()
        """What processes that died have made."""
        self.fruitless = 0
        """Deaths in a row without an answer."""
        self.ended = False
        """Whether the shard came to its end."""
        self.last_line = ""
        self.process: Any = None

    def start(self) -> None:
        read, write = os.pipe()
        environment = {
            **os.environ,
            **self._environment,
            VARIABLE: f"{self.number}/{self._n}:{write}",
        }
        how: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "pass_fds": (write,),
        }
        try:
            # this command again
            self.process = subprocess.Popen(self._command, env=environment, process_group=0, **how)  # noqa: S603
        finally:
            os.close(write)
        self.last_line = ""
        self.pipes = [
            _Lines(os.fdopen(read, "rb", 0), self._reported, torn=False),
            _Lines(self.process.stdout, self._printed, torn=True),
        ]

    def _reported(self, line: str) -> None:
        self.now = json.loads(line)
        counts = self.now["tally"]
        self.tally = Tally(**{**counts, "errors": Counter(counts["errors"])})
        self.shown = max(self.shown, self.tally, key=lambda tally: tally.done)
        self.ended = bool(self.now["ended"])

    def _printed(self, line: str) -> None:
        if line.strip():
            self.last_line = line.strip()
            say(f"replica {self.number}: {line}")

    def made(self) -> Counter[str]:
        """What was made in this run."""
        tally = self.tally
        return self.before + Counter(
            rows=tally.done - tally.reused,
            tokens=tally.made_tokens,
            prompt_tokens=tally.made_prompt_tokens,
        )

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def died(self) -> str:
        """How the process ended, in words. It has ended."""
        code = self.process.returncode
        self.fruitless = 0 if self.now.get("answered") else self.fruitless + 1
        self.before, self.tally, self.now = self.made(), Tally(), {}
        self._kill_group()
        how = (
            f"ended with code {code}"
            if code >= 0
            else f"was killed by {signal.Signals(-code).name}"
        )
        return f"replica {self.number} {how}" + (
            f" after the line: {self.last_line}" if self.last_line else ""
        )

    def end(self) -> None:
        """Wait for the process to end, and kill it where it takes too long."""
        try:
            self.process.wait(_LAST)
        except subprocess.TimeoutExpired:
            self._kill_group()
            self.process.wait()

    def _kill_group(self) -> None:
        """Kill the process, and those that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Replicas:
    """The children of a run. `stop` ends them, as it ends a job."""

    def __init__(
        self, command: Sequence[str], environments: Sequence[Mapping[str, str]], meter: Meter
    ) -> None:
        n = len(environments)
        self.all = [
            _Replica(number, n, command, environment)
            for number, environment in enumerate(environments, 1)
        ]
        self._meter, self._stopped = meter, False

    def stop(self, grace: float | None = None, begun: Callable[[], object] = lambda: None) -> None:
        """Hand the end on to the children; their rows in flight have the grace of the command."""
        if not self._stopped:
            begun()
        self._stopped = True
        for replica in self.all:
            replica.stop()

    def run(self, moved: Moved) -> None:
        """Run all shards. Raises `KeyboardInterrupt` where it was stopped, and ends with code 2
        where the children found bad usage.
        """
        running = list(self.all)
        try:
            with selectors.DefaultSelector() as selector:
                for replica in running:
                    self._start(replica, selector)
                while running:
                    for key, _ in selector.select(_LOOK):
                        if not key.data.read():
                            selector.unregister(key.fd)
                    for replica in [
                        replica for replica in running if replica.process.poll() is not None
                    ]:
                        if not self._goes_on(replica, selector):
                            running.remove(replica)
                    moved(self._count(), self._meter.words())
        finally:
            self._end()
        if self._stopped:
            raise KeyboardInterrupt
        if any(replica.process.returncode == _BAD_USAGE for replica in self.all):
            raise SystemExit(_BAD_USAGE)

    def _start(self, replica: _Replica, selector: selectors.BaseSelector) -> None:
        replica.start()
        if self._stopped:  # a signal came meanwhile
            replica.stop()
        for pipe in replica.pipes:
            selector.register(pipe.fd, selectors.EVENT_READ, pipe)

    def _goes_on(self, replica: _Replica, selector: selectors.BaseSelector) -> bool:
        """What follows the end of a process: whether its shard goes on in another."""
        for pipe in replica.pipes:
            pipe.read()
            with contextlib.suppress(KeyError):  # it was read to its end
                selector.unregister(pipe.fd)
            pipe.close()
        if replica.ended or self._stopped or replica.process.returncode == _BAD_USAGE:
            return False
        death = replica.died()
        if replica.fruitless >= TRIES:
            say(
                f"{death}; {TRIES} times in a row it made no answer, and it is not started again;"
                " the others go on"
            )
            return False
        say(f"{death}; it is started again")
        self._start(replica, selector)
        return True

    def _count(self) -> int:
        """Put the children's counts into the meter; how many rows are done."""
        meter, made, total = self._meter, self.made(), Tally()
        for replica in self.all:
            total.add(replica.shown)
        total.made_tokens, total.made_prompt_tokens, total.reused = (
            made["tokens"],
            made["prompt_tokens"],
            total.done - made["rows"],
        )
        meter.tally = total
        if any(replica.now.get("called") for replica in self.all):
            meter.see(
                Progress(
                    "replicas", 0, int(any(replica.now.get("working") for replica in self.all)), 0
                )
            )
        return total.done

    def made(self) -> Counter[str]:
        """What all children made in this run."""
        return sum((replica.made() for replica in self.all), Counter())

    def _end(self) -> None:
        """Nothing is left running."""
        started = [replica for replica in self.all if replica.process is not None]
        if not self._stopped:
            for replica in started:
                replica.stop()
        for replica in started:
            replica.end()


def replica_slots(
    asked: Iterable[tuple[Origin, Slot[GenerationRequest]]],
    files: Files,
    meter: Meter,
    moved: Moved,
    stops: Callable[[Replicas | None], object],
) -> Generator[tuple[Origin, Slot[Any], bool], None, None]:
    """Run the children, then give the rows of the job in order, as one process gives them. `stops`
    is called with what a signal is to stop.

    Raises `KeyboardInterrupt` where the run was stopped, and `JournalError` at the end where rows
    are missing.
    """
    folder, n, load = files.job or Path(), files.replicas or 1, files.asked.load
    device = str(getattr(load.backend.settings, "device", None) or "")
    if ":" in device:
        refuse(
            f"goes without the number of a device, as in {device}: each replica has devices of"
            " its own",
            "--replicas",
        )
    environments = devices_of(n, visible_devices() if runs_here(load) and device != "cpu" else [])
    if files.restart or files.overwrite:
        begin_anew(folder)
    replicas, tally = Replicas([*SELF, *files.command], environments, meter), meter.tally
    stops(replicas)
    try:
        replicas.run(moved)
    finally:
        stops(None)
    count = missing = 0
    for key, slot in finished_rows(
        folder, asked, image_policy=files.asked.images, policy=files.asked.policy
    ):
        if slot is None:
            missing += 1
            continue
        count += 1
        yield key, slot, True
    made = replicas.made()
    meter.tally = tally  # that of the rows as they were written
    tally.reused, tally.made_tokens, tally.made_prompt_tokens = (
        max(0, count - made["rows"]),
        made["tokens"],
        made["prompt_tokens"],
    )
    if missing:
        what = "1 row is" if missing == 1 else f"{missing} rows are"
        raise JournalError(
            f"{what} missing: the same command goes on with them, and `pipegen export {folder}`"
            " writes the others"
        )


def check_parts(files: Files) -> None:
    """Refuse what does not go with several processes: they need a job, and their answers go nowhere
    else.
    """
    flag = "--replicas" if files.part is None else "--shard"
    if files.part is not None and files.replicas is not None:
        refuse("goes without --replicas: these split the requests themselves", "--shard")
    if files.job is None or files.source is None:
        refuse(
            "takes a file or a folder as IN, and a file as -o OUT: the finished rows are kept in"
            " OUT.job",
            flag,
        )
    if files.sidecar is not None:
        refuse("goes without --sidecar: answers go to OUT.job, and from there to OUT", flag)
    if files.part is not None and (files.restart or files.overwrite):
        refuse(
            "goes without --restart and --overwrite, which would remove the rows of other shards;"
            f" to start again, remove {files.job}",
            "--shard",
        )
