"""Small models of many families: the rows of one call get the greedy ids that transformers' plain
forward gives each row alone, or pipegen says why not.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import pytest

pytest.importorskip("torch")

import torch
import transformers
from PIL import Image
from support.families import compared, outcome_of
from support.small_families import family_names, is_known, model_of, tokenizer_of

import pipegen as pg
from pipegen.backends.checkpoint.image_processors import IMAGE_MARKS, _for_images
from pipegen.testing.image_files import image_file

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
OPEN = {"reformer": "hashes at random"}
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


class WithImages(NamedTuple):
    """A family's processor: what stands for an image in a prompt, the setting of the model that has
    its id, other special tokens by id, and the settings of its parts.
    """

    token: str
    name: str
    others: Mapping[int, str]
    image_processor: Mapping[str, Any]
    processor: Mapping[str, Any]


_AREAS = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
IMAGES: Mapping[str, WithImages] = {
    "hy_v4_vl": WithImages(
        *("<|image_pad|>", "image_token_id", {15: "<|video_pad|>"}),
        *({"size": _AREAS, "patch_size": 8}, {}),
    ),
    "dots3_note": WithImages(
        *("<|imgpad|>", "image_token_id", {14: "<|video_pad|>", 15: "<|audio_comp_pad|>"}),
        *({"size": _AREAS, "patch_size": 8, "temporal_patch_size": 1}, {}),
    ),
    "mistral_large4": WithImages(
        *("[IMG]", "image_token_id", {14: "[IMG_BREAK]", 15: "[IMG_END]"}),
        {"size": {"longest_edge": 64}, "patch_size": {"height": 8, "width": 8}},
        {"patch_size": 8, "spatial_merge_size": 2},
    ),
}
"""Families with images that are not in `test_image_families.py`."""
TEMPLATE = """
{%- for message in messages -%}
    {%- for part in message.content -%}
        {{- 'IMAGE' if part.type == 'image' else part.text -}}
    {%- endfor -%}
{%- endfor -%}
"""


def processor_of(family: str, config: Any) -> Any:
    """The family's processor on Pillow, without its parts for videos and sound."""
    made, hf = IMAGES[family], cast("Any", transformers)
    special = {**made.others, getattr(config, made.name): made.token}
    template = TEMPLATE.replace("IMAGE", made.token)
    tokenizer = tokenizer_of(
        special, chat_template=template, extra_special_tokens={"image_token": made.token}
    )
    kind = getattr(hf, hf.models.auto.processing_auto.PROCESSOR_MAPPING_NAMES[family])
    name = hf.models.auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES[family]["pil"]
    image_processor = getattr(hf, name)(**made.image_processor)
    return _for_images(kind)(
        image_processor=image_processor,
        tokenizer=tokenizer,
        chat_template=template,
        **made.processor,
    )


@pytest.mark.parametrize("family", IMAGES)
def test_rows_with_images_are_those_of_the_plain_forward(family: str) -> None:
    if not is_known(family):
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    if family == "mistral_large4" and importlib.util.find_spec("torchvision") is None:
        pytest.skip("its processor needs torchvision")
    model = model_of(family)
    processor = processor_of(family, model.config)
    image = {"type": "image", "image": image_file(width=48, height=32)}
    contents: list[list[dict[str, Any]]] = [
        [image, {"type": "text", "text": " w20 w21 w22"}],
        [{"type": "text", "text": "w30 w31 w32 w33 w34 w35"}],
        [image, {"type": "text", "text": " w40 "}, image, {"type": "text", "text": " w50"}],
    ]
    requests: Any = [{"messages": [{"role": "user", "content": parts}]} for parts in contents]
    route = pg.backends.hf(model, tokenizer=processor.tokenizer, processor=processor)
    options = {"max_new_tokens": 4, "ignore_eos": True}
    for slot, parts in zip(pg.run(route, requests, options), contents, strict=True):
        result = slot.unwrap()
        images = [Image.open(io.BytesIO(part["image"])) for part in parts if part is image]
        inputs = processor(
            text=[result.prompt_text],
            images=images or None,
            add_special_tokens=False,
            return_tensors="pt",
        )
        assert tuple(inputs["input_ids"][0].tolist()) == result.prompt_token_ids
        for token in result.token_ids:
            takes = inspect.signature(model.forward).parameters
            with torch.no_grad():
                given = {name: value for name, value in inputs.items() if name in takes}
                logits = model(**given, use_cache=False).logits[0, -1]
            assert int(logits.argmax()) == token
            for name, new in (("input_ids", token), ("attention_mask", 1), *MARKS):
                if name in inputs:
                    inputs[name] = torch.cat([inputs[name], torch.tensor([[new]])], dim=-1)


MARKS = tuple((name, 0) for name in IMAGE_MARKS)
