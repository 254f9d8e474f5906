"""PNG files, written without an imaging library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable


def png_of(width: int, height: int, pixel: Callable[[int, int], bytes]) -> bytes:
    """A PNG whose pixel at each x and y has these three bytes: red, green, blue.

    >>> png_of(2, 1, lambda x, y: b"red")[1:4]
    b'PNG'
    """
    lines = (b"".join(pixel(x, y) for x in range(width)) for y in range(height))
    return png_with(width, height, b"".join(b"\0" + line for line in lines))


def png_with(width: int, height: int, rows: bytes) -> bytes:
    """A PNG of 8-bit RGB rows, each with its filter byte."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
