"""Backends of a user's own, in either form, and what any client's exceptions say."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pipegen.contrib.renderers import (
    Completion,
    Generated,
    PromptTooLongError,
    RendererBackend,
    SGLangBackend,
    VLLMBackend,
    generate,
)
from pipegen.contrib.renderers.renderer_limits import LIMITS, ContextLimits
from pipegen.contrib.renderers.renderer_vllm import features_of

Asked = Callable[..., dict[str, Any]]
Stubs = Any
DONE = Generated(completions=(Completion(token_ids=[7], logprobs=[-0.1]),))
LONG = "The decoder prompt (length 300) is longer than the maximum model length of 256. Make sure"


class Sketched:
    """As issue 49 of `renderers` sketches a backend: everything by name."""

    limit: int | None = None
    raises: Exception | None = None

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    async def generate(
        self,
        *,
        client: Any,
        token_ids: list[int],
        sampling_params: dict[str, Any],
        multi_modal_data: Any,
    ) -> Generated:
        if self.raises is not None:
            raise self.raises
        self.asked = {
            "client": client,
            "token_ids": token_ids,
            "sampling_params": sampling_params,
            "multi_modal_data": multi_modal_data,
        }
        return DONE

    async def resolve_max_prompt_len(self, *, client: Any, model: str) -> int | None:
        return self.limit

    def is_overflow_error(self, exc: BaseException) -> bool:
        return isinstance(exc, LookupError)


class WithMore(Sketched):
    async def generate(
        self,
        *,
        client: Any,
        token_ids: list[int],
        sampling_params: dict[str, Any],
        multi_modal_data: Any,
        **more: Any,
    ) -> Generated:
        self.asked = more
        return DONE


def test_a_backend_that_is_asked_by_name(stubs: Stubs, asked: Asked) -> None:
    backend, client = Sketched(), stubs.Client(None)
    result = asked(client, backend=backend, sampling_params={"max_tokens": 5})
    params = {"max_tokens": 5, "stop_token_ids": [99], "logprobs": 1, "skip_special_tokens": False}
    assert backend.asked == {
        "client": client,
        "token_ids": [1, 2, 3],
        "sampling_params": params,
        "multi_modal_data": None,
    }
    assert (result["completion_ids"], result["completion_logprobs"]) == ([7], [-0.1])


def test_it_gets_what_else_it_takes(stubs: Stubs, asked: Asked) -> None:
    backend = WithMore()
    asked(stubs.Client(None), backend=backend, cache_salt="s", priority=2)
    assert {"model": "m", "cache_salt": "s", "priority": 2}.items() <= backend.asked.items()
    assert backend.asked["prompt"].token_ids == [1, 2, 3]


def test_its_limit_and_its_word_for_too_long_count(stubs: Stubs, asked: Asked) -> None:
    backend = Sketched()
    backend.limit = 2
    with pytest.raises(PromptTooLongError) as refusal:
        asked(stubs.Client(None), backend=backend)
    assert (refusal.value.prompt_len, refusal.value.max_prompt_len) == (3, 2)
    backend.limit, backend.raises = 5, KeyError("no room")
    with pytest.raises(PromptTooLongError) as refusal:
        asked(stubs.Client(None), backend=backend)
    assert (refusal.value.prompt_len, refusal.value.max_prompt_len) == (3, 5)
    backend.raises = ZeroDivisionError("something else")
    with pytest.raises(ZeroDivisionError):
        asked(stubs.Client(None), backend=backend)


def test_what_a_backend_gives_back_is_generated(
    stubs: Stubs, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "DONE", {"token_ids": [7]})
    with pytest.raises(TypeError, match=r"Sketched\.generate gives a Generated, not dict"):
        asked(stubs.Client(None), backend=Sketched())


class Status(Exception):
    """As httpx raises it: the body is not in its words."""

    def __init__(self, body: Any) -> None:
        super().__init__("Client error '400 Bad Request'")
        self.response = SimpleNamespace(text=body)


class Unread(Exception):
    @property
    def response(self) -> Any:
        raise RuntimeError("the body was not read")


@pytest.mark.parametrize(
    ("backend", "error", "overflows"),
    [
        (VLLMBackend(), Status(LONG), True),
        (VLLMBackend(), Status("out of memory"), False),
        (VLLMBackend(), Status(b"bytes"), False),
        (VLLMBackend(), OSError(LONG), True),
        (
            SGLangBackend(),
            Status(
                "The input (3000 tokens) is longer than the model's context length (2048 tokens)."
            ),
            True,
        ),
        (SGLangBackend(), Unread("gone"), False),
    ],
)
def test_any_exception_is_asked_about(
    stubs: Stubs, asked: Asked, backend: RendererBackend, error: Exception, overflows: bool
) -> None:
    assert backend.is_overflow_error(error) is overflows
    with pytest.raises(PromptTooLongError if overflows else type(error)):
        asked(stubs.Client(error), backend=backend)


def test_a_real_client_of_httpx(stubs: Stubs, asked: Asked) -> None:
    httpx: Any = pytest.importorskip("httpx")
    request = httpx.Request("POST", "http://host/generate")
    error = httpx.HTTPStatusError(
        "Client error '400 Bad Request'",
        request=request,
        response=httpx.Response(400, text=LONG, request=request),
    )
    with pytest.raises(PromptTooLongError) as refusal:
        asked(stubs.Client(error))
    assert (refusal.value.prompt_len, refusal.value.max_prompt_len) == (300, 256)


# Limits


class Pages:
    """A client whose pages are a mapping; any other page raises."""

    base_url = "http://host:30000/v1"

    def __init__(self, **pages: Any) -> None:
        self.pages = pages
        self.asked: list[str] = []

    async def get(self, path: str, *, cast_to: Any) -> Any:
        self.asked.append(path)
        return self.pages[path.removeprefix("http://host:30000").removeprefix("/")]


@pytest.mark.parametrize(
    ("pages", "limit"),
    [
        ({"get_server_info": {"max_req_input_len": 100}}, 100),
        ({"server_info": {"max_req_input_len": 100, "context_length": 90}}, 90),
        (
            {
                "models": {"data": [{"id": "m", "max_model_len": 80}]},
                "server_info": {"max_req_input_len": 100},
            },
            80,
        ),
        (
            {
                "models": {"data": [{"id": "m", "max_model_len": 80}]},
                "get_server_info": {"max_req_input_len": 70, "context_length": None},
            },
            70,
        ),
        ({"models": {"data": [{"id": "m"}]}, "server_info": {"max_req_input_len": True}}, None),
        ({"models": {"data": [{"id": "m", "max_model_len": 80}]}}, 80),
        ({}, None),
    ],
)
def test_sglang_is_asked_for_its_page_of_facts_too(
    pages: dict[str, Any], limit: int | None
) -> None:
    client = Pages(**pages)
    LIMITS.clear()

    async def ask() -> list[int | None]:
        return [await SGLangBackend().resolve_max_prompt_len(client, "m") for _ in range(2)]

    assert asyncio.run(ask()) == [limit, limit]
    # where nothing could be asked, it is asked again
    assert client.asked.count("/models") == (1 if pages else 2)


def test_a_question_that_is_cancelled_is_not_taken_for_an_answer() -> None:
    class Cancelling(Pages):
        async def get(self, path: str, *, cast_to: Any) -> Any:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ContextLimits().of(Cancelling(), "m"))


# The event loop


def test_the_event_loop_goes_on_while_a_renderer_works(stubs: Stubs) -> None:
    ticks = [0]
    threads: set[str] = set()

    class Slow(stubs.Renderer):  # type: ignore[misc]  # a fixture's class has no type
        """Renders, and parses, only when the loop has gone on meanwhile."""

        def _work(self) -> None:
            threads.add(threading.current_thread().name)
            before = ticks[0]
            while ticks[0] < before + 5:
                assert going_on.wait(10)

        def render(self, messages: Any, **said: Any) -> Any:
            self._work()
            return super().render(messages, **said)

        def parse_response(self, token_ids: Any, **said: Any) -> Any:
            self._work()
            return super().parse_response(token_ids, **said)

    going_on = threading.Event()

    async def run() -> list[dict[str, Any]]:
        async def tick() -> None:
            while True:
                ticks[0] += 1
                going_on.set()
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        renderer = Slow()
        said: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "model": "m"}
        client = stubs.Client(stubs.vllm())
        made = await asyncio.gather(
            *(generate(client=client, renderer=renderer, **said) for _ in range(3))
        )
        ticking.cancel()
        return made

    results = asyncio.run(run())
    assert [result["completion_ids"] for result in results] == [[7, 8]] * 3
    assert len(threads) == 1  # one at a time: a tokenizer is not made for several
    assert "MainThread" not in threads


# Images that the renderer prepared


def media(*items: dict[str, Any], hashes: int | None = None, kind: str = "image") -> Any:
    count = len(items) if hashes is None else hashes
    places = [SimpleNamespace(offset=4 * index, length=3) for index in range(count)]
    return SimpleNamespace(
        mm_hashes={kind: ["h"] * count},
        mm_placeholders={kind: places},
        mm_items={kind: list(items)},
        is_empty=lambda: False,
    )


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            media({"pixel_values": 1}, kind="video"),
            NotImplementedError,
            "video cannot be sent to vLLM here; pass process_multimodal=False",
        ),
        (
            media({"pixel_values": 1, "other": 2}),
            NotImplementedError,
            "images with other, pixel_values",
        ),
        (
            media({"pixel_values": 1, "image_grid_thw": 2}, hashes=2),
            ValueError,
            "1 images, 2 hashes and 2 places",
        ),
    ],
)
def test_images_that_are_not_known_are_not_sent(
    given: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        features_of(given)


def test_without_vllm_the_error_states_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(RuntimeError, match="install vllm here, or pass process_multimodal=False"):
        features_of(media({"pixel_values": [[1.0]], "image_grid_thw": [[1, 1, 1]]}))
