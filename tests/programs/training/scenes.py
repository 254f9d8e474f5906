"""Images of coloured shapes, and the scene each of them shows.

Coordinates are thousandths of the image's sides, as Qwen3-VL writes them. Boxes lie on a lattice of
100, so that a box can be exactly right; what is drawn is off that lattice by up to `JITTER`, so
that rounding has to be learnt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.words import BACKGROUNDS, COLORS, SHAPES

if TYPE_CHECKING:
    import random

    from PIL.Image import Image

Box = tuple[int, int, int, int]
"""x1, y1, x2, y2."""

JITTER = 18.0
STARTS = {300: (0, 100, 300, 400, 600, 700), 400: (0, 100, 300, 400, 500, 600)}
"""Side of a shape, and where it may start: its middle is never near the border of two thirds of the
image.
"""

GRIDS = ((128, 128), (128, 128), (128, 128), (96, 160), (160, 96), (96, 128), (128, 96), (96, 96))
"""Height and width of images after the processor's resizing; the commoner ones are named more
often.
"""

PLACES = (
    ("at the top left", "at the top", "at the top right"),
    ("on the left", "in the center", "on the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)


@dataclass(frozen=True, slots=True)
class Thing:
    """One shape of a scene."""

    shape: str
    color: str
    box: Box
    drawn: tuple[float, float, float, float]
    """The edges as drawn: `box` with jitter."""

    @property
    def third(self) -> tuple[int, int]:
        """Row and column of its middle, in thirds of the image."""
        x1, y1, x2, y2 = self.box
        return _third((y1 + y2) // 2), _third((x1 + x2) // 2)

    @property
    def place(self) -> str:
        """Where it is, in words."""
        row, column = self.third
        return PLACES[row][column]


Scene = tuple[Thing, ...]
"""Shapes in reading order: by row, then by column, of their thirds."""


def _third(middle: int) -> int:
    return 0 if middle < 340 else 1 if middle < 660 else 2


def _apart(a: Box, b: Box, gap: int = 100) -> bool:
    return a[2] + gap <= b[0] or b[2] + gap <= a[0] or a[3] + gap <= b[1] or b[3] + gap <= a[1]


def sample_scene(rng: random.Random, count: int) -> Scene:
    """`count` shapes (one to three), apart from each other and each in a ninth of its own."""
    while True:
        things: list[Thing] = []
        for _ in range(40):
            side = rng.choice((300, 300, 400))
            x, y = rng.choice(STARTS[side]), rng.choice(STARTS[side])
            box = (x, y, x + side, y + side)
            drawn = (
                box[0] + rng.uniform(-JITTER, JITTER),
                box[1] + rng.uniform(-JITTER, JITTER),
                box[2] + rng.uniform(-JITTER, JITTER),
                box[3] + rng.uniform(-JITTER, JITTER),
            )
            thing = Thing(rng.choice(SHAPES), rng.choice(tuple(COLORS)), box, drawn)
            if all(_apart(box, other.box) and thing.third != other.third for other in things):
                things.append(thing)
            if len(things) == count:
                return tuple(sorted(things, key=lambda one: one.third))


def draw(scene: Scene, height: int, width: int, rng: random.Random) -> Image:
    """The scene as an RGB image of that size; `rng` chooses background and shades."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (width, height), rng.choice(BACKGROUNDS))
    pen = ImageDraw.Draw(image)
    for thing in scene:
        red, green, blue = (max(0, min(255, c + rng.randint(-18, 18))) for c in COLORS[thing.color])
        x1, x2 = (max(0.0, thing.drawn[i] * width / 1000) for i in (0, 2))
        y1, y2 = (max(0.0, thing.drawn[i] * height / 1000) for i in (1, 3))
        x2, y2 = min(x2, width) - 1, min(y2, height) - 1
        if thing.shape == "circle":
            pen.ellipse((x1, y1, x2, y2), fill=(red, green, blue))
        elif thing.shape == "square":
            pen.rectangle((x1, y1, x2, y2), fill=(red, green, blue))
        else:
            pen.polygon([((x1 + x2) / 2, y1), (x1, y2), (x2, y2)], fill=(red, green, blue))
    return image
