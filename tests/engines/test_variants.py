"""Models whose text depends on their settings: HF and vLLM give the same, or vLLM refuses the row
by name; and its first call answers as its second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.models import VARIANTS

import pipegen as pg

LENGTHS = (5, 20, 56, 57, 60, 64, 65, 66, 90, 110, 124, 130, 200, 300, 508)
"""Of prompts; the models' settings change at 64 (`phi3_longrope`) and 128 tokens (`llama_*`)."""
STEPS = 8
REFUSED: dict[str, Any] = {
    # vLLM's own limit is that of the short factors
    "phi3_longrope": (pg.PromptTooLong, lambda length: 64 < length + STEPS <= 512),
    "phi3_longrope, long": (pg.UnsupportedOption, lambda length: length <= 65),
}
"""Rows that vLLM refuses and HF does not."""
LONG = {"phi3_longrope, long": {"max_model_len": 512}}


def requests() -> list[pg.TextGenerationRequest]:
    options = pg.GenerationOptions(
        max_new_tokens=STEPS, logprobs=True, stop=pg.StopOptions(ignore_eos=True)
    )
    return [
        pg.TextGenerationRequest(
            prompt_token_ids=tuple((7 * place + length) % 250 + 3 for place in range(length)),
            options=options,
        )
        for length in LENGTHS
    ]


@pytest.mark.parametrize("case", [*VARIANTS, *LONG])
def test_both_engines_give_the_same_or_vllm_refuses_by_name(
    case: str, vllm_of: Callable[..., Any], model_of: Callable[..., str]
) -> None:
    family = case.partition(",")[0]
    with pg.backends.hf(model_of(family)) as safe:
        wanted = pg.run(safe, requests())
        dtype = safe.engine.dtype  # type: ignore[attr-defined]
    with vllm_of(family, dtype="auto", **LONG.get(case, {})) as fast:
        before = fast.engine.capabilities
        first, second = pg.run(fast, requests()), pg.run(fast, requests())
        assert fast.engine.capabilities == before
        assert str(fast.engine._core.model_config().dtype) == f"torch.{dtype}" == "torch.float32"
    assert [_outcome(slot) for slot in first] == [_outcome(slot) for slot in second]
    kind, refuses = REFUSED.get(case, (None, lambda length: False))
    for length, one, other in zip(LENGTHS, wanted, first, strict=True):
        if refuses(length):
            assert (length, pg.is_ok(one), type(other.failure())) == (length, True, kind)
        else:
            assert (length, _outcome(other)) == (length, _outcome(one))
            if pg.is_ok(one):
                assert other.unwrap().margin == pytest.approx(one.unwrap().margin, abs=1e-3)


def _outcome(slot: Any) -> Any:
    return slot.unwrap().token_ids if pg.is_ok(slot) else type(slot.failure())


def test_clipping_to_a_limit_of_the_short_factors_is_done_before_the_first_call(
    vllm_of: Callable[..., Any],
) -> None:
    options = pg.GenerationOptions(
        max_new_tokens=200, on_overflow="clip", stop=pg.StopOptions(ignore_eos=True)
    )
    with vllm_of("phi3_longrope") as fast:
        result = pg.run(
            fast, [pg.TextGenerationRequest(prompt_token_ids=(5,) * 40, options=options)]
        )[0].unwrap()
    seen = (result.completion_tokens, result.clipped_from, result.finish.value)
    assert seen == (24, 200, "length")
