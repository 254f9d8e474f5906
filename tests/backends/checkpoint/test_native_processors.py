"""Processors with sizes of their own: what they write for an image is read off, or refused with the
reason.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models import write_model
from support.served import route_to

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.image_processors import SIZES, Expansions, expand, native_inputs
from pipegen.core.errors import ContractError, UnsupportedMultimodal
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import PreparedImage
from pipegen.testing.image_files import image_file
from pipegen.testing.toy import ToyTokenizer

pytest.importorskip("torch")

IMAGE = PreparedImage(width=48, height=32, rgb=bytes(48 * 32 * 3), digest="d")
TOKENIZER = ToyTokenizer()
MARK = "<|image_pad|>"
MARK_ID = TOKENIZER.control_tokens[MARK]


class Framing:
    """A processor that writes a frame, as Gemma 3's does, in the toy tokenizer's words."""

    image_token: Any = MARK
    written = f"\n<|im_start|>{MARK * 3}<|im_end|>\n"
    beside = ""

    class image_processor:
        model_input_names = ("pixel_values",)

    def __call__(self, text: list[str], images: list[Any], **_: Any) -> dict[str, Any]:
        ids = [TOKENIZER.encode(one.replace(MARK, self.written) + self.beside) for one in text]
        offsets = [[{"replacement": self.written} for _ in range(one.count(MARK))] for one in text]
        marks = [[int(number == MARK_ID) for number in row] for row in ids]
        return {
            "input_ids": ids,
            "text_replacement_offsets": offsets,
            "pixel_values": len(images),
            "token_type_ids": marks,
        }


def refusal(processor: Any, token_id: int | None = MARK_ID) -> str:
    error = expand(processor, IMAGE, TOKENIZER, token_id).failure()
    assert isinstance(error, UnsupportedMultimodal)
    return error.message


def test_what_a_processor_writes_is_read_off() -> None:
    made = expand(Framing(), IMAGE, TOKENIZER, MARK_ID).unwrap()
    assert (made.tokens, made.expansion) == (3, Framing.written)


def test_copies_of_the_placeholder_need_no_expansion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Framing, "written", MARK * 5)
    made = expand(Framing(), IMAGE, TOKENIZER, MARK_ID).unwrap()
    assert (made.tokens, made.expansion) == (5, None)


def test_a_processor_is_asked_once_for_each_size_of_an_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, plain = list[tuple[int, int]](), Framing.__call__

    def call(self: Any, text: Any, images: Any, **more: Any) -> Any:
        asked.append(images[0].size)
        return plain(self, text, images, **more)

    monkeypatch.setattr(Framing, "__call__", call)
    expansions, sized = (
        Expansions(Framing(), TOKENIZER, MARK_ID),
        [dataclasses.replace(IMAGE, width=width, rgb=bytes(width * 32 * 3)) for width in (48, 32)],
    )
    for image in [*sized, *sized]:
        assert expansions(
            dataclasses.replace(image, digest="another")
        ).unwrap() == dataclasses.replace(
            expand(Framing(), image, TOKENIZER, MARK_ID).unwrap(), digest="another"
        )
    assert asked == [
        (48, 32),
        (48, 32),
        (32, 32),
        (32, 32),
        (48, 32),
        (32, 32),
    ], "once for each size, beside the four of this test"
    for width in range(1, SIZES + 10):
        expansions(dataclasses.replace(IMAGE, width=width, height=1, rgb=bytes(width * 3)))
    assert len(expansions._known) <= SIZES


def test_a_refusal_is_no_answer_to_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    expansions = Expansions(Framing(), TOKENIZER, MARK_ID)
    with monkeypatch.context() as patch:
        patch.setattr(Framing, "beside", "!")
        assert isinstance(expansions(IMAGE).failure(), UnsupportedMultimodal)
    assert expansions(IMAGE).unwrap().tokens == 3


def test_a_processor_that_writes_something_else_the_second_time_is_a_broken_contract(
    gemma: Path,
) -> None:
    checkpoint = Checkpoint(ModelLoadConfig(model=str(gemma)))
    image = checkpoint.prepare_image(SOURCE, VlmPreprocessOptions(), 0).unwrap()
    with pytest.raises(
        ContractError, match="writes 8 image tokens for images that were prepared with 7"
    ):
        checkpoint.image_inputs([image, dataclasses.replace(image, tokens=3)])


@pytest.mark.parametrize(
    "raised",
    [
        *(NotImplementedError, KeyError, TypeError, ValueError, ZeroDivisionError),
        *(AttributeError, ImportError),
    ],
)
def test_a_processor_that_cannot_tell_is_refused(
    raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise raised("too thin")

    monkeypatch.setattr(Framing, "__call__", fail)
    assert "does not tell what it writes for an image of 48x32 pixels" in refusal(Framing())
    assert "too thin" in refusal(Framing())


@pytest.mark.parametrize(
    "raised", [IndexError, OverflowError, RecursionError, RuntimeError, AssertionError]
)
def test_what_no_processor_is_known_to_raise_comes_through(
    raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise raised("a bug")

    monkeypatch.setattr(Framing, "__call__", fail)
    with pytest.raises(raised, match="a bug"):
        expand(Framing(), IMAGE, TOKENIZER, MARK_ID)


@pytest.mark.parametrize("name", ["as_pil", "_written", "_refusal"])
def test_a_bug_of_ones_own_around_the_call_is_no_reason_to_refuse_an_image(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(f"pipegen.backends.checkpoint.image_processors.{name}", bug)
    with pytest.raises(KeyError, match="a bug"):
        expand(Framing(), IMAGE, TOKENIZER, MARK_ID)


@pytest.mark.parametrize(
    "lost",
    [{"text_replacement_offsets": None}, {"text_replacement_offsets": [[]]}, {"input_ids": None}],
)
def test_a_processor_that_does_not_say_what_it_replaced_is_refused(
    lost: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Framing.__call__
    monkeypatch.setattr(Framing, "__call__", lambda self, **asked: plain(self, **asked) | lost)
    assert "it does not say what it replaced" in refusal(Framing())


def test_a_processor_without_a_placeholder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no control token that stands for an image" in refusal(object())
    monkeypatch.setattr(Framing, "image_token", "<other>")
    assert "no control token that stands for an image in a prompt ('<other>')" in refusal(Framing())


def test_a_processor_that_changes_the_rest_of_the_prompt_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Framing, "beside", "\n")  # PaliGemma's ends the prompt with a line end
    assert "changes the text beside its images" in refusal(Framing())


def test_a_processor_that_writes_nothing_of_the_models_own_is_refused() -> None:
    assert "writes no token of the model's own" in refusal(
        Framing(), TOKENIZER.control_tokens["<think>"]
    )
    assert "writes no token of the model's own" in refusal(Framing(), None)


def test_inputs_that_depend_on_the_prompt_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Framing.__call__
    monkeypatch.setattr(
        Framing,
        "__call__",
        lambda self, **asked: plain(self, **asked) | {"cross_attention_mask": [[1]]},
    )
    assert "makes cross_attention_mask, which depends on the whole prompt" in refusal(Framing())


@pytest.mark.parametrize("mark", [2, "half"])
def test_marks_that_do_not_follow_from_the_token_are_refused(
    mark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Framing.__call__

    def odd(self: Any, **asked: Any) -> dict[str, Any]:
        made = plain(self, **asked)
        ids = made["input_ids"][0]
        return made | {
            "token_type_ids": [[mark if mark == 2 else int(at < 4) for at in range(len(ids))]]
        }

    monkeypatch.setattr(Framing, "__call__", odd)
    assert "marks the same token now as an image's and now not (token_type_ids)" in refusal(
        Framing()
    )


# Checkpoints.

SOURCE = ImageSource(data=image_file())


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gemma") / "model", "gemma3_vl")


def copied(
    folder: Path, into: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> Checkpoint:
    """The facts of a copy in which one of the files is changed."""
    shutil.copytree(
        folder, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors")
    )
    file = into / name
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    return Checkpoint(ModelLoadConfig(model=str(into)))


def test_the_places_are_the_processors_and_the_features_the_models(gemma: Path) -> None:
    checkpoint = Checkpoint(ModelLoadConfig(model=str(gemma)))
    assert checkpoint.image_placeholder == "<start_of_image>"
    image = checkpoint.prepare_image(SOURCE, VlmPreprocessOptions(), 0).unwrap()
    assert (image.width, image.height, image.grid, image.tokens) == (48, 32, None, 4)
    assert (
        image.expansion == "\n\n<start_of_image>" + "<image_soft_token>" * 4 + "<end_of_image>\n\n"
    )
    tensors, marked = native_inputs(checkpoint.processor, [image, image], checkpoint.image_token_id)
    assert tuple(tensors["pixel_values"].shape) == (2, 3, 32, 32)
    assert dict(marked) == {"token_type_ids": {checkpoint.image_token_id: 1}}


def test_a_processor_that_cannot_be_had_says_why_and_text_goes_on(
    gemma: Path, tmp_path: Path
) -> None:
    for at, (name, change, words) in enumerate(
        [
            (
                "processor_config.json",
                lambda said: {**said, "processor_class": "NoSuchProcessor"},
                "no processor for text and images of gemma3",
            ),
            (
                "preprocessor_config.json",
                lambda said: {**said, "image_processor_type": "Cohere2VisionImageProcessor"},
                "torchvision",
            ),
            (
                "tokenizer_config.json",
                lambda said: {**said, "extra_special_tokens": {}, "boi_token": None},
                "boi_token",
            ),
        ]
    ):
        checkpoint = copied(gemma, tmp_path / str(at), name, change)
        # the model's own, for want of the processor's
        assert checkpoint.image_placeholder == "<image_soft_token>"
        error = checkpoint.prepare_image(SOURCE, VlmPreprocessOptions(), 0).failure()
        assert isinstance(error, UnsupportedMultimodal)
        assert words in error.message


@pytest.mark.parametrize("name", ["_kind", "_named", "_for_images"])
def test_a_bug_of_ones_own_around_the_loading_comes_through(
    name: str, gemma: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: Any) -> Any:
        raise AttributeError("a bug")

    monkeypatch.setattr(f"pipegen.backends.checkpoint.image_processors.{name}", bug)
    with pytest.raises(AttributeError, match="a bug"):
        Checkpoint(ModelLoadConfig(model=str(gemma))).prepare_image(
            SOURCE, VlmPreprocessOptions(), 0
        )


def test_servers_leave_images_of_such_models_to_others(gemma: Path) -> None:
    pytest.importorskip("aiohttp")
    engine = route_to(None, model=Checkpoint(ModelLoadConfig(model=str(gemma)))).engine
    error = engine.prepare_image(SOURCE, VlmPreprocessOptions(), 0).failure()
    assert isinstance(error, UnsupportedMultimodal)
    assert error.message.startswith("vllm_server takes images of models that work on any size")


_PARTS = (
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}IMAGE"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "framed"),
    [
        (None, "<start_of_image>"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", "<start_of_image>"),
        (
            _PARTS.replace("IMAGE", "[<start_of_image>]"),
            "[<start_of_image>]",
        ),
        (
            _PARTS.replace("IMAGE", "{{ loop.index }}: <start_of_image>"),
            "<start_of_image>",
        ),
        ("{{ raise_exception('no parts') }}", "<start_of_image>"),
    ],
    ids=["none", "printed", "framed", "numbered", "raising"],
)
def test_the_frame_of_an_image_is_what_the_template_writes_around_it(
    template: str | None, framed: str, gemma: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.checkpoint.tokenizers import HFRenderer

    checkpoint = Checkpoint(ModelLoadConfig(model=str(gemma)))
    monkeypatch.setattr(
        type(checkpoint), "renderer", HFRenderer(checkpoint.tokenizer.raw, template)
    )
    assert checkpoint.framed_image_placeholder == framed


def test_the_embedded_model_frames_its_images() -> None:
    checkpoint = Checkpoint(ModelLoadConfig(model="embedded"))
    assert checkpoint.framed_image_placeholder == "<|vision_start|><|image_pad|><|vision_end|>"


def test_a_model_without_images_has_no_frame(tmp_path: Path) -> None:
    from support.models import write_model

    checkpoint = Checkpoint(ModelLoadConfig(model=str(write_model(tmp_path / "model"))))
    assert checkpoint.framed_image_placeholder is None
