"""Prompts that are too long: known before anything is sent, asked once, or reported by the server in
its own words.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pipegen.contrib.renderers import (
    PromptTooLongError,
    RendererBackend,
    SGLangBackend,
    VLLMBackend,
)
from pipegen.contrib.renderers.renderer_limits import EXPIRES_AFTER, ContextLimits

Asked = Callable[..., dict[str, Any]]
Stubs = Any


NOT_SENT = pytest.mark.parametrize(
    "backend", [VLLMBackend(), SGLangBackend()], ids=["vllm", "sglang"]
)


@NOT_SENT
# H4
def test_a_prompt_over_the_cap_is_not_sent(
    stubs: Stubs, asked: Asked, backend: RendererBackend
) -> None:
    client = stubs.Listing(stubs.vllm(), [{"id": "m", "max_model_len": 4}])
    with pytest.raises(PromptTooLongError) as refusal:
        asked(client, stubs.Renderer(tuple(range(10))), backend=backend)
    seen = (refusal.value.prompt_len, refusal.value.max_prompt_len, refusal.value.error.limit)
    assert seen == (10, 4, 4)
    with pytest.raises(PromptTooLongError):
        asked(client, stubs.Renderer(tuple(range(10))), backend=backend, max_prompt_len=9)
    assert (client.asked, client.posted) == (1, [])


def test_a_prompt_at_the_cap_is_sent(stubs: Stubs, asked: Asked) -> None:
    client = stubs.Client(stubs.vllm())
    assert asked(client, stubs.Renderer(tuple(range(10))), max_prompt_len=10)["prompt_ids"] == list(
        range(10)
    )


# H4
def test_the_cap_is_asked_once_for_each_model_and_a_failed_question_again(
    stubs: Stubs, asked: Asked
) -> None:
    cards = [{"id": "m", "max_model_len": 4}]
    client = stubs.Listing(stubs.vllm(), ConnectionError("gone"), ValueError("no JSON"), cards)
    long = stubs.Renderer(tuple(range(10)))
    assert asked(client, long)["prompt_ids"] == list(range(10))  # not known: sent
    assert asked(client, long)["prompt_ids"] == list(range(10))
    for _ in range(2):
        with pytest.raises(PromptTooLongError):
            asked(client, long)
    assert client.asked == 3


def test_callers_at_the_same_time_share_one_question_and_answers_expire(stubs: Stubs) -> None:
    now = [0.0]
    client = stubs.Listing(
        stubs.vllm(), [{"id": "m", "max_model_len": 4}], [{"id": "m", "max_model_len": 8}]
    )

    async def ask() -> list[int | None]:
        limits = ContextLimits(clock=lambda: now[0])
        first = await asyncio.gather(*(limits.of(client, "m") for _ in range(5)))
        now[0] = EXPIRES_AFTER - 1
        again = await limits.of(client, "m")
        now[0] = EXPIRES_AFTER
        return [*first, again, await limits.of(client, "m")]

    assert asyncio.run(ask()) == [4, 4, 4, 4, 4, 4, 8]
    assert client.asked == 2


class Refused(Exception):
    """As the openai client raises it."""


@NOT_SENT
@pytest.mark.parametrize(
    ("words", "lengths"),
    [
        (
            (
                "Error code: 400 - The decoder prompt (length 300) is longer than the maximum model"
                " length of 256. Make sure"
            ),
            (300, 256),
        ),
        (
            (
                "Error code: 500 - The input (3000 tokens) is longer than the model's context"
                " length (2048 tokens)."
            ),
            (3000, 2048),
        ),
        ("Error code: 500 - out of memory", None),
    ],
)
def test_what_the_server_finds_too_long_is_the_same_error(
    stubs: Stubs,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
    backend: RendererBackend,
    words: str,
    lengths: tuple[int, int] | None,
) -> None:  # H5
    monkeypatch.setitem(
        sys.modules, "openai", SimpleNamespace(APIError=Refused, OpenAIError=Refused)
    )
    client = stubs.Client(Refused(words))
    overflows = backend.is_overflow_error(Refused(words))
    if lengths is None or not overflows:
        with pytest.raises(Refused, match="Error code"):
            asked(client, backend=backend)
    else:
        with pytest.raises(PromptTooLongError) as refusal:
            asked(client, backend=backend)
        assert (refusal.value.prompt_len, refusal.value.max_prompt_len) == lengths
    assert overflows == (
        lengths is not None and ("decoder" in words) == isinstance(backend, VLLMBackend)
    )
