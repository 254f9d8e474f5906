"""The renderer-driven client: what is sent, what comes back, and what is refused before it is sent."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pipegen.contrib.renderers import (
    MalformedGenerateResponseError,
    PromptTooLongError,
    RendererBackend,
    SGLangBackend,
    TokenPrompt,
    VLLMBackend,
    generate,
)
from pipegen.contrib.renderers.limits import EXPIRES_AFTER, LIMITS, Limits
from pipegen.contrib.renderers.sglang import body_of

if not any(map(importlib.util.find_spec, ("httpx", "httpx2"))):
    pytest.skip("the client's own HTTP library is not installed", allow_module_level=True)

PICTURE = "data:image/png;base64,aW1hZ2U="


class StubRenderer:
    """Renders `token_ids` whatever it is asked, and parses to what it is given."""

    supports_tools = True
    supports_process_multimodal = True

    def __init__(self, token_ids: tuple[int, ...] = (1, 2, 3), tool_status: str | None = None, media: Any = None) -> None:
        self.token_ids, self.tool_status, self.media = list(token_ids), tool_status, media
        self.rendered: list[dict[str, Any]] = []
        self.parsed: list[dict[str, Any]] = []

    def render(self, messages: list[Any], **said: Any) -> Any:
        self.rendered.append({"messages": messages, **said})
        return SimpleNamespace(token_ids=self.token_ids, multi_modal_data=self.media)

    def get_stop_token_ids(self) -> list[int]:
        return [99]

    def parse_response(self, token_ids: list[int], *, tools: Any = None, prompt_ids: Any = None) -> Any:
        self.parsed.append({"token_ids": token_ids, "tools": tools, "prompt_ids": prompt_ids})
        calls = [SimpleNamespace(name="echo", status=self.tool_status)] if self.tool_status else []
        return SimpleNamespace(content="done", reasoning_content="think", tool_calls=calls, reasoning_complete=True)


class StubClient:
    """Answers each post with `answer(path, body)`, JSON or bytes or an exception, and notes what was posted."""

    def __init__(self, answer: Any, base_url: str = "http://host:8000/v1") -> None:
        self.answer, self.base_url = answer, base_url
        self.posted: list[dict[str, Any]] = []

    async def post(self, path: str, *, cast_to: Any, body: Any = None, options: Any = None) -> Any:
        self.posted.append({"path": path, "body": body, "options": options})
        said = self.answer(path, body) if callable(self.answer) else self.answer
        if isinstance(said, BaseException):
            raise said
        return SimpleNamespace(content=said if isinstance(said, bytes) else json.dumps(said).encode())


class ListingClient(StubClient):
    """Also lists models: `cards` is the list, or an exception, or a list of such, one for each question."""

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
    return {"request_id": "r", "choices": [vllm_choice(**choice) for choice in choices or ({},)], **more}


def vllm_choice(**more: Any) -> dict[str, Any]:
    entries = [{"token_id": 7, "logprob": -0.1}, {"token_id": 8, "logprob": -0.2}]
    return {"index": 0, "token_ids": [7, 8], "logprobs": {"content": entries}, "finish_reason": "stop", **more}


def sglang_answer(**info: Any) -> dict[str, Any]:
    """An answer of SGLang's, with more or other facts in its `meta_info`."""
    meta = {"id": "r", "finish_reason": {"type": "stop", "matched": 8}, "prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1}
    return {"text": "x", "output_ids": [7, 8], "meta_info": {**meta, "output_token_logprobs": [[-0.1, 7, None], [-0.2, 8, None]], **info}}


@pytest.fixture
def asked() -> Callable[..., dict[str, Any]]:
    """`asked(client, renderer, ...)` runs `generate` on a short conversation; limits found before are forgotten."""
    LIMITS.clear()

    def run(client: Any, renderer: Any = None, **said: Any) -> dict[str, Any]:
        said = {"messages": [{"role": "user", "content": "hi"}], "model": "m", **said}
        return asyncio.run(generate(client=client, renderer=renderer or StubRenderer(), **said))

    return run


Asked = Callable[..., dict[str, Any]]
KEYS = {"request_id", "usage", "prompt_ids", "renderer_prompt_ids", "mm_placeholders", "completion_ids", "completion_logprobs", "content", "tool_calls"} | {
    "reasoning_content",
    "finish_reason",
    "reasoning_complete",
    "routed_experts",
    "sampling_mask",
    "multi_modal_data",
    "prompt_attribution",
}
PARAMS = {"temperature": 0.3, "max_tokens": 7, "min_tokens": 2}


def test_the_exact_body_that_vllm_gets(asked: Asked) -> None:  # H1
    client, renderer = StubClient(vllm_answer(usage={"prompt_tokens": 3})), StubRenderer()
    tools = [{"type": "function", "function": {"name": "echo"}}]
    result = asked(client, renderer, tools=tools, sampling_params=PARAMS, cache_salt="ckpt-42", priority=-1, extra_headers={"X-A": "1"})
    assert client.posted == [
        {
            "path": "http://host:8000/inference/v1/generate",
            "body": {
                "model": "m",
                "token_ids": [1, 2, 3],
                "cache_salt": "ckpt-42",
                "priority": -1,
                "sampling_params": {**PARAMS, "stop_token_ids": [99], "logprobs": 1, "skip_special_tokens": False},
            },
            "options": {"headers": {"X-A": "1"}},
        }
    ]
    assert set(result) == KEYS
    assert (result["completion_ids"], result["completion_logprobs"], result["usage"]) == ([7, 8], [-0.1, -0.2], {"prompt_tokens": 3})
    assert renderer.rendered == [{"messages": [{"role": "user", "content": "hi"}], "tools": tools, "add_generation_prompt": True}]
    assert renderer.parsed == [{"token_ids": [7, 8], "tools": tools, "prompt_ids": [1, 2, 3]}]


def test_the_exact_body_that_sglang_gets(asked: Asked) -> None:  # H2
    client = StubClient(sglang_answer(), base_url="http://host:30000/v1/")
    result = asked(client, backend=SGLangBackend(), sampling_params={**PARAMS, "seed": 5, "top_k": 0}, cache_salt="s", priority=2)
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
    assert (result["completion_ids"], result["completion_logprobs"], result["finish_reason"]) == ([7, 8], [-0.1, -0.2], "stop")
    assert result["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}


@pytest.mark.parametrize("said", [{}, {"max_tokens": None}])
def test_without_a_limit_an_answer_is_as_long_as_the_context_on_both_engines(asked: Asked, said: dict[str, Any]) -> None:
    client = StubClient(sglang_answer())
    asked(client, backend=SGLangBackend(), sampling_params=said)
    params = client.posted[0]["body"]["sampling_params"]
    assert "max_new_tokens" in params  # left out, SGLang makes 128 tokens at most
    assert params["max_new_tokens"] is None


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_address_with_and_without_v1_is_the_same(asked: Asked, url: str) -> None:  # H7
    client = StubClient(vllm_answer(), url)
    asked(client)
    assert client.posted[0]["path"] == "http://h:1/inference/v1/generate"


@pytest.mark.parametrize(("status", "finish"), [("ok", "tool_calls"), ("invalid_json", "stop"), (None, "stop")])
def test_a_well_formed_tool_call_is_a_finish(asked: Asked, status: str | None, finish: str) -> None:
    assert asked(StubClient(vllm_answer()), StubRenderer(tool_status=status))["finish_reason"] == finish


def test_given_ids_and_attribution_take_the_place_of_rendering(asked: Asked) -> None:
    renderer, attribution = StubRenderer(), object()
    client = StubClient(vllm_answer())
    result = asked(client, renderer, prompt_ids=[11, 12], prompt_attribution=attribution)
    assert (renderer.rendered, client.posted[0]["body"]["token_ids"], result["prompt_ids"]) == ([], [11, 12], [11, 12])
    assert result["prompt_attribution"] is attribution
    assert asked(client, renderer, prompt_ids=[11])["prompt_attribution"] is None


def test_pictures_that_the_engine_prepares(asked: Asked) -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PICTURE}}]}]
    answer = vllm_answer(prompt_token_ids=[1, 2, 2, 3], mm_placeholders={"image": [{"offset": 1, "length": 2}]})
    client, renderer = StubClient(answer), StubRenderer()
    result = asked(client, renderer, messages=said, process_multimodal=False)
    assert client.posted[0]["body"]["content_parts"] == [{"type": "image_url", "url": PICTURE}]
    assert client.posted[0]["body"]["return_token_ids"] is True
    assert renderer.rendered[0]["process_multimodal"] is False
    assert (result["prompt_ids"], result["renderer_prompt_ids"]) == ([1, 2, 2, 3], [1, 2, 3])
    client = StubClient({**sglang_answer(), "prompt_token_ids": [1, 2, 2, 3]})
    result = asked(client, renderer, messages=said, process_multimodal=False, backend=SGLangBackend())
    assert (client.posted[0]["body"]["image_data"], result["prompt_ids"]) == ([PICTURE], [1, 2, 2, 3])
    with pytest.raises(MalformedGenerateResponseError, match="prompt_token_ids"):
        asked(StubClient(vllm_answer()), messages=said, process_multimodal=False)


