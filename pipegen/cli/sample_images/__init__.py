"""The demo's images: files beside this module, drawn by `python tests/training/draw_demo_images.py` and checked against it by a test.

>>> path("shapes.png").name
'shapes.png'
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["BROKEN", "DRAWN", "path"]

DRAWN: Mapping[str, tuple[int, int, int, int]] = {
    "shapes.png": (54, 3, 512, 512),
    "pair.png": (6, 2, 512, 512),
    "wide.png": (9, 2, 384, 640),
    "one.png": (3, 1, 512, 512),
}
"""Each image's seed, its number of shapes, its height and its width."""
BROKEN = "broken.png"
"""The first half of `shapes.png`, as a broken download leaves it."""


def path(name: str) -> Path:
    """Where an image is."""
    return Path(__file__).resolve().parent / name
