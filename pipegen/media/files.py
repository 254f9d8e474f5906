"""What an image file is made of, counted before any decoder goes through it: a small file may hold work for hours.

Each pass (scan) of a JPEG goes over all of its pixels, and needs some bytes only. Segments, chunks, blocks and tags are read one by one, by Python code.

>>> parts_of(bytes.fromhex("ffd8 ffda0002 12 ffda0002 12 ffd9 ffda"))
Counted(parts=2, scans=2)
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

__all__ = ["MOST_PARTS", "Counted", "most_scans", "parts_of"]

MOST_PARTS = 2**14
"""The segments, chunks, blocks or tags that a file may have before its image ends; files of cameras and programs have some hundred."""
USUAL_SCANS = 16
"""The scans that any image may have; those of programs have about ten."""
_SCANNED = 2**28
"""Pixels times scans that a smaller image may have: about a quarter of a second."""
_SMALL = 2**18
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
"""The markers of a JPEG but those that stand alone, and what only looks like one within a scan."""
_SCAN, _END = 0xDA, 0xD9
_BIG_TIFF = 43
_PIECE = 2**8
"""Bytes of a piece of a PNG; shorter ones count as parts."""


class Counted(NamedTuple):
    """How many parts a file has, counted no further than one beyond `MOST_PARTS`, and how many scans, where it is a JPEG."""

    parts: int
    scans: int = 0


def most_scans(pixels: int) -> int:
    """How many scans an image of so many pixels may have.

    >>> most_scans(100_000_000), most_scans(1_000_000), most_scans(1)
    (16, 268, 1024)
    """
    return max(USUAL_SCANS, _SCANNED // max(pixels, _SMALL))


def parts_of(data: bytes) -> Counted:
    """The parts of a JPEG, PNG, GIF or TIFF file; of another file, none."""
    if data[:2] == b"\xff\xd8":
        return _jpeg(data)
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return _png(data)
    if data[:4] == b"GIF8":
        return _gif(data)
    return _tiff(data) if data[:2] in (b"II", b"MM") else Counted(0)


def _jpeg(data: bytes) -> Counted:
    """As the decoder goes: from marker to marker, over what their lengths say, to the end of the first image."""
    count = scans = 0
    at = 2
    while count <= MOST_PARTS and (found := _MARKER.search(data, at)) is not None:
        kind, at = data[found.end() - 1], found.end()
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
        count += size < _PIECE or data[at + 4 : at + 8] != b"IDAT"  # an image comes in as many pieces as its writer likes
        at += 12 + size
    return Counted(count)


def _gif(data: bytes) -> Counted:
    """The blocks before the first image, each with its pieces of up to 255 bytes."""
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
    return Counted(min(int.from_bytes(data[start : start + (8 if wide else 2)], order), MOST_PARTS + 1))
