"""Choosing tokens: the formulas at their edges. That they are transformers' own is a law in
property_tests/test_hf.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pipegen.backends.hf.hf_sampling import draw, narrow, penalise
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve

SCORES = torch.tensor([[0.0, 3.0, 1.0, -2.0, 2.0]])


def options(**said: Any) -> GenerationOptions:
    return resolve(GenerationOptions(**{"temperature": 1.0, **said}))


def kept(**said: Any) -> list[int]:
    return [int(token) for token in narrow(SCORES, [options(**said)]).softmax(-1)[0].nonzero()]


def test_presence_is_taken_once_and_frequency_each_time_of_the_answer_alone() -> None:
    counts = torch.tensor([[0.0, 2.0, 1.0, 0.0, 0.0]])
    seen = torch.tensor([[True, True, True, False, False]])  # token 0 is in the prompt
    got = penalise(SCORES, seen, counts, [options(presence_penalty=0.5, frequency_penalty=0.25)])
    assert got.tolist() == [[0.0, 2.0, 0.25, -2.0, 2.0]]


def test_repetition_makes_seen_tokens_of_prompt_and_answer_less_likely_whatever_their_sign() -> (
    None
):
    seen = torch.tensor([[True, True, False, True, False]])
    assert penalise(
        SCORES, seen, torch.zeros(1, 5), [options(repetition_penalty=2.0)]
    ).tolist() == [[0.0, 1.5, 1.0, -4.0, 2.0]]


def test_each_filter_keeps_what_its_rule_says() -> None:
    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [1, 4]
    assert kept(top_k=99) == [0, 1, 2, 3, 4]
    assert kept(top_p=0.6) == [1]
    assert kept(top_p=0.7) == [1, 4]
    assert kept(min_p=math.exp(-1.5)) == [1, 4]
    assert kept(min_p=1.0) == [1]
    assert kept(top_p=1e-9) == [1]


def test_a_very_low_temperature_takes_the_likeliest_and_stays_a_number() -> None:
    assert narrow(SCORES * 1e3, [options(temperature=1e-30)]).softmax(-1).tolist() == [
        [0.0, 1.0, 0.0, 0.0, 0.0]
    ]


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-38, 1e-30])
def test_a_temperature_next_to_nothing_takes_the_likeliest_also_where_tokens_are_forbidden(
    temperature: float,
) -> None:
    forbidden = torch.tensor([[-torch.inf, 3.0, 1.0, -2.0, 2.0]])
    for scores in (SCORES, SCORES * 1e3, forbidden):
        assert narrow(scores, [options(temperature=temperature)]).softmax(-1).tolist() == [
            [0.0, 1.0, 0.0, 0.0, 0.0]
        ]


@pytest.mark.parametrize("temperature", [1e30, 1e39, 1e300])
def test_a_temperature_beyond_all_bounds_levels_the_tokens_that_are_allowed(
    temperature: float,
) -> None:
    forbidden = torch.tensor([[-torch.inf, 3.0, 1.0, -2.0, 2.0]])
    assert narrow(forbidden, [options(temperature=temperature)]).softmax(-1).tolist() == [
        [0.0, 0.25, 0.25, 0.25, 0.25]
    ]


@pytest.mark.parametrize("penalty", [1e-300, 1e-40, 1e40, 1e300])
def test_a_repetition_penalty_beyond_all_bounds_leaves_numbers(penalty: float) -> None:
    seen = torch.tensor([[True, True, False, True, False]])
    scores = penalise(SCORES, seen, torch.zeros(1, 5), [options(repetition_penalty=penalty)])
    assert scores.isfinite().all()
    assert narrow(scores, [options()]).softmax(-1).sum() == pytest.approx(1.0)
    assert int(scores.argmax()) == (4 if penalty > 1 else 1)


def test_a_token_without_a_chance_is_never_drawn() -> None:
    chances = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    assert draw(chances, [0.0]).item() == 1
    assert draw(chances, [0.5]).item() == 3
    assert draw(chances, [math.nextafter(1.0, 0.0)]).item() == 3


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    chances = torch.tensor([[0.1, 0.2, 0.0, 0.7]])
    evenly = [(place + 0.5) / 1000 for place in range(1000)]
    drawn = draw(chances.expand(1000, -1), evenly).flatten().bincount(minlength=4)
    assert drawn.tolist() == [100, 200, 0, 700]


def test_options_go_to_the_device_once_and_not_at_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = [
        resolve(GenerationOptions(temperature=0.5 + at, top_k=3 + at, top_p=0.9, min_p=0.01))
        for at in range(3)
    ]
    scores = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    expected, made = narrow(scores, options).softmax(-1), []
    plain = torch.tensor
    monkeypatch.setattr(
        torch, "tensor", lambda *values, **more: made.append(values) or plain(*values, **more)
    )
    assert torch.equal(narrow(scores, options).softmax(-1), expected)
    assert made == []
