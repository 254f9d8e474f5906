"""Draw the demo's images anew, where the package keeps them: `PYTHONPATH=tests/programs python
tests/programs/training/draw_demo_images.py`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from training.scenes import draw, sample_scene

from pipegen.cli.demo import BROKEN, IMAGES

if TYPE_CHECKING:
    from PIL.Image import Image


DRAWN = {
    "shapes.png": (54, 3, 512, 512),
    "pair.png": (6, 2, 512, 512),
    "wide.png": (9, 2, 384, 640),
    "one.png": (3, 1, 512, 512),
}
"""Each image's seed, number of shapes, height and width."""


def draw_image(name: str) -> Image:
    """One of the images, drawn anew."""
    seed, count, height, width = DRAWN[name]
    rng = random.Random(seed)
    return draw(sample_scene(rng, count), height, width, rng)


def write_all(folder: Path) -> None:
    """Draw all images into a folder, the broken one too."""
    for name in DRAWN:
        draw_image(name).save(folder / name, optimize=True)
    whole = (folder / "shapes.png").read_bytes()
    (folder / BROKEN).write_bytes(whole[: len(whole) // 2])


if __name__ == "__main__":
    write_all(IMAGES)
