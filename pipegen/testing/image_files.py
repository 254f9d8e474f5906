"""Images for tests, good and broken, as the bytes of image files. Needs Pillow.

The good ones have four corners of known colours, so that a turned or mirrored one is recognised.

>>> from pipegen.records.requests import ImagePolicy
>>> from pipegen.media.image import open_image
>>> corners(open_image(image_file("JPEG", orientation=6), ImagePolicy()).unwrap())
('red', 'green', 'blue', 'white')
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from pipegen.media.png import png_with

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from PIL import Image

__all__ = ["BROKEN", "COLOURS", "corners", "four_corners", "image_file", "png_announcing"]

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "white": (255, 255, 255),
}
"""The colours of the corners: top left, top right, bottom left, bottom right."""
_INVERSE = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
"""EXIF orientation -> the `PIL.Image.Transpose` that a camera held so has applied."""


def four_corners(width: int = 48, height: int = 32, mode: str = "RGB") -> Image.Image:
    """An upright image in four plain quarters, see `COLOURS`."""
    from PIL import Image

    image = Image.new("RGB", (width, height))
    left, top = max(1, width // 2), max(1, height // 2)
    for position, colour in enumerate(COLOURS.values()):
        image.paste(
            colour,
            (
                left if position % 2 else 0,
                top if position > 1 else 0,
                width if position % 2 else left,
                height if position > 1 else top,
            ),
        )
    return image.convert(mode)


def corners(image: Image.Image) -> tuple[str, ...]:
    """The names of the colours nearest to an image's corners: top left, top right, bottom left,
    bottom right.
    """
    width, height = image.size
    names = []
    for corner in ((0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1)):
        seen: Any = image.getpixel(corner)
        names.append(
            min(
                COLOURS,
                key=lambda name: sum(
                    (a - b) ** 2 for a, b in zip(COLOURS[name], seen, strict=True)
                ),
            )
        )
    return tuple(names)


def image_file(
    file_format: str = "PNG",
    *,
    width: int = 48,
    height: int = 32,
    mode: str = "RGB",
    orientation: int | None = None,
    **save: object,
) -> bytes:
    """The bytes of an image file of `four_corners`, `width` x `height` when upright; with
    `orientation` it is stored turned, with the EXIF tag.
    """
    from PIL import Image

    image = four_corners(width, height, mode)
    if orientation is not None:
        image = (
            image.transpose(Image.Transpose(_INVERSE[orientation]))
            if orientation in _INVERSE
            else image
        )
        exif = Image.Exif()
        exif[0x0112] = orientation
        save["exif"] = exif.tobytes()
    if file_format == "JPEG":
        save = {"quality": 95, **save}
    file = io.BytesIO()
    image.save(file, file_format, **save)
    return file.getvalue()


def png_announcing(width: int, height: int) -> bytes:
    """A PNG with a size in its header and few bytes: a decompression bomb before it is decoded."""
    return png_with(width, height, bytes(100))


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
    "PostScript": lambda: (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    ),
    "a PDF": lambda: b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF",
    "levels beyond 255": _float_tiff,
}
"""Name -> maker of the bytes of an image that must be refused."""
