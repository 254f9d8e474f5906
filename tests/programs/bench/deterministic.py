"""What `deterministic` costs on a processor: `nox -s bench -- deterministic`.

Both routes are of one model, in one process, and take turns; seconds are the processor's.
`BENCH_ROWS` is the share of the rows that is run, for a short trial.
"""

from __future__ import annotations

import random
from typing import Any

from adapters import seconds_of
from measure import cost, write
from models import smollm2
from shared import drawn, some

import pipegen as pg

GROUP = "Answers that do not depend on their batch"


def measured() -> dict[str, Any]:
    """Sixty-four rows, each computed alone, beside the same in batches."""
    model = str(smollm2())
    chance = random.Random(6)
    prompts = [drawn(chance, chance.randint(20, 60)) for _ in range(some(64))]
    with (
        pg.backends.hf(model, dtype="bfloat16", deterministic=True) as alone,
        pg.backends.hf(model, dtype="bfloat16") as batches,
    ):
        for route in (alone, batches):
            seconds_of(route, prompts[:8], [None] * 8)
        return cost(
            f"{len(prompts)} rows, `deterministic`, 20 to 60 tokens, 24 new, SmolLM2-135M in"
            " bfloat16",
            "without it",
            lambda: seconds_of(alone, prompts, [None] * len(prompts)),
            lambda: seconds_of(batches, prompts, [None] * len(prompts)),
            "at most 10",
            group=GROUP,
        )


if __name__ == "__main__":
    write("deterministic", [measured()])
