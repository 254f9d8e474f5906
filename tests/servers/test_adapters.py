"""Requests that name adapters of a real server: it gives what the Hugging Face engine gives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.adapters import write_adapter

import pipegen as pg
from pipegen.testing.ask import PROMPTS, chat, greedy

NAMES = ("a", "", "b")
KEY = "a-key"
MORE = {
    "vllm": ("--enable-lora", "--max-loras", "3", "--max-lora-rank", "8", "--lora-modules"),
    "sglang": (
        *("--enable-lora", "--max-loras-per-batch", "3", "--lora-backend", "torch_native"),
        "--lora-paths",
    ),
}
PROJECTIONS = ["q_proj", "v_proj", "down_proj"]


@pytest.mark.parametrize("engine", [*MORE])
def test_each_row_has_the_ids_of_its_adapter(
    engine: str, folder_of: Callable[[str], str], tmp_path: Path
) -> None:
    launch: Any = sys.modules["launch"]
    model = folder_of("text")
    adapters = {
        name: write_adapter(tmp_path / name, seed, PROJECTIONS, rank=8, model=model)
        for seed, name in enumerate("ab")
    }
    listed = [f"{name}={folder}" for name, folder in adapters.items()]
    requests = [
        chat(text, greedy(adapter=name, max_new_tokens=12, stop=pg.StopOptions(ignore_eos=True)))
        for text in PROMPTS
        for name in NAMES
    ]
    scored: Any = [
        {"prompt": "Yes", "continuation": ", no", "options": {"adapter": name}} for name in NAMES
    ]
    with pg.backends.hf(model, dtype="float32", adapters=adapters) as route:
        wanted = [slot.unwrap().token_ids for slot in pg.run(route, requests)]
        scores = [slot.unwrap().logprob for slot in pg.score(route, scored)]
    assert len({tuple(wanted[place :: len(NAMES)]) for place in range(len(NAMES))}) == len(NAMES)
    make: Any = getattr(pg.backends, f"{engine}_server")
    with (
        launch.server(engine, model, "text", "--api-key", KEY, *MORE[engine], *listed) as url,
        make(model, base_url=url, api_key=KEY, adapters={**adapters, "c": adapters["a"]}) as served,
    ):
        for _ in range(2):  # once more, behind what the prefix cache has of each adapter
            assert [slot.unwrap().token_ids for slot in pg.run(served, requests)] == wanted
        events = pg.stream(served, requests)
        streamed = {event.index: event.slot for event in events if isinstance(event, pg.Done)}
        assert [streamed[row].unwrap().token_ids for row in range(len(requests))] == wanted
        found = pg.score(served, scored if engine == "sglang" else scored[:1])
        if engine == "sglang":
            assert [slot.unwrap().logprob for slot in found] == pytest.approx(scores, abs=1e-3)
        else:
            assert "gives no log probabilities of given tokens" in found[0].failure().message
        error = pg.run(served, [chat("Hi", greedy(adapter="c"))])[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert "has no adapter 'c': its adapters are a, b" in error.message
