"""vLLM for the renderer-driven client: `/inference/v1/generate`, token ids in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.backends.servers.reading import json_of
from pipegen.backends.servers.vllm_dialect import VLLM, too_long
from pipegen.backends.servers.wire import WireRequest
from pipegen.contrib.renderers.features import features_of
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
