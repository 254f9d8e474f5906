"""What vLLM is told of a model's configuration that it would read in another way than
transformers.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.vllm.corrections import corrections
from pipegen.backends.vllm.start import engine_arguments
from pipegen.engines.settings import ModelLoadConfig

transformers = pytest.importorskip("transformers")

SCALED = {
    "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 64,
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 1e4,
}
SCALE = {"llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 64}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (transformers.Cohere2Config(sliding_window=16), {"sliding_window": 15}),
        (transformers.Cohere2MoeConfig(sliding_window=16), {"sliding_window": 15}),
        (
            transformers.Cohere2VisionConfig(text_config={"sliding_window": 16}),
            {"text_config": {"sliding_window": 15}},
        ),
        (transformers.Ministral3Config(rope_parameters=SCALED), SCALE),
        (
            transformers.Mistral3Config(
                text_config={"model_type": "ministral3", "rope_parameters": SCALED}
            ),
            {"text_config": SCALE},
        ),
        (transformers.MistralConfig(sliding_window=16), {}),
        (transformers.Gemma3Config(text_config={"sliding_window": 16}), {}),
        (transformers.CohereConfig(), {}),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_settings_that_the_newest_vllm_reads_in_another_way(
    config: Any, expected: dict[str, Any]
) -> None:
    assert corrections(config, (0, 32)) == expected


@pytest.mark.parametrize(
    ("version", "window"), [((0, 27), None), ((0, 28), None), ((0, 29), 15), ((0, 32), 15)]
)
def test_the_window_of_cohere2_is_one_longer_from_one_version_on(
    version: tuple[int, int], window: int | None
) -> None:
    assert (
        corrections(transformers.Cohere2Config(sliding_window=16), version).get("sliding_window")
        == window
    )


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [({"attention_factor": 1.3}, 1.3), ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0), ({}, None)],
)
def test_older_versions_are_given_the_scale_of_yarn_under_the_name_they_know(
    settings: dict[str, float], wanted: float | None
) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        **settings,
    }
    config = transformers.LlamaConfig(rope_parameters=rope)
    told = corrections(config, (0, 29)).get("rope_parameters")
    assert corrections(config, (0, 30)) == {}
    if wanted is None:
        assert told is None
    else:
        assert told == {
            **config.rope_parameters,
            "attn_factor": pytest.approx(wanted / (0.1 * math.log(4.0) + 1.0)),
        }
    assert corrections(transformers.DeepseekV3Config(rope_parameters=rope), (0, 29)) == {}
    assert corrections(transformers.LlamaConfig(), (0, 27)) == {}


def arguments(tmp_path: Path, **given: Any) -> dict[str, Any]:
    transformers.Cohere2Config(sliding_window=16).save_pretrained(tmp_path / "model")
    return engine_arguments(
        Checkpoint(
            ModelLoadConfig(
                model=str(tmp_path / "model"), backend="vllm", dtype="float32", engine_kwargs=given
            )
        )
    )


def test_vllm_is_told_beside_what_the_user_tells_it(started: list[Any], tmp_path: Path) -> None:
    assert arguments(tmp_path)["hf_overrides"] == {"sliding_window": 15}
    assert arguments(tmp_path, hf_overrides={"rope_theta": 1e4})["hf_overrides"] == {
        "sliding_window": 15,
        "rope_theta": 1e4,
    }
    assert arguments(tmp_path, hf_overrides={"sliding_window": 8})["hf_overrides"] == {
        "sliding_window": 8
    }
