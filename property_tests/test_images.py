"""A chosen size is one that the model's own processor keeps; a damaged file gives an image or
`BadImage`; the digest is of the pixels.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, example, given, strategies as st
from support.image_sizes import budgets, mangled, sides

import pipegen as pg
from pipegen.core.errors import BadImage
from pipegen.core.slots import is_ok
from pipegen.media.folder import SUFFIXES
from pipegen.media.image import digest, open_image
from pipegen.media.sizes import LARGEST_ASPECT_RATIO, fit
from pipegen.records.requests import ImagePolicy
from pipegen.testing.image_files import image_file

FACTORS = st.sampled_from((28, 32, 16, 2))
POLICY = ImagePolicy(max_source_pixels=4_000_000)


def sizes_within(factor: int, low: int, high: int) -> bool:
    """Whether any size in whole tokens lies within the budget and the aspect limit: by counting
    them out.
    """
    least, most = -(-low // factor**2), high // factor**2
    return any(
        max(short, -(-least // short)) <= min(LARGEST_ASPECT_RATIO * short, most // short)
        for short in range(1, math.isqrt(most) + 1)
    )


NAMES = st.sampled_from(
    ("a1.png", "A2.JPG", "a10.webp", ".a.png", "notes.txt", "10.png", "9.jpeg", "png", "b.PNG")
)
FOLDERS = st.sampled_from((".", "f2", "f10", "f2/g", ".f"))


@given(st.sets(st.tuples(FOLDERS, NAMES), max_size=12))
def test_each_image_of_a_folder_is_listed_once_by_the_numbers_in_its_path(
    files: set[tuple[str, str]],
) -> None:
    with tempfile.TemporaryDirectory() as top:
        for folder, name in files:
            path = Path(top, folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        listed = [path.relative_to(top) for path in pg.images_in(top)]
    assert len(listed) == len(set(listed))
    assert {*map(str, listed)} == {
        str(Path(folder, name))
        for folder, name in files
        if folder != ".f" and Path(name).suffix.lower() in SUFFIXES and name[0] != "."
    }
    for parent in {path.parent for path in listed}:
        numbers = [path.name for path in listed if path.parent == parent and path.name[0] in "aA"]
        assert numbers == sorted(numbers, key=lambda name: int("".join(filter(str.isdigit, name))))


@given(sides(), budgets(), FACTORS)
# its rounded size is a strip of 291:1, which the processor refuses
@example((41, 8159), (3136, 1_003_520), 28)
@example((100, 300), (500, 500), 28)  # a budget below one token
@example((48, 32), (9216, 16_384), 32)
def test_the_processor_keeps_every_size_that_fit_chooses(
    size: tuple[int, int], budget: tuple[int, int], factor: int
) -> None:
    """Law: smart_resize(fit(size)) == fit(size), with the rule of the installed transformers; and
    it is the processor's own choice where it keeps that.
    """
    smart_resize = pytest.importorskip(
        "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    ).smart_resize
    (width, height), (low, high) = size, budget

    def processor(width: int, height: int) -> tuple[int, int]:
        h, w = smart_resize(height, width, factor=factor, min_pixels=low, max_pixels=high)
        return w, h

    if max(size) > LARGEST_ASPECT_RATIO * min(size):
        with pytest.raises(ValueError, match="times the other"):
            fit(width, height, factor=factor, min_pixels=low, max_pixels=high)
        with pytest.raises(ValueError, match="aspect ratio"):
            processor(width, height)
        return
    if not (sizes_within(factor, low, high) or high < factor**2):
        with pytest.raises(ValueError, match="no size in whole tokens"):
            fit(width, height, factor=factor, min_pixels=low, max_pixels=high)
        return
    found = fit(width, height, factor=factor, min_pixels=low, max_pixels=high)
    assert processor(*found) == found
    own = processor(width, height)
    if max(own) <= LARGEST_ASPECT_RATIO * min(own) and processor(*own) == own:
        assert found == own


@given(sides(), budgets(), FACTORS)
def test_the_area_lies_within_the_budget_whenever_any_size_does(
    size: tuple[int, int], budget: tuple[int, int], factor: int
) -> None:
    """Law: min_pixels <= w * h <= max_pixels, both sides whole tokens, the longer at most 200 times
    the shorter.
    """
    low, high = budget
    assume(max(size) <= LARGEST_ASPECT_RATIO * min(size) and sizes_within(factor, low, high))
    width, height = fit(*size, factor=factor, min_pixels=low, max_pixels=high)
    assert width % factor == height % factor == 0
    assert low <= width * height <= high
    assert max(width, height) <= LARGEST_ASPECT_RATIO * min(width, height)


@given(sides(), budgets(), FACTORS)
def test_fit_is_idempotent_and_turns_with_the_image(
    size: tuple[int, int], budget: tuple[int, int], factor: int
) -> None:
    """Laws: fit(fit(s)) == fit(s); an image on its side (a square has none) gets the size on its
    side.
    """
    low, high = budget
    assume(max(size) <= LARGEST_ASPECT_RATIO * min(size) and sizes_within(factor, low, high))
    found = fit(*size, factor=factor, min_pixels=low, max_pixels=high)
    assert fit(*found, factor=factor, min_pixels=low, max_pixels=high) == found
    if size[0] != size[1]:
        assert fit(*reversed(size), factor=factor, min_pixels=low, max_pixels=high) == tuple(
            reversed(found)
        )


@given(mangled())
def test_a_mangled_file_is_an_image_or_a_bad_image(data: bytes) -> None:  # P5
    """Law: every byte string is an upright RGB image or `BadImage`; nothing raises, nothing
    warns.
    """
    slot = open_image(data, POLICY, index=3)
    if is_ok(slot):
        assert slot.unwrap().mode == "RGB"
        assert math.prod(slot.unwrap().size) <= POLICY.max_source_pixels
    else:
        error = slot.failure()
        assert isinstance(error, BadImage)
        assert error.index == 3


@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from(("PNG", "TIFF", "BMP", "PPM")),
    st.integers(1, 8),
)
# P8
def test_the_digest_is_of_the_pixels_and_not_of_the_file(
    width: int, height: int, file_format: str, orientation: int
) -> None:
    """Law: lossless files of one image have one digest, stored upright or turned."""
    turned = None if file_format in ("BMP", "PPM") else orientation
    plain = open_image(image_file("PNG", width=width, height=height), POLICY).unwrap()
    other = open_image(
        image_file(file_format, width=width, height=height, orientation=turned), POLICY
    ).unwrap()
    assert other.size == (width, height)
    assert digest(other) == digest(plain)
