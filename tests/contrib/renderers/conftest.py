"""Stand-ins for the caller's client and renderer, and answers as both engines write them."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pipegen.contrib.renderers import generate
from pipegen.contrib.renderers.renderer_limits import LIMITS


class StubRenderer:
    """Renders `token_ids` whatever it is asked, and parses to what it is given."""

    supports_tools = True
    supports_process_multimodal = True

    def __init__(
        self,
        token_ids: tuple[int, ...] = (1, 2, 3),
        tool_status: str | None = None,
        media: Any = None,
    ) -> None:
        self.token_ids, self.tool_status, self.media = list(token_ids), tool_status, media
        self.rendered: list[dict[str, Any]] = []
        self.parsed: list[dict[str, Any]] = []

    def render(self, messages: list[Any], **said: Any) -> Any:
        self.rendered.append({"messages": messages, **said})
        return SimpleNamespace(token_ids=self.token_ids, multi_modal_data=self.media)

    def get_stop_token_ids(self) -> list[int]:
        return [99]

    def parse_response(
        self, token_ids: list[int], *, tools: Any = None, prompt_ids: Any = None
    ) -> Any:
        self.parsed.append({"token_ids": token_ids, "tools": tools, "prompt_ids": prompt_ids})
        calls = [SimpleNamespace(name="echo", status=self.tool_status)] if self.tool_status else []
        return SimpleNamespace(
            content="done", reasoning_content="think", tool_calls=calls, reasoning_complete=True
        )


class StubClient:
    """Answers each post with `answer(path, body)`, JSON or bytes or an exception, and notes what
    was posted.
    """

    def __init__(self, answer: Any, base_url: str = "http://host:8000/v1") -> None:
        self.answer, self.base_url = answer, base_url
        self.posted: list[dict[str, Any]] = []

    async def post(self, path: str, *, cast_to: Any, body: Any = None, options: Any = None) -> Any:
        self.posted.append({"path": path, "body": body, "options": options})
        said = self.answer(path, body) if callable(self.answer) else self.answer
        if isinstance(said, BaseException):
            raise said
        return SimpleNamespace(
            content=said if isinstance(said, bytes) else json.dumps(said).encode()
        )


class ListingClient(StubClient):
    """Also lists models: `cards` is the list, or an exception, or a list of such, one for each
    question.
    """

    def __init__(self, answer: Any, *cards: Any, base_url: str = "http://host:8000/v1") -> None:
        super().__init__(answer, base_url)
        self.cards = list(cards)
        self.asked = 0

    async def get(self, path: str, *, cast_to: Any) -> Any:
        assert path == "/models"
        self.asked += 1
        await asyncio.sleep(0)
        said = self.cards[min(self.asked, len(self.cards)) - 1]
        if isinstance(said, BaseException):
            raise said
        return {"object": "list", "data": said}


def vllm_answer(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An answer of vLLM's: token ids 7 and 8, unless `choices` say otherwise."""
    return {
        "request_id": "r",
        "choices": [vllm_choice(**choice) for choice in choices or ({},)],
        **more,
    }


def vllm_choice(**more: Any) -> dict[str, Any]:
    entries = [{"token_id": 7, "logprob": -0.1}, {"token_id": 8, "logprob": -0.2}]
    return {
        "index": 0,
        "token_ids": [7, 8],
        "logprobs": {"content": entries},
        "finish_reason": "stop",
        **more,
    }


def sglang_answer(**info: Any) -> dict[str, Any]:
    """An answer of SGLang's, with more or other facts in its `meta_info`."""
    meta = {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": 8},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 1,
    }
    return {
        "text": "x",
        "output_ids": [7, 8],
        "meta_info": {**meta, "output_token_logprobs": [[-0.1, 7, None], [-0.2, 8, None]], **info},
    }


@pytest.fixture
def stubs() -> Any:
    """The stand-ins by short names; skips where the client's own HTTP library is not installed."""
    if not any(map(importlib.util.find_spec, ("httpx", "httpx2"))):
        pytest.skip("the client's own HTTP library is not installed")
    return SimpleNamespace(
        Client=StubClient,
        Listing=ListingClient,
        Renderer=StubRenderer,
        vllm=vllm_answer,
        choice=vllm_choice,
        sglang=sglang_answer,
    )


@pytest.fixture
def asked() -> Callable[..., dict[str, Any]]:
    """`asked(client, renderer, ...)` runs `generate` on a short conversation; limits found before
    are forgotten.
    """
    LIMITS.clear()

    def run(client: Any, renderer: Any = None, **said: Any) -> dict[str, Any]:
        said = {"messages": [{"role": "user", "content": "hi"}], "model": "m", **said}
        return asyncio.run(generate(client=client, renderer=renderer or StubRenderer(), **said))

    return run
