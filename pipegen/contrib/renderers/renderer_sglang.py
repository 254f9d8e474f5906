"""SGLang for the renderer-driven client: `/generate`, with SGLang's sampling parameters.

As of SGLang 0.5.23 (`srt/managers/io_struct.py`, `srt/sampling/sampling_params.py`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pipegen.backends.servers.reading import json_of, usage_of
from pipegen.backends.servers.sglang_dialect import SGLANG, abort, too_long
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
from pipegen.contrib.renderers.renderer_engine import Generated, TokenPrompt, post
from pipegen.contrib.renderers.renderer_limits import LIMITS
from pipegen.core.names import nearest
from pipegen.records.option_table import wire_names

RENAMED: Mapping[str, str] = {
    "min_tokens": "min_new_tokens",
    **dict(zip(wire_names("vllm").values(), wire_names("sglang").values(), strict=True)),
}
SAME = frozenset(
    {
        "n",
        "stop",
        "top_k",
        "ignore_eos",
        "logit_bias",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    }
    | {"json_schema", "regex", "ebnf", "structural_tag", "stop_regex", "custom_params"}
    | set(RENAMED.values())
)
OURS = ("stop_token_ids", "logprobs", "include_stop_str_in_output", "no_stop_trim", "detokenize")
"""Set here for every request; the caller's values are ignored."""


class SGLangBackend:
    """SGLang. Ids from `vocab_size` on, which would end the server's process, are rejected; the
    default is that of the renderer's tokenizer.

    >>> SGLangBackend().is_overflow_error(
    ...     RuntimeError(
    ...         "The input (3000 tokens) is longer than the model's context length (2048 tokens)."
    ...     )
    ... )
    True
    """

    def __init__(self, *, vocab_size: int | None = None) -> None:
        self.vocab_size = vocab_size
        """Ids from it on are refused; None refuses none."""

    def __repr__(self) -> str:
        return f"SGLangBackend(vocab_size={self.vocab_size})"

    async def generate(self, client: object, prompt: TokenPrompt) -> Generated:
        """One request. If the caller is cancelled, the request is aborted. Raises `ValueError` for
        what would harm the server.
        """
        rid = uuid.uuid4().hex
        request = wire_request(prompt, rid, self.vocab_size or _vocab_size(prompt.renderer))
        try:
            raw = await post(client, request, prompt.extra_headers)
        except asyncio.CancelledError:
            await asyncio.shield(post(client, abort(rid), prompt.extra_headers))
            raise
        return generated(taken(json_of(raw)), prompt)

    async def resolve_max_prompt_len(self, client: object, model: str) -> int | None:
        """The smallest limit that the server reports, asked once for each server and model."""
        return await LIMITS.of(client, model, ("/server_info", "/get_server_info"))

    def is_overflow_error(self, error: BaseException) -> bool:
        """Whether this is one of SGLang's messages for a prompt that is too long."""
        return too_long(words_of(error)) is not None


def _vocab_size(renderer: object) -> int | None:
    tokenizer: Any = getattr(renderer, "tokenizer", None)
    return len(tokenizer) if hasattr(tokenizer, "__len__") else None


def sampling_params(
    given: Mapping[str, object], stop_token_ids: Sequence[int]
) -> dict[str, object]:
    """vLLM's sampling parameters with SGLang's names and vLLM's defaults. Raises `ValueError` for
    one that SGLang does not have.

    >>> sampling_params({"max_tokens": 7, "seed": 1, "top_k": 0}, [99])
    {'skip_special_tokens': False, 'max_new_tokens': 7, 'sampling_seed': 1, 'top_k': -1, 'stop_token_ids': [99], 'no_stop_trim': True}
    """
    params: dict[str, object] = {}
    for name, value in given.items():
        if value is None or name in OURS:
            continue
        if name not in RENAMED and name not in SAME:
            raise ValueError(
                f"SGLang has no sampling parameter for {name!r}{nearest(name, (*RENAMED, *SAME))}"
            )
        params[RENAMED.get(name, name)] = value
    if params.get("top_k") == 0:
        params["top_k"] = -1  # no limit, which is 0 in vLLM
    return {
        "skip_special_tokens": False,
        "max_new_tokens": None,  # up to the context, as in vLLM; SGLang's default is 128
        **params,
        "stop_token_ids": list(stop_token_ids),
        "no_stop_trim": True,
    }


