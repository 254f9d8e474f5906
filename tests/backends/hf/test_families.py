"""Small models of many families: the rows of one call get the greedy ids that transformers' plain
forward gives each row alone, or pipegen says why not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

pytest.importorskip("torch")

import torch
import transformers
from support.families import compared, outcome_of
from support.small_families import family_names, is_known, model_of

SHORT = (6, 3, 6, 2, 4, 6)
COMMON = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma2"),
    *("gemma3_text", "phi3", "gpt2", "gpt_oss", "olmo2", "falcon", "bloom", "mamba", "granite"),
    *("starcoder2", "glm4", "cohere2", "deepseek_v3", "llama4_text"),
)
RARE = (
    *("axk2", "blt", "cwm", "dbrx", "deepseek_v32", "deepseek_v4", "dots3_note", "exaone4_5"),
    *("glm_moe_dsa", "hy_v4", "hy_v4_vl", "hyperclovax_vision_v2", "inkling2", "jamba"),
    *("kimi_linear", "minicpm_ocr", "minimax", "minimax_m3_vl", "mistral_large4", "molmo2"),
    *("muse_spark", "recurrent_gemma", "rwkv", "t5gemma2", "unlimited_ocr"),
)
ENCODERS = ("bert", "roberta", "electra", "diffusion_gemma")
REFUSED = {
    "blt": "cannot be run",
    "t5gemma2": "is an encoder-decoder",
    **dict.fromkeys(ENCODERS, "is no causal model"),
}
"""Families that do not load, and what the message says."""
AS_GENERATE = ("doge", "moshi", "unlimited_ocr")
"""Families whose own `generate` differs from their plain forward, in rows beyond a length."""
OPEN: Mapping[str, str] = {
    "moss_transcribe_diarize": "a row that joins others has a gap between its positions",
    "reformer": "hashes at random",
    **dict.fromkeys(
        ("blip", "blip-2", "idefics", "instructblip", "instructblipvideo", "kosmos-2"),
        "wants an image with every prompt, and raises",
    ),
    "gemma4_assistant": "drafts for another model, and raises",
    "gemma4_unified_assistant": "drafts for another model, and raises",
    "llama4": "its class for images raises in transformers 5.24",
    "pi0": "moves robots, and raises",
}
"""Families that are neither right nor refused."""


@pytest.fixture(autouse=True)
def one_seed() -> Iterator[None]:
    """Models are made with a seed; other tests see none of it."""
    with torch.random.fork_rng():
        yield


def expected(family: str) -> str:
    if family in REFUSED:
        return "refused"
    return "as generate" if family in AS_GENERATE else "equal"


@pytest.mark.parametrize("family", [*COMMON, *RARE, *ENCODERS])
def test_rows_of_one_call_are_those_of_the_plain_forward(family: str) -> None:
    if not is_known(family):
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    outcome = outcome_of(family, (12, 12, 12, 2, 4, 6) if family in AS_GENERATE else SHORT)
    assert (outcome.result, REFUSED.get(family, "") in outcome.why) == (expected(family), True), (
        outcome
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", family_names())
def test_every_family_is_right_or_refused(family: str) -> None:
    outcome = outcome_of(family)
    if outcome.result == "not made":
        pytest.skip(outcome.why)
    if family in OPEN and outcome.result not in ("equal", "refused"):
        pytest.xfail(f"{OPEN[family]}: {outcome.why}")
    right = ("as generate",) if family in AS_GENERATE else ("equal", "refused")
    assert outcome.result in right, outcome


@pytest.mark.parametrize(
    ("family", "result"),
    [("bart", "equal one by one"), ("roberta+decoder", "as generate"), ("bert", "wrong")],
)
def test_what_would_be_wrong_without_the_check_shows(family: str, result: str) -> None:
    assert compared(model_of(family), self_check=False).result == result