def test_sglang_gets_prepared_pictures_unexpanded() -> None:
    media = SimpleNamespace(mm_placeholders={"image": [SimpleNamespace(offset=1, length=3)]}, is_empty=lambda: False)
    said = [{"role": "user", "content": [{"type": "image", "image": PICTURE}]}]
    prompt = TokenPrompt(model="m", token_ids=[5, 9, 9, 9, 6], stop_token_ids=[], sampling_params={}, messages=said, multi_modal_data=media)
    body = body_of(prompt, "r")
    assert (body["input_ids"], body["image_data"]) == ([5, 9, 6], [PICTURE])
    framed = TokenPrompt(model="m", token_ids=[5, 8, 9, 7, 6], stop_token_ids=[], sampling_params={}, messages=said, multi_modal_data=media)
    with pytest.raises(ValueError, match="process_multimodal=False"):
        body_of(framed, "r")
    with pytest.raises(ValueError, match="1 pictures and the messages 0"):
        body_of(TokenPrompt(model="m", token_ids=[5, 9, 9, 9], stop_token_ids=[], sampling_params={}, multi_modal_data=media), "r")


@pytest.mark.parametrize("ids", [(1, -5), (1, 100)])
def test_ids_that_end_a_server_are_not_sent(asked: Asked, ids: tuple[int, ...]) -> None:  # H10
    client = StubClient(sglang_answer())
    with pytest.raises(ValueError, match="would end the server's process"):
        asked(client, prompt_ids=list(ids), backend=SGLangBackend(vocab_size=100))
    with pytest.raises(ValueError, match="the prompt is empty"):
        asked(client, prompt_ids=[])
    with pytest.raises(ValueError, match="no sampling parameter for 'max_tokns'; did you mean 'max_tokens'"):
        asked(client, sampling_params={"max_tokns": 3}, backend=SGLangBackend())
    assert client.posted == []


