"""What image files are made of: a small file may not hold work for hours."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("PIL")

from PIL import Image

from pipegen.core.errors import BadImage
from pipegen.core.slots import is_ok
from pipegen.media.files import MOST_PARTS, Counted, most_scans, parts_of
from pipegen.media.image import file_to_send, open_image
from pipegen.records.requests import ImagePolicy
from pipegen.testing.image_files import image_file

POLICY = ImagePolicy()


def saved(image: Image.Image, file_format: str, **more: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **more)
    return buffer.getvalue()


def scanned(times: int, size: tuple[int, int] = (64, 64)) -> bytes:
    """A progressive JPEG whose last scan comes so many times more."""
    data = saved(Image.new("RGB", size, "teal"), "JPEG", progressive=True)
    end, last = (
        data.rindex(b"\xff\xd9"),
        [found.start() for found in re.finditer(b"\xff\xda", data)][-1],
    )
    return data[:end] + data[last:end] * times + data[end:]


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def crowded_png() -> bytes:
    data = image_file("PNG")
    return data[:33] + chunk(b"teXt") * MOST_PARTS + data[33:]


def scattered_png() -> bytes:
    data = image_file("PNG")
    return data[:33] + chunk(b"IDAT") * (MOST_PARTS + 1) + data[33:]


def crowded_jpeg() -> bytes:
    data = image_file("JPEG")
    return data[:2] + b"\xff\xfe\x00\x02" * (MOST_PARTS + 1) + data[2:]


def crowded_gif() -> bytes:
    data = image_file("GIF")
    start = 13 + (6 << (data[10] & 7) if data[10] & 0x80 else 0)
    return data[:start] + b"!\xfe" + b"\x01a" * (MOST_PARTS + 1) + b"\0" + data[start:]


def crowded_tiff() -> bytes:
    data = bytearray(image_file("TIFF"))
    (place,) = struct.unpack("<I", data[4:8])
    data[place : place + 2] = b"\xff\xff"
    return bytes(data)


@pytest.mark.parametrize(
    "make", [crowded_png, scattered_png, crowded_jpeg, crowded_gif, crowded_tiff]
)
def test_a_file_of_too_many_parts_is_refused_before_it_is_decoded(
    make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "open", None)
    error = open_image(make(), POLICY, index=2).failure()
    assert isinstance(error, BadImage)
    assert error.index == 2
    assert f"more than {MOST_PARTS} parts" in error.message


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"])
def test_usual_files_have_few_parts(file_format: str) -> None:
    assert parts_of(image_file(file_format)).parts < 100
    assert is_ok(open_image(image_file(file_format), POLICY))


@pytest.mark.parametrize(
    ("file_format", "most"), [("PNG", 100), ("JPEG", 100), ("GIF", 100), ("TIFF", MOST_PARTS + 1)]
)
def test_the_parts_of_a_file_that_is_cut_short_are_counted_too(file_format: str, most: int) -> None:
    data = image_file(file_format)
    assert [cut for cut in range(60) if not 0 <= parts_of(data[:cut]).parts <= most] == []


def test_a_large_tiff_says_how_many_tags_it_has_in_eight_bytes() -> None:
    head = b"MM\x00\x2b\x00\x08\x00\x00" + struct.pack(">Q", 16)
    assert parts_of(head + struct.pack(">Q", 7)) == Counted(7)
    assert parts_of(head + struct.pack(">Q", 2**40)) == Counted(MOST_PARTS + 1)


def test_scans_are_counted_up_to_the_end_of_the_first_image() -> None:
    whole = scanned(5)
    assert parts_of(whole).scans == 15
    # another image behind it, as cameras put a preview there
    assert parts_of(whole + scanned(100)).scans == 15
    thumbnail = b"\xff\xe1" + struct.pack(">H", len(whole) + 2) + whole
    assert parts_of(whole[:2] + thumbnail + whole[2:]).scans == 15  # and one in a segment


def test_a_jpeg_may_have_so_many_scans_and_no_more() -> None:
    most = most_scans(64 * 64)
    assert is_ok(open_image(scanned(most - 10), POLICY))
    error = open_image(scanned(most - 9), POLICY, index=1).failure()
    assert isinstance(error, BadImage)
    assert error.message == f"image 1 of 64x64 pixels has {most + 1} scans; the limit is {most}"


def test_the_work_that_a_file_may_hold_is_bounded_by_pixels() -> None:
    """403 KiB took 17.8 seconds: pixels times scans are what costs."""
    for pixels in (1, 10**4, 10**6, 12 * 10**6, 10**8):
        assert most_scans(pixels) >= 16
        assert most_scans(pixels) * pixels <= max(2**28, 16 * pixels)


def test_a_tiff_made_of_jpegs_is_bound_as_they_are() -> None:
    plain = saved(Image.new("RGB", (64, 64), "teal"), "TIFF", compression="jpeg")
    assert is_ok(open_image(plain, POLICY))
    error = open_image(plain + b"\xff\xda" * 5_000, POLICY).failure()
    assert "scans" in error.message


# What is sent as it is


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (image_file("JPEG"), "jpeg"),
        (scanned(0), "jpeg"),
        (saved(Image.new("L", (8, 8), 7), "JPEG"), "jpeg"),
        (image_file("PNG"), "png"),
        (saved(Image.new("L", (8, 8), 7), "PNG"), "png"),
    ],
)
def test_a_file_whose_pixels_are_taken_as_they_are_is_sent_as_it_is(data: bytes, kind: str) -> None:
    assert file_to_send(data, POLICY).unwrap() == (kind, data)


@pytest.mark.parametrize(
    "data",
    [
        image_file("JPEG", orientation=6),
        image_file("PNG", orientation=3),
        image_file("WEBP"),
        image_file("GIF"),
        saved(Image.new("CMYK", (8, 8)), "JPEG"),
        saved(Image.new("RGBA", (8, 8), (9, 9, 9, 0)), "PNG"),
        saved(Image.new("I;16", (8, 8), 70_00), "PNG"),
        saved(Image.new("RGB", (8, 8), "red"), "PNG", transparency=(255, 0, 0)),
        saved(
            Image.new("RGB", (8, 8)),
            "PNG",
            save_all=True,
            append_images=[Image.new("RGB", (8, 8), "red")],
        ),
    ],
)
def test_any_other_is_sent_as_the_pixels_that_every_engine_gets(data: bytes) -> None:
    file = file_to_send(data, POLICY).unwrap()
    assert file.kind == "png"
    assert file.data != data
    assert (
        open_image(file.data, POLICY).unwrap().tobytes()
        == open_image(data, POLICY).unwrap().tobytes()
    )


def test_a_broken_file_is_not_sent() -> None:
    whole = image_file("JPEG", width=64, height=64)
    assert isinstance(file_to_send(whole[: len(whole) // 2], POLICY, 3).failure(), BadImage)
