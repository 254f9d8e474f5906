"""What an image file costs, before it is decoded: its parts, since a small file may take hours, and
the memory that its pixels take. All images together are held to a bound.

Each scan of a JPEG goes over all of its pixels, and takes few bytes. Pillow reads segments, chunks,
blocks and tags one by one in Python.

>>> parts_of(bytes.fromhex("ffd8 ffda0002 12 ffda0002 12 ffd9 ffda"))
Counted(parts=2, scans=2)
>>> from PIL import Image
>>> decoded_bytes(Image.new("RGBA", (1000, 1000)))
12000000
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from PIL import Image


MOST_PARTS = 2**14
"""The most segments, chunks, blocks or tags of a file; usual files have some hundred."""
USUAL_SCANS = 16
"""The scans that any image may have; usual files have about ten."""
_SCANNED = 2**28
"""Pixels times scans that any image may have: about a quarter of a second."""
_SMALL = 2**18
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
"""The markers of a JPEG that are followed by a length."""
_SCAN, _END = 0xDA, 0xD9
_BIG_TIFF = 43
_PIECE = 2**8
"""Chunks of a PNG's pixels that are shorter count as parts."""


class Counted(NamedTuple):
    """How many parts a file has, counted up to `MOST_PARTS + 1`, and how many scans, if it is a
    JPEG.
    """

    parts: int
    scans: int = 0


def most_scans(pixels: int) -> int:
    """The most scans of an image with so many pixels.

    >>> most_scans(100_000_000), most_scans(1_000_000), most_scans(1)
    (16, 268, 1024)
    """
    return max(USUAL_SCANS, _SCANNED // max(pixels, _SMALL))


def parts_of(data: bytes) -> Counted:
    """The parts of a JPEG, PNG, GIF or TIFF file; none for other files."""
    if data[:2] == b"\xff\xd8":
        return _jpeg(data)
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return _png(data)
    if data[:4] == b"GIF8":
        return _gif(data)
    return _tiff(data) if data[:2] in (b"II", b"MM") else Counted(0)


def _jpeg(data: bytes) -> Counted:
    """From marker to marker, as the decoder does, to the end of the first image."""
    count = scans = 0
    at = 2
    while count <= MOST_PARTS and (match := _MARKER.search(data, at)) is not None:
        kind, at = data[match.end() - 1], match.end()
        if kind == _END:
            break
        count += 1
        scans += kind == _SCAN
        at += int.from_bytes(data[at : at + 2], "big")
    return Counted(count, scans)


def _png(data: bytes) -> Counted:
    count, at = 0, 8
    while count <= MOST_PARTS and at < len(data) and data[at + 4 : at + 8] != b"IEND":
        size = int.from_bytes(data[at : at + 4], "big")
        # usual files have many long IDAT chunks
        count += size < _PIECE or data[at + 4 : at + 8] != b"IDAT"
        at += 12 + size
    return Counted(count)


def _gif(data: bytes) -> Counted:
    """The blocks before the first image, and their pieces of up to 255 bytes."""
    flags = data[10] if len(data) > 10 else 0
    count, at = 0, 13 + (6 << (flags & 7) if flags & 0x80 else 0)
    while count <= MOST_PARTS and data[at : at + 1] == b"!":
        count, at = count + 1, at + 2
        while count <= MOST_PARTS and (size := data[at] if at < len(data) else 0):
            count, at = count + 1, at + 1 + size
        at += 1
    return Counted(count)


def _tiff(data: bytes) -> Counted:
    """The tags of the first directory."""
    order: Literal["little", "big"] = "little" if data[:2] == b"II" else "big"
    wide = int.from_bytes(data[2:4], order) == _BIG_TIFF
    start = int.from_bytes(data[8:16] if wide else data[4:8], order)
    return Counted(
        min(int.from_bytes(data[start : start + (8 if wide else 2)], order), MOST_PARTS + 1)
    )


_BRANDS = {b"avif": "AVIF", b"avis": "AVIF"} | dict.fromkeys(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"), "HEIF"
)


def family_of(data: bytes) -> str:
    """`AVIF` or `HEIF` for a file that says so in its brands (ISO 14496-12), else empty.

    >>> family_of(bytes.fromhex("00000018") + b"ftypmif1    mif1avif"), family_of(b"GIF89a")
    ('AVIF', '')
    """
    if data[4:8] != b"ftyp":
        return ""
    brands = data[8 : min(int.from_bytes(data[:4], "big"), 256)]
    families = [
        _BRANDS[brands[at : at + 4]]
        for at in range(0, len(brands), 4)
        if brands[at : at + 4] in _BRANDS
    ]
    return min(families, default="")  # either family may name mif1


DECODED_BYTES = 512 * 2**20
"""Bytes of the images that are decoded at the same time. A larger image is decoded alone."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_ONE_BYTE = ("1", "L", "P")
_WHOLE_FRAMES = ("WEBP", "AVIF", "HEIF")
"""The formats whose decoders keep the frame, up to three times, beside Pillow's own."""


class MemoryGate:
    """Lets work begin while all that is at work takes at most so many bytes together, or when
    nothing else is at work. Who came first begins first, so large work is not overtaken for ever.

    >>> gate = MemoryGate(10)
    >>> with gate.taken(8), gate.taken(2):
    ...     gate.held
    10
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._first, self._changed = threading.Lock(), threading.Condition()

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        with self._first, self._changed:
            self._changed.wait_for(lambda: not self.held or self.held + count <= self.most)
            self.held += count
        if count > self.most:
            _return_freed_memory()
        try:
            yield
        finally:
            with self._changed:
                self.held -= count
                self._changed.notify_all()


def _return_freed_memory() -> None:
    """glibc keeps for each thread what that thread has freed: as much again as a large image takes.
    Other allocators have no such call.
    """
    import ctypes  # seldom needed

    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


DECODING = MemoryGate(DECODED_BYTES)
"""Of all images of this process."""


def decoded_bytes(image: Image.Image) -> int:
    """The most bytes that an opened image takes at a time until its pixels are used: its levels
    as decoded, the copies of the reference conversion (`pipegen.media.image`), and the image
    turned. At least the pixels in RGB and twice as bytes. Pillow stores RGB with 4 bytes a pixel.

    >>> from PIL import Image
    >>> [decoded_bytes(Image.new(mode, (1, 1))) for mode in ("RGB", "CMYK", "LA", "I;16")]
    [10, 12, 16, 14]
    """
    mode, is_transparent = image.mode, image.has_transparency_data
    copies = (
        mode != "RGB" or is_transparent,  # in RGB
        is_transparent and mode != "RGBA",
        mode == "I" or mode in SIXTEEN_BITS,  # as floats
        True,  # turned
    )
    stored = 1 if mode in _ONE_BYTE else 2 if mode in SIXTEEN_BITS else 4
    in_decoder = 12 if image.format in _WHOLE_FRAMES else 0
    return image.width * image.height * max(10, stored + 4 * sum(copies) + in_decoder)
