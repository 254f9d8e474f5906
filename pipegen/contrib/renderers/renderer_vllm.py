"""vLLM for the renderer-driven client: `/inference/v1/generate`, token ids in and out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipegen.backends.servers.reading import json_of
from pipegen.backends.servers.vllm_dialect import VLLM, too_long
from pipegen.backends.servers.wire import WireRequest
from pipegen.contrib.renderers.renderer_answers import (
    completion,
    ids,
    items_of,
    malformed,
    request_of,
    taken,
    words_of,
)
from pipegen.contrib.renderers.renderer_engine import (
    Generated,
    TokenPrompt,
    full_params,
    off_loop,
    post,
)
from pipegen.contrib.renderers.renderer_limits import LIMITS


class VLLMBackend:
    """vLLM. The sampling parameters are sent unchanged, except the renderer's stop token ids and
    `logprobs=1`.

    >>> VLLMBackend().is_overflow_error(
    ...     RuntimeError(
    ...         "The decoder prompt (length 300) is longer than the maximum model length of 256. ..."
    ...     )
    ... )
    True
    """

    def __repr__(self) -> str:
        return "VLLMBackend()"

    async def generate(self, client: object, prompt: TokenPrompt) -> Generated:
        """One request with `n` completions."""
        heavy = prompt.multi_modal_data is not None
        request = await off_loop(wire_request, prompt) if heavy else wire_request(prompt)
        return generated(taken(json_of(await post(client, request, prompt.extra_headers))), prompt)

    async def resolve_max_prompt_len(self, client: object, model: str) -> int | None:
        """The model's `max_model_len`, asked once for each server and model."""
        return await LIMITS.of(client, model)

    def is_overflow_error(self, error: BaseException) -> bool:
        """Whether this is one of vLLM's messages for a prompt that is too long."""
        return too_long(words_of(error)) is not None


def wire_request(prompt: TokenPrompt) -> WireRequest:
    """The request.

    >>> asked = TokenPrompt(model="m", token_ids=[1], stop_token_ids=[99], sampling_params={"n": 2})
    >>> wire_request(asked).body["sampling_params"]
    {'skip_special_tokens': False, 'n': 2, 'stop_token_ids': [99], 'logprobs': 1}
    """
    more: dict[str, Any] = {}
    if prompt.content_parts:
        parts = [dict(part) for part in prompt.content_parts]
        more = {"content_parts": parts, "return_token_ids": True}
    if prompt.multi_modal_data is not None:
        more["features"] = features_of(prompt.multi_modal_data)
    return request_of(VLLM, prompt, prompt.token_ids, full_params(prompt), **more)


def generated(answer: Any, prompt: TokenPrompt) -> Generated:
    """The checked answer: `n` choices, each with a logprob for each token."""
    listed = answer.get("choices") if isinstance(answer, Mapping) else None
    choices = items_of(listed, prompt, "choices")
    if all(type(choice.get("index")) is int for choice in choices):
        choices = sorted(choices, key=lambda choice: choice["index"])
    prompt_ids, placeholders = answer.get("prompt_token_ids"), answer.get("mm_placeholders")
    if prompt.content_parts and not isinstance(prompt_ids, list):
        raise malformed("must include prompt_token_ids when process_multimodal=False")
    if prompt.content_parts and not isinstance(placeholders, dict):
        raise malformed("must include mm_placeholders when process_multimodal=False")
    return Generated(
        completions=tuple(
            completion(VLLM, {"choices": [{**choice, "index": 0}]}, choice) for choice in choices
        ),
        request_id=answer.get("request_id") or "",
        usage=answer.get("usage"),
        prompt_ids=ids(prompt_ids, "prompt_token_ids") if prompt_ids else None,
        mm_placeholders=placeholders,
    )


Item = Mapping[str, Any]
Inputs = tuple[dict[str, Any], dict[str, Any]]
"""What vLLM takes: the values of all images, and how each is divided among them."""
_SERDE = (
    "vllm.entrypoints.scale_out.token_in_token_out.mm_serde",
    "vllm.entrypoints.serve.disagg.mm_serde",
)
"""The modules of vLLM's encoder, newest first."""


