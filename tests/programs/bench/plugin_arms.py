"""Decoding, and plugins given as many tokens as an engine gives them, as `arms.py` does with ways
of generating: `python plugin_arms.py NAME WORK.json`.

Every process has loaded the embedded model, decoded a row with it and read the same texts, so what
a plugin's process holds beyond the one that decodes is the plugin's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from arms import Run, Work, serve
from forced import Counts

import pipegen as pg
from pipegen.engines.tokenizer import Tokenizer
from pipegen.plugins import RowContext, balanced_json, forbid_repeated_objects, halt_on_repetition

TOKENS, DECODED = 4_096, 256
PROSE = " ".join(
    f"Car number {number} is as red as the one before it, and stands in the street."
    for number in range(2_000)
)
OBJECTS = "[" + ", ".join(
    f'{{"label": "car", "bbox_2d": [{number}, {number % 7}, {number + 40}, 90]}}'
    for number in range(2_000)
)
PROMPT = "List the objects."
Made = Callable[[Tokenizer, dict[str, list[int]]], Run]
"""Given the tokenizer and the ids of each text."""


def watching(plugin: pg.Plugin, text: str, tokenizer: Tokenizer, read: dict[str, list[int]]) -> Run:
    """A watch is shown the text of each token, twice: the engine halts by it, and the shared stages
    cut by it.
    """
    pieces = [tokenizer.decode([token_id]) for token_id in read[text]]

    def run() -> list[Any]:
        if plugin.start is None or plugin.feed is None:
            raise ValueError("not a watch")
        for _ in range(2):
            state = plugin.start()
            for piece in pieces:
                state, _ = plugin.feed(state, piece)
        return []

    return run


def processing(
    plugin: pg.Plugin, text: str, tokenizer: Tokenizer, read: dict[str, list[int]]
) -> Run:
    """A logits processor is asked before each token; the vocabulary is read before."""
    if plugin.logits_processor is None:
        raise ValueError("not a logits processor")
    make, prompt = plugin.logits_processor, tokenizer.encode(PROMPT)
    context = RowContext(prompt_length=len(prompt), tokenizer=tokenizer)
    row, scores = torch.tensor([[*prompt, *read[text]]]), torch.zeros(1, tokenizer.vocab_size)
    make(context)(row[:, : len(prompt)], scores)

    def run() -> list[Any]:
        processor = make(context)
        for count in range(TOKENS):
            processor(row[:, : len(prompt) + count], scores)
        return []

    return run


def arm(work: Work, made: Made | None = None) -> tuple[Run, Counts]:
    """A row of `DECODED` tokens without plugins, or a plugin beside it."""
    route = pg.backends.hf("embedded")
    options = pg.GenerationOptions(max_new_tokens=DECODED, stop=pg.StopOptions(ignore_eos=True))

    def decode() -> list[Any]:
        return list(pg.run(route, [{"prompt": PROMPT}], options)[0].unwrap().token_ids)

    decode()
    tokenizer = route.engine.tokenizer
    read = {text: tokenizer.encode(text)[:TOKENS] for text in (PROSE, OBJECTS)}
    return (made(tokenizer, read) if made is not None else decode), Counts()


PLUGINS: dict[str, Made] = {
    "balanced_json, objects": functools.partial(watching, balanced_json(), OBJECTS),
    "halt_on_repetition, prose": functools.partial(watching, halt_on_repetition(), PROSE),
    "halt_on_repetition, objects": functools.partial(watching, halt_on_repetition(), OBJECTS),
    "forbid_repeated_objects, keys=False": functools.partial(
        processing, forbid_repeated_objects(), OBJECTS
    ),
    "forbid_repeated_objects, keys=True": functools.partial(
        processing, forbid_repeated_objects(keys=("label", "bbox_2d")), OBJECTS
    ),
}
DECODING = "decoding, embedded model"
ARMS = {DECODING: arm} | {name: functools.partial(arm, made=made) for name, made in PLUGINS.items()}

if __name__ == "__main__":
    serve(ARMS)
