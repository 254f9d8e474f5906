"""Beginnings that rows share: held once and read once by each step, beside copies of them in every
row; and the peers. Run by `nox -s bench -- shared`.

    python tests/programs/bench/shared.py [prompts] [batch] [samples] [choices] [alone]

The two ways are one build: copies are held where the least number of columns that sharing must save
is infinite. They take turns, and the median of the ratios counts. Seconds are the processor's.
`BENCH_ROWS` is the share of the rows that is run, for a short trial.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from flow import BATCH, ON, ROWS, BesideVllm, opened
from measure import REPEATS, paired, row, write
from models import smollm2

import pipegen as pg
from pipegen.backends.hf import cache as caches
from pipegen.backends.hf.running_batch import RunningBatch

GROUP = "Shared beginnings"
COPIED = "copies in every row"
SHARE = float(os.environ.get("BENCH_ROWS", "1"))
Rows = list[dict[str, Any]]
Ids = list[int]


def drawn(chance: random.Random, count: int) -> Ids:
    return [chance.randrange(1000, 40_000) for _ in range(count)]


def some(count: int) -> int:
    return max(4, round(count * SHARE))


@contextmanager
def most_held() -> Iterator[list[int]]:
    """The most bytes of keys and values that the running rows hold at a time."""
    step, most = RunningBatch.step, [0]

    def watched(batch: RunningBatch, *args: Any, **more: Any) -> torch.Tensor:
        parts = {run.part for chain in caches.chains_of(batch.cache) for run in chain}
        shared = sum(tensor.nbytes for part in parts for tensor in part.columns)
        most[0] = max(most[0], shared + caches.size_of(batch.cache))
        return step(batch, *args, **more)

    RunningBatch.step = watched  # type: ignore[method-assign,assignment]
    try:
        yield most
    finally:
        RunningBatch.step = step  # type: ignore[method-assign]


class Way:
    """One way to do a piece of work with an engine that has read nothing: what it gave, its seconds
    and the most that its rows held.
    """

    def __init__(self, route: pg.Route, work: Callable[[pg.Route], Any], *, shared: bool) -> None:
        self._route, self._work, self._shared = route, work, shared
        self.seconds: list[float] = []
        self.answers: Any = None
        self.held = 0

    def __call__(self, *, counts: bool = True) -> None:
        engine: Any = self._route.engine
        engine.computing.prefixes.clear()
        for prefixes in (engine.computing.prefixes, engine.computing.scored_prefixes):
            prefixes._held = 128 if self._shared else math.inf
        with most_held() as most:
            began = time.process_time()
            self.answers = self._work(self._route)
            if counts:
                self.seconds.append(time.process_time() - began)
        self.held = most[0]


def in_turn(
    work: Callable[[pg.Route], Any],
    warm: Callable[[pg.Route], Any],
    peers: Sequence[Callable[[], Any]] = (),
) -> tuple[Way, Way]:
    """Both ways of a piece of work, and the peers, after each way has done a smaller one."""
    with opened(str(smollm2())) as route:
        for shared in (True, False):
            Way(route, warm, shared=shared)(counts=False)
        ways = Way(route, work, shared=True), Way(route, work, shared=False)
        there: tuple[Callable[[], Any], ...] = (*ways, *peers)
        back: tuple[Callable[[], Any], ...] = (*peers, *reversed(ways))
        for number in range(min(REPEATS, 3)):
            for way in there if number % 2 else back:
                way()
    return ways


def compared(what: str, ours: Way, theirs: Way, target: str, note: str = "") -> dict[str, Any]:
    ratio, spread = paired(ours.seconds, theirs.seconds)
    figures = {
        name: f"{statistics.median(way.seconds):.3g} s, {way.held / 2**20:.0f} MiB held"
        for name, way in (("ours", ours), ("theirs", theirs))
    }
    return row(what, COPIED, ratio, target, group=GROUP, spread=spread, note=note, **figures)


def made(new: int, prompts: Sequence[Ids], **options: Any) -> Callable[[pg.Route], list[Ids]]:
    """Rows of these prompts, with a seed of its own each."""
    requests: list[Any] = [
        {
            "prompt_token_ids": ids,
            "options": {"max_new_tokens": new, "stop": ON, "seed": number, **options},
        }
        for number, ids in enumerate(prompts)
    ]
    return lambda route: [list(slot.unwrap().token_ids) for slot in pg.run(route, requests)]


def equal(ours: Way, theirs: Way) -> str:
    same = sum(one == other for one, other in zip(ours.answers, theirs.answers, strict=True))
    return f"{same} of {len(ours.answers)} answers are equal"


def prompts() -> Rows:
    """64 prompts of 600 shared tokens and 10 to 60 of their own, 48 new ones; and vLLM."""
    said, asked = _begin_alike()
    vllm = BesideVllm(str(smollm2()), asked, 48, ROWS)
    ours, theirs = in_turn(made(48, asked), made(2, asked[:8]), (vllm,))
    if ours.answers != theirs.answers:
        raise AssertionError("sharing changed the ids")
    beside = vllm.row(said, ours.seconds, ours.answers, "at least 1.1", GROUP)
    return [compared(said, ours, theirs, "at least 1", "the same ids"), beside]


def batch() -> Rows:
    """The same prompts, by transformers' continuous batching."""
    said, asked = _begin_alike()
    theirs = Batch(str(smollm2()), asked)
    ours, _ = in_turn(made(48, asked), made(2, asked[:8]), (theirs,))
    return [theirs.row(said, ours)]


