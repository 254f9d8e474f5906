"""What plugins cost beside decoding: ratios, measured in turn in one run. Run by `nox -s bench`.

The embedded model decodes a row, and each plugin is given 4,096 tokens as an engine gives them; the time that it takes is put beside the time that the
model takes for as many, by the clock of the processor and by that of the wall. Decoding and plugins take turns, so that what else the machine does meets
them alike; each ratio is the median of the rounds. A watch is counted twice, since the engine halts by it and the shared stages cut by it. The aim is
less than 2%.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from measure import row, write

import pipegen as pg
from pipegen.plugins import RowContext, balanced_json, forbid_repeated_objects, halt_on_repetition
from pipegen.tokenizer import Tokenizer

TOKENS = 4_096
DECODED = 256
ROUNDS = 5


class Seconds(NamedTuple):
    """What a piece of work took, by both clocks; torch keeps to one thread."""

    processor: float
    wall: float


def taken(work: Callable[[], object], times: float = 1) -> Seconds:
    begun = time.process_time(), time.perf_counter()
    work()
    return Seconds((time.process_time() - begun[0]) * times, (time.perf_counter() - begun[1]) * times)


def decoding(route: pg.Route) -> Callable[[], Seconds]:
    """Time for 4,096 tokens of one row without plugins, from what a row of `DECODED` tokens takes; a longer row takes no less for a token."""
    ask = [{"prompt": "List the objects."}]
    options = pg.GenerationOptions(max_new_tokens=DECODED, stop=pg.StopOptions(ignore_eos=True))
    pg.run(route, ask, pg.GenerationOptions(max_new_tokens=8))
    return lambda: taken(lambda: pg.run(route, ask, options)[0].unwrap(), TOKENS / DECODED)


def watching(plugin: pg.Plugin, pieces: list[str]) -> Callable[[], Seconds]:
    """Time for a watch that is shown the text of each token, twice."""

    def work() -> None:
        if plugin.start is None or plugin.feed is None:
            raise ValueError("not a watch")
        state = plugin.start()
        for piece in pieces:
            state, _ = plugin.feed(state, piece)

    return lambda: taken(work, 2)


def processing(plugin: pg.Plugin, tokenizer: Tokenizer, ids: list[int]) -> Callable[[], Seconds]:
    """Time for a logits processor that is asked before each token; the vocabulary is read before."""
    if plugin.logits_processor is None:
        raise ValueError("not a logits processor")
    make, prompt = plugin.logits_processor, tokenizer.encode("List the objects.")
    context = RowContext(prompt_length=len(prompt), tokenizer=tokenizer)
    row, scores = torch.tensor([[*prompt, *ids]]), torch.zeros(1, tokenizer.vocab_size)
    make(context)(row[:, : len(prompt)], scores)

    def work() -> None:
        processor = make(context)
        for count in range(len(ids)):
            processor(row[:, : len(prompt) + count], scores)

    return lambda: taken(work)


def main() -> None:
    torch.set_num_threads(1)
    prose = " ".join(f"Car number {number} is as red as the one before it, and stands in the street." for number in range(2_000))
    items = ", ".join(f'{{"label": "car", "bbox_2d": [{number}, {number % 7}, {number + 40}, 90]}}' for number in range(2_000))
    with pg.backends.hf("embedded") as route:
        tokenizer = route.engine.tokenizer
        texts = {"prose": tokenizer.encode(prose)[:TOKENS], "objects": tokenizer.encode("[" + items)[:TOKENS]}
        pieces = {name: [tokenizer.decode([token_id]) for token_id in ids] for name, ids in texts.items()}
        works = {"decoding, embedded model": decoding(route)}
        for plugin, name in ((balanced_json(), "objects"), (halt_on_repetition(), "prose"), (halt_on_repetition(), "objects")):
            works[f"{plugin.name}, {name}"] = watching(plugin, pieces[name])
        for keys in (None, ("label", "bbox_2d")):
            works[f"forbid_repeated_objects, keys={keys is not None}"] = processing(forbid_repeated_objects(keys=keys), tokenizer, texts["objects"])
        rounds = [{name: work() for name, work in works.items()} for _ in range(ROUNDS)]
    bare, *others = works
    rows = []
    for name in others:
        shares = sorted(one[name].processor / one[bare].processor for one in rounds)
        figures = {"ours": f"{statistics.median(one[name].processor for one in rounds) * 1e3:.0f} ms"}
        figures |= {"theirs": f"{statistics.median(one[bare].processor for one in rounds):.2f} s"}
        peer = f"{TOKENS:,} tokens decoded by the embedded model"
        rows.append(row(name, peer, statistics.median(shares), "at most 0.02", group="Plugins", spread=(shares[-1] - shares[0]) / 2, **figures))
    write("plugins", rows)


if __name__ == "__main__":
    main()
