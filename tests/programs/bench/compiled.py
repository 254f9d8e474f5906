"""What a pass of a full batch takes with `torch.compile` and with static shapes: `python
tests/programs/bench/compiled.py [embedded] [smollm2]`.

Prompts of different lengths are read once, and the same rows go on for some steps in every way of
taking them: as pipegen does, the cache growing in place; as it does with `compile=True`; with
`torch.compile` put around the model's forward as it is; and over a cache of fixed length, every
shape the same at every step, with and without compiling. No row leaves and none comes, which suits
fixed shapes best. The ways take turns in one process. The seconds are those of the processor, which
other processes disturb less than the clock.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import REPEATS, write_table
from models import embedded, smollm2
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, StaticCache

from pipegen.backends.hf.attention import use_grouped
from pipegen.backends.hf.compiled import Compiled
from pipegen.backends.hf.running_batch import RunningBatch

BATCH, LONGEST, STEPS, THREADS = 8, 64, 63, 1
Step = Callable[[torch.Tensor], torch.Tensor]
"""Takes each row's newest token, shape (rows, 1), and gives the logits of the next."""


class Prompts:
    """A batch of token ids, padded on the left."""

    def __init__(self, vocabulary: int, seed: int = 5) -> None:
        drawn = random.Random(seed)
        self.lengths = [LONGEST, *(drawn.randint(LONGEST // 2, LONGEST) for _ in range(BATCH - 1))]
        rows = [
            [0] * (LONGEST - length) + [drawn.randrange(300, vocabulary) for _ in range(length)]
            for length in self.lengths
        ]
        self.ids = torch.tensor(rows)
        self.mask = (torch.arange(LONGEST) >= LONGEST - torch.tensor(self.lengths)[:, None]).long()
        self.positions = (self.mask.cumsum(-1) - 1).clamp(min=0)


def read(model: Any, prompts: Prompts, cache: Any) -> torch.Tensor:
    """Read the prompts into the cache, and give the first token of each row."""
    inputs = {
        "input_ids": prompts.ids,
        "attention_mask": prompts.mask,
        "position_ids": prompts.positions,
    }
    first: torch.Tensor = (
        model(**inputs, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
    )
    return first


def growing(
    model: Any, prompts: Prompts, compiled: Compiled | None = None
) -> tuple[torch.Tensor, Step]:
    """pipegen's own pass."""
    cache = DynamicCache(config=model.config)
    first = read(model, prompts, cache)
    batches = RunningBatch(
        prompts.ids,
        prompts.lengths,
        "past_key_values",
        {"past_key_values": cache, "position_ids": prompts.positions[:, -1:] + 1},
    )
    return first, lambda tokens: batches.step(model, tokens, compiled)


def around(model: Any, forward: Callable[..., Any], prompts: Prompts) -> tuple[torch.Tensor, Step]:
    """pipegen's own pass, with this `forward` of the model."""
    first, go_on = growing(model, prompts)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        plain, model.forward = model.forward, forward
        try:
            return go_on(tokens)
        finally:
            model.forward = plain

    return first, step


def fixed(model: Any, forward: Callable[..., Any], prompts: Prompts) -> tuple[torch.Tensor, Step]:
    """Passes over a cache of fixed length: no shape changes, and the mask is written in place."""
    cache, end = StaticCache(config=model.config, max_cache_len=LONGEST + STEPS + 1), LONGEST
    first = read(model, prompts, cache)
    mask = torch.full((BATCH, 1, 1, LONGEST + STEPS + 1), -torch.inf)
    mask[:, 0, 0, :LONGEST].masked_fill_(prompts.mask.bool(), 0.0)
    positions = prompts.positions[:, -1:].clone()

    def step(tokens: torch.Tensor) -> torch.Tensor:
        nonlocal end
        mask[..., end] = 0.0
        positions.add_(1)
        end += 1
        logits: torch.Tensor = forward(
            input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache
        ).logits[:, -1]
        return logits

    return first, step


def go(start: tuple[torch.Tensor, Step]) -> tuple[float, list[list[int]]]:
    """Seconds of the steps, and the greedy ids."""
    token, step = start
    made = [token]
    begun = time.process_time()
    for _ in range(STEPS):
        token = step(token).argmax(-1, keepdim=True)
        made.append(token)
    seconds = time.process_time() - begun
    ids: list[list[int]] = torch.cat(made, dim=-1).tolist()
    return seconds, ids


def measure(part: str, name: str, folder: Path, repeats: int) -> None:
    import torch._inductor.config as inductor

    inductor.force_disable_caches = True  # a compiler's work of earlier runs is not found again
    torch.set_num_threads(THREADS)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    use_grouped(model)
    prompts = Prompts(len(AutoTokenizer.from_pretrained(folder)))
    plain = model.forward
    own, static, dynamic = (
        Compiled(model),
        torch.compile(plain, dynamic=False),
        torch.compile(plain, dynamic=True),
    )
    ways: dict[str, Callable[[], tuple[torch.Tensor, Step]]] = {
        "pipegen's pass": lambda: growing(model, prompts),
        "pipegen's pass, `compile=True`": lambda: growing(model, prompts, own),
        "pipegen's pass, `torch.compile` around its forward": lambda: around(
            model, dynamic, prompts
        ),
        "a cache of fixed length": lambda: fixed(model, plain, prompts),
        "a cache of fixed length, compiled for its shapes": lambda: fixed(model, static, prompts),
    }
    first: dict[str, float] = {}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    ids: dict[str, list[list[int]]] = {}
    with torch.no_grad():
        for way, start in ways.items():
            first[way] = sum(go(start())[0] for _ in range(2))  # the second run may compile again
            print(f"  {way}: first runs {first[way]:.1f} s", flush=True)
        for repeat in range(repeats):
            for way in ways if repeat % 2 else reversed(ways):
                took, ids[way] = go(ways[way]())
                seconds[way].append(took)
    plainly, *_ = ways
    lines = []
    for way in ways:
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(seconds[plainly], seconds[way], strict=True)
        )
        took, compiling = (
            statistics.median(seconds[way]),
            max(0.0, first[way] - 2 * statistics.median(seconds[way])),
        )
        same = sum(one == other for one, other in zip(ids[way], ids[plainly], strict=True))
        lines.append(
            (
                way,
                f"{1000 * took / STEPS:.2f}",
                f"{ratio:.2f}",
                f"{compiling:.1f}",
                f"{same} of {BATCH} rows",
            )
        )
    title = f"Steps compiled, {name}: {BATCH} rows, {STEPS} steps, one thread, processor time"
    write_table(
        f"compiled-{part}",
        title,
        ("way", "ms a pass", "times as fast", "seconds to compile", "same ids"),
        lines,
    )


def main() -> None:
    for part in sys.argv[1:] or ("embedded", "smollm2"):
        name, folder = (
            ("embedded model", embedded()) if part == "embedded" else ("SmolLM2-135M", smollm2())
        )
        measure(part, name, folder, REPEATS)


if __name__ == "__main__":
    main()
