"""Pictures on the wire: the pixels that pipegen has prepared, losslessly, as a data URL."""

from __future__ import annotations

import base64
import functools
import io

from pipegen.records import PreparedImage

__all__ = ["data_url"]


@functools.lru_cache(maxsize=64)
def data_url(image: PreparedImage) -> str:
    """The picture as a PNG in a data URL; the same for all requests of a batch that hold it.

    >>> data_url(PreparedImage(width=1, height=1, rgb=bytes(3), digest="0"))[:22]
    'data:image/png;base64,'
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.frombytes("RGB", (image.width, image.height), image.rgb).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
