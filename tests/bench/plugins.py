"""What plugins cost beside decoding: ratios, measured in one run. Run by `nox -s bench`.

The embedded model decodes a row, and each plugin is given 4,096 tokens as an engine gives them; the time that it takes is put beside the time that the
model takes for as many. A watch is counted twice, since the engine halts by it and the shared stages cut by it. The aim is less than 2%.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import pipegen as pg
from pipegen.plugins import RowContext, balanced_json, forbid_repeated_objects, halt_on_repetition
from pipegen.tokenizer import Tokenizer

TOKENS = 4_096
DECODED = 256
REPEATS = 3


def taken(work: Callable[[], object]) -> float:
    """Seconds of the processor, so that what else the machine does is left out; torch keeps to one thread."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def decoding(route: pg.Route) -> float:
    """Seconds for 4,096 tokens of one row without plugins, from what a row of `DECODED` tokens takes; a longer row takes no less for a token."""
    ask = [{"prompt": "List the objects."}]
    options = pg.GenerationOptions(max_new_tokens=DECODED, stop=pg.StopOptions(ignore_eos=True))
    pg.run(route, ask, pg.GenerationOptions(max_new_tokens=8))
    return statistics.median(taken(lambda: pg.run(route, ask, options)[0].unwrap()) for _ in range(REPEATS)) * TOKENS / DECODED


def watching(plugin: pg.Plugin, pieces: list[str]) -> float:
    """Seconds for a watch that is shown the text of each token, twice."""

    def work() -> None:
        if plugin.start is None or plugin.feed is None:
            raise ValueError("not a watch")
        state = plugin.start()
        for piece in pieces:
            state, _ = plugin.feed(state, piece)

    return 2 * statistics.median(taken(work) for _ in range(REPEATS))


def processing(plugin: pg.Plugin, tokenizer: Tokenizer, ids: list[int]) -> float:
    """Seconds for a logits processor that is asked before each token; the vocabulary is read before."""
    if plugin.logits_processor is None:
        raise ValueError("not a logits processor")
    make, prompt = plugin.logits_processor, tokenizer.encode("List the objects.")
    context = RowContext(prompt_length=len(prompt), tokenizer=tokenizer)
    row, scores = torch.tensor([[*prompt, *ids]]), torch.zeros(1, tokenizer.vocab_size)
    make(context)(row[:, : len(prompt)], scores)
    processor = make(context)

    def work() -> None:
        for count in range(len(ids)):
            processor(row[:, : len(prompt) + count], scores)

    return statistics.median(taken(work) for _ in range(REPEATS))


def main() -> None:
    torch.set_num_threads(1)
    prose = " ".join(f"Car number {number} is as red as the one before it, and stands in the street." for number in range(2_000))
    items = ", ".join(f'{{"label": "car", "bbox_2d": [{number}, {number % 7}, {number + 40}, 90]}}' for number in range(2_000))
    with pg.backends.hf("embedded") as route:
        tokenizer = route.engine.tokenizer
        texts = {"prose": tokenizer.encode(prose)[:TOKENS], "objects": tokenizer.encode("[" + items)[:TOKENS]}
        pieces = {name: [tokenizer.decode([token_id]) for token_id in ids] for name, ids in texts.items()}
        bare = decoding(route)
        print(f"{f'{TOKENS} tokens of one row':<44}{'seconds':>10}{'of decoding':>14}{'aim':>8}")
        print(f"{'decoding, embedded model':<44}{bare:>9.2f}s")
        for plugin, name in ((balanced_json(), "objects"), (halt_on_repetition(), "prose"), (halt_on_repetition(), "objects")):
            cost = watching(plugin, pieces[name])
            print(f"{f'{plugin.name}, {name}':<44}{cost:>9.3f}s{cost / bare:>13.2%}{'< 2%':>8}")
        for keys in (None, ("label", "bbox_2d")):
            cost = processing(forbid_repeated_objects(keys=keys), tokenizer, texts["objects"])
            print(f"{f'forbid_repeated_objects, keys={keys is not None}':<44}{cost:>9.3f}s{cost / bare:>13.2%}{'< 2%':>8}")


if __name__ == "__main__":
    main()
