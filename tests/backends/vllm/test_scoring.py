"""vLLM's tables of a prompt's log probabilities, as they come and as they must not come."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from support.models import encoded

from pipegen.backends.vllm.vllm_rows import scores_of
from pipegen.core.errors import MalformedResponse
from pipegen.records.scores import ScoreInput

ASKED = ScoreInput(encoded=encoded((1, 2)), continuation=(3, 4))


def tables(*places: dict[int, float] | None) -> list[Any]:
    return [
        (
            None
            if place is None
            else {token: SimpleNamespace(logprob=value) for token, value in place.items()}
        )
        for place in places
    ]


def test_the_continuation_s_own_entries_are_taken_and_a_tie_is_greedy() -> None:
    scores = scores_of(
        ASKED, tables(None, {2: -9.0}, {3: -0.5, 7: -0.25}, {4: -1.5, 8: -1.5})
    ).unwrap()
    assert (scores.logprobs, scores.greedy) == ((-0.5, -1.5), (False, True))
    assert scores.likeliest == ((7, -0.25), (4, -1.5))
    assert scores_of(
        ASKED, tables(None, {2: -9.0}, {3: -math.inf, 7: 0.0}, {4: 0.0})
    ).unwrap().logprobs == (-math.inf, 0.0)


@pytest.mark.parametrize(
    "given",
    [
        None,
        tables(None, {2: 0.0}, {3: 0.0}),
        tables(None, {2: 0.0}, {3: 0.0}, {5: 0.0}),
        tables(None, {2: 0.0}, None, {4: 0.0}),
    ],
)
def test_what_is_not_there_is_malformed(given: Any) -> None:
    assert isinstance(scores_of(ASKED, given).failure(), MalformedResponse)
