"""The demo's pictures: files beside this module, drawn by `python -m pipegen.cli.pictures` and checked against it by a test.

>>> path("shapes.png").name
'shapes.png'
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["BROKEN", "DRAWN", "draw_picture", "path", "write_all"]

DRAWN: Mapping[str, tuple[int, int, int, int]] = {
    "shapes.png": (54, 3, 512, 512),
    "pair.png": (6, 2, 512, 512),
    "wide.png": (9, 2, 384, 640),
    "one.png": (3, 1, 512, 512),
}
"""Each picture's seed, its number of shapes, its height and its width."""
BROKEN = "broken.png"
"""The first half of `shapes.png`, as a broken download leaves it."""


def path(name: str) -> Path:
    """Where a picture is."""
    return Path(__file__).resolve().parent / name


def draw_picture(name: str) -> Image:
    """One of the pictures, drawn anew."""
    from training.scenes import draw, sample_scene

    seed, count, height, width = DRAWN[name]
    rng = random.Random(seed)  # noqa: S311  # pictures, not secrets
    return draw(sample_scene(rng, count), height, width, rng)


def write_all(folder: Path) -> None:
    """Draw all pictures into a folder, the broken one too."""
    for name in DRAWN:
        draw_picture(name).save(folder / name, optimize=True)
    whole = (folder / "shapes.png").read_bytes()
    (folder / BROKEN).write_bytes(whole[: len(whole) // 2])