NOT_SENT = pytest.mark.parametrize("backend", [VLLMBackend(), SGLangBackend()], ids=["vllm", "sglang"])


@NOT_SENT
def test_a_prompt_over_the_cap_is_not_sent(asked: Asked, backend: RendererBackend) -> None:  # H4
    client = ListingClient(vllm_answer(), [{"id": "m", "max_model_len": 4}])
    with pytest.raises(PromptTooLongError) as refusal:
        asked(client, StubRenderer(tuple(range(10))), backend=backend)
    assert (refusal.value.prompt_len, refusal.value.max_prompt_len, refusal.value.error.limit) == (10, 4, 4)
    with pytest.raises(PromptTooLongError):
        asked(client, StubRenderer(tuple(range(10))), backend=backend, max_prompt_len=9)
    assert (client.asked, client.posted) == (1, [])


def test_a_prompt_at_the_cap_is_sent(asked: Asked) -> None:
    client = StubClient(vllm_answer())
    assert asked(client, StubRenderer(tuple(range(10))), max_prompt_len=10)["prompt_ids"] == list(range(10))


def test_the_cap_is_asked_once_for_each_model_and_a_failed_question_again(asked: Asked) -> None:  # H4
    cards = [{"id": "m", "max_model_len": 4}]
    client = ListingClient(vllm_answer(), ConnectionError("gone"), ValueError("no JSON"), cards)
    long = StubRenderer(tuple(range(10)))
    assert asked(client, long)["prompt_ids"] == list(range(10))  # not known: sent
    assert asked(client, long)["prompt_ids"] == list(range(10))
    for _ in range(2):
        with pytest.raises(PromptTooLongError):
            asked(client, long)
    assert client.asked == 3


