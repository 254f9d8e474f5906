"""`logprobs="processed"`, and many of the likeliest tokens, from real servers: beside what the
Hugging Face engine gives for the same ids.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

import pipegen as pg
from pipegen import embedded
from pipegen.testing.ask import chat, greedy

CLOSE = 2e-4
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.7, "top_k": 9},
    {"temperature": 0.9, "top_p": 0.8, "top_k": 1000},
    {"temperature": 0.8, "presence_penalty": 0.6, "top_k": 5},
    {"temperature": 1.3, "top_k": 1000},
    {"temperature": 0.0, "frequency_penalty": 0.5},
]


SERVERS = pytest.mark.parametrize("served", ["vllm-processed", "sglang-embedded"], indirect=True)
"""Servers that say of which distribution their log probabilities are."""


def held(result: pg.GenerationResult, options: Any, hf: pg.Route) -> None:
    """The law: each token has the log probability that the reference gives at that place."""
    penalised = any("penalty" in name for name in options)
    for step in [0] if penalised else range(len(result.token_ids)):
        ids = [*result.prompt_token_ids, *result.token_ids[:step]]
        asked = greedy(max_new_tokens=1, logprobs="processed", top_logprobs=1000, **options)
        (slot,) = pg.run(hf, [{"prompt_token_ids": ids}], asked)
        expected = dict((slot.unwrap().logprobs or ())[0].top)
        token = (result.logprobs or ())[step]
        assert token.logprob == pytest.approx(expected[result.token_ids[step]], abs=CLOSE)
        assert token.top, "the likeliest are missing"
        for token_id, value in token.top:
            assert value == pytest.approx(expected[token_id], abs=CLOSE)
        if len(expected) <= 30:  # SGLang's sums of float32 leave out the last ones of a top_k
            left_out = {*expected}.difference(dict(token.top))
            assert sum(math.exp(expected[token_id]) for token_id in left_out) < 1e-3
            assert math.fsum(map(math.exp, dict(token.top).values())) == pytest.approx(1, abs=1e-4)


@SERVERS
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_they_are_those_that_the_reference_gives(served: Any, hf_of: Any, options: Any) -> None:
    asked = greedy(**{"logprobs": "processed", "top_logprobs": 30, "seed": 3, **options})
    with served.opened() as route:
        for slot in pg.run(route, [chat("Hi"), {"prompt": "The cat"}], asked):
            held(slot.unwrap(), options, hf_of(embedded.NAME))
        done = [
            event.slot.unwrap()
            for event in pg.stream(route, [{"prompt": "The cat"}], asked)
            if isinstance(event, pg.Done)
        ]
        held(done[0], options, hf_of(embedded.NAME))


@SERVERS
def test_each_place_of_a_prompt_has_as_many_of_the_likeliest(served: Any, hf_of: Any) -> None:
    options = greedy(prompt_logprobs=True, top_logprobs=32, max_new_tokens=0)
    asked = [{"prompt": "The cat sat."}]
    with served.opened() as route:
        (slot,), (expected,) = (
            pg.run(one, asked, options) for one in (route, hf_of(embedded.NAME))
        )
    pairs = zip(
        (slot.unwrap().prompt_logprobs or ())[1:],
        (expected.unwrap().prompt_logprobs or ())[1:],
        strict=True,
    )
    for token, other in pairs:
        assert len(token.top) == 32
        best = [value for _, value in other.top]
        assert [value for _, value in token.top] == pytest.approx(best, abs=CLOSE)


@SERVERS
def test_raw_ones_are_refused_where_they_are_others(served: Any) -> None:
    with served.opened() as route:
        hot = greedy(logprobs=True, temperature=0.7, seed=1)
        (error,) = pg.run(route, [chat("Hi")], hot)
        assert isinstance(error.failure(), pg.UnsupportedOption)
        assert error.failure().option == "logprobs"
        if served.engine == "sglang":
            (error,) = pg.run(route, [chat("Hi")], greedy(logprobs="processed", temperature=0.7))
            assert error.failure().option == "logprobs" and "top_k" in error.failure().hint
        else:
            (error,) = pg.run(route, [chat("Hi")], greedy(top_logprobs=65))
            assert error.failure().option == "top_logprobs"


@pytest.mark.parametrize("served", ["vllm-embedded"], indirect=True)
def test_a_server_in_its_usual_mode_refuses_what_it_does_not_give(served: Any) -> None:
    with served.opened() as route:
        (error,) = pg.run(route, [chat("Hi")], greedy(logprobs="processed"))
        assert error.failure().option == "logprobs" and "--logprobs-mode" in error.failure().hint
        for options in ({}, {"prompt_logprobs": True, "max_new_tokens": 0}):
            (error,) = pg.run(route, [chat("Hi")], greedy(top_logprobs=32, **options))
            assert error.failure().option == "top_logprobs" and "20" in error.failure().message
