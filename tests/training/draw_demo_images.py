"""Draw the demo's images anew, where the package keeps them: `PYTHONPATH=tests python tests/training/draw_demo_images.py`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from training.scenes import draw, sample_scene

from pipegen.cli import sample_images

if TYPE_CHECKING:
    from PIL.Image import Image


def draw_image(name: str) -> Image:
    """One of the images, drawn anew."""
    seed, count, height, width = sample_images.DRAWN[name]
    rng = random.Random(seed)
    return draw(sample_scene(rng, count), height, width, rng)


def write_all(folder: Path) -> None:
    """Draw all images into a folder, the broken one too."""
    for name in sample_images.DRAWN:
        draw_image(name).save(folder / name, optimize=True)
    whole = (folder / "shapes.png").read_bytes()
    (folder / sample_images.BROKEN).write_bytes(whole[: len(whole) // 2])


if __name__ == "__main__":
    write_all(sample_images.path("shapes.png").parent)
