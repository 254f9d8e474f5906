"""Greedy answers of a folder, with plain transformers: what the figures in the model card are
measured with.

Needs no torchvision: the image processor runs on PIL, and the placeholders are expanded here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from PIL.Image import Image
    from training.scenes import Scene


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One question to the model. `scene` is what a `detect` answer is measured against."""

    group: str
    messages: list[dict[str, Any]]
    wanted: str
    images: tuple[Image, ...] = ()
    scene: Scene | None = None
    thinking: bool = False
    tools: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said, and how clearly: logits between the first and the second token, at every
    step.
    """

    text: str
    ended: bool
    margins: tuple[float, ...]


class Embedded:
    """The model with its tokenizer and image processor; needs no torchvision."""

    def __init__(self, directory: Path):
        from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

        image_processors: Any = AutoImageProcessor
        self.model: Any = AutoModelForImageTextToText.from_pretrained(
            directory, dtype=torch.float32
        )
        self.model.train(False)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self.image_processor = image_processors.from_pretrained(directory, backend="pil")

    def inputs(self, cases: Sequence[Case]) -> dict[str, torch.Tensor]:
        """The batch as tensors: templates rendered, images processed, placeholders expanded,
        left-padded.
        """
        images = [image for case in cases for image in case.images]
        pixels: dict[str, torch.Tensor] = {}
        features: list[int] = []
        if images:
            pixels = dict(self.image_processor(images=images, return_tensors="pt"))
            features = (
                pixels["image_grid_thw"].prod(-1) // self.image_processor.merge_size**2
            ).tolist()
        texts = []
        for case in cases:
            text = self.tokenizer.apply_chat_template(
                case.messages,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=case.thinking,
                tools=list(case.tools) or None,
            )
            pieces = text.split("<|image_pad|>")
            texts.append(
                pieces[0]
                + "".join("<|image_pad|>" * features.pop(0) + piece for piece in pieces[1:])
            )
        batch = dict(
            self.tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
        )
        if images:
            batch["mm_token_type_ids"] = (
                batch["input_ids"] == self.model.config.image_token_id
            ).long()
        return {**batch, **pixels}

    @torch.no_grad()
    def answer(self, cases: Sequence[Case], max_new_tokens: int = 200) -> list[Answer]:
        """Greedy answers, as one batch."""
        inputs = self.inputs(cases)
        out = self.model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        end = self.tokenizer.eos_token_id
        best = torch.stack(out.logits, 1).topk(2, dim=-1).values
        answers = []
        for row, ids in enumerate(out.sequences[:, inputs["input_ids"].shape[1] :].tolist()):
            size = ids.index(end) + 1 if end in ids else len(ids)
            margins = (best[row, :size, 0] - best[row, :size, 1]).tolist()
            text = self.tokenizer.decode(ids[:size], skip_special_tokens=True)
            answers.append(Answer(text, end in ids, tuple(margins)))
        return answers
