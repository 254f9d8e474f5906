"""Images for tests, good and broken, as the bytes of image files. Needs Pillow; the strategies need hypothesis.

The good ones show four corners of known colours, so that a turned or mirrored one is told apart at once.

>>> from pipegen.records.requests import ImagePolicy
>>> from pipegen.media.image import open_image
>>> corners(open_image(image_file("JPEG", orientation=6), ImagePolicy()).unwrap())
('red', 'green', 'blue', 'white')
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hypothesis.strategies import SearchStrategy
    from PIL import Image

__all__ = ["BROKEN", "COLOURS", "budgets", "corners", "four_corners", "image_file", "mangled", "png_announcing", "sides"]

COLOURS: Mapping[str, tuple[int, int, int]] = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}
"""The colours of the corners: top left, top right, bottom left, bottom right."""
_INVERSE = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
"""EXIF orientation -> the `PIL.Image.Transpose` that a camera held so has applied."""


def four_corners(width: int = 48, height: int = 32, mode: str = "RGB") -> Image.Image:
    """An upright image in four plain quarters, see `COLOURS`."""
    from PIL import Image

    image = Image.new("RGB", (width, height))
    left, top = max(1, width // 2), max(1, height // 2)
    for position, colour in enumerate(COLOURS.values()):
        image.paste(colour, (left if position % 2 else 0, top if position > 1 else 0, width if position % 2 else left, height if position > 1 else top))
    return image.convert(mode)


def corners(image: Image.Image) -> tuple[str, ...]:
    """The names of the colours nearest to an image's corners: top left, top right, bottom left, bottom right."""
    width, height = image.size
    names = []
    for corner in ((0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1)):
        seen: Any = image.getpixel(corner)
        names.append(min(COLOURS, key=lambda name: sum((a - b) ** 2 for a, b in zip(COLOURS[name], seen, strict=True))))
    return tuple(names)


def image_file(file_format: str = "PNG", *, width: int = 48, height: int = 32, mode: str = "RGB", orientation: int | None = None, **save: Any) -> bytes:
    """The bytes of an image file of `four_corners`, `width` x `height` when upright; with `orientation` it is stored turned, with the EXIF tag."""
    from PIL import Image

    image = four_corners(width, height, mode)
    if orientation is not None:
        image = image.transpose(Image.Transpose(_INVERSE[orientation])) if orientation in _INVERSE else image
        exif = Image.Exif()
        exif[0x0112] = orientation
        save["exif"] = exif
    if file_format == "JPEG":
        save = {"quality": 95, **save}
    file = io.BytesIO()
    image.save(file, file_format, **save)
    return file.getvalue()


def png_announcing(width: int, height: int) -> bytes:
    """A PNG that announces a size and holds a few bytes: what a decompression bomb looks like before it is decoded."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def _float_tiff() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("F", (32, 32), 1e6).save(file, "TIFF")
    return file.getvalue()


BROKEN: Mapping[str, Callable[[], bytes]] = {
    "an empty file": lambda: b"",
    "text renamed to .png": lambda: b"this is no image, whatever its name says\n",
    "a signature alone": lambda: b"\x89PNG\r\n\x1a\n",
    "a truncated JPEG": lambda: image_file("JPEG")[:-200],
    "a truncated PNG": lambda: image_file("PNG", compress_level=0)[:1000],
    "a truncated WEBP": lambda: image_file("WEBP")[:-20],
    "a truncated GIF": lambda: image_file("GIF")[:-30],
    "a PNG of 0x0": lambda: png_announcing(0, 0),
    "a PNG announcing 100000x100000": lambda: png_announcing(100_000, 100_000),
    "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
    "a PDF": lambda: b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF",
    "levels beyond 255": _float_tiff,
}
"""Name -> maker of the bytes of an image that must be refused."""


def sides(most: int = 20_000) -> SearchStrategy[tuple[int, int]]:
    """Sizes (width, height): ordinary ones, tiny ones, and strips as far as the aspect limit and beyond."""
    from hypothesis import strategies as st

    ordinary = st.tuples(st.integers(1, most), st.integers(1, most))
    strips = st.tuples(st.integers(1, 99), st.integers(1, most)).flatmap(lambda size: st.sampled_from((size, (size[1], size[0]))))
    round_ones = st.tuples(*(st.sampled_from((14, 16, 27, 28, 29, 31, 32, 33, 224, 336, 448, 768, 1024, 1080, 1920)) for _ in range(2)))
    return st.one_of(ordinary, strips, round_ones)


def budgets() -> SearchStrategy[tuple[int, int]]:
    """Pairs (min_pixels, max_pixels): those of checkpoints, wide ones, narrow ones, and some below one token."""
    from hypothesis import strategies as st

    real = st.sampled_from(((3136, 1_003_520), (65_536, 16_777_216), (9216, 16_384), (65_536, 786_432), (784, 784)))
    narrow = st.integers(1, 2_000_000).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, low + low // 3)))
    wide = st.integers(1, 1_000_000).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 64 * low)))
    return st.one_of(real, wide, narrow)


def mangled() -> SearchStrategy[bytes]:
    """Image files with some bytes changed, dropped or added, most of them near the beginning."""
    from hypothesis import strategies as st

    whole = [image_file(name, orientation=6) for name in ("PNG", "JPEG", "WEBP", "TIFF")] + [image_file(name) for name in ("GIF", "BMP", "PPM")]
    edit = st.tuples(st.one_of(st.integers(0, 120), st.integers(0, 5000)), st.sampled_from(("change", "drop", "add")), st.binary(min_size=1, max_size=4))

    def edited(data: bytes, edits: list[tuple[int, str, bytes]]) -> bytes:
        for index, kind, new in edits:
            at = index % max(1, len(data))
            data = data[:at] + (b"" if kind == "drop" else new) + data[at + (0 if kind == "add" else len(new)) :]
        return data

    return st.builds(edited, st.sampled_from(whole), st.lists(edit, max_size=6))
