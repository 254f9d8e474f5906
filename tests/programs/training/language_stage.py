"""Second stage: the language model, on text and images half and half, with the frozen tower's
features.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from training import conversations, text_tasks
from training.model import CELL
from training.optimizers import Schedule
from training.scenes import GRIDS, Scene, sample_scene
from training.vision_stage import Average, fitted, grid_thw, patches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import Qwen2Tokenizer, Qwen3VLForConditionalGeneration


CURRICULUM_STEPS = 1500
THREE_SHAPES_FROM = 500


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the language stage.

    A flat part runs through the curriculum at the full rate; a decaying one has all of the data
    from the start, and brings the rate down to nothing.
    """

    name: str
    steps: int
    decaying: bool
    yes_no_questions: int = 1
    tools: bool = False
    """Whether each step has a batch of conversations with tools too."""


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A scene and what the frozen tower makes of one drawing of it."""

    scene: Scene
    grid: tuple[int, int]
    features: Tensor
    deep_features: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One training sequence. `weights` is zero where there is nothing to learn.

    An answer of n tokens weighs as much as the square root of n: otherwise the punctuation of JSON
    would drown the one word that answers a yes-or-no question.
    """

    ids: list[int]
    weights: list[float]
    images: tuple[Image, ...]


@torch.no_grad()
def make_gallery(
    model: Qwen3VLForConditionalGeneration, count: int, rng: random.Random
) -> dict[int, list[Image]]:
    """`count` images, encoded once, by number of shapes."""
    gallery: dict[int, list[Image]] = {1: [], 2: [], 3: []}
    for start in range(0, count, 64):
        grid, things = GRIDS[start // 64 % len(GRIDS)], (1, 2, 2, 3, 3)[start // 64 % 5]
        scenes = [sample_scene(rng, things) for _ in range(64)]
        pixels = torch.from_numpy(
            np.concatenate([patches(fitted(scene, grid, rng)) for scene in scenes])
        )
        out = model.model.visual(pixels, grid_thw=grid_thw(grid, 64))
        pairs = zip(out.pooler_output.chunk(64), out.deepstack_features[0].chunk(64), strict=True)
        for scene, (features, deep) in zip(scenes, pairs, strict=True):
            gallery[things].append(Image(scene, grid, features, deep))
    return gallery


def positions(ids: list[int], image_id: int, grids: list[tuple[int, int]]) -> Tensor:
    """The three rows of multimodal rotary positions, as `Qwen3VLModel.get_rope_index` gives
    them.
    """
    out = np.empty((3, len(ids)), dtype=np.int64)
    place, at = 0, 0
    for height, width in grids:
        rows, columns = height // CELL, width // CELL
        start = ids.index(image_id, at)
        out[:, at:start] = np.arange(place, place + start - at)
        place += start - at
        at = start + rows * columns
        out[0, start:at] = place
        out[1, start:at] = place + np.arange(rows).repeat(columns)
        out[2, start:at] = place + np.tile(np.arange(columns), rows)
        place += max(rows, columns)
    out[:, at:] = np.arange(place, place + len(ids) - at)
    return torch.from_numpy(out)


class Batches:
    """An endless supply of training batches of one kind, each of at most `budget` tokens with
    little padding.
    """

    def __init__(
        self,
        tokenizer: Qwen2Tokenizer,
        gallery: dict[int, list[Image]] | None,
        budget: int,
        seed: int,
        tools: bool = False,
    ):
        self._tokenizer, self._gallery, self._budget = tokenizer, gallery, budget
        self._tools = tools
        self._rng = random.Random(seed)
        self._memo: dict[str, list[int]] = {}
        self._ready: list[list[Row]] = []
        self.step = 0
        """The step of the curriculum: one shape at first, two soon, three from `THREE_SHAPES_FROM`
        on.
        """
        self.yes_no_questions = 1
        """How many yes-or-no questions each image may be asked."""

    def _encode(self, text: str) -> list[int]:
        if text not in self._memo:
            if len(self._memo) > 100_000:
                self._memo.clear()
            self._memo[text] = self._tokenizer.encode(text, add_special_tokens=False)
        return self._memo[text]

    def _images(self, gallery: dict[int, list[Image]]) -> tuple[Image, ...]:
        """One image, or two; those with more shapes come in as the training goes on."""
        late = min(1.0, self.step / CURRICULUM_STEPS)
        shares = (1 - 0.7 * late, 0.4 * late, 0.4 * late if self.step > THREE_SHAPES_FROM else 0.0)
        first = self._rng.choice(gallery[self._rng.choices((1, 2, 3), shares)[0]])
        if len(first.scene) == 3:
            return (first,)
        return first, self._rng.choice(gallery[self._rng.choice((1, 2))])

    def _row(self) -> Row:
        rng = self._rng
        if self._gallery is None and not self._tools and rng.random() < 0.04:
            plain = self._encode(text_tasks.plain_text(rng) + "<|endoftext|>")
            return Row(plain, [0.0, 0.0, *[len(plain) ** -0.5] * (len(plain) - 2)], ())
        images = () if self._gallery is None else self._images(self._gallery)
        if images:
            conversation = conversations.image_conversation(
                tuple(image.scene for image in images), rng, self.yes_no_questions
            )
        elif self._tools:
            conversation = conversations.tool_conversation(rng)
        else:
            conversation = conversations.text_conversation(rng)
        shown = tuple(images[i] for turn in conversation.turns for i in turn.images)
        ids: list[int] = []
        weights: list[float] = []
        marked = rng.random() < 0.6
        for text, learn in conversations.render(
            conversation, tuple(len(p.features) for p in images), marked
        ):
            piece = self._encode(text)
            ids += piece
            weights += [len(piece) ** -0.5 if learn else 0.0] * len(piece)
        return Row(ids, weights, shown)

    def _refill(self) -> None:
        rows = sorted((self._row() for _ in range(256)), key=lambda row: len(row.ids))
        batch: list[Row] = []
        for row in rows:
            if batch and len(row.ids) * (len(batch) + 1) > self._budget:
                self._ready.append(batch)
                batch = []
            batch.append(row)
        self._rng.shuffle(self._ready)

    def __iter__(self) -> Iterator[list[Row]]:
        while True:
            if not self._ready:
                self._refill()
            yield self._ready.pop()


def batch_loss(
    model: Qwen3VLForConditionalGeneration, rows: list[Row], pad_id: int, image_id: int
) -> Tensor:
    """Weighted mean of the cross-entropy over the tokens to learn, of right-padded rows."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), longest), pad_id)
    weights = torch.zeros((len(rows), longest))
    places = torch.zeros((3, len(rows), longest), dtype=torch.long)
    for number, row in enumerate(rows):
        size = len(row.ids)
        ids[number, :size] = torch.tensor(row.ids)
        weights[number, :size] = torch.tensor(row.weights)
        places[:, number, :size] = positions(
            row.ids, image_id, [image.grid for image in row.images]
        )
    embedded = model.model.language_model.embed_tokens(ids)
    shown = [image for row in rows for image in row.images]
    mask = ids == image_id if shown else None
    deep = None
    if mask is not None:
        embedded = embedded.masked_scatter(
            mask[..., None], torch.cat([image.features for image in shown])
        )
        deep = [torch.cat([image.deep_features for image in shown])]
    hidden = model.model.language_model(
        inputs_embeds=embedded,
        position_ids=places,
        visual_pos_masks=mask,
        deepstack_visual_embeds=deep,
        use_cache=False,
    ).last_hidden_state
    weights = weights[:, 1:]
    learnt = weights > 0
    logits = model.lm_head(hidden[:, :-1][learnt])
    losses = functional.cross_entropy(logits, ids[:, 1:][learnt], reduction="none")
    return (losses * weights[learnt]).sum() / weights.sum()


def train_language(
    model: Qwen3VLForConditionalGeneration,
    tokenizer: Qwen2Tokenizer,
    part: Part,
    budget: int,
    gallery_size: int,
    seed: int,
    average: Average,
    log: Callable[[str], None],
    checkpoint: Callable[[str], None],
) -> None:
    """Train everything but the frozen tower: each step one batch of images and one of text, and
    in the last part one with tools, per process.
    """
    gallery = make_gallery(model, gallery_size, random.Random(seed))
    log(f"gallery of {sum(map(len, gallery.values()))} images")
    kinds = [
        Batches(tokenizer, gallery, budget, seed + 1),
        Batches(tokenizer, None, budget, seed + 2),
    ]
    if part.tools:  # their prompts are long
        kinds.append(Batches(tokenizer, None, 2 * budget, seed + 3, tools=True))
    streams = [iter(kind) for kind in kinds]
    schedule = Schedule((model,), part.steps, decay_steps=part.steps if part.decaying else 0)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    pad_id, image_id = vocabulary["<|endoftext|>"], vocabulary["<|image_pad|>"]
    for kind in kinds:
        kind.yes_no_questions = part.yes_no_questions
    means = [0.0] * len(kinds)
    for step in range(part.steps):
        for number, (kind, stream) in enumerate(zip(kinds, streams, strict=True)):
            kind.step = CURRICULUM_STEPS if part.decaying else step
            loss = batch_loss(model, next(stream), pad_id, image_id)
            (loss / len(kinds)).backward()  # type: ignore[no-untyped-call]
            means[number] += (loss.item() - means[number]) / min(step + 1, 50)
        average(schedule.parameters)
        schedule.step(step)
        if step % 50 == 49:
            shown = ", ".join(f"{mean:.4f}" for mean in means)
            log(f"language, {part.name} {step + 1}/{part.steps} loss (images, text, tools) {shown}")
        if step % 500 == 499:
            checkpoint(f"{part.name}-{step + 1}")
