"""The attention of single tokens: transformers' own answer, without its copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    causal_mask_function,
    sdpa_mask,
    sliding_window_causal_mask_function,
)

from pipegen.backends.hf.attention import NAME, grouped_mask, grouped_sdpa
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.engines.settings import ModelLoadConfig


def heads(
    rows: int, queries: int, columns: int, query_heads: int, key_heads: int
) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    module = torch.nn.Module()
    module.num_key_value_groups = query_heads // key_heads  # type: ignore[assignment]
    random = torch.Generator().manual_seed(0)
    shapes = (
        (rows, query_heads, queries, 8),
        (rows, key_heads, columns, 8),
        (rows, key_heads, columns, 8),
    )
    query, key, value = (torch.randn(shape, generator=random) for shape in shapes)
    return module, query, key, value


@pytest.mark.parametrize(("query_heads", "key_heads"), [(4, 2), (6, 2), (4, 1), (3, 3)])
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("masked", [None, "bool", "float"])
def test_it_is_transformers_own_answer(
    query_heads: int, key_heads: int, queries: int, masked: str | None
) -> None:
    module, query, key, value = heads(3, queries, 9, query_heads, key_heads)
    mask = None
    if masked is not None:
        mask = (torch.arange(9) >= torch.tensor([0, 2, 4])[:, None])[:, None, None].expand(
            3, 1, queries, 9
        )
        mask = mask if masked == "bool" else torch.where(mask, 0.5, -torch.inf)
    expected, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    got, weights = grouped_sdpa(module, query, key, value, mask, scaling=0.3)
    assert weights is None
    assert got.shape == expected.shape
    assert torch.allclose(got, expected, atol=1e-5)


def test_keys_and_values_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    module, query, key, value = heads(3, 1, 9, 4, 2)
    plain, seen = torch.nn.functional.scaled_dot_product_attention, []

    def watched(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **more: Any
    ) -> torch.Tensor:
        seen.append((key, value))
        return plain(query, key, value, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    grouped_sdpa(module, query, key, value, torch.ones(3, 1, 1, 9, dtype=torch.bool))
    assert [(one is key, other is value) for one, other in seen] == [(True, True)]


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "qwen3_vl"])
def test_models_take_it_in_their_language_part(
    family: str, engine_of: Callable[[str], Any]
) -> None:
    model = engine_of(family).computing.loaded()
    assert model.config.get_text_config()._attn_implementation == NAME
    if family == "qwen3_vl":
        assert model.config.vision_config._attn_implementation == "sdpa"


def test_models_that_do_not_say_they_take_another_keep_theirs(
    engine_of: Callable[[str], Any],
) -> None:
    assert engine_of("qwen3_next").computing.loaded().config._attn_implementation == "sdpa"


def test_what_the_caller_asks_for_stays(folder_of: Callable[[str], Any]) -> None:
    for asked in ("sdpa", "eager"):
        engine = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3")), attn_implementation=asked))
        assert engine.computing.loaded().config._attn_implementation == asked


SIZES = (
    {"q_length": 1, "q_offset": 8},
    {"q_length": 9, "q_offset": 0},
    {"q_length": 1, "q_offset": 8, "kv_length": 5, "kv_offset": 4},
)


@pytest.mark.parametrize("lengths", [(4, 9, 6), (9, 9, 9)])
@pytest.mark.parametrize(
    "sizes",
    [
        {"q_length": 1, "q_offset": 8},
        {"q_length": 9, "q_offset": 0},
        {"q_length": 1, "q_offset": 8, "kv_length": 5, "kv_offset": 4},
    ],
)
@pytest.mark.parametrize("window", [None, 3])
def test_its_mask_says_what_transformers_own_says(
    lengths: tuple[int, ...], sizes: dict[str, int], window: int | None
) -> None:
    padding = torch.arange(9) >= 9 - torch.tensor(lengths)[:, None]
    function = (
        causal_mask_function if window is None else sliding_window_causal_mask_function(window)
    )
    given: dict[str, Any] = {
        "batch_size": 3,
        "kv_length": 9,
        **sizes,
        "attention_mask": padding,
        "mask_function": function,
        "allow_is_causal_skip": False,
    }
    expected, got = sdpa_mask(**given), grouped_mask(**given, dtype=torch.float32)
    assert expected is not None
    assert got is not None
    assert torch.equal(expected, got if got.dtype == torch.bool else got == 0)
    assert (got.dtype == torch.float32) == (sizes["q_length"] == 1 and window is None)
    assert got.dtype == torch.bool or set(got.flatten().tolist()) <= {0.0, -torch.inf}


def test_a_mask_that_holds_columns_to_come_is_left_to_transformers() -> None:
    given: dict[str, Any] = {
        "batch_size": 1,
        "q_length": 1,
        "q_offset": 3,
        "kv_length": 6,
        "attention_mask": torch.ones(1, 6, dtype=torch.bool),
    }
    got = grouped_mask(**given, allow_is_causal_skip=False)
    assert got is not None
    assert got.flatten().tolist() == [True, True, True, True, False, False]
