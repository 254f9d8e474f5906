"""Measuring: pieces of work side by side in one run, interleaved, as medians with their spread; and
the rows that the report is made of.

A row says what was measured against what, the ratio, the target and whether it is met. Each program
of this folder writes its rows as JSON into `.bench/`, and `report.py` makes docs/contributing/benchmarks.md of
them.

The environment makes a trial short: `BENCH_REPEATS` rounds; `BENCH_PROMPTS`, `BENCH_IMAGES`,
`BENCH_COUNTS` (of requests) and `BENCH_REQUESTS` for less work. `BENCH_PEERS` is the folder of the
peers' environments, which `nox -s bench` makes in `.nox/bench-peers`.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / ".bench"
REPEATS = int(os.environ.get("BENCH_REPEATS", "5"))


@dataclass(frozen=True)
class Taken:
    """Seconds of each repeat, of the wall and of the processor, and the most memory that the
    process has held (MiB).
    """

    wall: tuple[float, ...]
    cpu: tuple[float, ...]
    peak: float | None = None


def peak_memory() -> float:
    """The most memory that this process has held so far, in MiB.

    On Linux, what the kernel counts of this program: `ru_maxrss` begins there at what the process
    that started it held.
    """
    if sys.platform == "linux":
        said = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in said if line.startswith("VmHWM:")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def interleave(
    works: Mapping[str, Callable[[], Any]], repeats: int = REPEATS, *, warm: int = 1
) -> dict[str, Taken]:
    """Do every piece of work in turn, again and again, in an order that is turned round each time;
    the first rounds warm up.
    """
    wall: dict[str, list[float]] = {name: [] for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(warm + repeats):
        for name in works if repeat % 2 else reversed(list(works)):
            begun = time.perf_counter(), time.process_time()
            works[name]()
            if repeat >= warm:
                wall[name].append(time.perf_counter() - begun[0])
                cpu[name].append(time.process_time() - begun[1])
    return {name: Taken(tuple(wall[name]), tuple(cpu[name])) for name in works}


def fresh_processes(
    commands: Mapping[str, Sequence[str]], *, folder: Path = ROOT, rounds: int = 10
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of the processor of each command in each round, and the most memory (MiB) of each.
    Two rounds before them leave compiled modules behind, as an installation does.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    launch = (sys.executable, str(Path(__file__).with_name("launch.py")))
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    most: dict[str, float] = {}
    for repeat in range(2 + rounds):
        for name in commands if repeat % 2 else reversed(list(commands)):
            used = subprocess.run(
                [*launch, *commands[name]],
                check=True,
                capture_output=True,
                text=True,
                env=environment,
                cwd=folder,
            ).stdout.split()
            if repeat > 1:
                seconds[name].append(float(used[0]))
                most[name] = max(most.get(name, 0.0), float(used[1]))
    return seconds, most


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The median of the ratios theirs / ours of the same round, and half the distance between their
    quartiles.
    """
    ratios = sorted(their / our for our, their in zip(ours, theirs, strict=True))
    if len(ratios) < 2:
        return ratios[0], 0.0
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return statistics.median(ratios), (high - low) / 2


def row(
    work: str,
    peer: str,
    ratio: float | None,
    target: str,
    *,
    group: str,
    spread: float = 0.0,
    ours: str = "",
    theirs: str = "",
    note: str = "",
    **more: Any,
) -> dict[str, Any]:
    """A row of the report. `target` is "at least X", "at most X" or "exactly X"; a row without a
    ratio was not measured, and `note` says why.
    """
    word, number = target.rsplit(" ", 1)
    bound = float(number)
    met = None
    if ratio is not None:
        ratio = round(ratio, 4)
        met = (
            ratio >= bound
            if word == "at least"
            else ratio <= bound
            if word == "at most"
            else abs(ratio - bound) < 5e-4
        )
    made = {
        "group": group,
        "work": work,
        "peer": peer,
        "ratio": ratio,
        "target": target,
        "meets": met,
    }
    return made | {"spread": round(spread, 4), "ours": ours, "theirs": theirs, "note": note} | more


def cost(
    work: str,
    peer: str,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    target: str,
    *,
    group: str,
) -> dict[str, Any]:
    """How many times the seconds of the peer ours takes. Both are measured in turn, three times at
    most, and give the seconds that count.
    """
    ways = {"ours": ours, "theirs": theirs}
    seconds: dict[str, list[float]] = {side: [] for side in ways}
    for repeat in range(min(REPEATS, 3)):
        for side in ways if repeat % 2 else reversed(ways):
            seconds[side].append(ways[side]())
    ratio, spread = paired(seconds["theirs"], seconds["ours"])
    figures = {side: f"{statistics.median(taken):.3g} s" for side, taken in seconds.items()}
    return row(work, peer, ratio, target, group=group, spread=spread, **figures)


def peaks(ours: float | None, theirs: float | None) -> dict[str, Any]:
    """The entry `memory` of a row: the most that each side's process has held, in MiB; None for a
    side that has no process.
    """
    return {"memory": [None if held is None else round(held) for held in (ours, theirs)]}


def waste(work: str, steps: int, needed: int, ours: Taken, *, group: str) -> dict[str, Any]:
    """How many rows went through the model one token at a time, over how many had to."""
    return row(
        work,
        "row-steps over needed",
        steps / needed,
        "exactly 1",
        group=group,
        note="a count, not a clock",
        **peaks(ours.peak, None),
    )


def speed(
    work: str, peer: str, ours: Taken, theirs: Taken, target: float, *, group: str, note: str = ""
) -> dict[str, Any]:
    """How many times as fast as the peer: seconds of the peer over seconds of pipegen, round by
    round.
    """
    ratio, spread = paired(ours.wall, theirs.wall)
    figures = {
        "ours": f"{statistics.median(ours.wall):.3g} s",
        "theirs": f"{statistics.median(theirs.wall):.3g} s",
        **peaks(ours.peak, theirs.peak),
    }
    cpu = statistics.median(theirs.cpu) / statistics.median(ours.cpu)
    return row(
        work,
        peer,
        ratio,
        f"at least {target:g}",
        group=group,
        spread=spread,
        note=note,
        cpu_ratio=round(cpu, 3),
        **figures,
    )


def write_table(name: str, title: str, head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print a table of its own form, and keep it for the report."""
    lines = [
        f"### {title}",
        "",
        *("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *cells)),
        "",
    ]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines), flush=True)


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows, and keep them for the report."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for entry in rows:
        ratio = "  -  " if entry["ratio"] is None else f"{entry['ratio']:.3g}"
        met = {True: "met", False: "MISSED", None: "not measured"}[entry["meets"]]
        print(
            f"{entry['work'][:60]:<60} {entry['peer'][:44]:<44} {ratio:>8} ±{entry['spread']:<7.2g}"
            f" {entry['target']:<14} {met} {entry['note'][:60]}",
            flush=True,
        )
