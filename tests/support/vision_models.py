"""Tiny random models of the families whose processors tile, frame or squeeze images, with
processors, templates and tokens in the shape those families use.

`support.models.write_model` writes them like any other family.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from support.small_tokenizers import (
    added_tokens,
    chatml_tokenizer,
    instruct_tokenizer,
    turns_tokenizer,
)

__all__ = ["IMAGE_FAMILIES", "ImageFamily"]


def _hf() -> Any:
    """transformers; its own annotations are partial."""
    import transformers

    return transformers


def _template(
    before: str,
    after: str,
    image: str,
    answer: str,
    *,
    bos: bool = False,
    roles: str = "message.role",
    trim: bool = False,
) -> str:
    """A chat template that writes `image` for each image and the text parts as they are (or
    trimmed), between `before` and `after`.
    """
    text = "part.text | trim" if trim else "part.text"
    parts = f"{{{{- '{image}' if part.type == 'image' else {text} -}}}}"
    content = (
        "{%- if message.content is string -%}{{- message.content -}}{%- else -%}{%- for"
        f" part in message.content -%}}{parts}{{%- endfor -%}}"
    )
    turn = (
        f"{{{{- '{before}' | replace('ROLE', {roles}) -}}}}{content}{{%- endif -%}}{{{{- '{after}'"
        " -}}"
    )
    start = "{{- bos_token -}}" if bos else ""
    return (
        f"{start}{{%- for message in messages -%}}{turn}{{%- endfor -%}}{{%- if"
        f" add_generation_prompt -%}}{{{{- '{answer}' -}}}}{{%- endif -%}}"
    )


def _tokenizer(base: Any, template: str, special: tuple[str, ...], **named: str) -> Any:
    """A copy of a tokenizer with further special tokens, some of them known by name, and another
    template.
    """
    from tokenizers import Tokenizer

    rust = Tokenizer.from_str(base.backend_tokenizer.to_str())
    rust.add_special_tokens(added_tokens((*special, *named.values()), special=True))
    own = {
        name: getattr(base, name)
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if getattr(base, name) is not None
    }
    fast, inputs = _hf().PreTrainedTokenizerFast, ["input_ids", "attention_mask"]
    return fast(
        tokenizer_object=rust,
        chat_template=template,
        extra_special_tokens=named,
        model_input_names=inputs,
        **own,
    )


def _text(tokenizer: Any, model_type: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **more,
    }


_TOWER: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.2,
}
_PIXELS: Mapping[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


class ImageFamily(NamedTuple):
    """One family: its tokenizer, its model, and what stands in its preprocessor and processor
    files.
    """

    tokenizer: Any
    model: Callable[[], Any]
    image_processor: Mapping[str, Any]
    processor: Mapping[str, Any]

    def save(self, directory: Path) -> None:
        """Write the files of the processors beside the tokenizer's and the model's."""
        (directory / "preprocessor_config.json").write_text(
            json.dumps({**_PIXELS, **self.image_processor})
        )
        (directory / "processor_config.json").write_text(json.dumps(dict(self.processor)))


@functools.cache
def gemma3_vl() -> ImageFamily:
    """Each image a frame with blank lines around it; the template's mark is not the token that
    features take the place of.
    """
    template = _template(
        "<start_of_turn>ROLE\\n",
        "<end_of_turn>\\n",
        "<start_of_image>",
        "<start_of_turn>model\\n",
        trim=True,
    )
    named = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    tokenizer = _tokenizer(
        turns_tokenizer(), template, ("<start_of_turn>", "<end_of_turn>"), **named
    )
    ids = tokenizer.get_vocab()

    def model() -> Any:
        config = _hf().Gemma3Config(
            text_config=_text(
                tokenizer,
                "gemma3_text",
                tie_word_embeddings=False,
                sliding_window=8,
                layer_types=["sliding_attention", "full_attention"],
            ),
            vision_config={**_TOWER, "image_size": 32, "patch_size": 8},
            mm_tokens_per_image=4,
            boi_token_index=ids["<start_of_image>"],
            eoi_token_index=ids["<end_of_image>"],
            image_token_index=ids["<image_soft_token>"],
            initializer_range=0.2,
            tie_word_embeddings=False,  # tied ones would repeat the last token
        )
        made = _hf().Gemma3ForConditionalGeneration(config)
        # it begins as zeros, and would see nothing
        made.model.multi_modal_projector.mm_input_projection_weight.data.normal_(std=0.2)
        return made

    image = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 32, "width": 32}}
    return ImageFamily(
        tokenizer, model, image, {"processor_class": "Gemma3Processor", "image_seq_length": 4}
    )


@functools.cache
def llava() -> ImageFamily:
    """LLaVA 1.5: a square crop, and one token for each patch."""
    tokenizer = _tokenizer(
        instruct_tokenizer(),
        _template("ROLE: ", " ", "<image>\\n", "ASSISTANT:", roles="message.role | upper"),
        ("<image>",),
    )

    def model() -> Any:
        config = _hf().LlavaConfig(
            text_config=_text(tokenizer, "llama"),
            vision_config={
                **_TOWER,
                "model_type": "clip_vision_model",
                "image_size": 28,
                "patch_size": 14,
                "projection_dim": 32,
            },
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            image_seq_length=4,
        )
        return _hf().LlavaForConditionalGeneration(config)

    image = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
    }
    strategy = {
        "patch_size": 14,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
    return ImageFamily(
        tokenizer,
        model,
        image,
        {"processor_class": "LlavaProcessor", "image_token": "<image>", **strategy},
    )


@functools.cache
def llava_next() -> ImageFamily:
    """LLaVA-NeXT: the image and its tiles; how many tokens they take follows from the shape."""
    tokenizer = _tokenizer(
        instruct_tokenizer(), _template("[INST] ", " [/INST]", "<image>\\n", ""), ("<image>",)
    )
    pinpoints = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]

    def model() -> Any:
        config = _hf().LlavaNextConfig(
            text_config=_text(tokenizer, "mistral", sliding_window=None),
            vision_config={
                **_TOWER,
                "model_type": "clip_vision_model",
                "image_size": 28,
                "patch_size": 14,
                "projection_dim": 32,
            },
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            image_grid_pinpoints=pinpoints,
            image_seq_length=4,
        )
        return _hf().LlavaNextForConditionalGeneration(config)

    image = {
        "image_processor_type": "LlavaNextImageProcessor",
        "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
        "image_grid_pinpoints": pinpoints,
    }
    strategy = {
        "patch_size": 14,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
    return ImageFamily(
        tokenizer,
        model,
        image,
        {"processor_class": "LlavaNextProcessor", "image_token": "<image>", **strategy},
    )


def _idefics(kind: str, processor: str, named: Mapping[str, str]) -> ImageFamily:
    tiles = tuple(f"<row_{row + 1}_col_{column + 1}>" for row in range(6) for column in range(6))
    special = (
        "<fake_token_around_image>",
        "<image>",
        "<end_of_utterance>",
        "<global-img>",
        "<|im_start|>",
        *tiles,
    )
    template = _template(
        "<|im_start|>ROLE:",
        "<end_of_utterance>\\n",
        "<image>",
        "Assistant:",
        roles="message.role | capitalize",
    )
    tokenizer = _tokenizer(chatml_tokenizer(), template, special, **named)

    def model() -> Any:
        config = getattr(_hf(), f"{kind}Config")(
            text_config=_text(tokenizer, "llama"),
            vision_config={**_TOWER, "image_size": 32, "patch_size": 8},
            image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
            scale_factor=2,
            pad_token_id=tokenizer.pad_token_id,
        )
        return getattr(_hf(), f"{kind}ForConditionalGeneration")(config)

    image = {
        "image_processor_type": f"{kind}ImageProcessor",
        "size": {"longest_edge": 96},
        "max_image_size": {"longest_edge": 32},
    }
    return ImageFamily(tokenizer, model, image, {"processor_class": processor, "image_seq_len": 4})


@functools.cache
def idefics3() -> ImageFamily:
    """Tiles with marks for their row and column, line ends, and the whole image last."""
    return _idefics("Idefics3", "Idefics3Processor", {})


@functools.cache
def smolvlm() -> ImageFamily:
    """As Idefics3; its processor also wants a part for videos, and the package num2words."""
    return _idefics(
        "SmolVLM",
        "SmolVLMProcessor",
        {"fake_image_token": "<fake_token_around_image>", "image_token": "<image>"},
    )


@functools.cache
def internvl() -> ImageFamily:
    """Tiles in one frame; its processor also wants a part for videos."""
    template = _template(
        "<|im_start|>ROLE\\n", "<|im_end|>\\n", "<IMG_CONTEXT>\\n", "<|im_start|>assistant\\n"
    )
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    tokenizer = _tokenizer(chatml_tokenizer(), template, (), **named)

    def model() -> Any:
        config = _hf().InternVLConfig(
            text_config=_text(tokenizer, "qwen2"),
            vision_config={**_TOWER, "image_size": [16, 16], "patch_size": [4, 4]},
            image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
            image_seq_length=4,
        )
        return _hf().InternVLForConditionalGeneration(config)

    image = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": 16, "width": 16},
        "crop_to_patches": True,
        "max_patches": 4,
    }
    return ImageFamily(
        tokenizer, model, image, {"processor_class": "InternVLProcessor", "image_seq_length": 4}
    )


@functools.cache
def mistral3() -> ImageFamily:
    """Any size up to a longest edge; rows of tokens with a break after each, and an end mark for
    the last.
    """
    named = {
        "image_token": "[IMG]",
        "image_break_token": "[IMG_BREAK]",
        "image_end_token": "[IMG_END]",
    }
    tokenizer = _tokenizer(
        instruct_tokenizer(), _template("[INST]", "[/INST]", "[IMG]", "", bos=True), (), **named
    )

    def model() -> Any:
        config = _hf().Mistral3Config(
            text_config=_text(tokenizer, "mistral", sliding_window=None),
            vision_config={
                **_TOWER,
                "model_type": "pixtral",
                "image_size": 64,
                "patch_size": 8,
                "head_dim": 16,
            },
            image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
            spatial_merge_size=2,
        )
        return _hf().Mistral3ForConditionalGeneration(config)

    image = {
        "image_processor_type": "PixtralImageProcessor",
        "size": {"longest_edge": 64},
        "patch_size": {"height": 8, "width": 8},
    }
    return ImageFamily(
        tokenizer,
        model,
        image,
        {"processor_class": "PixtralProcessor", "patch_size": 8, "spatial_merge_size": 2},
    )


IMAGE_FAMILIES: Mapping[str, Callable[[], ImageFamily]] = {
    "gemma3_vl": gemma3_vl,
    "llava": llava,
    "llava_next": llava_next,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "internvl": internvl,
    "mistral3": mistral3,
}
"""Families whose processors have sizes of their own."""
