"""HF and vLLM give the same: prompt ids, grids, ids, texts, finishes, stops and counts, for hundreds of seeded greedy requests in float32."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import pipegen as pg
from pipegen.diff import compare, summary
from pipegen.testing.models import FAMILIES
from pipegen.testing.pictures import picture

REQUESTS = {"embedded": 80, "qwen3": 60, "llama": 60, "mistral": 60, "gemma3": 60, "qwen3_vl": 60}
WORDS = (
    "List",
    "the",
    "months",
    "Count from 1 to 12.",
    "Привет, мир",
    "日本語のテキスト",
    "שלום",
    "🎈🎉",
    "é à ü",
    "\n\n",
    "x = {1: [2]}",
    "<think>",
    "[INST]",
    "<|im_end|>",
)
STOPS = (",", ", ", "\n", "e", "a", "an", "the", "3", "Mar", "ch, A", "|", "🎈", "<|im_end|>", "</s>", " ")
SIZES = ((64, 64), (48, 32), (100, 70), (33, 130), (160, 96))
assert set(REQUESTS) == {"embedded", *FAMILIES}


def requests_for(name: str, count: int) -> list[Any]:
    """Seeded requests: text, one and two pictures, stops of every kind, special tokens, many scripts and lengths."""
    draw = random.Random(name)
    sees = name in ("embedded", "qwen3_vl")
    made: list[Any] = []
    for number in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.choice((1, 2, 5, 20))))
        options = pg.GenerationOptions(
            max_new_tokens=draw.choice((1, 2, 7, 24, 40)),
            min_new_tokens=draw.choice((0, 0, 0, 1)),
            repetition_penalty=draw.choice((1.0, 1.0, 1.0, 1.3)),
            presence_penalty=draw.choice((0.0, 0.0, 0.0, 0.5)),
            frequency_penalty=draw.choice((0.0, 0.0, 0.0, 0.5)),
            stop=pg.StopOptions(
                stop=tuple(draw.sample(STOPS, k=draw.choice((0, 0, 1, 3)))),
                stop_token_ids=tuple(draw.sample(range(300), k=draw.choice((0, 0, 0, 20)))),
                ignore_eos=draw.random() < 0.5,
            ),
            decode=pg.DecodeOptions(skip_special_tokens=draw.random() < 0.7, strip_whitespace=draw.random() < 0.3),
        )
        pictures = draw.choice((0, 1, 2)) if sees else 0
        if number % 7 == 6:
            made.append(pg.TextGenerationRequest(id=str(number), prompt=text, options=options))
            continue
        parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
        for _ in range(pictures):
            width, height = draw.choice(SIZES)
            parts.insert(draw.randrange(len(parts) + 1), {"type": "image", "image": picture(width=width, height=height)})
        kind = pg.VlmGenerationRequest if pictures else pg.TextGenerationRequest
        made.append(kind(id=str(number), messages=[{"role": "user", "content": parts if pictures else text}], options=options))
    return made


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_both_engines_give_the_same(name: str, vllm_of: Callable[..., Any], model_of: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    requests = requests_for(name, REQUESTS[name])
    with pg.backends.hf(model_of(name), dtype="float32") as safe:
        wanted = pg.run(safe, requests)
    with vllm_of(name) as fast:
        found = pg.run(fast, requests)
    ids = [request.id for request in requests]
    compared = list(compare(dict(zip(ids, wanted, strict=True)), dict(zip(ids, found, strict=True))))
    counts = summary(compared)
    finished = sorted({slot.unwrap().finish.value for slot in wanted if pg.is_ok(slot)})
    failed = sum(not pg.is_ok(slot) for slot in wanted)
    with capsys.disabled():
        print(f"\n{name:10} {counts}  finishes: {', '.join(finished)}; failed on both: {failed}")
        for one in compared:
            if one.difference is not None:
                print(f"{name:10} request {one.id}: {one.difference}")
    assert counts == {"requests": len(requests), "equal": len(requests)}
    assert failed < len(requests) / 4
