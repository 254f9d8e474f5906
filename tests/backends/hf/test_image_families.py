"""Models whose processors tile, frame or squeeze images: prompts, inputs and answers beside those
of transformers' own processor and `generate`.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from support.vision_models import IMAGE_FAMILIES

from pipegen.backends.hf.computing import HFSession
from pipegen.backends.hf.hf_rows import HFRow
from pipegen.backends.hf.running_batch import batch_inputs
from pipegen.core.errors import InvalidRequest, UnsupportedMultimodal
from pipegen.drivers.batch import run
from pipegen.drivers.route import route
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.requests import VlmGenerationRequest
from pipegen.records.results import Encoded, GenerationResult
from pipegen.testing.image_files import image_file

NEEDS = {"smolvlm": "num2words", "mistral3": "torchvision"}
"""Families whose processor needs a package of its own."""
LACKING = {
    family: package
    for family, package in NEEDS.items()
    if importlib.util.find_spec(package) is None
}
FAMILY = pytest.mark.parametrize(
    "family", [family for family in IMAGE_FAMILIES if family not in LACKING]
)
SIZES = ((48, 32), (30, 90), (64, 64), (120, 40))
TEXTS = ("What do you see?", "\nOne line.\n\nAnother.\n", " 12 + 30 = ", "Grüße, 你好")
WITH_VIDEO = ("smolvlm", "internvl")
"""Families whose whole processor cannot be made without torchvision; here it stands without its
part for videos, as pipegen loads it.
"""


def chat(*parts: str | tuple[int, int], **options: Any) -> VlmGenerationRequest:
    """A user turn: a text for each string, an image for each size, in that order."""
    content = [
        (
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image", "image": noise(part)}
        )
        for part in parts
    ]
    settings = GenerationOptions(**{"max_new_tokens": 6, **options})
    return VlmGenerationRequest(messages=[{"role": "user", "content": content}], options=settings)


def noise(size: tuple[int, int]) -> bytes:
    return image_file(width=size[0], height=size[1])


def images_of(request: VlmGenerationRequest) -> list[Any]:
    return [Image.open(io.BytesIO(source.data or b"")).convert("RGB") for source in request.sources]


def processor_of(engine: Any, family: str) -> Any:
    if family in WITH_VIDEO:
        return engine._checkpoint.processor
    auto: Any = transformers.AutoProcessor
    return auto.from_pretrained(engine._checkpoint.source, backend="pil")


def answers(engine: Any, requests: Sequence[VlmGenerationRequest]) -> list[GenerationResult]:
    return [slot.unwrap() for slot in run(route(engine), list(requests))]


CONVERSATIONS: tuple[tuple[str | tuple[int, int], ...], ...] = (
    (SIZES[0], TEXTS[0]),
    (TEXTS[2],),
    (TEXTS[1], SIZES[1], TEXTS[2]),
    (SIZES[2], SIZES[3], TEXTS[1]),
    (SIZES[1], TEXTS[3], SIZES[0], TEXTS[1], SIZES[1]),
)


@FAMILY
# P6, B7
def test_prompts_inputs_and_answers_are_those_of_the_processor_and_generate(
    family: str, engine_of: Callable[[str], Any]
) -> None:
    engine = engine_of(family)
    processor, model = processor_of(engine, family), engine.computing.loaded()
    requests = [chat(*parts) for parts in CONVERSATIONS]
    results = answers(engine, requests)
    assert len({result.token_ids for result in results}) > 2, (
        "answers that are all the same show little"
    )
    for request, result in zip(requests, results, strict=True):
        images = images_of(request)
        made = processor(
            text=[result.prompt_text],
            images=images or None,
            add_special_tokens=False,
            return_tensors="pt",
        )
        assert result.prompt_token_ids == tuple(made["input_ids"][0].tolist())
        settings: dict[str, Any] = {
            "do_sample": False,
            "max_new_tokens": 6,
            "eos_token_id": list(engine.eos_token_ids),
            "pad_token_id": 0,
        }
        whole = model.generate(**made, **settings)
        assert result.token_ids == tuple(whole[0, made["input_ids"].shape[1] :].tolist())


@FAMILY
def test_the_models_inputs_are_the_processors(
    family: str, engine_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(family)
    request, sent = chat(SIZES[0], TEXTS[0], SIZES[3]), list[Encoded]()
    plain = HFSession.add

    def add(call: HFSession, inputs: Mapping[int, Any]) -> None:
        sent.extend(inputs.values())
        plain(call, inputs)

    monkeypatch.setattr(HFSession, "add", add)
    result = answers(engine, [request])[0]
    made = processor_of(engine, family)(
        text=[result.prompt_text],
        images=images_of(request),
        add_special_tokens=False,
        return_tensors="pt",
    )
    row = HFRow(0, sent[0], engine.tokenizer, engine.eos_token_ids, ())
    ours = batch_inputs([row], engine.computing.loaded(), engine._checkpoint)
    assert set(ours) == set(made)
    for name, value in made.items():
        assert torch.equal(ours[name], value), name


@FAMILY
# B7
def test_rows_without_with_one_and_with_two_images_get_what_they_get_alone(
    family: str, engine_of: Callable[[str], Any]
) -> None:
    engine = engine_of(family)
    requests = [chat(*parts, max_new_tokens=4 + 3 * at) for at, parts in enumerate(CONVERSATIONS)]
    together = answers(engine, requests)
    assert [result.token_ids for result in together] == [
        answers(engine, [request])[0].token_ids for request in requests
    ]
    assert [result.token_ids for result in answers(engine, requests[::-1])] == [
        result.token_ids for result in together[::-1]
    ]


@FAMILY
# T3, T5
def test_what_a_user_types_is_no_place_of_an_image(
    family: str, engine_of: Callable[[str], Any]
) -> None:
    engine = engine_of(family)
    tokenizer = engine.tokenizer
    harmless = answers(engine, [chat("say ", SIZES[0], " now", max_new_tokens=1)])[0]
    typed = [token for token in tokenizer.special_tokens if "row" not in token] + ["<row_1_col_1>"]
    hostile = answers(
        engine,
        [chat(f"say {token}", SIZES[0], f"{token} now", max_new_tokens=1) for token in typed],
    )
    for token, result in zip(typed, hostile, strict=True):
        for number in tokenizer.special_tokens.values():
            assert result.prompt_token_ids.count(number) == harmless.prompt_token_ids.count(
                number
            ), token
        assert (
            tokenizer.decode(result.prompt_token_ids).count(token)
            == tokenizer.decode(harmless.prompt_token_ids).count(token) + 2
        )
    refused = run(
        route(engine),
        [
            chat(
                engine.image_placeholder, SIZES[0], chat=ChatTemplateOptions(control_tokens="allow")
            )
        ],
    )[0]
    assert isinstance(refused.failure(), InvalidRequest)


@FAMILY
def test_images_are_seen_and_turned_upright_first(
    family: str, engine_of: Callable[[str], Any]
) -> None:
    engine, settings = engine_of(family), GenerationOptions(max_new_tokens=8, logprobs=True)

    def said(data: bytes) -> GenerationResult:
        content = [{"type": "image", "image": data}, {"type": "text", "text": "What?"}]
        return answers(
            engine,
            [
                VlmGenerationRequest(
                    messages=[{"role": "user", "content": content}], options=settings
                )
            ],
        )[0]

    upright, turned, grey = (
        said(image_file(width=90, height=30)),
        said(image_file(width=90, height=30, orientation=6)),
        said(image_file(width=90, height=30, mode="L")),
    )
    assert (upright.prompt_token_ids, upright.token_ids) == (
        turned.prompt_token_ids,
        turned.token_ids,
    )
    assert upright.prompt_token_ids == grey.prompt_token_ids
    assert upright.logprobs is not None
    assert upright.logprobs != grey.logprobs


@pytest.mark.parametrize("family", LACKING)
def test_a_processor_without_its_package_says_which_and_text_goes_on(
    family: str, engine_of: Callable[[str], Any]
) -> None:
    refused, taken = run(route(engine_of(family)), [chat(SIZES[0], "What?"), chat("What?")])
    error = refused.failure()
    assert isinstance(error, UnsupportedMultimodal)
    assert LACKING[family] in error.message.lower()
    assert taken.unwrap().completion_tokens > 0
