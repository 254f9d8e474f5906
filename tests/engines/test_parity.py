"""HF and vLLM give the same: prompt ids, grids, ids, texts, finishes, stops and counts, for
hundreds of seeded greedy requests in float32.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from support.edits import disagreements
from support.forms import drawn_form, has_form
from support.models import FAMILIES
from support.thinking import thinking_requests

import pipegen as pg
from pipegen.testing.ask import PROMPTS, chat, greedy
from pipegen.testing.parity import mixed_requests, report

REQUESTS = {"embedded": 80, "qwen3": 60, "llama": 60, "mistral": 60, "gemma3": 60, "qwen3_vl": 60}
assert set(REQUESTS) == {"embedded", *FAMILIES}


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_both_engines_give_the_same(
    name: str,
    vllm_of: Callable[..., Any],
    model_of: Callable[[str], str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    requests = mixed_requests(name, REQUESTS[name], images=name in ("embedded", "qwen3_vl"))
    with pg.backends.hf(model_of(name), dtype="float32") as safe:
        wanted = pg.run(safe, requests)
    with vllm_of(name) as fast:
        found = pg.run(fast, requests)
    counts, parted, words = report(requests, wanted, found)
    with capfd.disabled():
        print(f"\n{name:10} {counts}  {words}")
        for one in parted:
            print(f"{name:10} request {one.id}: {one.difference}")
    assert counts == {"requests": len(requests), "equal": len(requests)}
    assert sum(not pg.is_ok(slot) for slot in wanted) < len(requests) / 4


def test_an_early_exit_of_the_real_vllm_changes_nothing_in_an_edited_route(
    vllm_of: Callable[..., Any],
) -> None:
    with vllm_of("embedded") as route:
        assert disagreements(route) == []


@pytest.mark.parametrize("name", ["embedded", "qwen3", "llama", "gemma3"])
def test_answers_of_every_form_are_the_same(
    name: str, vllm_of: Callable[..., Any], model_of: Callable[[str], str]
) -> None:
    draw = random.Random(name)
    forms: list[dict[str, Any]] = [
        drawn_form(draw.randrange) if number % 5 else {} for number in range(60)
    ]
    length = 24 if name == "embedded" else 60
    options = [
        greedy(
            max_new_tokens=length, **({"structured": pg.StructuredOptions(**form)} if form else {})
        )
        for form in forms
    ]
    requests = [chat(PROMPTS[number % 4], each) for number, each in enumerate(options)]
    requests.append(chat("Hi", greedy(structured=pg.StructuredOptions(regex="("))))
    with pg.backends.hf(model_of(name), dtype="float32") as safe:
        wanted = pg.run(safe, requests)
    with vllm_of(name) as fast:
        assert pg.run(fast, requests[-1:]) == wanted[-1:]
        assert not fast.engine.loaded
        found = pg.run(fast, requests)
    assert found[-1] == wanted[-1]
    for form, here, there in zip(forms, wanted[:-1], found[:-1], strict=True):
        assert (here.unwrap().text, here.unwrap().token_ids, here.unwrap().finish) == (
            there.unwrap().text,
            there.unwrap().token_ids,
            there.unwrap().finish,
        ), form
        assert (
            not form
            or here.unwrap().finish is pg.Finish.LENGTH
            or has_form(here.unwrap().text, form)
        )
    assert sum(slot.unwrap().finish is pg.Finish.EOS for slot in wanted[:-1]) >= 30


def test_thoughts_and_the_forms_after_them_are_the_same(
    vllm_of: Callable[..., Any], model_of: Callable[[str], str]
) -> None:
    requests = thinking_requests(24)
    with pg.backends.hf(model_of("embedded"), dtype="float32") as safe:
        wanted = pg.run(safe, requests)
    with vllm_of("embedded") as fast:
        found = pg.run(fast, requests)
    for request, here, there in zip(requests, wanted, found, strict=True):
        one, other = here.unwrap(), there.unwrap()
        for name in ("token_ids", "text", "reasoning", "raw_text", "forced", "finish", "stop"):
            assert getattr(one, name) == getattr(other, name), (request.options, name)
    assert len({result.unwrap().reasoning for result in wanted}) > 3
