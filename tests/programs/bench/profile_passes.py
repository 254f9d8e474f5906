"""Where the seconds of a run of pipegen go, and what each would take at the limit of its best
passes: `python tests/programs/bench/profile_passes.py [skewed] [real]`.

The run is that of `text.py`: same prompts, same lengths. Functions of the loop are wrapped by a
clock that gives every moment to the innermost of them, and runs of pipegen and of the limit take
turns on one model.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import limits
import torch
from forced import force, up_to
from measure import REPEATS, write_table
from models import embedded, smollm2
from text import PROMPTS, skewed, work_of

FULL, SHORT, READING, FORCED = (
    "passes with every place taken",
    "passes with places empty",
    "reading prompts",
    "holding all to their lengths",
)
PREPARING, MOVING, CHOOSING = (
    "masks, positions and what transformers prepares",
    "rows stepping in and leaving (cache moves)",
    "choosing tokens",
)
FOLLOWING, SCHEDULING, AROUND = (
    "following the rows' ends",
    "the schedule",
    "templates, tokenizer, answers: all outside the engine's steps",
)
ORDER = (FULL, SHORT, READING, FORCED, PREPARING, MOVING, CHOOSING, FOLLOWING, SCHEDULING, AROUND)


class Clock:
    """Seconds by name, each moment given to the innermost wrapped call, and how many calls there
    were.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._open: list[str] = []
        self._since = 0.0

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def wrapped(
        self, function: Callable[..., Any], name_of: Callable[..., str] | str
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            name = name_of if isinstance(name_of, str) else name_of(*args, **kwargs)
            self._turn()
            self._open.append(name)
            self.calls[name] += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._open.pop()

        return timed

    def taken(self) -> tuple[dict[str, float], dict[str, int]]:
        """What has been timed since the last time this was asked."""
        seconds, calls = dict(self.seconds), dict(self.calls)
        self.seconds.clear()
        self.calls.clear()
        return seconds, calls


def watch(clock: Clock) -> None:
    """Wrap the functions of pipegen's loop."""
    from pipegen.backends.hf import running_batch as batches, scheduler as schedule

    for owner, function, name in (
        (batches.RunningBatch, "step", PREPARING),
        (schedule.Prefixes, "prefill", PREPARING),
        (batches.RunningBatch, "put", MOVING),
        (batches.RunningBatch, "keep", MOVING),
        (schedule.Sampler, "choose", CHOOSING),
        (schedule.Schedule, "_accept", FOLLOWING),
        (schedule.Schedule, "step", SCHEDULING),
    ):
        setattr(owner, function, clock.wrapped(getattr(owner, function), name))
    schedule.Schedule._accept = staticmethod(schedule.Schedule._accept)  # type: ignore[method-assign]


def profile(part_of: str, name: str, work: dict[str, Any], repeats: int) -> None:
    import pipegen as pg

    clock, batch = Clock(), work["batch"]
    route = pg.backends.hf(work["model"], batch_size=batch, dtype="fp32")
    engine: Any = route.engine
    model = engine.computing.loaded()

    def kind(**inputs: Any) -> str:
        rows, columns = inputs["input_ids"].shape
        return READING if columns > 1 else FULL if rows == batch else SHORT

    model.forward = clock.wrapped(model.forward, kind)
    force(model, work["eos"], work["banned"], counted_down=work["counted_down"])
    model.forward = clock.wrapped(model.forward, FORCED)
    watch(clock)
    options = pg.GenerationOptions(max_new_tokens=work["max_new_tokens"])
    requests = [{"prompt": prompt} for prompt in work["prompts"]]

    def ours() -> None:
        slots = pg.run(route, requests, options)
        if [up_to(list(slot.unwrap().token_ids), set(work["eos"])) for slot in slots] != work[
            "answers"
        ]:
            raise AssertionError("pipegen did not make the ids that each row makes alone")

    ways = {
        "ours": clock.wrapped(ours, AROUND),
        "limit": clock.wrapped(limits.best_passes(model, work), AROUND),
    }
    seconds: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    calls: dict[str, dict[str, int]] = {}
    for _ in range(1 + repeats):  # the first warms up
        for way, run in ways.items():
            run()
            taken, calls[way] = clock.taken()
            seconds[way].append(taken)
    median = {
        way: {part: statistics.median(run.get(part, 0.0) for run in runs[1:]) for part in ORDER}
        for way, runs in seconds.items()
    }
    lines = []
    for part in ORDER:
        cells = [part]
        for way in ways:
            count = calls[way].get(part, 0) if part in (FULL, SHORT, READING) else 0
            took = median[way][part]
            cells += [
                str(count or ""),
                f"{took:.3f}" if took else "",
                f"{1000 * took / count:.2f}" if count else "",
            ]
        lines.append(cells)
    ours_all, limit_all = (f"{sum(median[way].values()):.3g} s" for way in ways)
    title = (
        f"Where {ours_all} of pipegen's run go, {name}; at the limit of its best passes {limit_all}"
    )
    write_table(
        f"profile_passes-{part_of}",
        title,
        ("where", "passes", "seconds", "ms a pass", "at the limit: passes", "seconds", "ms a pass"),
        lines,
    )


def main() -> None:
    for part in sys.argv[1:] or ("skewed", "real"):
        if part == "skewed":
            name, work, repeats = (
                "embedded model",
                work_of(embedded(), *skewed(PROMPTS), batch=8, threads=1),
                REPEATS,
            )
        else:
            name, work, repeats = (
                "SmolLM2-135M",
                work_of(smollm2(), *skewed(40), batch=8, threads=2),
                min(REPEATS, 3),
            )
        torch.set_num_threads(work["threads"])
        profile(part, name, work, repeats)


if __name__ == "__main__":
    main()
