"""The renderer-driven client: what is sent, what comes back, and what is refused before it is
sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pipegen.contrib.renderers import (
    MalformedGenerateResponseError,
    RendererBackend,
    SGLangBackend,
    TokenPrompt,
    VLLMBackend,
    generate,
)
from pipegen.contrib.renderers.renderer_sglang import wire_request

Asked = Callable[..., dict[str, Any]]
Stubs = Any
IMAGE = "data:image/png;base64,aW1hZ2U="
KEYS = {
    *("request_id", "usage", "prompt_ids", "renderer_prompt_ids", "mm_placeholders"),
    *("completion_ids", "completion_logprobs", "content", "tool_calls"),
} | {
    *("reasoning_content", "finish_reason", "reasoning_complete", "routed_experts"),
    *("sampling_mask", "multi_modal_data", "prompt_attribution"),
}
PARAMS = {"temperature": 0.3, "max_tokens": 7, "min_tokens": 2}


def test_the_exact_body_that_vllm_gets(stubs: Stubs, asked: Asked) -> None:  # H1
    client, renderer = stubs.Client(stubs.vllm(usage={"prompt_tokens": 3})), stubs.Renderer()
    tools = [{"type": "function", "function": {"name": "echo"}}]
    result = asked(
        client,
        renderer,
        tools=tools,
        sampling_params=PARAMS,
        cache_salt="ckpt-42",
        priority=-1,
        extra_headers={"X-A": "1"},
    )
    assert client.posted == [
        {
            "path": "http://host:8000/inference/v1/generate",
            "body": {
                "model": "m",
                "token_ids": [1, 2, 3],
                "cache_salt": "ckpt-42",
                "priority": -1,
                "sampling_params": {
                    **PARAMS,
                    "stop_token_ids": [99],
                    "logprobs": 1,
                    "skip_special_tokens": False,
                },
            },
            "options": {"headers": {"X-A": "1"}},
        }
    ]
    assert set(result) == KEYS
    seen = (result["completion_ids"], result["completion_logprobs"], result["usage"])
    assert seen == ([7, 8], [-0.1, -0.2], {"prompt_tokens": 3})
    assert renderer.rendered == [
        {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": tools,
            "add_generation_prompt": True,
        }
    ]
    assert renderer.parsed == [{"token_ids": [7, 8], "tools": tools, "prompt_ids": [1, 2, 3]}]


def test_the_exact_body_that_sglang_gets(stubs: Stubs, asked: Asked) -> None:  # H2
    client = stubs.Client(stubs.sglang(), base_url="http://host:30000/v1/")
    result = asked(
        client,
        backend=SGLangBackend(),
        sampling_params={**PARAMS, "seed": 5, "top_k": 0},
        cache_salt="s",
        priority=2,
    )
    body = client.posted[0]["body"]
    assert client.posted[0]["path"] == "http://host:30000/generate"
    assert len(body.pop("rid")) == 32
    assert body == {
        "input_ids": [1, 2, 3],
        "sampling_params": {
            "temperature": 0.3,
            "max_new_tokens": 7,
            "min_new_tokens": 2,
            "sampling_seed": 5,
            "top_k": -1,
            "stop_token_ids": [99],
            "no_stop_trim": True,
            "skip_special_tokens": False,
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "cache_salt": "s",
        "priority": 2,
    }
    assert set(result) == KEYS
    seen = (result["completion_ids"], result["completion_logprobs"], result["finish_reason"])
    assert seen == ([7, 8], [-0.1, -0.2], "stop")
    assert result["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


@pytest.mark.parametrize("said", [{}, {"max_tokens": None}])
def test_without_a_limit_an_answer_is_as_long_as_the_context_on_both_engines(
    stubs: Stubs, asked: Asked, said: dict[str, Any]
) -> None:
    client = stubs.Client(stubs.sglang())
    asked(client, backend=SGLangBackend(), sampling_params=said)
    params = client.posted[0]["body"]["sampling_params"]
    assert "max_new_tokens" in params  # left out, SGLang makes 128 tokens at most
    assert params["max_new_tokens"] is None


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
# H7
def test_an_address_with_and_without_v1_is_the_same(stubs: Stubs, asked: Asked, url: str) -> None:
    client = stubs.Client(stubs.vllm(), url)
    asked(client)
    assert client.posted[0]["path"] == "http://h:1/inference/v1/generate"


@pytest.mark.parametrize(
    ("status", "finish"), [("ok", "tool_calls"), ("invalid_json", "stop"), (None, "stop")]
)
def test_a_well_formed_tool_call_is_a_finish(
    stubs: Stubs, asked: Asked, status: str | None, finish: str
) -> None:
    assert (
        asked(stubs.Client(stubs.vllm()), stubs.Renderer(tool_status=status))["finish_reason"]
        == finish
    )


def test_given_ids_and_attribution_take_the_place_of_rendering(stubs: Stubs, asked: Asked) -> None:
    renderer, attribution = stubs.Renderer(), object()
    client = stubs.Client(stubs.vllm())
    result = asked(client, renderer, prompt_ids=[11, 12], prompt_attribution=attribution)
    seen = (renderer.rendered, client.posted[0]["body"]["token_ids"], result["prompt_ids"])
    assert seen == ([], [11, 12], [11, 12])
    assert result["prompt_attribution"] is attribution
    assert asked(client, renderer, prompt_ids=[11])["prompt_attribution"] is None


def test_images_that_the_engine_prepares(stubs: Stubs, asked: Asked) -> None:
    said = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": IMAGE}},
            ],
        }
    ]
    answer = stubs.vllm(
        prompt_token_ids=[1, 2, 2, 3], mm_placeholders={"image": [{"offset": 1, "length": 2}]}
    )
    client, renderer = stubs.Client(answer), stubs.Renderer()
    result = asked(client, renderer, messages=said, process_multimodal=False)
    assert client.posted[0]["body"]["content_parts"] == [{"type": "image_url", "url": IMAGE}]
    assert client.posted[0]["body"]["return_token_ids"] is True
    assert renderer.rendered[0]["process_multimodal"] is False
    assert (result["prompt_ids"], result["renderer_prompt_ids"]) == ([1, 2, 2, 3], [1, 2, 3])
    client = stubs.Client({**stubs.sglang(), "prompt_token_ids": [1, 2, 2, 3]})
    result = asked(
        client, renderer, messages=said, process_multimodal=False, backend=SGLangBackend()
    )
    assert (client.posted[0]["body"]["image_data"], result["prompt_ids"]) == ([IMAGE], [1, 2, 2, 3])
    with pytest.raises(MalformedGenerateResponseError, match="prompt_token_ids"):
        asked(stubs.Client(stubs.vllm()), messages=said, process_multimodal=False)


def test_sglang_gets_prepared_images_unexpanded() -> None:
    media = SimpleNamespace(
        mm_placeholders={"image": [SimpleNamespace(offset=1, length=3)]}, is_empty=lambda: False
    )
    said = [{"role": "user", "content": [{"type": "image", "image": IMAGE}]}]
    prompt = TokenPrompt(
        model="m",
        token_ids=[5, 9, 9, 9, 6],
        stop_token_ids=[],
        sampling_params={},
        messages=said,
        multi_modal_data=media,
    )
    body = wire_request(prompt, "r").body
    assert (body["input_ids"], body["image_data"]) == ([5, 9, 6], [IMAGE])
    framed = TokenPrompt(
        model="m",
        token_ids=[5, 8, 9, 7, 6],
        stop_token_ids=[],
        sampling_params={},
        messages=said,
        multi_modal_data=media,
    )
    with pytest.raises(ValueError, match="process_multimodal=False"):
        wire_request(framed, "r")
    with pytest.raises(ValueError, match="1 images and the messages 0"):
        wire_request(
            TokenPrompt(
                model="m",
                token_ids=[5, 9, 9, 9],
                stop_token_ids=[],
                sampling_params={},
                multi_modal_data=media,
            ),
            "r",
        )


@pytest.mark.parametrize("ids", [(1, -5), (1, 100)])
# H10
def test_ids_that_end_a_server_are_not_sent(
    stubs: Stubs, asked: Asked, ids: tuple[int, ...]
) -> None:
    client = stubs.Client(stubs.sglang())
    with pytest.raises(ValueError, match="would end the server's process"):
        asked(client, prompt_ids=list(ids), backend=SGLangBackend(vocab_size=100))
    with pytest.raises(ValueError, match="the prompt is empty"):
        asked(client, prompt_ids=[])
    with pytest.raises(
        ValueError, match="no sampling parameter for 'max_tokns'; did you mean 'max_tokens'"
    ):
        asked(client, sampling_params={"max_tokns": 3}, backend=SGLangBackend())
    assert client.posted == []


def test_a_cancelled_call_aborts_the_request_by_name(stubs: Stubs) -> None:  # H12
    aborted: list[str] = []

    class Stalling(stubs.Client):  # type: ignore[misc]  # a fixture's class has no type
        arrived: asyncio.Event

        async def post(
            self, path: str, *, cast_to: Any, body: Any = None, options: Any = None
        ) -> Any:
            if path.endswith("/abort_request"):
                aborted.append(body["rid"])
                return SimpleNamespace(content=b"")
            self.posted.append(body)
            self.arrived.set()
            return await asyncio.Event().wait()

    async def cancelled() -> str:
        client = Stalling(None)
        client.arrived = asyncio.Event()
        said: Any = {"messages": [], "model": "m", "backend": SGLangBackend()}
        task = asyncio.ensure_future(generate(client=client, renderer=stubs.Renderer(), **said))
        arrived = asyncio.ensure_future(client.arrived.wait())
        await asyncio.wait([task, arrived], return_when=asyncio.FIRST_COMPLETED)
        if task.done():  # it must not be: let it say why
            await task
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return str(client.posted[0]["rid"])

    rid = asyncio.run(cancelled())
    assert aborted == [rid]


def test_tools_need_a_renderer_that_has_them(stubs: Stubs, asked: Asked) -> None:
    renderer = stubs.Renderer()
    renderer.supports_tools = False
    with pytest.raises(ValueError, match="does not support tools"):
        asked(stubs.Client(stubs.vllm()), renderer, tools=[{}])
    renderer.supports_process_multimodal = False
    with pytest.raises(NotImplementedError, match="process_multimodal=False"):
        asked(stubs.Client(stubs.vllm()), renderer, process_multimodal=False)


@pytest.mark.parametrize("backend", [VLLMBackend(), SGLangBackend()])
def test_both_backends_keep_the_protocol(backend: Any) -> None:
    assert isinstance(backend, RendererBackend)
