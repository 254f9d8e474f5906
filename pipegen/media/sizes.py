"""The size to which an image is resized for a model.

Qwen-VL models cut an image into patches and merge `merge_size` x `merge_size` of them into one
token. So both sides are multiples of `patch_size * merge_size` pixels, and the area is within a
budget. `fit` follows the rule of their processor (`smart_resize` of Qwen2-VL, Wang et al. 2024, in
transformers), and returns a size that this processor does not change again.

>>> fit(4000, 3000, factor=32, min_pixels=65_536, max_pixels=786_432)
(1024, 768)
>>> fit(1024, 768, factor=32, min_pixels=65_536, max_pixels=786_432)
(1024, 768)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pipegen.core.names import InvalidField
from pipegen.records.fields import integer, one_of, record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipegen.records.option_groups import VlmPreprocessOptions


LARGEST_ASPECT_RATIO = 200
"""The longer side may be at most this many times the shorter one (a limit of the Qwen-VL
processors).
"""
BICUBIC = 3
"""Pillow's number for its bicubic filter."""


@record
class ImageSpec:
    """The image sizes of a model's processor.

    `grid`: any size of whole tokens within a pixel budget; pipegen resizes. `native`: the processor
    tiles or has a fixed size; pipegen does not resize.
    """

    kind: Annotated[Literal["grid", "native"], one_of("grid", "native")] = "native"
    patch_size: Annotated[int, integer(low=1)] = 1
    """Side of one patch, in pixels."""
    merge_size: Annotated[int, integer(low=1)] = 1
    """Patches along each side of one token."""
    temporal_patch_size: Annotated[int, integer(low=1)] = 1
    """Frames of one patch; an image is repeated to fill them, and its grid is 1 in time."""
    min_pixels: Annotated[int, integer(low=1)] = 1
    max_pixels: Annotated[int, integer(low=1)] = 2**62
    """The checkpoint's budget: areas in pixels."""
    resample: Annotated[int, integer(low=0, high=5)] = BICUBIC
    """The processor's filter, as Pillow's number."""

    def check_all(self) -> None:
        if self.min_pixels > self.max_pixels:
            raise InvalidField(
                f"ImageSpec takes min_pixels of at most max_pixels, not {self.min_pixels} >"
                f" {self.max_pixels}"
            )

    @property
    def factor(self) -> int:
        """Both sides are multiples of this many pixels: the side of one token."""
        return self.patch_size * self.merge_size


def pixel_budget(spec: ImageSpec, options: VlmPreprocessOptions) -> tuple[int, int]:
    """The smallest and largest area in pixels: those of the options, else the checkpoint's.

    If the options set only one, the other is moved to leave at least a factor of four between them.
    So every shape has a size.

    >>> from pipegen.records.option_groups import VlmPreprocessOptions
    >>> spec = ImageSpec(
    ...     kind="grid", patch_size=16, merge_size=2, min_pixels=65_536, max_pixels=1_000_000
    ... )
    >>> pixel_budget(spec, VlmPreprocessOptions(max_pixels=786_432))
    (65536, 786432)
    >>> (
    ...     pixel_budget(spec, VlmPreprocessOptions(max_pixels=20_000)),
    ...     pixel_budget(spec, VlmPreprocessOptions(min_pixels=2_000_000)),
    ... )
    ((5000, 20000), (2000000, 8000000))
    """
    low, high = options.min_pixels, options.max_pixels
    if low is not None:
        return low, max(spec.max_pixels, 4 * low) if high is None else high
    return (
        (spec.min_pixels, spec.max_pixels)
        if high is None
        else (min(spec.min_pixels, max(1, high // 4)), high)
    )


def nearest_sides(width: int, height: int, factor: int) -> tuple[int, int]:
    """The nearest size whose sides are multiples of `factor`, at least one of them each.

    >>> nearest_sides(100, 7, 32)
    (96, 32)
    """
    return max(1, round(width / factor)) * factor, max(1, round(height / factor)) * factor


def fit(
    width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """The size (width, height) to resize to: multiples of `factor`, area within the budget, a fixed
    point of the processor's own rule.

    It is the processor's own choice, if the processor would keep that. Otherwise (a strip beyond
    the aspect limit, a budget without a size of that shape) it is the nearest valid size. It is
    compared with the image scaled into the budget, both sides by ratio. A budget below one token
    gives one token. Raises `ValueError` for an aspect ratio above 200, and for a budget without a
    valid size.

    >>> fit(41, 8159, factor=28, min_pixels=3136, max_pixels=1_003_520)
    (56, 8148)
    >>> fit(1, 30_000, factor=28, min_pixels=3136, max_pixels=1_003_520)
    Traceback (most recent call last):
    ...
    ValueError: one side is 30000 times the other; the model takes at most 200
    """
    if max(width, height) > LARGEST_ASPECT_RATIO * min(width, height):
        raise ValueError(
            f"one side is {max(width, height) / min(width, height):.0f} times the other; the model"
            f" takes at most {LARGEST_ASPECT_RATIO}"
        )
    processor_size = _processor_size(width, height, factor, min_pixels, max_pixels)
    if _is_kept(*processor_size, factor, min_pixels, max_pixels):
        return processor_size
    least, most = -(-min_pixels // factor**2), max_pixels // factor**2
    if most == 0:
        return factor, factor
    scale = math.sqrt(min(max(width * height, min_pixels), max_pixels) / (width * height)) / factor
    ideal_size = max(width, height) * scale, min(width, height) * scale
    best, best_size = math.inf, (0, 0)
    for short in _outwards(ideal_size[1], math.isqrt(most)):
        if abs(math.log(short / ideal_size[1])) >= best:
            break
        low, high = max(short, -(-least // short)), min(LARGEST_ASPECT_RATIO * short, most // short)
        if low > high:
            continue
        long = min(max(round(ideal_size[0]), low), high)
        distance = abs(math.log(short / ideal_size[1])) + abs(math.log(long / ideal_size[0]))
        if distance < best:
            best, best_size = distance, (long * factor, short * factor)
    if not best_size[0]:
        raise ValueError(
            f"no size in whole tokens of {factor}x{factor} pixels has between {min_pixels} and"
            f" {max_pixels} pixels"
        )
    return best_size if width >= height else (best_size[1], best_size[0])


def _processor_size(
    width: int, height: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """The processor's rule: round both sides; scale down (floor) or up (ceil) if the area is
    outside the budget.
    """
    w, h = round(width / factor) * factor, round(height / factor) * factor
    if w * h > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        w, h = (
            max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height)
        )
    elif w * h < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        w, h = (math.ceil(side * grow / factor) * factor for side in (width, height))
    return w, h


def _is_kept(width: int, height: int, factor: int, min_pixels: int, max_pixels: int) -> bool:
    small_enough = max(width, height) <= LARGEST_ASPECT_RATIO * min(width, height)
    return small_enough and _processor_size(width, height, factor, min_pixels, max_pixels) == (
        width,
        height,
    )


def _outwards(start: float, most: int) -> Iterator[int]:
    """The whole numbers from 1 to `most`, the nearest to `start` by ratio first."""
    down = min(most, max(1, math.floor(start)))
    up = down + 1
    while down >= 1 or up <= most:
        # log(start / down) <= log(up / start)
        if up > most or (down >= 1 and start * start <= down * up):
            yield down
            down -= 1
        else:
            yield up
            up += 1
