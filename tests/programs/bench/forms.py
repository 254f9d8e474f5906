"""What the form of an answer costs the rows beside it: `python tests/programs/bench/forms.py [embedded]
[smollm2]`. Run by `nox -s bench`.

Eight rows make equally many tokens in one batch, with and without a JSON schema for one of them,
and for all. The schema's answer is longer than that, so that the passes are the same. The ways take
turns in one process; the seconds are the processor's.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from measure import REPEATS, interleave, paired, peak_memory, peaks, row, write
from models import embedded, smollm2

import pipegen as pg

ROWS, TOKENS, THREADS = 8, 96, 1
OBJECT = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "maxLength": 20},
        "box": {
            "type": "array",
            "items": {"type": "integer", "maximum": 999},
            "minItems": 4,
            "maxItems": 4,
        },
    },
    "required": ["label", "box"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": OBJECT, "minItems": 500}
FREE: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": TOKENS}
NAMES: dict[str, Callable[[], Any]] = {"embedded": embedded, "smollm2": smollm2}


def requests(formed: int) -> list[pg.TextGenerationRequest]:
    """Eight rows, so many of them with the schema."""
    free = pg.GenerationOptions(**FREE, stop=pg.StopOptions(ignore_eos=True))
    form = pg.GenerationOptions(**FREE, structured=pg.StructuredOptions(json_schema=SCHEMA))
    return [
        pg.TextGenerationRequest(
            prompt=f"{number}. List what is in the image as JSON: ",
            options=form if number < formed else free,
        )
        for number in range(ROWS)
    ]


def measured(name: str, route: pg.Route) -> list[dict[str, Any]]:
    """The rows of the report for one model."""
    steps: dict[int, int] = {}

    def work(formed: int) -> Callable[[], None]:
        def run() -> None:
            engine: Any = route.engine
            engine.computing.prefixes.clear()  # each run reads its prompts
            before = engine.work.steps
            made = [slot.unwrap().completion_tokens for slot in pg.run(route, requests(formed))]
            steps[formed] = engine.work.steps - before
            if made != [TOKENS] * ROWS:
                raise RuntimeError(f"rows of {made} tokens, not of {TOKENS}")

        return run

    taken = interleave({str(formed): work(formed) for formed in (0, 1, ROWS)}, REPEATS)
    if len(set(steps.values())) != 1:
        raise RuntimeError(f"the passes are not the same: {steps}")
    out = []
    for formed, said in (
        (1, "one row with a JSON schema beside seven without"),
        (ROWS, "eight rows with a JSON schema"),
    ):
        share, spread = paired(taken["0"].cpu, taken[str(formed)].cpu)
        figures: dict[str, Any] = {
            side: f"{statistics.median(taken[key].cpu):.3f} s"
            for side, key in (("ours", str(formed)), ("theirs", "0"))
        }
        figures |= peaks(peak_memory(), peak_memory())
        out.append(
            row(
                f"{name}: {said}",
                "the same eight without",
                share,
                "at most 1.1",
                group="The form of answers",
                spread=spread,
                **figures,
            )
        )
    return out


def main() -> None:
    torch.set_num_threads(THREADS)
    rows = []
    for name in sys.argv[1:] or NAMES:
        with pg.backends.hf(str(NAMES[name]()), dtype="float32", device="cpu") as route:
            rows += measured(name, route)
    write("forms", rows)


if __name__ == "__main__":
    main()
