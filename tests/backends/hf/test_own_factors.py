"""A row gives what it gives alone, where the model's own code looks at the longest row, or where
the usual attention would leave something out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import VARIANTS, encoded

import pipegen as pg
from pipegen.backends.hf import running_batch as batches
from pipegen.backends.hf.attention import fitting_attention
from pipegen.backends.hf.compiled import check_compilable
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.backends.hf.load import use_own_factors
from pipegen.core.errors import CallFailed
from pipegen.core.names import InvalidField
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.results import Encoded

STEPS = 8
LIMIT = 64
"""The model's `original_max_position_embeddings`."""
LENGTHS = (5, 20, 55, 56, 57, 60, 63, 64, 65, 66, 90, 3)
"""Of prompts: those of 57 to 64 tokens become long while they are generated, and `56 + 8` does
not.
"""


def row(length: int, first: int = 0) -> Encoded:
    return encoded(
        [(7 * place + first) % 250 + 3 for place in range(length)],
        max_new_tokens=STEPS,
        stop=pg.StopOptions(ignore_eos=True),
    )


def ids(engine: HFEngine, rows: Sequence[Encoded]) -> list[tuple[int, ...]]:
    return [slot.unwrap().token_ids for slot in engine.generate(rows)]


def by_whole_passes(folder: Path, inputs: Encoded) -> tuple[int, ...]:
    """Greedy decoding by the plain model, which gets the whole sequence anew for each token, alone
    and without a cache.
    """
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    sequence = list(inputs.prompt.token_ids)
    with torch.no_grad():
        for _ in range(STEPS):
            sequence.append(
                int(model(torch.tensor([sequence]), use_cache=False).logits[0, -1].argmax())
            )
    return tuple(sequence[-STEPS:])


@pytest.mark.parametrize("family", VARIANTS)
def test_rows_of_all_lengths_ride_together_and_each_gives_what_the_plain_model_gives_it_alone(
    family: str, engine_of: Callable[[str], Any], folder_of: Callable[[str], Path]
) -> None:
    rows = [row(length, at) for at, length in enumerate(LENGTHS)]
    engine = engine_of(family)
    together = ids(engine, rows)
    assert together == [ids(engine, [one])[0] for one in rows]
    assert together == [by_whole_passes(folder_of(family), one) for one in rows]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_that_become_long_wait_for_a_place_like_others(
    size: int, engine_of: Callable[[str], Any], folder_of: Callable[[str], Path]
) -> None:
    rows = [row(length, at) for at, length in enumerate(LENGTHS)]
    narrow = HFEngine(
        ModelLoadConfig(model=str(folder_of("phi3_longrope")), dtype="float32", batch_size=size)
    )
    assert ids(narrow, rows) == ids(engine_of("phi3_longrope"), rows)


def test_a_row_is_read_again_once_when_it_becomes_long(folder_of: Callable[[str], Path]) -> None:
    engine = HFEngine(ModelLoadConfig(model=str(folder_of("phi3_longrope")), dtype="float32"))
    engine.generate([row(60), row(20, 1), row(70, 2)])
    assert engine.work.prompt_tokens == 60 + 20 + 70 + (LIMIT + 1)


def test_rows_that_cannot_leave_are_read_again_together(
    folder_of: Callable[[str], Path],
    engine_of: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [row(62), row(62, 1), row(61, 2), row(30, 3)]
    wanted = ids(engine_of("phi3_longrope"), rows)
    monkeypatch.setattr(batches, "can_drop_rows", lambda name, state, rope: False)
    fixed = HFEngine(ModelLoadConfig(model=str(folder_of("phi3_longrope")), dtype="float32"))
    assert ids(fixed, rows) == wanted


def test_a_model_whose_rotary_module_cannot_be_asked_row_by_row_is_refused() -> None:
    class OddRotary(torch.nn.Module):
        def forward(self, x: torch.Tensor, seq_len: int) -> torch.Tensor:
            return x * seq_len

    for model in (torch.nn.Sequential(OddRotary()), torch.nn.Linear(2, 2)):
        with pytest.raises(ValueError, match=r"other rotary factors \(LongRoPE\) after 64 tokens"):
            use_own_factors(model, LIMIT)


def test_only_the_modules_that_say_so_are_asked_row_by_row() -> None:
    class OfImages(torch.nn.Module):
        def forward(self, seq_len: int) -> int:
            return seq_len

    class OfText(torch.nn.Module):
        rope_type = "longrope"

        def forward(
            self, x: torch.Tensor, position_ids: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            longest = position_ids.max().expand(position_ids.shape)
            return longest, longest

    images, text = type("ImageRotary", (OfImages,), {})(), type("TextRotary", (OfText,), {})()
    use_own_factors(torch.nn.ModuleList([images, text]), 3)
    assert images.forward(7) == 7
    positions = torch.tensor([[0, 9], [0, 1], [5, 7], [2, 2]])
    longest, _ = text.forward(torch.zeros(1), positions)
    assert longest[:, 0].tolist() == [9, 2, 9, 2]


def test_steps_whose_factors_depend_on_the_length_are_not_compiled(
    engine_of: Callable[[str], Any],
) -> None:
    with pytest.raises(InvalidField, match=r"depend on the length \(LongRoPE\)"):
        check_compilable(engine_of("phi3_longrope").computing.loaded())


def test_capped_attention_scores_take_an_attention_that_caps_them(
    engine_of: Callable[[str], Any], folder_of: Callable[[str], Path]
) -> None:
    assert engine_of("gemma2").computing.loaded().config._attn_implementation == "eager"
    with pytest.raises(
        CallFailed,
        match="'sdpa' ignores the attn_logit_softcapping of gemma2; leave it out, or take 'eager'",
    ):
        HFEngine(
            ModelLoadConfig(model=str(folder_of("gemma2")), attn_implementation="sdpa")
        ).generate([row(3)])
    flex = HFEngine(ModelLoadConfig(model=str(folder_of("gemma2")), attn_implementation="eager"))
    assert ids(flex, [row(9)]) == ids(engine_of("gemma2"), [row(9)])


def test_only_the_capped_part_of_a_model_takes_it() -> None:
    from transformers import Gemma2Config, PaliGemmaConfig

    require_iterable: Any = PaliGemmaConfig(
        text_config={"model_type": "gemma2"}, vision_config={"model_type": "siglip_vision_model"}
    )
    assert fitting_attention(require_iterable, None) == {"text_config": "eager"}
    assert fitting_attention(require_iterable, "flex_attention") == "flex_attention"
    plain: Any = Gemma2Config(attn_logit_softcapping=None)
    assert (fitting_attention(plain, None), fitting_attention(plain, "sdpa")) == (None, "sdpa")