def _begin_alike() -> tuple[str, list[Ids]]:
    chance = random.Random(2)
    head = drawn(chance, 600)
    asked = [head + drawn(chance, chance.randint(10, 60)) for _ in range(some(64))]
    shape = "600 shared tokens, 10 to 60 of their own, 48 new"
    return f"{len(asked)} prompts, {shape}", asked


class Batch:
    """transformers' continuous batching, 32 rows side by side: its attention goes over the columns
    of all of them for each, so that more of them are slower.
    """

    def __init__(self, folder: str, asked: list[Ids]) -> None:
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

        auto: Any = AutoModelForCausalLM
        self._model, self._asked = auto.from_pretrained(folder, dtype="float32").eval(), asked
        config: Any = GenerationConfig
        self._settings: dict[str, Any] = {
            "generation_config": config(
                max_new_tokens=48, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            "continuous_batching_config": ContinuousBatchingConfig(
                num_blocks=32 * 24,
                page_size=32,
                max_batch_tokens=512,
                max_requests_per_batch=32,
            ),
        }
        self.seconds: list[float] = []
        self.ids: list[Ids] = []

    def __call__(self) -> None:
        began = time.process_time()
        answers = self._model.generate_batch(self._asked, **self._settings)
        self.seconds.append(time.process_time() - began)
        self.ids = [list(answer.generated_tokens) for answer in answers.values()]

    def row(self, said: str, ours: Way) -> dict[str, Any]:
        ratio, spread = paired(ours.seconds, self.seconds)
        pairs = zip(sorted(ours.answers), sorted(self.ids), strict=True)
        same = sum(one == other for one, other in pairs)
        return row(
            said,
            BATCH,
            ratio,
            "at least 10",
            group=GROUP,
            spread=spread,
            ours=f"{statistics.median(ours.seconds):.3g} s",
            theirs=f"{statistics.median(self.seconds):.3g} s",
            note=f"{same} of {len(self.ids)} answers are equal",
        )


def samples() -> Rows:
    """64 samples of one prompt of 2,000 tokens, 64 new ones."""
    ids = drawn(random.Random(3), 2000)
    asked = [ids] * some(64)
    ours, theirs = in_turn(
        made(64, asked, temperature=1.0), made(2, [ids[:300]] * 8, temperature=1.0)
    )
    text = f"{len(asked)} samples of one prompt of 2,000 tokens, 64 new"
    rows = [compared(text, ours, theirs, "at least 3", equal(ours, theirs))]
    share = ours.held / theirs.held
    rows.append(
        row(f"{text}: keys and values", COPIED, share, "at most 0.1", group=GROUP)
        | {"note": "bytes of the running rows, most at a time"}
    )
    return rows


def scored(requests: Sequence[Any]) -> Callable[[pg.Route], list[float]]:
    """The log probabilities of continuations."""
    return lambda route: [
        round(slot.unwrap().logprob, 2) for slot in pg.run(pg.scoring(route), requests)
    ]


def choices() -> Rows:
    """Questions of four choices behind one context of 800 tokens, and behind contexts of their
    own.
    """
    rows: Rows = []
    chance = random.Random(4)
    context = drawn(chance, 800)
    for what, count, target, asked in (
        ("behind one context", some(100), "at least 1.3", lambda: context + drawn(chance, 30)),
        ("behind contexts of their own", some(16), "at least 1", lambda: drawn(chance, 800)),
    ):
        requests = [
            {"prompt_token_ids": ids, "continuation": drawn(chance, 2 + choice)}
            for ids in (asked() for _ in range(count))
            for choice in range(4)
        ]

        ours, theirs = in_turn(scored(requests), scored(requests[:8]))
        text = f"{count} questions of four choices, 800 tokens {what}"
        rows.append(compared(text, ours, theirs, target, equal(ours, theirs)))
    return rows


def alone() -> Rows:
    """Prompts that share nothing."""
    chance = random.Random(5)
    asked = [drawn(chance, chance.randint(50, 200)) for _ in range(some(64))]
    ours, theirs = in_turn(made(48, asked), made(2, asked[:8]))
    text = f"{len(asked)} prompts that share nothing, 50 to 200 tokens, 48 new"
    return [compared(text, ours, theirs, "at least 0.98", equal(ours, theirs))]


PARTS = {part.__name__: part for part in (prompts, batch, samples, choices, alone)}

if __name__ == "__main__":
    lines: Rows = []
    for name in sys.argv[1:] or PARTS:
        lines += PARTS[name]()
        write("shared", lines)  # what there is, should a later part fail
