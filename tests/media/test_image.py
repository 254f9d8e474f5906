"""Images to pixels: upright, RGB, within limits, at a size that the model keeps."""

from __future__ import annotations

import dataclasses
import io
import random
import struct
import sys
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from pipegen.core.errors import BadImage, UnsupportedOption
from pipegen.core.names import InvalidField
from pipegen.core.slots import is_ok
from pipegen.media.image import as_pil, digest, file_to_send, open_image, prepare
from pipegen.media.sizes import ImageSpec, fit, pixel_budget
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.requests import ImagePolicy
from pipegen.records.results import PreparedImage
from pipegen.testing.image_files import (
    BROKEN,
    COLOURS,
    corners,
    four_corners,
    image_file,
    png_announcing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Image = pytest.importorskip("PIL.Image")
ImageFile = pytest.importorskip("PIL.ImageFile")

POLICY = ImagePolicy()
QWEN3 = ImageSpec(
    kind="grid",
    patch_size=16,
    merge_size=2,
    temporal_patch_size=2,
    min_pixels=65_536,
    max_pixels=16_777_216,
)
UPRIGHT = tuple(COLOURS)


def opened(data: bytes) -> Any:
    return open_image(data, POLICY).unwrap()


def saved(image: Any, file_format: str = "PNG", **save: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **save)
    return file.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_image_comes_the_right_way_up(file_format: str, orientation: int) -> None:  # P4
    image = opened(image_file(file_format, orientation=orientation))
    assert image.mode == "RGB"
    assert image.size == (48, 32)
    assert corners(image) == UPRIGHT


def test_exif_that_cannot_be_read_turns_nothing() -> None:
    data = image_file("JPEG", orientation=6)
    place = data.index(b"Exif\0\0") + 6
    image = opened(data[:place] + b"\xff" * 8 + data[place + 8 :])
    assert image.size == (32, 48)


def test_exif_that_is_no_exif_turns_nothing() -> None:
    data = image_file("PNG")
    body = b"eXIf" + b"garbage"
    chunk = struct.pack(">I", 7) + body + struct.pack(">I", zlib.crc32(body))
    place = data.index(b"IDAT") - 4
    assert corners(opened(data[:place] + chunk + data[place:])) == UPRIGHT


def test_an_orientation_that_does_not_exist_turns_nothing() -> None:
    assert corners(opened(image_file("JPEG", orientation=77))) == UPRIGHT


# P4
@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "CMYK", "RGBA", "LA", "YCbCr"])
def test_opaque_images_of_every_mode_are_what_pillow_converts_them_to(mode: str) -> None:
    image = four_corners(mode="L" if mode == "LA" else "RGB").convert(mode)
    data = saved(image, "TIFF")
    assert opened(data).tobytes() == image.convert("RGB").tobytes()


@pytest.mark.parametrize(
    ("image", "options"),
    [
        pytest.param(lambda: Image.new("RGBA", (4, 4), (255, 0, 0, 0)), {}, id="RGBA"),
        pytest.param(lambda: Image.new("LA", (4, 4), (0, 0)), {}, id="LA"),
        pytest.param(lambda: Image.new("P", (4, 4), 0), {"transparency": 0}, id="P"),
        pytest.param(
            lambda: Image.new("L", (4, 4), 7), {"transparency": 7}, id="L with a transparent level"
        ),
        pytest.param(
            lambda: Image.new("RGB", (4, 4), (1, 2, 3)),
            {"transparency": (1, 2, 3)},
            id="RGB with a transparent colour",
        ),
    ],
)
# P4
def test_what_is_transparent_is_laid_over_white(
    image: Callable[[], Any], options: dict[str, Any]
) -> None:
    assert opened(saved(image(), **options)).getpixel((1, 1)) == (255, 255, 255)


