"""HF and vLLM score the same, within 1e-4 a token in float32: text, choices, images, long
contexts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.models import FAMILIES
from support.scored import compared_prompts, prompts_read, scored_requests

import pipegen as pg

NAMES = ("embedded", *FAMILIES)
SEES = ("embedded", "qwen3_vl")


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_score_the_same(
    name: str,
    vllm_of: Callable[..., Any],
    model_of: Callable[[str], str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    asked = scored_requests(images=name in SEES)
    with pg.backends.hf(model_of(name), dtype="float32") as safe:
        wanted = pg.score(safe, asked, image_policy=pg.ImagePolicy())
        texts = pg.perplexity(safe, ["the cat sat on a mat " * 30], window=40)
    with vllm_of(name) as fast:
        found = pg.score(fast, asked)
        again = asyncio.run(pg.arun(pg.scoring(fast), asked))
        read = pg.perplexity(fast, ["the cat sat on a mat " * 30], window=40)
    assert (
        [pg.is_ok(slot) for slot in wanted]
        == [pg.is_ok(slot) for slot in found]
        == [pg.is_ok(slot) for slot in again]
    )
    pairs = [
        (one.unwrap(), two.unwrap(), three.unwrap())
        for one, two, three in zip(wanted, found, again, strict=True)
        if pg.is_ok(one)
    ]
    assert len(pairs) >= len(asked) - 1
    assert all(
        one.token_ids == two.token_ids and one.prompt_token_ids == two.prompt_token_ids
        for one, two, _ in pairs
    )
    worst = max(
        abs(a - b)
        for one, *others in pairs
        for two in others
        for a, b in zip(one.token_logprobs, two.token_logprobs, strict=True)
    )
    with capfd.disabled():
        print(
            f"\n{name:10} {len(pairs)} scored, {sum(one.tokens for one, *_ in pairs)} tokens,"
            f" largest difference {worst:.1e}"
        )
    assert worst < 1e-4
    assert [one.greedy for one, *_ in pairs] == [two.greedy for _, two, _ in pairs]
    assert read[0].unwrap().logprob == pytest.approx(texts[0].unwrap().logprob, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_give_prompts_the_same_log_probabilities(
    name: str,
    vllm_of: Callable[..., Any],
    model_of: Callable[[str], str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Beside an answer and without one, whatever the options of the answer; what of a prompt is
    asked as a score is the same asked another way.
    """
    with pg.backends.hf(model_of(name), dtype="float32") as safe:
        wanted = prompts_read(safe)
    with vllm_of(name) as fast:
        found = [*prompts_read(fast, 3), *prompts_read(fast)]
    count, worst = compared_prompts(wanted, found)
    with capfd.disabled():
        print(f"\n{name:10} {count} tokens of prompts, largest difference {worst:.1e}")
    assert count > 1000
    assert worst < 1e-4


def test_vllm_refuses_what_hf_refuses(vllm_of: Callable[..., Any]) -> None:
    with vllm_of("qwen3") as fast:
        limit = fast.engine.longest_scored
        slots = pg.score(
            fast,
            [
                {"prompt_token_ids": [70] * limit, "continuation": [71]},
                {"prompt_token_ids": [70] * (limit - 1), "continuation": [71]},
            ],
        )
        assert isinstance(slots[0].failure(), pg.PromptTooLong)
        assert slots[1].unwrap().tokens == 1
        assert pg.score(fast, []) == ()
