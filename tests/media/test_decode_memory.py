"""The memory of images that are decoded is counted before it is taken, and bounded."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pipegen.core.slots import is_ok
from pipegen.media import image as images
from pipegen.media.files import DECODED_BYTES, DECODING, MemoryGate, decoded_bytes
from pipegen.media.image import file_to_send, open_image, prepare
from pipegen.media.sizes import ImageSpec
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.requests import ImagePolicy
from pipegen.testing.image_files import image_file

Image = pytest.importorskip("PIL.Image")
ImageFile = pytest.importorskip("PIL.ImageFile")

POLICY = ImagePolicy()
SPEC = ImageSpec(kind="grid", patch_size=16, merge_size=2, min_pixels=4096, max_pixels=65_536)
READERS = {
    "open_image": lambda data: open_image(data, POLICY),
    "file_to_send": lambda data: file_to_send(data, POLICY),
    "prepare": lambda data: prepare(data, SPEC, VlmPreprocessOptions(), 0, POLICY),
}


def opened(mode: str, file_format: str = "PNG", **save: Any) -> Any:
    file = io.BytesIO()
    Image.new(mode, (20, 10)).save(file, file_format, **save)
    return Image.open(file)


@pytest.mark.parametrize(
    ("image", "a_pixel"),
    [
        (("RGB",), 10),  # 4, and its bytes twice
        (("RGB", "JPEG"), 10),
        (("L",), 10),
        (("1",), 10),
        (("RGBA",), 12),  # 4, 4 in RGB, 4 turned
        (("CMYK", "JPEG"), 12),
        (("LA",), 16),
        (("I;16",), 14),
        (("RGBA", "WEBP"), 24),
    ],
)
def test_the_bytes_of_an_image_are_counted_by_its_mode(
    image: tuple[str, ...], a_pixel: int
) -> None:
    assert decoded_bytes(opened(*image)) == 200 * a_pixel


def test_what_is_transparent_counts_as_laid_over_white() -> None:
    assert decoded_bytes(opened("P", transparency=0)) == 200 * 13
    assert decoded_bytes(opened("RGB", transparency=(1, 2, 3))) == 200 * 16


def test_four_large_images_within_the_limit_of_pixels_are_more_than_the_bound() -> None:
    image = Image.Image()
    image._mode, image._size = "RGBA", (9900, 9900)
    assert POLICY.max_source_pixels >= 9900 * 9900
    assert decoded_bytes(image) == 12 * 9900 * 9900 > DECODED_BYTES


@pytest.mark.parametrize("name", READERS)
def test_an_image_counts_while_it_is_decoded_and_used_and_no_longer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, decode = [], ImageFile.ImageFile.load

    def load(image: Any) -> Any:
        held.append((DECODING.held, decoded_bytes(image)))
        return decode(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    assert is_ok(READERS[name](image_file("PNG")))
    assert held
    assert all(taken == count > 0 for taken, count in held)
    assert DECODING.held == 0


def test_a_resized_image_counts_until_it_is_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    held, resized = [], images.sized
    monkeypatch.setattr(
        images, "sized", lambda *args: (held.append(DECODING.held), resized(*args))[1]
    )
    assert is_ok(READERS["prepare"](image_file("PNG")))
    assert held[0] > 0


def test_a_broken_image_frees_what_it_counted() -> None:
    assert not is_ok(open_image(image_file("PNG")[:100], POLICY))
    assert DECODING.held == 0


def test_large_images_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, decode, alone = MemoryGate(1), ImageFile.ImageFile.load, []

    def load(image: Any) -> Any:
        alone.append(gate.held == decoded_bytes(image))
        return decode(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    monkeypatch.setattr(images, "DECODING", gate)
    with ThreadPoolExecutor(4) as pool:
        slots = [*pool.map(READERS["prepare"], [image_file("PNG")] * 12)]
    assert all(map(is_ok, slots))
    assert alone
    assert all(alone)


def test_work_at_the_same_time_takes_no_more_than_the_bound_or_is_alone() -> None:
    gate, seen = MemoryGate(10), []

    def work(count: int) -> None:
        with gate.taken(count):
            seen.append((gate.held, count))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [3, 8, 20, 1, 10, 4, 4, 2] * 50))
    assert len(seen) == 400
    assert [pair for pair in seen if pair[0] > 10 and pair[0] != pair[1]] == []
    assert gate.held == 0


def test_large_work_is_not_overtaken_by_small_work_that_comes_later() -> None:
    gate, order = MemoryGate(10), []

    def work(name: str, count: int) -> None:
        with gate.taken(count):
            order.append(name)

    large = threading.Thread(target=work, args=("large", 20))
    small = threading.Thread(target=work, args=("small", 1))
    with gate.taken(1):
        large.start()
        while not gate._first.locked():  # it waits
            pass
        small.start()
        assert order == []
    large.join()
    small.join()
    assert order == ["large", "small"]
