"""The lengths that a configuration names: windows, chunks, and where the scaling of positions
begins.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipegen.backends.checkpoint.positions import boundaries

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}


def lengths(**settings: Any) -> dict[str, int]:
    return {one.name: one.tokens for one in boundaries(SimpleNamespace(**settings))}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_position_embeddings": 4096}, {}),
        ({"sliding_window": 512}, {"sliding_window": 512}),
        ({"sliding_window": None}, {}),
        ({"sliding_window": 512, "use_sliding_window": False}, {}),
        (
            {"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 28},
            {"sliding_window": 512},
        ),
        (
            {"sliding_window": 512, "sliding_window_pattern": 4, "layer_types": ["full_attention"]},
            {"sliding_window": 512},
        ),
        ({"attention_window_size": 2048}, {"attention_window_size": 2048}),
        (
            {"window_size": 256, "attention_types": [[["global", "local"], 12]]},
            {"window_size": 256},
        ),
        (
            {"attention_chunk_size": 8192, "floor_scale": 4096},
            {"attention_chunk_size": 8192, "floor_scale": 4096},
        ),
        ({"index_topk": 2048}, {"index_topk": 2048}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, {}),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0},
                "max_position_embeddings": 64,
            },
            {},
        ),
        ({"rope_parameters": YARN}, {"rope_parameters.original_max_position_embeddings": 2048}),
        (
            {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 64}},
            {"rope_scaling.original_max_position_embeddings": 64},
        ),
        (
            {
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0},
                "max_position_embeddings": 64,
            },
            {"max_position_embeddings": 64},
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": YARN,
                    "sliding_attention": {"rope_type": "default"},
                },
                "sliding_window": 128,
            },
            {
                "sliding_window": 128,
                "rope_parameters.full_attention.original_max_position_embeddings": 2048,
            },
        ),
        (
            {
                "original_max_position_embeddings": 4096,
                "rope_parameters": {"rope_type": "longrope"},
            },
            {"original_max_position_embeddings": 4096},
        ),
        (
            {"llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 16384}},
            {"llama_4_scaling.original_max_position_embeddings": 16384},
        ),
        (
            {"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}},
            {
                "dual_chunk_attention_config.local_size": 8192,
                "dual_chunk_attention_config.chunk_size": 262144,
            },
        ),
    ],
)
def test_each_length_that_a_configuration_names_is_listed(
    settings: dict[str, Any], expected: dict[str, int]
) -> None:
    assert [*lengths(**settings).items()] == sorted(expected.items(), key=lambda one: one[1])


def test_layers_may_have_windows_of_their_own() -> None:
    assert [one.tokens for one in boundaries(SimpleNamespace(attention_window=[64, 128, 64]))] == [
        64,
        128,
    ]


def test_the_text_model_of_a_configuration_is_looked_at() -> None:
    transformers = pytest.importorskip("transformers")
    assert [
        one.tokens
        for one in boundaries(transformers.Gemma3Config(text_config={"sliding_window": 96}))
    ] == [96]
    assert [
        one.tokens
        for one in boundaries(transformers.Qwen2Config(use_sliding_window=True, sliding_window=77))
    ] == [77]
    assert boundaries(transformers.Qwen2Config(sliding_window=77)) == ()
    assert [one.tokens for one in boundaries(transformers.Ministral3Config())] == [16384]
