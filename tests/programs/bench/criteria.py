"""One way of watching for stop strings, in a process of its own: `python criteria.py NAME
WORK.json`, then `STOPS ROWS` on stdin for each run.

WORK.json names a tokenizer's folder, the stop strings and the rows of ids that a model might make.
An answer holds the seconds of the processor for setting up once, for this and all steps, and for
one step of one row. What is remembered of tokens and stops is forgotten before, so the first two
are those of tokens and stops never seen; pipegen's step is that of a second run, as in a job of any
length. The peers remember nothing between steps.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import peak_memory

PROMPT = 20
Step = Callable[[Any], object]
Make = Callable[[Any, list[str], torch.Tensor], Step]
"""Given the tokenizer, the stops and the prompts' ids, what judges a step: given all ids so far as
a tensor, or, for pipegen, the new ones as a list.

Both lie ready before the clock starts, as in the loops of the engines: transformers makes the
tensor for its model, and pipegen's engine has brought the new ids from the device, for the rows to
keep.
"""


def transformers_criteria(tokenizer: Any, stops: list[str], ids: torch.Tensor) -> Step:
    from transformers import StopStringCriteria

    criteria: Any = StopStringCriteria(tokenizer=tokenizer, stop_strings=stops)
    return lambda so_far: criteria(so_far, None)


def lm_eval_criteria(tokenizer: Any, stops: list[str], ids: torch.Tensor) -> Step:
    try:
        from lm_eval.models.utils_hf import stop_sequences_criteria
    except ImportError:
        from lm_eval.models.utils import stop_sequences_criteria
    criteria: Any = stop_sequences_criteria(tokenizer, stops, PROMPT, ids.shape[0])
    return lambda so_far: criteria(so_far, None)


def ms_swift_criteria(tokenizer: Any, stops: list[str], ids: torch.Tensor) -> Step:
    from swift.template.utils import StopWordsCriteria

    criteria: Any = StopWordsCriteria(tokenizer, stops)
    criteria(ids, None)
    return lambda so_far: criteria(so_far, None)


def pipegen_followers(tokenizer: Any, stops: list[str], ids: torch.Tensor) -> Step:
    from pipegen.ending.stop_state import TokenFold, feed_each
    from pipegen.records.option_groups import StopOptions
    from pipegen.records.option_records import GenerationOptions
    from pipegen.records.options import resolve

    options = resolve(
        GenerationOptions(max_new_tokens=100_000, stop=StopOptions(stop=tuple(stops)))
    )
    followers = [
        TokenFold(options, tokenizer, (tokenizer.eos,), text=False) for _ in range(ids.shape[0])
    ]
    return lambda new: feed_each(followers, new)


def forget(name: str) -> None:
    """Let pipegen know nothing of any token, and transformers of any stops, as in a new process."""
    if name == "pipegen":
        from pipegen.ending import detokenize, stop_safe, stop_scan as scan

        for remembered in (
            stop_safe.stop_safe_tokens,
            detokenize.added,
            detokenize._alone,
            detokenize._after,
            scan._compile,
        ):
            remembered.cache_clear()
    elif name == "transformers stop_strings":
        from transformers.generation.stopping_criteria import STOP_STRING_EMBEDDING_CACHE

        # it keeps eight tables, of which one with 16 stops takes hundreds of MiB
        STOP_STRING_EMBEDDING_CACHE.clear()


ARMS: dict[str, Make] = {
    "pipegen": pipegen_followers,
    "transformers stop_strings": transformers_criteria,
    "lm-eval's criteria": lm_eval_criteria,
    "ms-swift's criteria": ms_swift_criteria,
}


def main() -> None:
    name, path = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with open(path, encoding="utf-8") as file:
        work = json.load(file)
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(work["tokenizer"])
    if name == "pipegen":
        from pipegen.backends.checkpoint.tokenizers import HFTokenizer

        end = tokenizer.eos_token_id
        tokenizer = HFTokenizer(tokenizer)
        tokenizer.eos = end
    print(json.dumps({"ready": name}), file=out, flush=True)
    for line in sys.stdin:
        stops, rows = map(int, line.split())
        ids = torch.tensor(work["rows"][:rows])
        ends = range(PROMPT + 1, ids.shape[1] + 1)
        inputs: list[Any] = [
            ids[:, end - 1].tolist() if name == "pipegen" else ids[:, :end] for end in ends
        ]

        def taken(
            stops: int = stops, ids: torch.Tensor = ids, inputs: list[Any] = inputs
        ) -> tuple[float, float]:
            begun = time.process_time()
            step = ARMS[name](tokenizer, work["stops"][:stops], ids[:, :PROMPT])
            ready = time.process_time()
            for given in inputs:
                step(given)
            return ready - begun, time.process_time() - ready

        forget(name)
        setup, steps = taken()
        last = taken()[1] if name == "pipegen" else steps
        said = {
            "setup": setup,
            "whole": setup + steps,
            "step": last / len(inputs) / rows,
            "peak": peak_memory(),
        }
        print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    main()
