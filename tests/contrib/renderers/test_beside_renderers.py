"""Beside the package that it stands in for: the same arguments, the same result keys, errors of the
same kinds, and a real client over a loopback server.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.loopback import JsonHandler, Loopback

pytest.importorskip("httpx")
theirs: Any = pytest.importorskip("renderers.client")
openai: Any = pytest.importorskip("openai")

from pipegen.contrib import renderers as ours  # noqa: E402

CHOICE = {
    "index": 0,
    "token_ids": [7, 8],
    "logprobs": {
        "content": [
            {"token": "token_id:7", "logprob": -0.1},
            {"token": "token_id:8", "logprob": 0.0},
        ]
    },
    "finish_reason": "stop",
    "routed_experts": {"data": "AQI=", "shape": [2, 1, 1]},
}
VLLM = {"request_id": "r", "usage": {"prompt_tokens": 3}, "choices": [CHOICE]}
META = {
    "id": "r",
    "finish_reason": {"type": "stop"},
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "output_token_logprobs": [[-0.1, 7, None], [0.0, 8, None]],
}
REFUSALS = {
    "long": (
        "The decoder prompt (length 3) is longer than the maximum model length of 2. Make sure that"
        " `max_model_len` is no smaller."
    ),
    "broken": "no such thing",
}
"""What is refused, by the model's name, and in which words."""


class Handler(JsonHandler):
    def do_GET(self) -> None:
        self.send({"object": "list", "data": [{"id": "m", "max_model_len": self.server.limit}]})

    def do_POST(self) -> None:
        body = self.body()
        self.server.sent.append((self.path, self.headers.get("X-A"), body))
        refusal = REFUSALS.get(body.get("model"))
        if refusal is not None:
            fields = {"type": "BadRequestError", "param": None, "code": 400}
            self.send({"error": {"message": refusal, **fields}}, 400)
        elif self.path == "/inference/v1/generate":
            self.send(VLLM)
        else:
            self.send({"output_ids": [7, 8], "meta_info": META})


@pytest.fixture
def server() -> Iterator[Any]:
    with Loopback(Handler, sent=[], limit=100) as made:
        yield made


class Renderer:
    supports_tools = True

    def render(self, messages: Any, **said: Any) -> Any:
        return SimpleNamespace(token_ids=[1, 2, 3], multi_modal_data=None)

    def get_stop_token_ids(self) -> list[int]:
        return [99]

    def parse_response(self, token_ids: Any, **said: Any) -> Any:
        return SimpleNamespace(
            content="done", reasoning_content=None, tool_calls=[], reasoning_complete=True
        )


def asked(server: Any, generate: Any, model: str = "m", **said: Any) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="EMPTY", max_retries=0
        ) as client:
            result: dict[str, Any] = await generate(
                client=client,
                renderer=Renderer(),
                messages=[],
                model=model,
                extra_headers={"X-A": "1"},
                **said,
            )
            return result

    return asyncio.run(run())


def test_the_arguments_are_theirs_and_one_more() -> None:
    mine, original = (
        inspect.signature(function).parameters for function in (ours.generate, theirs.generate)
    )
    assert [(one.name, one.kind, one.default) for one in mine.values()][:-1] == [
        (one.name, one.kind, one.default) for one in original.values()
    ]
    assert list(mine)[-1] == "backend"


def test_the_result_and_what_is_sent_are_theirs(server: Any) -> None:
    params = {"temperature": 0.3, "max_tokens": 7}
    original = asked(server, theirs.generate, sampling_params=params, cache_salt="s", priority=1)
    mine = asked(server, ours.generate, sampling_params=params, cache_salt="s", priority=1)
    assert server.sent[0] == server.sent[1]
    attributions = original.pop("prompt_attribution"), mine.pop("prompt_attribution")
    assert [attribution.token_ids for attribution in attributions] == [[1, 2, 3], [1, 2, 3]]
    assert mine == original


def test_sglang_gives_the_same_keys(server: Any) -> None:
    on_vllm, on_sglang = (
        asked(server, ours.generate),
        asked(server, ours.generate, backend=ours.SGLangBackend()),
    )
    assert set(on_sglang) == set(on_vllm)
    assert (on_sglang["completion_ids"], on_sglang["completion_logprobs"]) == ([7, 8], [-0.1, 0.0])
    assert [(path, header) for path, header, _ in server.sent] == [
        ("/inference/v1/generate", "1"),
        ("/generate", "1"),
    ]


def test_code_that_catches_their_errors_catches_ours(server: Any) -> None:
    with pytest.raises(theirs.OverlongPromptError) as before:
        asked(server, ours.generate, max_prompt_len=2)
    assert (before.value.prompt_len, before.value.max_prompt_len, server.sent) == (3, 2, [])
    with pytest.raises(theirs.OverlongPromptError) as after:
        asked(server, ours.generate, model="long")
    assert (after.value.prompt_len, after.value.max_prompt_len, len(server.sent)) == (3, 2, 1)
    with pytest.raises(openai.BadRequestError, match="no such thing"):
        asked(server, ours.generate, model="broken")
    assert issubclass(ours.MalformedGenerateResponseError, theirs.MalformedGenerateResponseError)


def test_the_limit_is_found_through_the_real_client(server: Any) -> None:
    server.limit = 2
    with pytest.raises(ours.PromptTooLongError):
        asked(server, ours.generate)
    assert server.sent == []
