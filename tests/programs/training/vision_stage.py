"""First stage: the vision tower alone, against dense targets.

Language-model loss alone leaves a small tower blind. So every feature (one per 32 by 32 pixels) has
to tell, through a linear head, what covers it most: colour, shape, the four edges, the third of the
image, its number in reading order, and how many shapes there are in all. After this stage the tower
is frozen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from training.model import CELL, HIDDEN, MERGE, PATCH
from training.optimizers import Schedule
from training.scenes import GRIDS, Scene, draw, sample_scene
from training.words import COLORS, SHAPES

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image
    from transformers import Qwen3VLForConditionalGeneration

CLASSES = [5, 4, 11, 11, 11, 11, 3, 3, 4, 4]
"""Colour, shape, x1, y1, x2, y2, row, column, number in reading order, number of shapes."""

SCALES = (1.0, 1.0, 1.0, 0.8, 1.4, 2.0, 3.0, 4.5)
"""Images are drawn at these multiples of the final size, and brought down (or up) as the processor
does it.
"""

NOTHING = -100
Average = Callable[[Sequence[nn.Parameter]], None]


def fitted(scene: Scene, grid: tuple[int, int], rng: random.Random) -> Image:
    """The scene drawn at some scale, then resized to exactly `grid`."""
    from PIL import Image

    scale = rng.choice(SCALES)
    height, width = grid
    image = draw(scene, round(height * scale), round(width * scale), rng)
    return image if scale == 1.0 else image.resize((width, height), Image.Resampling.BICUBIC)


def patches(image: Image) -> NDArray[np.float32]:
    """What the image processor makes of an image that already has the right size."""
    pixels = np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1.0
    channels, height, width = pixels.shape
    rows, columns = height // PATCH, width // PATCH
    split = pixels.reshape(channels, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
    split = split.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
    twice = np.broadcast_to(split, (*split.shape[:5], 2, PATCH, PATCH))
    return twice.reshape(rows * columns, channels * 2 * PATCH * PATCH)


def targets(scene: Scene, grid: tuple[int, int]) -> NDArray[np.int64]:
    """One row of classes per feature, `NOTHING` where a question does not arise."""
    rows, columns = grid[0] // CELL, grid[1] // CELL
    wanted = np.full((rows, columns, len(CLASSES)), NOTHING, dtype=np.int64)
    wanted[..., 0] = wanted[..., 1] = wanted[..., 8] = 0
    wanted[..., 9] = len(scene)
    best = np.full((rows, columns), 0.06)
    for number, thing in enumerate(scene, start=1):
        x1, y1, x2, y2 = (edge / 1000 for edge in thing.box)
        left, top = np.arange(columns), np.arange(rows)
        across = np.clip(
            np.minimum(x2 * columns, left + 1) - np.maximum(x1 * columns, left), 0, None
        )
        down = np.clip(np.minimum(y2 * rows, top + 1) - np.maximum(y1 * rows, top), 0, None)
        share = down[:, None] * across[None, :]
        classes = [1 + tuple(COLORS).index(thing.color), 1 + SHAPES.index(thing.shape)]
        wanted[share > best] = [
            *classes,
            *(edge // 100 for edge in thing.box),
            *thing.third,
            number,
            len(scene),
        ]
        best = np.maximum(best, share)
    return wanted.reshape(-1, len(CLASSES))


def grid_thw(grid: tuple[int, int], count: int) -> Tensor:
    """The patch grid of `count` images of one size, as the tower takes it."""
    return torch.tensor([[1, grid[0] // PATCH, grid[1] // PATCH]] * count)


def same_size_shortcuts() -> None:
    """Faster forms of two of the tower's modules, same mathematics, for batches of images of one
    size.

    The convolution is a matrix product, and the images go through attention as one batch instead of
    one by one. For training only: this changes the classes in this process.
    """
    from transformers.models.qwen3_vl import modeling_qwen3_vl

    source: Any = modeling_qwen3_vl

    def embed(self: Any, x: Tensor) -> Tensor:
        weight = self.proj.weight
        return functional.linear(x.view(-1, weight[0].numel()), weight.flatten(1), self.proj.bias)

    def attend(
        self: Any, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: Any, **_: Any
    ) -> Tensor:
        tokens, count = hidden_states.shape[0], cu_seqlens.numel() - 1
        q, k, v = (
            self.qkv(hidden_states)
            .reshape(tokens, 3, self.num_heads, -1)
            .permute(1, 0, 2, 3)
            .unbind(0)
        )
        q, k = source.apply_rotary_pos_emb_vision(q, k, *position_embeddings)
        q, k, v = (
            x.reshape(count, -1, self.num_heads, x.shape[-1]).transpose(1, 2) for x in (q, k, v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(tokens, -1)
        out: Tensor = self.proj(mixed)
        return out

    source.Qwen3VLVisionPatchEmbed.forward = embed
    source.Qwen3VLVisionAttention.forward = attend


def _loss(answers: Tensor, wanted: Tensor) -> Tensor:
    parts = [
        functional.cross_entropy(part, wanted[:, i])
        for i, part in enumerate(torch.split(answers, CLASSES, 1))
    ]
    return torch.stack(parts).mean()


def _accuracy(answers: Tensor, wanted: Tensor) -> list[float]:
    covered = wanted[:, 2] != NOTHING
    parts = torch.split(answers[covered], CLASSES, 1)
    return [
        round((part.argmax(1) == wanted[covered, i]).float().mean().item(), 3)
        for i, part in enumerate(parts)
    ]


def train_vision(
    model: Qwen3VLForConditionalGeneration,
    steps: int,
    batch: int,
    seed: int,
    average: Average,
    log: Callable[[str], None],
) -> None:
    """Train the tower for `steps` steps of `batch` images (per process), and freeze it."""
    rng = random.Random(seed)
    tower = model.model.visual
    heads = nn.ModuleList(nn.Linear(HIDDEN, sum(CLASSES)) for _ in range(2))
    schedule = Schedule((tower, heads), steps, decay_steps=steps // 2)
    for step in range(steps):
        grid = rng.choice(GRIDS)
        scenes = [sample_scene(rng, rng.choice((1, 2, 2, 3, 3))) for _ in range(batch)]
        pixels = torch.from_numpy(
            np.concatenate([patches(fitted(scene, grid, rng)) for scene in scenes])
        )
        wanted = torch.from_numpy(np.concatenate([targets(scene, grid) for scene in scenes]))
        features = tower(pixels, grid_thw=grid_thw(grid, batch))
        answers = heads[0](features.pooler_output)
        loss = _loss(answers, wanted) + _loss(heads[1](features.deepstack_features[0]), wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        average(schedule.parameters)
        schedule.step(step)
        if step % 50 == 49:
            log(
                f"vision {step + 1}/{steps} loss {loss.item():.4f} accuracy"
                f" {_accuracy(answers, wanted)}"
            )
    tower.requires_grad_(False)