def wire_request(prompt: TokenPrompt, rid: str, vocab_size: int | None = None) -> WireRequest:
    """The request. Raises `ValueError` for ids outside the vocabulary, which end the server's
    process, and for audio and video.

    >>> asked = TokenPrompt(model="m", token_ids=[1, -5], stop_token_ids=[], sampling_params={})
    >>> wire_request(asked, "r")
    Traceback (most recent call last):
    ...
    ValueError: prompt id -5 at position 1 would end the server's process
    """
    token_ids, images = (
        (prompt.token_ids, prompt.content_parts)
        if prompt.multi_modal_data is None
        else _unexpanded(prompt)
    )
    for position, token_id in enumerate(token_ids):
        if token_id < 0 or (vocab_size is not None and token_id >= vocab_size):
            where = f"prompt id {token_id} at position {position}"
            raise ValueError(f"{where} would end the server's process")
    more: dict[str, object] = {"top_logprobs_num": None}  # the likeliest tokens are of no use here
    if images:
        if any(part["type"] != "image_url" for part in images):
            raise ValueError("SGLang takes images here, and no audio or video")
        more |= {"image_data": [part["url"] for part in images], "return_prompt_token_ids": True}
    params = sampling_params(prompt.sampling_params, prompt.stop_token_ids)
    return request_of(SGLANG, prompt, token_ids, params, rid, **more)


def _unexpanded(prompt: TokenPrompt) -> tuple[list[int], list[dict[str, str]]]:
    """The ids with one placeholder for each image, which SGLang expands, and the images of the
    messages.
    """
    from pipegen.contrib.renderers.renderer_client import content_parts

    token_ids, images = list(prompt.token_ids), content_parts(prompt.messages)
    ranges = [
        (span.offset, span.length)
        for places in prompt.multi_modal_data.mm_placeholders.values()
        for span in places
    ]
    if len(images) != len(ranges):
        raise ValueError(
            f"the prompt holds {len(ranges)} images and the messages {len(images)}: SGLang needs"
            " each image's own data"
        )
    for offset, length in sorted(ranges, reverse=True):  # so that earlier ones keep their places
        covered = set(token_ids[offset : offset + length])
        if len(covered) != 1:
            raise ValueError(
                "an image of this prompt is framed by further tokens: pass"
                " process_multimodal=False, and SGLang prepares it"
            )
        token_ids[offset : offset + length] = covered
    return token_ids, images


def generated(answer: object, prompt: TokenPrompt) -> Generated:
    """The checked answer: one object, or a list of `n`."""
    rows = items_of([answer] if isinstance(answer, Mapping) else answer, prompt, "the answer")
    completions = tuple(completion(SGLANG, row, row.get("meta_info")) for row in rows)
    first = rows[0]
    prompt_ids = first.get("prompt_token_ids")
    has_images = prompt.content_parts or prompt.multi_modal_data is not None
    if "prompt_token_ids" not in first and has_images:
        raise malformed("must include prompt_token_ids where the prompt holds images")
    return Generated(
        completions=completions,
        request_id=first["meta_info"].get("id") or "",
        usage=_usage([usage_of(row["meta_info"]) for row in rows]),
        prompt_ids=ids(prompt_ids, "prompt_token_ids") if prompt_ids else None,
    )


def _usage(counts: Sequence[Mapping[str, int]]) -> dict[str, object]:
    """The token counts with the names of the OpenAI API."""
    prompt, cached = counts[0].get("prompt_tokens", 0), counts[0].get("cached_tokens")
    completion = sum(count.get("completion_tokens", 0) for count in counts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        **({} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}),
    }
