"""How much memory images take while they are decoded, and the bound on all of them together.

>>> from PIL import Image
>>> decoded_bytes(Image.new("RGBA", (1000, 1000)))
12000000
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image


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
