"""`logprobs="processed"` on the real vLLM, which has a mode for it, beside the same rows on the
Hugging Face engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.ask import PROMPTS, chat, greedy

CLOSE = 2e-4
PROCESSED = {"logprobs_mode": "processed_logprobs", "max_logprobs": -1}
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.4, "top_k": 7},
    {"temperature": 0.9, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 0.8, "presence_penalty": 0.6, "repetition_penalty": 1.2},
    {"temperature": 0.0, "frequency_penalty": 0.5, "logit_bias": {70: 4.0}},
    {"temperature": 0.0, "top_k": 1},
]


@pytest.fixture(scope="module")
def route(vllm_of: Callable[..., Any]) -> Iterator[pg.Route]:
    with vllm_of("embedded", engine_kwargs=PROCESSED) as opened:
        yield opened


def answers(route: pg.Route, requests: Any, **options: Any) -> list[pg.GenerationResult]:
    asked = greedy(**{"logprobs": "processed", "seed": 7, "max_new_tokens": 8, **options})
    return [slot.unwrap() for slot in pg.run(route, requests, asked)]


def test_its_rows_have_what_the_reference_gives_for_the_same_ids(route: pg.Route) -> None:
    """vLLM draws by other numbers, so the reference reads what came before each of its tokens as a
    prompt. Where penalties count what was generated, that is the first token alone.
    """
    requests = [{"prompt": "The cat", "options": options} for options in SETTINGS]
    results = answers(route, requests, top_logprobs=1000)
    with pg.backends.hf("embedded", dtype="float32") as hf:
        for result, options in zip(results, SETTINGS, strict=True):
            penalised = [name for name in options if "penalty" in name]
            steps = [0] if penalised else range(len(result.token_ids))
            for step in steps:
                ids = [*result.prompt_token_ids, *result.token_ids[:step]]
                one = {"prompt_token_ids": ids, "options": options}
                (theirs,) = answers(hf, [one], max_new_tokens=1, top_logprobs=1000)
                expected = dict((theirs.logprobs or ())[0].top)
                token = (result.logprobs or ())[step]
                assert {*dict(token.top)} == {*expected}
                for token_id, value in token.top:
                    assert value == pytest.approx(expected[token_id], abs=CLOSE)
                assert token.logprob == dict(token.top)[result.token_ids[step]]


def test_what_is_kept_sums_to_1(route: pg.Route) -> None:
    for options in SETTINGS:
        for result in answers(route, [chat("Hi")], top_logprobs=1000, **options):
            for token in result.logprobs or ():
                share = math.fsum(math.exp(value) for _, value in token.top)
                assert share == pytest.approx(1, abs=1e-4)


def test_raw_ones_are_refused_there_unless_they_are_the_same(route: pg.Route) -> None:
    hot = {"temperature": 0.7, "top_k": 5}
    (error,) = pg.run(route, [chat("Hi")], greedy(logprobs=True, **hot))
    assert isinstance(error.failure(), pg.UnsupportedOption)
    assert error.failure().option == "logprobs" and "top_k" in error.failure().message
    for options in ({}, {"temperature": 1.0}):
        raw = answers(route, map(chat, PROMPTS), logprobs=True, **options)
        own = answers(route, map(chat, PROMPTS), **options)
        assert [one.logprobs for one in raw] == [one.logprobs for one in own]


def test_each_place_of_a_prompt_has_as_many_of_the_likeliest(
    route: pg.Route, vllm_of: Callable[..., Any]
) -> None:
    options = greedy(prompt_logprobs=True, top_logprobs=32, max_new_tokens=0)
    request = {"prompt": "The cat sat."}
    with pg.backends.hf("embedded", dtype="float32") as hf:
        (mine,), (theirs,) = (pg.run(one, [request], options) for one in (route, hf))
    pairs = zip(
        (mine.unwrap().prompt_logprobs or ())[1:],
        (theirs.unwrap().prompt_logprobs or ())[1:],
        strict=True,
    )
    for token, expected in pairs:
        assert token is not None and expected is not None and len(token.top) == 32
        best = [value for _, value in expected.top]
        assert [value for _, value in token.top] == pytest.approx(best, abs=CLOSE)


def test_a_vllm_in_its_usual_mode_says_how_to_have_them(vllm_of: Callable[..., Any]) -> None:
    with vllm_of("embedded") as plain:
        for options in ({"temperature": 0.7}, {}):
            (error,) = pg.run(plain, [chat("Hi")], greedy(logprobs="processed", **options))
            assert isinstance(error.failure(), pg.UnsupportedOption)
            assert error.failure().option == "logprobs"
            assert "'logprobs_mode': 'processed_logprobs'" in error.failure().hint
        (error,) = pg.run(plain, [chat("Hi")], greedy(top_logprobs=32))
        assert error.failure().option == "top_logprobs" and "max_logprobs" in error.failure().hint


def test_another_mode_is_no_setting(vllm_of: Callable[..., Any]) -> None:
    with (
        pytest.raises(pg.InvalidField, match="logprobs_mode is one of raw_logprobs"),
        vllm_of("embedded", engine_kwargs={"logprobs_mode": "raw_logits"}),
    ):
        pass
