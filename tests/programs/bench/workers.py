"""Processes of `arms.py` and its like (`*_arms.py`, `criteria.py`, `clients.py`), started together
and asked in turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from measure import REPEATS, ROOT, Taken

HERE = Path(__file__).parent
PEERS = {
    "outlines": "outlines",
    "lm-eval HFLM": "lm-eval",
    "ms-swift TransformersEngine": "ms-swift",
}
"""Arms that need an environment of their own, and its name."""
ENVIRONMENTS = Path(os.environ.get("BENCH_PEERS", str(ROOT / ".nox" / "bench-peers")))


def python_of(environment: str | None) -> Path:
    """The interpreter of an environment, or this one. Raises `FileNotFoundError` where it is not
    there.
    """
    path = (
        Path(sys.executable)
        if environment is None
        else ENVIRONMENTS / environment / "bin" / "python"
    )
    if not path.exists():
        raise FileNotFoundError(f"the environment {environment!r} could not be made")
    return path


class Worker:
    """One arm at work, in a process of its own. Raises `RuntimeError` with the end of its output
    when it dies.
    """

    def __init__(self, arm: str, work: Path, script: str, environment: str | None = None) -> None:
        python = python_of(environment)
        # as long as the process
        self.arm, self._log = arm, tempfile.TemporaryFile("w+")  # noqa: SIM115
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE.parent))),  # and `training`
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        command = [str(python), str(HERE / script), arm, str(work)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=variables,
        )

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"{self.arm} died: " + " ".join(self._log.read()[-600:].split()))
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise RuntimeError(f"{self.arm} printed {line[:200]!r}") from error
        return answer

    def ready(self) -> None:
        self._read()

    def run(self, line: str = "run") -> dict[str, Any]:
        if self._process.stdin:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def running(
    arms: Mapping[str, str | None], work: dict[str, Any], script: str, first: str = "run"
) -> Iterator[tuple[list[Worker], dict[str, str]]]:
    """A worker for each arm, in the environment of that name, warmed up by a first run; and why
    those that are left out were.
    """
    absent: dict[str, str] = {}
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as started:
        path = Path(scratch, "work.json")
        path.write_text(json.dumps(work), encoding="utf-8")
        for arm, environment in arms.items():
            try:
                worker = Worker(arm, path, script, environment)
                started.callback(worker.close)
                worker.ready()
                worker.run(first)
                workers.append(worker)
            except (RuntimeError, FileNotFoundError) as refusal:
                absent[arm] = str(refusal)
            print(f"  {arm}: {absent.get(arm, 'ready')}", flush=True)
        yield workers, absent


def race(
    arms: Iterable[str], work: dict[str, Any], repeats: int = REPEATS, script: str = "arms.py"
) -> tuple[dict[str, Taken], dict[str, dict[str, Any]], dict[str, str]]:
    """Run every arm in turn, again and again. Gives what each took, its last answer, and why those
    that are left out were.
    """
    with running({arm: PEERS.get(arm) for arm in arms}, work, script) as (workers, absent):
        runs: dict[str, list[dict[str, Any]]] = {worker.arm: [] for worker in workers}
        for repeat in range(repeats):
            for worker in workers if repeat % 2 else reversed(workers):
                runs[worker.arm].append(worker.run())
    last = {arm: made[-1] for arm, made in runs.items()}
    for arm, run in last.items():
        counts = (
            f", {run['row_steps']} row-steps, {run['tokens']} tokens in {run['calls']} calls"
            if run["calls"]
            else ""
        )
        print(f"  {arm}: {run['wall']:.2f} s, {run['peak']:.0f} MiB{counts}", flush=True)
    taken = {
        arm: Taken(
            tuple(run["wall"] for run in made), tuple(run["cpu"] for run in made), made[-1]["peak"]
        )
        for arm, made in runs.items()
    }
    return taken, last, absent
