"""Count the parts of an image file before it is decoded: a small file may take hours.

Each scan of a JPEG goes over all of its pixels, and takes few bytes. Pillow reads segments, chunks,
blocks and tags one by one in Python.

>>> parts_of(bytes.fromhex("ffd8 ffda0002 12 ffda0002 12 ffd9 ffda"))
Counted(parts=2, scans=2)
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

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
