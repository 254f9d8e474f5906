"""What is read of a model's positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipegen.backends.checkpoint.positions import Positions, positions_of

LONG = {"rope_type": "longrope", "original_max_position_embeddings": 64}


def of(rope: Any = None, **more: Any) -> Positions:
    return positions_of(
        SimpleNamespace(**{"max_position_embeddings": 512, "rope_parameters": rope, **more})
    )


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        (None, 512),
        ({"rope_type": "default", "rope_theta": 1e4}, 512),
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"type": "linear", "factor": 1.5}, 768),
        ({"rope_type": "yarn", "factor": 4.0}, 512),
        ({"rope_type": "llama3", "factor": 8.0}, 512),
        ({"rope_type": "dynamic", "factor": 4.0}, 512),
        (
            {
                "full_attention": {"rope_type": "linear", "factor": 8.0},
                "sliding_attention": {"rope_type": "default"},
            },
            512,
        ),
    ],
)
def test_linear_scaling_of_all_layers_makes_room_for_more(rope: Any, length: int) -> None:
    assert of(rope).context_length == length


def test_other_names_of_the_length_count_and_none_is_no_limit() -> None:
    assert positions_of(SimpleNamespace(n_positions=7)) == Positions(context_length=7)
    assert (
        positions_of(SimpleNamespace(rope_scaling={"type": "linear", "factor": 2.0})) == Positions()
    )


def test_factors_that_depend_on_the_length_are_told() -> None:
    assert of({"rope_type": "dynamic", "factor": 2.0}) == Positions(
        context_length=512, dynamic=True
    )
    assert of(LONG) == Positions(context_length=512, long_after=64)
    assert of(None, rope_scaling={"type": "su"}, original_max_position_embeddings=32) == Positions(
        context_length=512, long_after=32
    )
    assert (
        of({"full_attention": LONG, "sliding_attention": {"rope_type": "default"}}).long_after == 64
    )


def test_factors_that_change_at_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"different lengths in different layers: \[32, 64\]"):
        of(
            {
                "full_attention": LONG,
                "sliding_attention": {**LONG, "original_max_position_embeddings": 32},
            }
        )
