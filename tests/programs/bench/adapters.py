"""Rows of eight adapters beside rows of one: `nox -s bench -- adapters`.

Both routes are of one build, in one process, and take turns; seconds are the processor's. Each
adapter has rank 16 for every projection of every layer. `BENCH_ROWS` is the share of the rows that
is run, for a short trial.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any

from flow import ON
from measure import cost, write
from models import smollm2
from shared import Ids, drawn, some
from support.adapters import write_adapter

import pipegen as pg

GROUP = "Adapters"
NAMES = "abcdefgh"
PROJECTIONS = r".*\.(q|k|v|o|gate|up|down)_proj"


def seconds_of(route: pg.Route, prompts: list[Ids], names: list[str | None]) -> float:
    """The processor's seconds of these prompts, each with its adapter, on an engine that has read
    nothing.
    """
    engine: Any = route.engine
    engine.computing.prefixes.clear()
    requests: list[Any] = [
        {
            "prompt_token_ids": ids,
            "options": {"max_new_tokens": 24, "stop": ON, "adapter": name},
        }
        for ids, name in zip(prompts, names, strict=True)
    ]
    began = time.process_time()
    for slot in pg.run(route, requests):
        slot.unwrap()
    return time.process_time() - began


def measured(folder: Path) -> dict[str, Any]:
    """A thousand rows over eight adapters, beside a thousand rows of a route with one for all."""
    model = str(smollm2())
    adapters = {
        name: write_adapter(folder / name, seed, PROJECTIONS, rank=16, model=model)
        for seed, name in enumerate(NAMES)
    }
    chance = random.Random(6)
    prompts = [drawn(chance, chance.randint(20, 60)) for _ in range(some(1000))]
    mixed: list[str | None] = [NAMES[place % len(NAMES)] for place in range(len(prompts))]
    of_one: list[str | None] = [None] * len(prompts)
    with (
        pg.backends.hf(model, dtype="float32", adapters=adapters) as many,
        pg.backends.hf(model, dtype="float32", adapter=adapters["a"]) as one,
    ):
        for route, names in ((many, mixed), (one, of_one)):
            seconds_of(route, prompts[:8], names[:8])
        return cost(
            f"{len(prompts)} rows over eight adapters of rank 16, 20 to 60 tokens, 24 new,"
            " SmolLM2-135M",
            "one adapter for all",
            lambda: seconds_of(many, prompts, mixed),
            lambda: seconds_of(one, prompts, of_one),
            "at most 1.5",
            group=GROUP,
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        write("adapters", [measured(Path(scratch))])
