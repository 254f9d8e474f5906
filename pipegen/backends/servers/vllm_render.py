"""Images at sizes that a vLLM server's own processor would change: the server prepares them in a request of their own, told to keep the sizes.

`/v1/chat/completions/render` takes `mm_processor_kwargs`, which `/inference/v1/generate` has no field for, and gives the images as `features`, which
that takes. Of the rendered chat nothing else is used: ids and places are pipegen's own. Facts as of vLLM 0.32.0 (`vllm/entrypoints/scale_out/render`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returns.result import Failure, Success

from pipegen.backends.servers.images import data_url
from pipegen.backends.servers.reading import error_message, malformed
from pipegen.backends.servers.wire import Completion, ServerRequest, WireReply, WireRequest
from pipegen.core.errors import UnsupportedOption
from pipegen.core.slots import Slot

__all__ = ["RENDER", "read_features", "render_request", "renders_none", "unkept"]

RENDER = "/v1/chat/completions/render"


def render_request(ask: ServerRequest) -> WireRequest:
    """The request for the images alone. Between the smallest and the largest of them as its budget, a processor has nothing to resize."""
    areas = [image.width * image.height for image in ask.images]
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in ask.images]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "mm_processor_kwargs": {"min_pixels": min(areas), "max_pixels": max(areas)}}
    return WireRequest(path=RENDER, body=body if ask.model is None else {"model": ask.model, **body}, lacks="render")


def read_features(answer: Any, ask: ServerRequest) -> Slot[tuple[Completion, ...]]:
    """The images as the server prepared them, for the places that they have in pipegen's prompt; each takes as many tokens as there.

    >>> from pipegen.records.options import GenerationOptions, resolve
    >>> made = {"features": {"mm_hashes": {"image": ["h"]}, "mm_placeholders": {"image": [{"offset": 4, "length": 9}]}, "kwargs_data": {"image": ["AA=="]}}}
    >>> (found,) = read_features(made, ServerRequest(options=resolve(GenerationOptions()), places=((2, 9),))).unwrap()
    >>> found.features["mm_placeholders"]
    {'image': [{'offset': 2, 'length': 9}]}
    >>> read_features(made, ServerRequest(options=resolve(GenerationOptions()), places=((2, 4),))).failure().message
    'the server prepared an image to 9 tokens, and it has 4 for pipegen: the server did not keep its size'
    """
    made = answer.get("features") if isinstance(answer, Mapping) else None
    columns = [_images(made, name) for name in ("mm_hashes", "kwargs_data", "mm_placeholders")]
    if any(len(column) != len(ask.places) for column in columns) or not all(isinstance(entry, str) for entry in (*columns[0], *columns[1])):
        return malformed(f"the server rendered {[len(column) for column in columns]} hashes, images and places for {len(ask.places)} images")
    for place, (_, length) in zip(columns[2], ask.places, strict=True):
        tokens = place.get("length") if isinstance(place, Mapping) else None
        if tokens != length:
            words = f"the server prepared an image to {tokens!r:.40} tokens, and it has {length} for pipegen: the server did not keep its size"
            return Failure(unkept(words))
    places = [{"offset": offset, "length": length} for offset, length in ask.places]
    return Success((Completion(features={"mm_hashes": {"image": columns[0]}, "mm_placeholders": {"image": places}, "kwargs_data": {"image": columns[1]}}),))


def _images(made: Any, name: str) -> list[Any]:
    column = made.get(name) if isinstance(made, Mapping) else None
    listed = column.get("image") if isinstance(column, Mapping) else None
    return listed if isinstance(listed, list) else []


def unkept(words: str) -> UnsupportedOption:
    """The error where a server does not keep the sizes."""
    return UnsupportedOption(words, option="max_pixels", hint="keep within the checkpoint's own pixel budget")


def renders_none(reply: WireReply) -> bool:
    """Whether a refusal says that the endpoint is not there or is switched off, or that the server takes nobody's word for sizes."""
    message, _ = error_message(reply)
    missing = reply.status in (403, 404, 405, 501) and not ("model" in message and "does not exist" in message)
    return missing or (reply.status == 400 and "mm_processor_kwargs" in message)
