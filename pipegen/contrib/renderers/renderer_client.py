"""`generate`: messages through a renderer to token ids, one request to an engine, and the
completion parsed by the same renderer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipegen.backends.servers.openai import too_long
from pipegen.contrib.renderers.renderer_answers import (
    MalformedGenerateResponseError,
    PromptTooLongError,
    words_of,
)
from pipegen.contrib.renderers.renderer_engine import (
    Completion,
    Generated,
    KeywordBackend,
    RendererBackend,
    TokenPrompt,
    ask,
    off_loop,
)
from pipegen.contrib.renderers.renderer_vllm import VLLMBackend

_MEDIA = {
    "image": "image_url",
    "image_url": "image_url",
    "audio": "audio_url",
    "audio_url": "audio_url",
    "video": "video_url",
    "video_url": "video_url",
}
_VLLM = VLLMBackend()


async def generate(
    *,
    client: object,
    renderer: Any,
    messages: list[Any],
    model: str,
    prompt_ids: list[int] | None = None,
    multi_modal_data: Any = None,
    prompt_attribution: Any = None,
    tools: list[Any] | None = None,
    sampling_params: dict[str, Any] | None = None,
    cache_salt: str | None = None,
    priority: int | None = None,
    extra_headers: dict[str, str] | None = None,
    max_prompt_len: int | None = None,
    process_multimodal: bool = True,
    backend: RendererBackend | KeywordBackend = _VLLM,
) -> dict[str, Any]:
    """Render the messages, ask the engine, and parse its answer; the arguments and the keys of the
    result are those of `renderers.client.generate`.

    client: the caller's `AsyncOpenAI`, which sends the request. prompt_ids: with `multi_modal_data`
    and `prompt_attribution`, replace rendering. max_prompt_len: a longer prompt is
    `PromptTooLongError`, and nothing is sent. None: the server's limit. process_multimodal: False
    lets the engine prepare the images. sampling_params: with vLLM's names on every engine; with `n`
    above 1 the result has all answers in `completions`.

    Rendering and parsing run in a thread. Raises `PromptTooLongError` also if only the server finds
    the prompt too long (with its limit, or 0). A bad answer is `MalformedGenerateResponseError`.
    Whatever the client raises comes through.
    """
    if tools and not getattr(renderer, "supports_tools", True):
        raise ValueError(
            f"{type(renderer).__name__} does not support tools. Choose a model-specific renderer"
            " instead of the default fallback."
        )
    if not process_multimodal and not getattr(renderer, "supports_process_multimodal", False):
        raise NotImplementedError(
            f"{type(renderer).__name__} does not support process_multimodal=False"
        )
    if prompt_ids is None:
        deferred = {} if process_multimodal else {"process_multimodal": False}
        prompt_attribution = await off_loop(
            renderer.render, messages, tools=tools, add_generation_prompt=True, **deferred
        )
        prompt_ids = list(prompt_attribution.token_ids)
        multi_modal_data = prompt_attribution.multi_modal_data
    token_ids = list(prompt_ids)
    if not token_ids:
        raise ValueError("the prompt is empty: an engine needs at least one token")
    if process_multimodal:  # otherwise only the engine knows the length of the prompt
        if max_prompt_len is None:
            max_prompt_len = await backend.resolve_max_prompt_len(client=client, model=model)
        if max_prompt_len is not None and len(token_ids) > max_prompt_len:
            raise PromptTooLongError(prompt_len=len(token_ids), max_prompt_len=max_prompt_len)
    prompt = TokenPrompt(
        model=model,
        token_ids=token_ids,
        stop_token_ids=renderer.get_stop_token_ids(),
        sampling_params=sampling_params or {},
        messages=messages,
        renderer=renderer,
        multi_modal_data=(
            multi_modal_data
            if process_multimodal and multi_modal_data and not multi_modal_data.is_empty()
            else None
        ),
        content_parts=() if process_multimodal else content_parts(messages),
        cache_salt=cache_salt,
        priority=priority,
        extra_headers=extra_headers,
    )
    try:
        answer = await ask(backend, client, prompt)
    except (PromptTooLongError, MalformedGenerateResponseError):
        raise
    except Exception as refusal:  # of any library
        if not backend.is_overflow_error(refusal):
            raise
        message = words_of(refusal)
        lengths = too_long(message) or (len(token_ids), max_prompt_len or 0)
        raise PromptTooLongError(prompt_len=lengths[0], max_prompt_len=lengths[1]) from refusal
    ran = answer.prompt_ids or token_ids
    shared = {
        "renderer_prompt_ids": token_ids if prompt.content_parts else None,
        "multi_modal_data": multi_modal_data,
        "prompt_attribution": prompt_attribution,
    }
    results = [
        await off_loop(_result, completion, answer, ran, renderer, tools) | shared
        for completion in answer.completions
    ]
    return results[0] if len(results) == 1 else {**results[0], "completions": results}


def _result(
    completion: Completion,
    answer: Generated,
    ran: list[int],
    renderer: Any,
    tools: list[Any] | None,
) -> dict[str, object]:
    parsed = renderer.parse_response(list(completion.token_ids), prompt_ids=list(ran), tools=tools)
    finish = completion.finish_reason
    if finish == "stop" and any(call.status == "ok" for call in parsed.tool_calls):
        finish = "tool_calls"  # as chat servers do, so that tool loops continue
    return {
        "request_id": answer.request_id,
        "usage": answer.usage,
        "prompt_ids": list(ran),
        "mm_placeholders": answer.mm_placeholders,
        "completion_ids": list(completion.token_ids),
        "completion_logprobs": list(completion.logprobs),
        "content": parsed.content,
        "reasoning_content": parsed.reasoning_content,
        "tool_calls": parsed.tool_calls,
        "finish_reason": finish,
        "reasoning_complete": getattr(parsed, "reasoning_complete", None),
        "routed_experts": completion.routed_experts,
        "sampling_mask": completion.sampling_mask,
    }


def content_parts(messages: Sequence[object]) -> list[dict[str, str]]:
    """The media of messages in prompt order, as `{"type", "url"}`. Raises `ValueError` for a part
    without a URL.

    >>> content_parts(
    ...     [{"role": "user", "content": [{"type": "image", "image": "data:image/png;base64,aa"}]}]
    ... )
    [{'type': 'image_url', 'url': 'data:image/png;base64,aa'}]
    """
    return [
        media
        for message in messages
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, Mapping) and (media := _content_part(part)) is not None
    ]


def _content_part(part: Mapping[str, object]) -> dict[str, str] | None:
    kind = part.get("type") or next(filter(part.get, _MEDIA), None)
    if not isinstance(kind, str) or kind not in _MEDIA:
        return None
    source = next(
        (part[name] for name in (kind, _MEDIA[kind], "url") if part.get(name) is not None), None
    )
    url = source.get("url") if isinstance(source, Mapping) else source
    if not isinstance(url, str) or not url:
        raise ValueError(f"{kind} content part is missing a URL")
    return {"type": _MEDIA[kind], "url": url}
