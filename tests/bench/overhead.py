"""What pipegen itself costs: side by side in one run, interleaved, medians, as ratios. Run by `nox -s bench`.

Two pieces of work with the embedded model: preparing many requests without an engine, against the chat template and the tokenizer alone; and greedy
generation in batches of eight, against `model.generate` on the same ids.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from returns.result import Success

import pipegen as pg
from pipegen.records import Raw
from pipegen.testing.fake import FakeEngine

REPEATS = 5
QUESTIONS = ("Count from 1 to 9.", "What is the capital of Peru?", "List the months of the year.", "Reverse: sun moon star lake")


class NullEngine(FakeEngine):
    """A real model's tokenizer and template, and an engine that always answers with the model's end token."""

    def __init__(self, engine: Any) -> None:
        super().__init__("")
        self.tokenizer, self.renderer, self.eos_token_ids = engine.tokenizer, engine.renderer, engine.eos_token_ids

    def generate(self, inputs: Sequence[Any]) -> Any:
        return [Success(Raw(encoded=encoded, token_ids=self.eos_token_ids[:1])) for encoded in inputs]


def medians(*works: Callable[[], Any]) -> list[float]:
    """Seconds for each piece of work, the median of interleaved repeats after one to warm up."""
    seconds: list[list[float]] = [[] for _ in works]
    for repeat in range(REPEATS + 1):
        for work, taken in zip(works, seconds, strict=True):
            begun = time.perf_counter()
            work()
            if repeat:
                taken.append(time.perf_counter() - begun)
    return [statistics.median(taken) for taken in seconds]


def conversations(count: int) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": f"{QUESTIONS[number % 4]} ({number}) " + "sun moon star lake " * 20}] for number in range(count)]


def preparing(route: pg.Route, count: int) -> tuple[float, float]:
    """pipegen with an engine that does nothing, against template and tokenizer: seconds of each."""
    messages = conversations(count)
    requests = [pg.TextGenerationRequest(messages=conversation) for conversation in messages]
    null, engine = pg.route(NullEngine(route.engine)), route.engine
    variables = {"add_generation_prompt": True, "enable_thinking": False}

    def ours() -> None:
        for slot in pg.imap(null, requests):
            slot.unwrap()

    def bare() -> None:
        for conversation in messages:
            engine.tokenizer.encode(engine.renderer.render(conversation, tools=(), template=None, variables=variables))

    mine, theirs = medians(ours, bare)
    return mine, theirs


def generating(route: pg.Route) -> tuple[float, float]:
    """pipegen against `model.generate`, equal lengths, eight rows a batch, the same ids: seconds of each."""
    ids = [route.engine.tokenizer.encode(f"The days of the week are Monday, {number}") for number in range(100, 164)]
    options = pg.GenerationOptions(max_new_tokens=32, stop=pg.StopOptions(ignore_eos=True))
    requests = [pg.TextGenerationRequest(prompt_token_ids=row) for row in ids]
    pg.run(route, requests[:1], options)
    engine: Any = route.engine
    model = engine._weights.model()
    made: dict[str, list[list[int]]] = {}

    def ours() -> None:
        made["ours"] = [list(slot.unwrap().token_ids) for slot in pg.run(route, requests, options)]

    def bare() -> None:
        made["bare"] = []
        for start in range(0, len(ids), 8):
            rows = torch.tensor(ids[start : start + 8])
            with torch.no_grad():
                out = model.generate(rows, attention_mask=torch.ones_like(rows), max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0)
            made["bare"] += out[:, rows.shape[1] :].tolist()

    mine, theirs = medians(ours, bare)
    if made["ours"] != made["bare"]:
        raise AssertionError("the two did not make the same ids")
    return mine, theirs


def main() -> None:
    torch.set_num_threads(1)
    with pg.backends.hf("embedded", batch_size=8) as route:
        print(f"{'work':<44}{'pipegen':>10}{'bare':>10}{'ratio':>8}")
        for count in (1_000, 4_000):
            mine, theirs = preparing(route, count)
            print(f"{f'{count} requests, no engine':<44}{mine:>9.2f}s{theirs:>9.2f}s{mine / theirs:>8.2f}")
        mine, theirs = generating(route)
        print(f"{'64 prompts, 32 tokens, batches of 8':<44}{mine:>9.2f}s{theirs:>9.2f}s{mine / theirs:>8.2f}")


if __name__ == "__main__":
    main()