def test_callers_at_the_same_time_share_one_question_and_answers_expire() -> None:
    now = [0.0]
    client = ListingClient(vllm_answer(), [{"id": "m", "max_model_len": 4}], [{"id": "m", "max_model_len": 8}])

    async def ask() -> list[int | None]:
        limits = Limits(clock=lambda: now[0])
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
        ("Error code: 400 - The decoder prompt (length 300) is longer than the maximum model length of 256. Make sure", (300, 256)),
        ("Error code: 500 - The input (3000 tokens) is longer than the model's context length (2048 tokens).", (3000, 2048)),
        ("Error code: 500 - out of memory", None),
    ],
)
def test_what_the_server_finds_too_long_is_the_same_error(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, backend: RendererBackend, words: str, lengths: tuple[int, int] | None
) -> None:  # H5
    monkeypatch.setitem(sys.modules, "openai", SimpleNamespace(APIError=Refused, OpenAIError=Refused))
    client = StubClient(Refused(words))
    overflows = backend.is_overflow_error(Refused(words))
    if lengths is None or not overflows:
        with pytest.raises(Refused, match="Error code"):
            asked(client, backend=backend)
    else:
        with pytest.raises(PromptTooLongError) as refusal:
            asked(client, backend=backend)
        assert (refusal.value.prompt_len, refusal.value.max_prompt_len) == lengths
    assert overflows == (lengths is not None and ("decoder" in words) == isinstance(backend, VLLMBackend))


ENTRIES: list[tuple[Any, str]] = [
    ({"token_id": 7}, r"\[0\]\.logprob must be a number"),
    ({"token_id": 7, "logprob": None}, r"\[0\]\.logprob must be a number"),
    ({"token_id": 7, "logprob": "-0.1"}, r"\[0\]\.logprob must be a number"),
    ({"token_id": 7, "logprob": True}, r"\[0\]\.logprob must be a number"),
    ({"token_id": 7, "logprob": float("nan")}, r"\[0\]\.logprob must be finite"),
    ({"token_id": 7, "logprob": float("-inf")}, r"\[0\]\.logprob must be finite"),
    ({"token_id": 7, "logprob": 10**400}, r"\[0\]\.logprob must be finite"),
    ({"token_id": 7, "logprob": -9999.0}, r"\[0\]\.logprob does not contain sampling evidence"),
    ({"token_id": 8, "logprob": -0.1}, r"\[0\]\.token_id must be 7"),
    ({"token": "token_id:8", "logprob": -0.1}, r"\[0\]\.token must be 'token_id:7'"),
    ({"logprob": -0.1}, r"\[0\]\.token_id must be 7"),
    (None, r"\[0\] must be an object"),
]


@pytest.mark.parametrize(("entry", "words"), ENTRIES)
def test_a_logprob_of_vllm_that_proves_nothing_is_refused(asked: Asked, entry: Any, words: str) -> None:  # H3
    second = {"token_id": 8, "logprob": -0.2}
    renderer = StubRenderer()
    with pytest.raises(MalformedGenerateResponseError, match=words):
        asked(StubClient(vllm_answer({"logprobs": {"content": [entry, second]}})), renderer)
    assert renderer.parsed == []