def test_half_transparent_black_over_white_is_grey() -> None:
    seen = opened(saved(Image.new("RGBA", (4, 4), (0, 0, 0, 128)))).getpixel((0, 0))
    assert seen == (127, 127, 127)


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_to_eight_and_not_clipped(file_format: str) -> None:  # P4
    image = Image.new("I;16", (3, 2))
    for level in (0, 128, 129, 256, 257, 32_767, 32_768, 65_406, 65_407, 65_535):
        image.putpixel((0, 0), level)
        assert opened(saved(image, file_format)).getpixel((0, 0)) == ((2 * level + 257) // 514,) * 3


@pytest.mark.parametrize(
    ("data", "levels"),
    [
        (b"P5 2 1 65535\n" + bytes([0, 255, 255, 255]), (1, 255)),
        (b"P5 2 1 65535\n" + bytes([0, 255, 0, 0]), (1, 0)),
        (b"P2 2 1 65535\n255 65535\n", (1, 255)),
        (b"P5 2 1 1023\n" + bytes([2, 0, 3, 255]), (128, 255)),
        (b"P5 2 1 255\n" + bytes([1, 255]), (1, 255)),
    ],
)
def test_a_pgm_of_more_than_eight_bits_is_scaled(data: bytes, levels: tuple[int, int]) -> None:
    for source in (data, ImageSource.of(Image.open(io.BytesIO(data))).data or b""):
        image = opened(source)
        assert tuple(image.getpixel((place, 0))[0] for place in (0, 1)) == levels


def tiff_of(bits: int, photometric: int, body: bytes) -> bytes:
    """A TIFF of two grey pixels."""
    tags = {256: 2, 257: 1, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: 1, 279: 4}
    entries = [struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags.items()]
    head = b"II*\0" + struct.pack("<I", 12) + body
    return head + struct.pack("<H", len(tags)) + b"".join(entries) + bytes(4)


@pytest.mark.parametrize(
    ("data", "levels"),
    [
        (tiff_of(12, 1, b"\xff\xf8\x00\x00"), (255, 128)),
        (tiff_of(16, 0, b"\xff\xff\x00\x80"), (0, 127)),
        (tiff_of(16, 1, b"\xff\xff\x00\x80"), (255, 128)),
    ],
)
def test_a_tiff_of_twelve_bits_or_with_white_as_zero_is_read_as_it_says(
    data: bytes, levels: tuple[int, int]
) -> None:
    assert tuple(opened(data).getpixel((place, 0))[0] for place in (0, 1)) == levels


def png_of_16_bits(colour: int, row: tuple[int, ...], clear: tuple[int, ...] = ()) -> bytes:
    """A PNG of two pixels, with a transparent level or colour."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    def levels(*values: int) -> bytes:
        return struct.pack(f">{len(values)}H", *values)

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, colour, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + levels(*row)))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + (chunk(b"tRNS", levels(*clear)) if clear else b"")
        + pixels
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("row", "clear", "seen"),
    [((258, 257), 258, (255, 1)), ((0, 65_535), 0, (255, 255)), ((2, 770), 3, (0, 3))],
)
def test_a_transparent_level_of_sixteen_bits_is_white_from_bytes_and_as_a_pil_image(
    row: tuple[int, int], clear: int, seen: tuple[int, int]
) -> None:
    data = png_of_16_bits(0, row, (clear,))
    for source in (data, ImageSource.of(Image.open(io.BytesIO(data))).data or b""):
        image = opened(source)
        assert tuple(image.getpixel((place, 0))[0] for place in (0, 1)) == seen


def test_a_file_of_sixteen_bits_is_not_sent_as_it_is() -> None:
    opaque = png_of_16_bits(2, (258, 772, 1286, 65_535, 0, 0))
    assert file_to_send(opaque, POLICY).unwrap().data != opaque


def test_a_transparent_colour_of_sixteen_bits_is_refused_where_it_may_be_that_of_a_pixel() -> None:
    hidden = png_of_16_bits(2, (258, 772, 1286, 65_535, 0, 0), (258, 772, 1286))
    error = open_image(hidden, POLICY).failure()
    assert "it has 16 bits and a transparent colour" in error.message
    with pytest.raises(InvalidField, match="16 bits and a transparent colour"):
        ImageSource.of(Image.open(io.BytesIO(hidden)))
    # of 8 bits, the transparent colour would be that of the first pixel
    shown = opened(png_of_16_bits(2, (1 << 8, 2 << 8, 3 << 8, 65_535, 0, 0), (1, 2, 3)))
    assert [shown.getpixel((place, 0)) for place in (0, 1)] == [(1, 2, 3), (255, 0, 0)]


def test_thirty_two_bit_levels_are_taken_from_0_to_255_and_refused_beyond() -> None:
    assert opened(saved(Image.new("I", (2, 2), 200), "TIFF")).getpixel((0, 0)) == (200, 200, 200)
    assert (
        "from 300 to 300"
        in open_image(saved(Image.new("I", (2, 2), 300), "TIFF"), POLICY).failure().message
    )


@pytest.mark.parametrize(
    ("level", "advice"),
    [
        (0.0, "multiply them by 255, round, and save"),
        (0.5, "multiply them by 255, round, and save"),
        (1.0, "multiply them by 255, round, and save"),
        (200.0, "scale them, and save"),
        (-0.5, "scale them, and save"),
        (float("nan"), "scale them, and save"),
    ],
)
def test_levels_that_are_floats_are_refused_with_what_to_do(level: float, advice: str) -> None:
    error = open_image(saved(Image.new("F", (2, 2), level), "TIFF"), POLICY).failure()
    assert error.message.startswith(
        f"image 0 has levels that are floats, from {level:g} to {level:g}"
    )
    assert error.hint == f"{advice} it with levels of 8 bits, from 0 to 255"


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_frame_is_taken(file_format: str) -> None:  # P5
    first, second = four_corners(), Image.new("RGB", (48, 32), "black")
    extra = {"lossless": True} if file_format == "WEBP" else {}
    data = saved(first, file_format, save_all=True, append_images=[second, second], **extra)
    assert corners(opened(data)) == UPRIGHT


# P5
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_image_is_a_bad_image_that_names_its_position(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error = open_image(BROKEN[name](), POLICY, index=7).failure()
    assert isinstance(error, BadImage)
    assert error.index == 7
    assert "image 7" in error.message


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
def test_an_image_that_is_rgb_already_is_not_copied(
    file_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, plain = (
        saved(Image.new("RGB", (40, 30), "red"), file_format),
        opened(saved(Image.new("RGB", (40, 30), "red"), "PNG")),
    )
    monkeypatch.setattr(Image.Image, "copy", None)
    image = opened(data)
    seen = (image.mode, image.size, image.getpixel((5, 5)))
    assert seen == ("RGB", (40, 30), pytest.approx(plain.getpixel((5, 5)), abs=2))


def test_what_is_no_image_says_so_and_what_to_do() -> None:
    assert open_image(b"", POLICY).failure().message == "image 0 is empty: 0 bytes"
    error = open_image(b"<svg/>", POLICY).failure()
    assert "is not an image in a known format" in error.message
    assert "convert other formats to PNG or JPEG" in error.hint


def test_a_broken_avif_is_a_bad_image() -> None:  # P5
    features = pytest.importorskip("PIL.features")
    if not features.check("avif"):
        pytest.skip("this Pillow was built without AVIF")
    data = image_file("AVIF")
    media = data.index(b"mdat") + 4
    assert (
        "cannot be decoded"
        in open_image(data[:media] + bytes(len(data) - media), POLICY).failure().message
    )


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)


def test_heic_and_avif_that_cannot_be_read_here_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    Image.init()
    for name in ("AVIF", "HEIF"):
        monkeypatch.delitem(Image.OPEN, name, raising=False)
    heic = open_image(HEIC, POLICY).failure()
    assert heic.message == "image 0 is HEIF, and what reads HEIF is not installed"
    assert heic.hint == "pip install pillow-heif, or convert it to JPEG or PNG"
    avif = open_image(HEIC.replace(b"heic", b"avif"), POLICY).failure()
    assert avif.hint == "pip install 'pillow>=11.3', or convert it to JPEG or PNG"


def test_an_avif_is_read_upright_where_pillow_reads_it() -> None:
    if not pytest.importorskip("PIL.features").check("avif"):
        pytest.skip("this Pillow was built without AVIF")
    assert corners(opened(image_file("AVIF", orientation=6))) == UPRIGHT


@pytest.fixture
def heif() -> Any:
    """What reads and writes HEIF."""
    package = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
    package.register_heif_opener()
    return package


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_heic_is_read_upright_where_pillow_heif_is_installed(heif: Any, orientation: int) -> None:
    data = image_file("HEIF", orientation=orientation, quality=95)
    image = opened(data)
    assert (image.mode, image.size, corners(image)) == ("RGB", (48, 32), UPRIGHT)
    assert file_to_send(data, POLICY).unwrap().kind == "png"


def test_a_heic_is_bound_by_the_limits_and_a_broken_one_is_a_bad_image(heif: Any) -> None:
    data = image_file("HEIF", width=640, height=480)
    assert (
        "announces 640x480"
        in open_image(data, ImagePolicy(max_source_pixels=1000)).failure().message
    )
    for broken in (HEIC, data[: len(data) // 2], data.replace(b"hvcC", b"none")):
        assert isinstance(open_image(broken, POLICY).failure(), BadImage)


def test_a_heic_is_read_without_a_word_to_pillow_before(
    heif: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = image_file("HEIF", quality=95)
    monkeypatch.delitem(Image.OPEN, "HEIF")
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name != "HEIF"])
    assert corners(opened(data)) == UPRIGHT


def test_an_image_that_is_too_large_for_pillow_itself_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert "too large for Pillow" in open_image(image_file(), POLICY).failure().message


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:  # P5
    def decode(*_: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    policy = ImagePolicy(max_source_pixels=999_999)
    error = open_image(png_announcing(1000, 1000), policy).failure()
    assert "announces 1000x1000 pixels; the limit is 999999" in error.message
    assert "max_source_pixels" in error.hint


def test_a_large_image_within_the_limit_brings_no_warning_of_pillow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 48 x 32 is more than that, and less than twice as much
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_ok(open_image(image_file(), POLICY))


def test_threads_leave_the_warning_filters_as_they_were() -> None:
    before = list(warnings.filters)
    threads = [threading.Thread(target=open_image, args=(image_file(), POLICY)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def test_images_are_decoded_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together, decode = threading.Barrier(2, timeout=60), ImageFile.ImageFile.load

    def meet(image: ImageFile.ImageFile) -> Any:
        together.wait()  # breaks where one has to end before the next begins
        return decode(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", meet)
    with ThreadPoolExecutor(2) as pool:
        assert all(
            map(is_ok, pool.map(lambda data: open_image(data, POLICY), [image_file("BMP")] * 2))
        )


@pytest.mark.parametrize("size", [(40, 300), (300, 40), (10, 400), (97, 61)])
@pytest.mark.parametrize("resample", [1, 2, 3, 5])
def test_an_image_is_resized_by_its_width_first_whatever_the_version(
    size: tuple[int, int], resample: int
) -> None:
    pixels = random.Random(1).randbytes(size[0] * size[1] * 3)
    image = Image.frombytes("RGB", size, pixels)
    spec = dataclasses.replace(QWEN3, resample=resample)
    prepared = prepare(saved(image), spec, VlmPreprocessOptions(), 0, POLICY).unwrap()
    assert prepared.height != size[1]
    wide = image.resize((prepared.width, size[1]), resample)
    assert prepared.rgb == wide.resize((prepared.width, prepared.height), resample).tobytes()


def test_p1_a_large_image_lands_within_the_budget() -> None:  # P1
    image = prepare(
        image_file("JPEG", width=4000, height=3000),
        QWEN3,
        VlmPreprocessOptions(max_pixels=786_432),
        0,
        POLICY,
    ).unwrap()
    assert (image.width, image.height) == (1024, 768)
    assert image.grid == (1, 48, 64)
    assert image.tokens == 48 * 64 // 4
    assert image.width * image.height <= 786_432
    assert len(image.rgb) == 1024 * 768 * 3
    assert corners(Image.frombytes("RGB", (1024, 768), image.rgb)) == UPRIGHT


# P2
@pytest.mark.parametrize(
    "values",
    [
        {"min_pixels": 10, "max_pixels": 9},
        {"max_pixels": 0},
        {"min_pixels": -1},
        {"max_pixels": True},
    ],
)
def test_p2_an_impossible_budget_is_refused_at_construction(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidField):
        VlmPreprocessOptions(**values)


def test_p3_without_resizing_a_wrong_side_is_refused_and_the_nearest_size_named() -> None:  # P3
    error = prepare(
        image_file(width=100, height=64), QWEN3, VlmPreprocessOptions(do_resize=False), 2, POLICY
    ).failure()
    assert isinstance(error, BadImage)
    assert error.index == 2
    assert "100x64" in error.message
    assert "96x64" in error.hint


def test_without_resizing_a_right_size_is_kept_whatever_the_checkpoints_budget() -> None:
    image = prepare(
        image_file(width=96, height=64), QWEN3, VlmPreprocessOptions(do_resize=False), 0, POLICY
    ).unwrap()
    assert (image.width, image.height, image.grid, image.tokens) == (96, 64, (1, 4, 6), 6)


def test_without_resizing_a_bound_that_was_asked_still_counts() -> None:
    error = prepare(
        image_file(width=96, height=64),
        QWEN3,
        VlmPreprocessOptions(do_resize=False, max_pixels=6000),
        0,
        POLICY,
    ).failure()
    assert "6144 pixels, outside the requested 1 to 6000" in error.message


@pytest.mark.parametrize(("width", "height"), [(1, 30_000), (30_000, 1), (201, 1)])
def test_p5_a_strip_beyond_the_models_limit_is_a_bad_image(width: int, height: int) -> None:  # P5
    error = prepare(
        image_file(width=width, height=height), QWEN3, VlmPreprocessOptions(), 0, POLICY
    ).failure()
    assert isinstance(error, BadImage)
    assert "the model takes at most 200" in error.message


def test_a_budget_without_any_size_is_a_bad_image_that_says_so() -> None:
    error = prepare(
        image_file(), QWEN3, VlmPreprocessOptions(min_pixels=1025, max_pixels=2047), 0, POLICY
    ).failure()
    assert "has between 1025 and 2047 pixels" in error.message
    assert "from min_pixels to max_pixels" in error.hint


@pytest.mark.parametrize(
    ("asked", "budget"),
    [
        ({}, (65_536, 16_777_216)),
        ({"min_pixels": 5, "max_pixels": 6}, (5, 6)),
        ({"max_pixels": 786_432}, (65_536, 786_432)),
        ({"max_pixels": 60_000}, (15_000, 60_000)),
        ({"max_pixels": 1}, (1, 1)),
        ({"min_pixels": 100_000}, (100_000, 16_777_216)),
        ({"min_pixels": 20_000_000}, (20_000_000, 80_000_000)),
    ],
)
def test_the_callers_bounds_win_and_the_checkpoints_other_one_gives_way(
    asked: dict[str, Any], budget: tuple[int, int]
) -> None:
    assert pixel_budget(QWEN3, VlmPreprocessOptions(**asked)) == budget


def test_a_budget_below_one_token_gives_one_token() -> None:
    assert fit(300, 100, factor=32, min_pixels=1, max_pixels=10) == (32, 32)


def test_a_native_processor_gets_the_image_at_its_own_size() -> None:
    image = prepare(
        image_file("JPEG", width=101, height=77, orientation=6),
        ImageSpec(),
        VlmPreprocessOptions(do_resize=True),
        0,
        POLICY,
    ).unwrap()
    assert (image.width, image.height, image.grid) == (101, 77, None)


@pytest.mark.parametrize(
    ("name", "value"), [("max_pixels", 786_432), ("min_pixels", 1), ("do_resize", False)]
)
def test_a_native_processor_refuses_what_it_cannot_honour(name: str, value: Any) -> None:
    error = prepare(
        image_file(), ImageSpec(), VlmPreprocessOptions(**{name: value}), 0, POLICY
    ).failure()
    assert isinstance(error, UnsupportedOption)
    assert error.option == name


# P8
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "1", "P", "CMYK", "I;16", "YCbCr"])
def test_a_pil_image_has_the_digest_of_its_file(mode: str) -> None:
    image = (
        Image.new("I;16", (48, 32), 30_000)
        if mode == "I;16"
        else four_corners(mode="L" if mode == "LA" else "RGB").convert(mode)
    )
    held = ImageSource.of(image).data or b""
    assert digest(opened(held)) == digest(opened(saved(image, "TIFF")))


def test_a_transparent_palette_survives_the_way_from_a_pil_image() -> None:  # P8
    data = saved(four_corners(mode="P"), transparency=four_corners(mode="P").getpixel((0, 0)))
    held = ImageSource.of(Image.open(io.BytesIO(data))).data or b""
    assert digest(opened(held)) == digest(opened(data))
    assert opened(held).getpixel((0, 0)) == (255, 255, 255)


def test_the_digest_is_of_the_image_before_it_was_resized() -> None:
    small = prepare(
        image_file(), QWEN3, VlmPreprocessOptions(max_pixels=20_000), 0, POLICY
    ).unwrap()
    large = prepare(image_file(), QWEN3, VlmPreprocessOptions(), 0, POLICY).unwrap()
    assert small.grid != large.grid
    assert small.digest == large.digest == digest(four_corners())


def test_the_digest_tells_images_of_the_same_bytes_and_other_sides_apart() -> None:
    assert digest(Image.new("RGB", (2, 8))) != digest(Image.new("RGB", (8, 2)))


def test_importing_the_stage_loads_no_pil() -> None:  # C6
    import subprocess

    code = (
        "import sys, pipegen.media.image, pipegen.media.source; sys.exit('PIL' in sys.modules or"
        " 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("size", "budget", "kept"),
    [
        ((40, 1), (100, 100), (28, 28)),
        ((2851, 1825), (69_817, 72_772), (364, 196)),
        ((1825, 2851), (69_817, 72_772), (196, 364)),
    ],
)
def test_where_the_processor_would_not_keep_its_own_choice_the_nearest_size_is_taken(
    size: tuple[int, int], budget: tuple[int, int], kept: tuple[int, int]
) -> None:
    assert fit(*size, factor=28, min_pixels=budget[0], max_pixels=budget[1]) == kept


def test_a_specification_takes_a_budget_the_right_way_round() -> None:
    with pytest.raises(InvalidField, match="min_pixels of at most max_pixels"):
        ImageSpec(kind="grid", min_pixels=2, max_pixels=1)


def test_what_was_prepared_is_a_pillow_image_again() -> None:
    image = as_pil(PreparedImage(width=1, height=2, rgb=bytes(range(6)), digest="0", tokens=1))
    assert (image.size, image.mode, image.tobytes()) == ((1, 2), "RGB", bytes(range(6)))
