"""Two engines on a small model of a configuration's family: the first length beyond which they
differ is found, and rows beyond it are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from returns.result import Failure
from support.models import encoded

from pipegen.backends.checkpoint.engine_parity import Differs, differs_beyond, refused_beyond
from pipegen.backends.checkpoint.positions import Boundary
from pipegen.backends.checkpoint.tiny_model import CannotShrink, shrunken
from pipegen.core.errors import UnsupportedOption
from pipegen.records.scores import ScoreInput

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
    "rope_theta": 1e4,
}


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        (
            transformers.MistralConfig(sliding_window=4096, num_hidden_layers=40),
            {"sliding_window": 32},
        ),
        (transformers.MistralConfig(sliding_window=24, head_dim=16), {"sliding_window": 24}),
        (transformers.Gemma3TextConfig(sliding_window=512), {"sliding_window": 32}),
        (transformers.GptOssConfig(sliding_window=128), {"sliding_window": 8}),
        (transformers.Llama4TextConfig(), {"attention_chunk_size": 128, "floor_scale": 128}),
        (transformers.Gemma4TextConfig(), {"sliding_window": 32}),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_a_small_model_has_a_layer_of_each_kind_and_short_lengths(
    config: Any, lengths: dict[str, int]
) -> None:
    small = shrunken(config)
    assert {name: getattr(small, name) for name in lengths} == lengths
    assert small.num_hidden_layers <= 4
    assert {*(getattr(small, "layer_types", None) or ())} == {
        *(getattr(config, "layer_types", None) or ())
    }
    assert small.max_position_embeddings >= max(lengths.values()) + 16


def test_the_scalings_of_positions_stay_but_for_their_lengths() -> None:
    small = shrunken(transformers.Qwen3Config(rope_parameters=YARN, max_position_embeddings=131072))
    assert {**small.rope_parameters, "original_max_position_embeddings": 32768} == {**YARN}
    assert (
        small.rope_parameters["original_max_position_embeddings"],
        small.max_position_embeddings,
    ) == (32, 128)


def test_what_cannot_be_made_small_is_said(tmp_path: Path) -> None:
    with pytest.raises(CannotShrink, match="does not say how large it is"):
        shrunken(transformers.RecurrentGemmaConfig())
    with pytest.raises(CannotShrink, match="makes no small model of it"):
        differs_beyond(transformers.Qwen2VLTextConfig(), tmp_path, scored(), scored())


def scored(change: Callable[[Any], Any] = lambda config: config) -> Any:
    """transformers on the small model, whose configuration is read as `change` says."""

    def score(folder: Path, rows: Sequence[ScoreInput]) -> list[Any]:
        import torch
        from returns.result import Success

        from pipegen.records.scores import TokenScores

        config = change(transformers.AutoConfig.from_pretrained(folder))
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=torch.float32, attn_implementation="eager"
        )
        slots: list[Any] = []
        for row in rows:
            with torch.no_grad():
                logprobs = model(torch.tensor([row.token_ids])).logits[0].log_softmax(-1)
            values = tuple(
                float(logprobs[place, token]) for place, token in enumerate(row.token_ids[1:])
            )
            slots.append(
                Success(
                    TokenScores(
                        continued=row,
                        logprobs=values,
                        likeliest=tuple((0, value) for value in values),
                    )
                )
            )
        return slots

    return score


def with_window(longer: int) -> Callable[[Any], Any]:
    def change(config: Any) -> Any:
        config.sliding_window += longer
        return config

    return change


@pytest.mark.parametrize("longer", [-1, 1, 1000])
@pytest.mark.parametrize(
    "family",
    [
        transformers.MistralConfig,
        transformers.Gemma2Config,
        transformers.Gemma3TextConfig,
        transformers.Cohere2Config,
    ],
)
def test_a_window_that_another_engine_makes_longer_or_shorter_is_named(
    family: Any, longer: int, tmp_path: Path
) -> None:
    config = family(sliding_window=4096)
    assert differs_beyond(config, tmp_path, scored(), scored()) is None
    seen = differs_beyond(config, tmp_path, scored(), scored(with_window(longer)))
    assert seen is not None
    assert seen.boundary == Boundary("sliding_window", 4096)


def test_the_shortest_of_several_lengths_is_named(tmp_path: Path) -> None:
    config = transformers.MistralConfig(
        sliding_window=4096, rope_parameters={**YARN, "original_max_position_embeddings": 8192}
    )

    def halved(config: Any) -> Any:
        config.rope_parameters = {**config.rope_parameters, "factor": 2.0}
        return config

    changed = differs_beyond(config, tmp_path, scored(), scored(halved))
    assert changed is not None
    assert changed.boundary is None  # the rotation of every position is another one
    seen = differs_beyond(config, tmp_path, scored(), scored(with_window(1)))
    assert seen is not None
    assert seen.boundary == Boundary("sliding_window", 4096)


def test_rows_that_an_engine_refuses_are_not_compared(tmp_path: Path) -> None:
    def refuses(folder: Path, rows: Sequence[ScoreInput]) -> list[Any]:
        return [
            slot if len(row.token_ids) < 40 else Failure(UnsupportedOption("no"))
            for slot, row in zip(scored()(folder, rows), rows, strict=True)
        ]

    assert (
        differs_beyond(
            transformers.MistralConfig(sliding_window=4096),
            tmp_path,
            scored(with_window(1)),
            refuses,
        )
        is None
    )


def test_rows_that_may_reach_beyond_the_length_are_refused_by_its_name() -> None:
    differs = Differs(Boundary("sliding_window", 10), 0.05)
    assert refused_beyond(differs, encoded([1] * 6, max_new_tokens=4), "vllm") is None
    error = refused_beyond(differs, encoded([1] * 6, max_new_tokens=5), "vllm")
    assert isinstance(error, UnsupportedOption)
    assert "beyond 10 tokens (sliding_window), and this row may have 11" in error.message
    assert "max_model_len=10" in error.hint
    always = refused_beyond(Differs(None, 2.0), encoded([1], max_new_tokens=1), "vllm")
    assert always is not None
    assert ("from the first tokens on" in always.message, always.hint) == (True, "use hf")
