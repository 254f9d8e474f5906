"""Images on the wire: the pixels that pipegen has prepared, losslessly, as a data URL; and where they lie in the prompt."""

from __future__ import annotations

import base64
import functools
import io

from pipegen.records.results import PreparedImage, Prompt

__all__ = ["data_url", "places"]


KEPT_PIXELS = 2**19
"""Up to this size what is made of an image is kept for the other requests that hold it: 64 of them take some 128 MiB at most."""


def data_url(image: PreparedImage) -> str:
    """The image as a PNG in a data URL; the same for all requests of a batch that hold it.

    >>> data_url(PreparedImage(width=1, height=1, rgb=bytes(3), digest="0"))[:22]
    'data:image/png;base64,'
    """
    return _kept(image) if image.width * image.height <= KEPT_PIXELS else _made(image)


@functools.lru_cache(maxsize=64)
def _kept(image: PreparedImage) -> str:
    return _made(image)


def _made(image: PreparedImage) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.frombytes("RGB", (image.width, image.height), image.rgb).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def places(prompt: Prompt, image_token_id: int | None) -> tuple[tuple[int, int], ...]:
    """The offset and the length of each image's tokens in the expanded prompt.

    >>> image = PreparedImage(width=1, height=1, rgb=bytes(3), digest="0", tokens=4)
    >>> places(Prompt(token_ids=(5, 9, 9, 9, 9, 6, 9, 9, 9, 9), compact_token_ids=(5, 9, 6, 9), images=(image, image)), 9)
    ((1, 4), (6, 4))
    """
    found: list[tuple[int, int]] = []
    if prompt.images:
        marks = [at for at, token_id in enumerate(prompt.compact_token_ids) if token_id == image_token_id]
        longer = 0
        for mark, image in zip(marks, prompt.images, strict=True):
            found.append((mark + longer, image.tokens))
            longer += image.tokens - 1
    return tuple(found)
