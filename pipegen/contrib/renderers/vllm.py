"""vLLM for the renderer-driven client: `/inference/v1/generate`, token ids in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.backends.servers.logprobs import entries_in
from pipegen.backends.servers.reading import json_of
from pipegen.backends.servers.vllm import too_long
from pipegen.contrib.renderers.answers import experts, ids, malformed, noted, taken, words_of
from pipegen.contrib.renderers.backend import (
    Completion,
    Generated,
    TokenPrompt,
    full_params,
    off_loop,
    post,
)
from pipegen.contrib.renderers.features import features_of
from pipegen.contrib.renderers.limits import LIMITS
from pipegen.core.functional import without_none

__all__ = ["VLLMBackend"]


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

    async def generate(self, client: Any, prompt: TokenPrompt) -> Generated:
        """One request with `n` completions."""
        body = (
            body_of(prompt) if prompt.multi_modal_data is None else await off_loop(body_of, prompt)
        )
        answer = taken(
            json_of(await post(client, "/inference/v1/generate", body, prompt.extra_headers))
        )
        return generated(answer, prompt)

    async def resolve_max_prompt_len(self, client: Any, model: str) -> int | None:
        """The model's `max_model_len`, asked once for each server and model."""
        return await LIMITS.of(client, model)

    def is_overflow_error(self, error: BaseException) -> bool:
        """Whether this is one of vLLM's messages for a prompt that is too long."""
        return too_long(words_of(error)) is not None


def body_of(prompt: TokenPrompt) -> dict[str, Any]:
    """The request's body.

    >>> body_of(
    ...     TokenPrompt(model="m", token_ids=[1], stop_token_ids=[99], sampling_params={"n": 2})
    ... )["sampling_params"]
    {'skip_special_tokens': False, 'n': 2, 'stop_token_ids': [99], 'logprobs': 1}
    """
    body: dict[str, Any] = {
        "model": prompt.model,
        "token_ids": list(prompt.token_ids),
        "sampling_params": full_params(prompt),
    }
    if prompt.content_parts:
        body |= {
            "content_parts": [dict(part) for part in prompt.content_parts],
            "return_token_ids": True,
        }
    if prompt.multi_modal_data is not None:
        body["features"] = features_of(prompt.multi_modal_data)
    return body | without_none({"cache_salt": prompt.cache_salt, "priority": prompt.priority})


def generated(answer: Any, prompt: TokenPrompt) -> Generated:
    """The checked answer: `n` choices, each with a logprob for each token."""
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    count = prompt.sampling_params.get("n") or 1
    if (
        not isinstance(choices, list)
        or len(choices) != count
        or not all(isinstance(choice, Mapping) for choice in choices)
    ):
        raise malformed(f"choices must be a list of {count}")
    if all(type(choice.get("index")) is int for choice in choices):
        choices = sorted(choices, key=lambda choice: choice["index"])
    prompt_ids, placeholders = answer.get("prompt_token_ids"), answer.get("mm_placeholders")
    if prompt.content_parts and not isinstance(prompt_ids, list):
        raise malformed("must include prompt_token_ids when process_multimodal=False")
    if prompt.content_parts and not isinstance(placeholders, dict):
        raise malformed("must include mm_placeholders when process_multimodal=False")
    return Generated(
        completions=tuple(_completion(choice) for choice in choices),
        request_id=answer.get("request_id") or "",
        usage=answer.get("usage"),
        prompt_ids=ids(prompt_ids, "prompt_token_ids") if prompt_ids else None,
        mm_placeholders=placeholders,
    )


def _completion(choice: Mapping[str, Any]) -> Completion:
    token_ids = ids(choice.get("token_ids") or [], "choice.token_ids")
    return Completion(
        token_ids=token_ids,
        logprobs=noted(entries_in(choice.get("logprobs")), token_ids),
        finish_reason=choice.get("finish_reason"),
        routed_experts=experts(choice.get("routed_experts")),
        sampling_mask=choice.get("sampling_mask"),
    )
