"""What pipegen costs on vLLM, against `LLM.generate` with the same ids, on one engine, interleaved,
medians, as ratios.

256 prompts go through a route in one `run`; 1,000 rows, nine in ten of 12 to 20 tokens and one of
110 to 140, go through `imap`.

Run by `nox -s engines -- bench`, on a CPU; with `--model` and a GPU, it says the same of a model
that people use.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm_arms import BARE, CHATS, IDS, SKEWED, SKEWED_BARE, bare

import pipegen as pg  # what is set above must stand before vLLM is imported
from pipegen.backends.vllm.running import Running
from pipegen.backends.vllm.start import engine_arguments

PROMPTS, TOKENS, REPEATS, ROWS = 256, 32, 5, 1000
QUESTIONS = (
    "Count from 1 to 9.",
    "What is the capital of Peru?",
    "List the months of the year.",
    "Reverse: sun moon star lake",
)
SETTINGS: dict[str, Any] = {
    "max_num_seqs": PROMPTS,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "kv_cache_memory_bytes": 256 << 20,
}


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


def sides(model: str) -> tuple[dict[str, Callable[[], Any]], Callable[[], None], dict[str, Any]]:
    """`LLM.generate` with ids, and the route with ids and with messages, on one engine; what closes
    it; and the work as `vllm_arms.py` takes it.
    """
    import vllm

    route = pg.backends.vllm(model, **SETTINGS)
    engine: Any = route.engine
    arguments = engine_arguments(engine._checkpoint)
    llm: Any = vllm.LLM(**arguments)
    engine._core._running = Running(llm.llm_engine, engine._checkpoint.load)  # both use one engine

    messages = [
        [{"role": "user", "content": f"{QUESTIONS[number % 4]} ({number})"}]
        for number in range(PROMPTS)
    ]
    options = pg.GenerationOptions(max_new_tokens=TOKENS, stop=pg.StopOptions(ignore_eos=True))
    chats = [pg.TextGenerationRequest(messages=conversation) for conversation in messages]
    ids = [list(slot.unwrap().prompt_token_ids) for slot in pg.run(route, chats, options)]
    plain = [pg.TextGenerationRequest(prompt_token_ids=row) for row in ids]
    made: dict[str, list[list[int]]] = {}

    def alone() -> None:
        made[BARE] = bare(llm, ids, TOKENS)

    def through(requests: list[pg.TextGenerationRequest]) -> None:
        made["ours"] = [list(slot.unwrap().token_ids) for slot in pg.run(route, requests, options)]
        if made["ours"] != made.get(BARE, made["ours"]):
            raise AssertionError("the two did not make the same ids")

    chance = random.Random(0)
    lengths = [
        chance.randint(110, 140) if chance.random() < 0.1 else chance.randint(12, 20)
        for _ in range(ROWS)
    ]
    rows = [
        [chance.randrange(300, 900) for _ in range(chance.randint(16, 40))] for _ in range(ROWS)
    ]
    each = [
        {"prompt_token_ids": row, "options": {"max_new_tokens": length, "ignore_eos": True}}
        for row, length in zip(rows, lengths, strict=True)
    ]

    def listed() -> None:
        made[SKEWED_BARE] = bare(llm, rows, lengths)

    def fed() -> None:
        made["fed"] = [list(slot.unwrap().token_ids) for slot in pg.imap(route, each)]
        if made["fed"] != made.get(SKEWED_BARE, made["fed"]):
            raise AssertionError("the two did not make the same ids")

    work = {
        "model": model,
        "settings": SETTINGS,
        "arguments": arguments,
        "ids": ids,
        "messages": messages,
        "tokens": TOKENS,
        "threads": 1,
    }
    works = {
        BARE: alone,
        IDS: lambda: through(plain),
        CHATS: lambda: through(chats),
        SKEWED_BARE: listed,
        SKEWED: fed,
    }
    return works, engine.close, work


def main() -> None:
    import vllm

    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="embedded")
    model: str = parser.parse_args().model
    works, close, _ = sides(model)
    theirs, with_ids, with_chats, listed, fed = medians(*works.values())
    print(
        f"{PROMPTS} prompts, {TOKENS} tokens each, {model}, vLLM {vllm.__version__}, one engine;"
        " bare is LLM.generate with ids\n"
    )
    print(f"{'through the route':<32}{'pipegen':>10}{'bare':>10}{'speed':>9}")
    for name, ours, bare_ones in (
        (IDS, with_ids, theirs),
        (CHATS, with_chats, theirs),
        (SKEWED, fed, listed),
    ):
        print(f"{name:<32}{ours:>9.2f}s{bare_ones:>9.2f}s{bare_ones / ours:>8.2f}x")
    close()


if __name__ == "__main__":
    main()
