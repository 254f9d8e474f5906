"""The stages before a call are functions of their rows: what a server tells one caller changes
nothing for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("transformers")

import pipegen as pg
from pipegen.testing.faulty import FaultyServer
from pipegen.testing.image_files import image_file

AFTER_THE_CALL = ("call", "decode", "stop", "trim")
REQUESTS: tuple[dict[str, Any], ...] = (
    {"prompt": "Hi"},
    {"messages": [{"role": "user", "content": "Count."}], "options": {"max_new_tokens": 100_000}},
    {"prompt": "word " * 300, "options": {"max_new_tokens": 100_000}},
    {"prompt": "word " * 300, "options": {"on_overflow": "clip", "max_new_tokens": 100_000}},
    {"prompt": "word " * 6000},
    {"prompt": "<|vision_start|><|image_pad|><|vision_end|>", "images": [image_file()]},
    {"messages": [{"role": "user", "content": [{"type": "image", "image": image_file()}]}]},
    {"prompt": "a", "options": {"seed": 1, "temperature": 1.0, "samples": 1}},
    {"prompt_token_ids": [10**6]},
)
TOKENS: dict[str, Callable[..., pg.Route]] = {
    "vllm": pg.backends.vllm_server,
    "sglang": pg.backends.sglang_server,
}
TOO_LONG = {
    "error": {
        "message": "The decoder prompt (length 2) is longer than the maximum model length of 1."
    }
}
BLIND = {"error": {"message": "toy is not a multimodal model", "type": "BadRequestError"}}


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(limit=64) as started:
        yield started


def stages(route: pg.Route) -> pg.Pipe[Any, Any]:
    """The stages of a route up to its call."""
    pipe: Any = route
    for name in [part.name for part in route.parts if part.name in AFTER_THE_CALL]:
        pipe = pipe.remove(name)
    return pipe


def slots(pipe: pg.Pipe[Any, Any]) -> list[Any]:
    """What the stages make of every request, in a form that can be compared."""
    return [str(slot) for slot in pipe.apply(tuple(map(pg.request_from, REQUESTS)))]


@pytest.mark.parametrize("settings", [{}, {"server_limit": True}], ids=str)
@pytest.mark.parametrize("name", TOKENS)
def test_what_a_token_server_tells_changes_no_stage(
    name: str, settings: dict[str, Any], server: FaultyServer
) -> None:
    server.answers["/server_info"] = (200, {"max_req_input_len": 20, "version": "1"})
    with TOKENS[name]("embedded", base_url=server.url, **settings) as route:
        before = slots(stages(route))
        assert pg.is_ok(pg.run(route, [{"prompt": "Hi"}], {"max_new_tokens": 2})[0])
        assert route.engine.capabilities.context_length in (24, 64)  # it has been told
        assert slots(stages(route)) == before
        assert slots(stages(pg.route(route.engine))) == before


@pytest.mark.parametrize("answer", [(400, TOO_LONG), (404, {}), (503, {}), (400, BLIND)], ids=str)
@pytest.mark.parametrize("name", TOKENS)
def test_what_a_token_server_refuses_changes_no_stage(
    name: str, answer: tuple[int, Any], server: FaultyServer
) -> None:
    server.answers |= dict.fromkeys(("/inference/v1/generate", "/generate"), answer)
    with TOKENS[name]("embedded", base_url=server.url, retries=0) as route:
        before = slots(stages(route))
        pg.run(route, [*REQUESTS])
        assert slots(stages(route)) == before


@pytest.mark.parametrize("dialect", ["plain", "vllm", "sglang"])
def test_what_a_chat_server_tells_changes_no_stage(dialect: str, server: FaultyServer) -> None:
    server.answers["/model_info"] = (200, {"has_image_understanding": False})
    with pg.backends.openai_server("toy", base_url=server.url, dialect=dialect) as route:
        before = slots(stages(route))
        pg.run(route, [*REQUESTS])
        server.answers["/v1/chat/completions"] = (400, BLIND)
        pg.run(route, [*REQUESTS])
        assert slots(stages(route)) == before


def test_what_a_chat_server_tells_changes_no_later_result(server: FaultyServer) -> None:
    with pg.backends.openai_server("toy", base_url=server.url, dialect="vllm") as route:
        end = route.parts[-1]
        calls: Any = route.remove("trim")
        server.models = False
        (answer,) = pg.run(calls, [{"prompt": "Hello"}], {"max_new_tokens": 4})
        before = end.apply((answer,))
        server.models = True
        for _ in range(2):
            route.engine.sender.directory._stale_at = 0.0
            pg.run(route, [{"prompt": "Hi"}], {"max_new_tokens": 2})
        assert route.engine.capabilities.context_length == 64
        assert end.apply((answer,)) == before


@pytest.mark.parametrize("name", TOKENS)
def test_a_prompt_beyond_the_servers_limit_fails_alike_in_the_first_run_and_later(
    name: str, server: FaultyServer
) -> None:
    rows = [{"prompt": "word " * 300}, {"prompt": "Hi"}]
    with TOKENS[name]("embedded", base_url=server.url) as route:
        runs = [pg.run(route, rows, {"max_new_tokens": 2}) for _ in range(2)]
    (first, one), (second, other) = runs
    assert isinstance(first.failure(), pg.PromptTooLong)
    assert first == second
    assert one == other
    assert len(server.asked) == 1


@pytest.mark.parametrize("name", TOKENS)
def test_a_server_that_is_not_there_fails_the_rows_and_is_asked_again_by_the_next_run(
    name: str, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.servers import facts

    monkeypatch.setattr(facts, "PAUSE_SECONDS", 0.0)
    with FaultyServer() as gone:
        address = gone.url
    with TOKENS[name]("embedded", base_url=address, retries=0) as route:
        before = slots(stages(route))
        error = pg.run(route, [{"prompt": "Hi"}])[0].failure()
        assert isinstance(error, pg.BackendFailed)
        assert slots(stages(route)) == before
    server.models = False
    server.answers |= dict.fromkeys(("/inference/v1/generate", "/generate"), (503, {}))
    with TOKENS[name]("embedded", base_url=server.url, retries=0) as route:
        assert isinstance(pg.run(route, [{"prompt": "Hi"}])[0].failure(), pg.RateLimited)
        server.models = True
        server.answers.clear()
        assert pg.is_ok(pg.run(route, [{"prompt": "Hi"}], {"max_new_tokens": 2})[0])
        assert slots(stages(route)) == before