@pytest.mark.parametrize("value", [None, "-0.1", True, float("nan"), float("inf"), -9999.0])
def test_a_logprob_of_sglang_that_proves_nothing_is_refused(asked: Asked, value: Any) -> None:  # H3
    with pytest.raises(MalformedGenerateResponseError, match=r"output_token_logprobs\[1\]\[0\]"):
        asked(StubClient(sglang_answer(output_token_logprobs=[[-0.1, 7, None], [value, 8, None]])), backend=SGLangBackend())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (vllm_answer({"logprobs": None}), r"choice\.logprobs must be an object"),
        (vllm_answer({"logprobs": {"content": 5}}), "content must be a list"),
        (vllm_answer({"logprobs": {"content": [{"token_id": 7, "logprob": -0.1}]}}), r"token count \(2\) does not match logprob count \(1\)"),
        (vllm_answer({"token_ids": [7, True]}), "token_ids must be a list of token ids"),
        ({"choices": []}, "choices must be a list of 1"),
        ({}, "choices must be a list of 1"),
        (b'{"choices": [', "must be JSON"),
    ],
)
def test_an_answer_that_is_none_is_refused(asked: Asked, answer: Any, words: str) -> None:
    with pytest.raises(MalformedGenerateResponseError, match=words):
        asked(StubClient(answer))


def test_a_logprob_of_zero_is_one(asked: Asked) -> None:  # H3
    entries = [{"token": "token_id:7", "logprob": 0.0}, {"token_id": 8, "logprob": 0}]
    assert asked(StubClient(vllm_answer({"logprobs": {"content": entries}})))["completion_logprobs"] == [0.0, 0.0]


EXPERTS = {"data": "AQI=", "shape": [2, 1, 1]}


@pytest.mark.parametrize(
    "raw",
    [
        json.dumps(vllm_answer({"routed_experts": EXPERTS}), separators=(",", ":")),
        json.dumps(vllm_answer({"routed_experts": EXPERTS}), indent=2),
        json.dumps(vllm_answer({"routed_experts": dict(reversed(EXPERTS.items()))})),
    ],
    ids=["compact", "spaced", "reordered"],
)
def test_routed_experts_are_read_however_they_are_written(asked: Asked, raw: str) -> None:  # H11
    kept = asked(StubClient(raw.encode()))["routed_experts"]
    assert (kept["shape"], kept["data"].tobytes()) == ([2, 1, 1], b"AQI=")


def test_two_completions_are_two_with_each_its_experts(asked: Asked) -> None:  # H11
    second = vllm_choice(index=1, token_ids=[7], logprobs={"content": [{"token_id": 7, "logprob": -0.5}]}, routed_experts=EXPERTS)
    answer = {"choices": [second, vllm_choice()]}
    result = asked(StubClient(answer), sampling_params={"n": 2})
    assert [one["completion_ids"] for one in result["completions"]] == [[7, 8], [7]]
    assert result["completions"][1]["routed_experts"]["data"].tobytes() == b"AQI="
    assert result["completion_ids"] == [7, 8]
    pair = asked(StubClient([sglang_answer(), sglang_answer(routed_experts="AQI=")]), sampling_params={"n": 2}, backend=SGLangBackend())
    assert [one["routed_experts"] for one in pair["completions"]] == [None, "AQI="]


def test_a_cancelled_call_aborts_the_request_by_name() -> None:  # H12
    aborted: list[str] = []

    class Stalling(StubClient):
        arrived: asyncio.Event

        async def post(self, path: str, *, cast_to: Any, body: Any = None, options: Any = None) -> Any:
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
        task = asyncio.ensure_future(generate(client=client, renderer=StubRenderer(), **said))
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


def test_tools_need_a_renderer_that_has_them(asked: Asked) -> None:
    renderer = StubRenderer()
    renderer.supports_tools = False
    with pytest.raises(ValueError, match="does not support tools"):
        asked(StubClient(vllm_answer()), renderer, tools=[{}])
    renderer.supports_process_multimodal = False
    with pytest.raises(NotImplementedError, match="process_multimodal=False"):
        asked(StubClient(vllm_answer()), renderer, process_multimodal=False)


@pytest.mark.parametrize("backend", [VLLMBackend(), SGLangBackend()])
def test_both_backends_keep_the_protocol(backend: Any) -> None:
    assert isinstance(backend, RendererBackend)
