"""Images on the wire: prepared pixels as a lossless data URL, their places in the prompt, and
messages with their images for chat servers.
"""

from __future__ import annotations

import base64
import functools
import io
import itertools
from collections.abc import Mapping

from returns.result import Failure, Success

from pipegen.backends.http.plain_json import encoded
from pipegen.core.errors import InvalidRequest, UnsupportedMultimodal
from pipegen.core.slots import Slot, is_ok
from pipegen.media.image import file_to_send
from pipegen.records.call_arguments import arguments_written
from pipegen.records.messages import ImagePart, Message, VideoSource, plain_messages
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.records.results import PreparedImage, Prompt

KEPT_PIXELS = 2**19
"""Up to this size what is made of an image is kept for the other requests that hold it: 64 of them
take some 128 MiB at most.
"""


def data_url(image: PreparedImage) -> str:
    """The image as a PNG in a data URL; the same for all requests of a batch that hold it.

    >>> data_url(PreparedImage(width=1, height=1, rgb=bytes(3), digest="0"))[:22]
    'data:image/png;base64,'
    """
    return (_kept if image.width * image.height <= KEPT_PIXELS else _made)(image)


def _made(image: PreparedImage) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.frombytes("RGB", (image.width, image.height), image.rgb).save(
        buffer, "PNG", compress_level=1
    )
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


_kept = functools.lru_cache(maxsize=64)(_made)


def places(prompt: Prompt, image_token_id: int | None) -> tuple[tuple[int, int], ...]:
    """The offset and the length of each image's tokens in the expanded prompt.

    >>> image = PreparedImage(width=1, height=1, rgb=bytes(3), digest="0", tokens=4)
    >>> places(
    ...     Prompt(
    ...         token_ids=(5, 9, 9, 9, 9, 6, 9, 9, 9, 9),
    ...         compact_token_ids=(5, 9, 6, 9),
    ...         images=(image, image),
    ...     ),
    ...     9,
    ... )
    ((1, 4), (6, 4))
    """
    spans: list[tuple[int, int]] = []
    if prompt.images:
        marks = [
            at for at, token_id in enumerate(prompt.compact_token_ids) if token_id == image_token_id
        ]
        longer = 0
        for mark, image in zip(marks, prompt.images, strict=True):
            spans.append((mark + longer, image.tokens))
            longer += image.tokens - 1
    return tuple(spans)


def messages_of(request: GenerationRequest) -> Slot[tuple[Mapping[str, object], ...]]:
    """The messages as the server takes them; a plain prompt is one user turn.

    Images go as data URLs. That is the file itself where its pixels are taken as they are (see
    `file_to_send`), else the upright RGB image as a PNG. The arguments of tool calls go as JSON
    text.
    """
    if request.prompt_token_ids is not None:
        return Failure(
            InvalidRequest(
                "a chat server takes messages, not token ids",
                hint="use vllm_server or sglang_server",
            )
        )
    messages = request.messages or (Message(role="user", content=request.prompt or ""),)
    try:
        plain = arguments_written(plain_messages(messages))
        encoded([plain, request.tools])
    except UnicodeEncodeError:
        return Failure(
            InvalidRequest(
                "the messages hold half a surrogate pair",
                hint="send whole characters: the text was cut inside one, or decoded wrongly",
            )
        )
    except (TypeError, ValueError) as refusal:
        return Failure(
            InvalidRequest(
                f"the messages or tools hold what JSON has no form for: {refusal}",
                hint="send text, finite numbers, lists and mappings",
            )
        )
    index = itertools.count()
    for message, plain_message in zip(messages, plain, strict=True):
        for place, part in enumerate(message.content if isinstance(message.content, tuple) else ()):
            if isinstance(part, ImagePart):
                url = _file_url(part, next(index))
                if not is_ok(url):
                    return Failure(url.failure())
                plain_message["content"][place] = {
                    "type": "image_url",
                    "image_url": {"url": url.unwrap()},
                }
    return Success(tuple(plain))


def _file_url(part: ImagePart, index: int) -> Slot[str]:
    source = part.source
    if isinstance(source, VideoSource):
        return Failure(
            UnsupportedMultimodal(
                "a chat server takes no frames with their times: it would choose other frames"
            )
        )
    if source is None or source.data is None:
        return Failure(InvalidRequest("an image of the messages was not loaded"))
    policy = (
        ImagePolicy()
        if source.max_pixels is None
        else ImagePolicy(max_source_pixels=source.max_pixels)
    )
    return file_to_send(source.data, policy, index).map(
        lambda file: f"data:image/{file.kind};base64,{base64.b64encode(file.data).decode('ascii')}"
    )