def features_of(media: Any) -> dict[str, object]:
    """The `features` of a request. Raises `NotImplementedError` for other media or an unknown model
    family, and `RuntimeError` if vLLM is not installed.

    >>> from types import SimpleNamespace
    >>> place = SimpleNamespace(offset=1, length=4)
    >>> features_of(
    ...     SimpleNamespace(
    ...         mm_hashes={"image": ["a"]}, mm_placeholders={"image": [place]}, mm_items={}
    ...     )
    ... )
    {'mm_hashes': {'image': ['a']}, 'mm_placeholders': {'image': [{'offset': 1, 'length': 4}]}, 'kwargs_data': None}
    """
    parts = (media.mm_items, media.mm_hashes, media.mm_placeholders)
    kinds = {kind for part in parts for kind, entries in part.items() if entries} - {"image"}
    if kinds:
        raise NotImplementedError(
            f"prepared {', '.join(sorted(kinds))} cannot be sent to vLLM here; pass"
            " process_multimodal=False"
        )
    items, hashes, places = (list(part.get("image") or ()) for part in parts)
    if len(hashes) != len(places) or (items and len(items) != len(places)):
        raise ValueError(
            f"the renderer gave {len(items)} images, {len(hashes)} hashes and {len(places)} places:"
            " one of each is needed"
        )
    return {
        "mm_hashes": {"image": hashes},
        "mm_placeholders": {
            "image": [{"offset": span.offset, "length": span.length} for span in places]
        },
        "kwargs_data": {"image": _encoded(items)} if items else None,
    }


def _encoded(items: Sequence[Item]) -> list[str]:
    family = next((fields for keys, fields in _FAMILIES.items() if keys <= set(items[0])), None)
    if family is None:
        raise NotImplementedError(
            f"images with {', '.join(sorted(items[0]))} cannot be sent to vLLM here; pass"
            " process_multimodal=False"
        )
    try:
        torch: Any = importlib.import_module("torch")
        inputs: Any = importlib.import_module("vllm.multimodal.inputs")
        encode = _encoder()
    except ImportError as missing:
        message = (
            "images that the renderer prepared are encoded by vLLM's own classes: install vllm"
            " here, or pass process_multimodal=False"
        )
        raise RuntimeError(message) from missing
    values, fields = family(items, torch, inputs.MultiModalFieldConfig)
    return [
        encode(item)
        for item in inputs.MultiModalKwargsItems.from_hf_inputs(values, fields)["image"]
    ]


def _encoder() -> Callable[[Any], str]:
    newest, older = _SERDE
    try:
        encode: Callable[[Any], str] = importlib.import_module(newest).encode_mm_kwargs_item
    except ImportError:
        encode = importlib.import_module(older).encode_mm_kwargs_item
    return encode


def _joined(items: Sequence[Item], name: str, torch: Any) -> Any:
    return torch.cat([torch.as_tensor(item[name]) for item in items])


def _qwen_vl(items: Sequence[Item], torch: object, field: Any) -> Inputs:
    """The patches of all images in one tensor; the grid gives the number for each image."""
    grids = _joined(items, "image_grid_thw", torch)
    fields = {
        "pixel_values": field.flat_from_sizes("image", grids.prod(-1)),
        "image_grid_thw": field.batched("image", keep_on_cpu=True),
    }
    return {"pixel_values": _joined(items, "pixel_values", torch), "image_grid_thw": grids}, fields


def _gemma4(items: Sequence[Item], torch: object, field: Any) -> Inputs:
    """With vLLM's name for the positions."""
    values = {
        "pixel_values": _joined(items, "pixel_values", torch),
        "pixel_position_ids": _joined(items, "image_position_ids", torch),
    }
    return values, {name: field.batched("image") for name in values}


def _nemotron(items: Sequence[Item], torch: Any, field: Any) -> Inputs:
    """Images of different sizes, each in its own tensor."""
    values = {
        "pixel_values_flat": [torch.as_tensor(item["pixel_values"])[0] for item in items],
        "imgs_sizes": [tuple(int(side) for side in item["imgs_sizes"][0]) for item in items],
        "num_tokens_per_image": [int(item["num_tokens"][0]) for item in items],
    }
    return values, {
        name: field.batched("image", keep_on_cpu=name != "pixel_values_flat") for name in values
    }


_FAMILIES: Mapping[frozenset[str], Callable[[Sequence[Item], Any, Any], Inputs]] = {
    frozenset({"pixel_values", "image_grid_thw"}): _qwen_vl,
    frozenset({"pixel_values", "image_position_ids"}): _gemma4,
    frozenset({"pixel_values", "imgs_sizes", "num_tokens"}): _nemotron,
}
"""How vLLM joins the images of each family, by the names in an image's data."""
