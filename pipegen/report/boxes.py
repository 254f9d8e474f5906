"""Boxes in an answer: JSON with `bbox_2d` (or `bbox`, `box`) of four numbers, anywhere in it.

>>> boxes_in('Here: [{"label": "cat", "bbox_2d": [0, 0, 500, 1000]}]', (640, 480))
(Box(label='cat', left=0.0, top=0.0, width=50.0, height=100.0),)
>>> boxes_in("no JSON", (640, 480))
()
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from pipegen.records import strict_json

Scale = Literal["auto", "thousandths", "pixels", "fractions"]
"""What the numbers of a box are: thousandths of the image's sides, its pixels, or fractions of 1.
`auto`: fractions where none is above 1, thousandths where none is above 1,000, else pixels."""
_NAMES = ("bbox_2d", "bbox", "box_2d", "box")
_LABELS = ("label", "name", "class", "color", "shape", "text")
_MOST = 500


class Box(NamedTuple):
    """One box to draw: its label, and where it is, in percent of the image's sides."""

    label: str
    left: float
    top: float
    width: float
    height: float


def boxes_in(text: str, size: tuple[int, int], scale: Scale = "auto") -> tuple[Box, ...]:
    """The boxes of an answer about an image of that width and height."""
    pairs = [pair for value in _values(text) for pair in _boxes(value, 0)][:_MOST]
    if not pairs:
        return ()
    greatest = max(coordinate for _, corners in pairs for coordinate in corners)
    chosen = (
        scale
        if scale != "auto"
        else "fractions"
        if greatest <= 1
        else "thousandths"
        if greatest <= 1000
        else "pixels"
    )
    across, down = {
        "fractions": (1.0, 1.0),
        "thousandths": (1000.0, 1000.0),
        "pixels": (float(size[0]), float(size[1])),
    }[chosen]
    return tuple(_box(label, corners, across, down) for label, corners in pairs)


def _values(text: str) -> Iterator[object]:
    """The JSON values of the text: the whole of it, or what stands between its first bracket and
    the last.
    """
    match = re.search(r"[\[{].*[\]}]", text[:200_000], re.DOTALL)
    for candidate in (text, match[0] if match else ""):
        try:
            yield strict_json.load(candidate)
        except strict_json.NotStrict:
            continue
        return


def _boxes(value: object, depth: int) -> Iterator[tuple[str, list[float]]]:
    if isinstance(value, dict):
        corners = next((value[name] for name in _NAMES if isinstance(value.get(name), list)), None)
        if (
            corners is not None
            and len(corners) == 4
            and all(type(corner) in (int, float) for corner in corners)
        ):
            yield (
                " ".join(str(value[name]) for name in _LABELS if isinstance(value.get(name), str))[
                    :80
                ],
                corners,
            )
    if depth < 8 and isinstance(value, (dict, list)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _boxes(entry, depth + 1)


def _box(label: str, corners: list[float], across: float, down: float) -> Box:
    x1, y1, x2, y2 = (
        min(max(corner, 0.0), side) / side * 100
        for corner, side in zip(corners, (across, down, across, down), strict=True)
    )
    return Box(label, x1, y1, max(x2 - x1, 0.0), max(y2 - y1, 0.0))
