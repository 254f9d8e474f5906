"""`extra_body` holds fields that the server's own schema has; any other is refused, with the
nearest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from returns.result import Success
from support.loopback import JsonHandler, Loopback

import pipegen as pg
from pipegen.backends.servers.extra_body import schema_fields, with_known_fields
from pipegen.backends.servers.wire import Facts, WireRequest

pytest.importorskip("aiohttp")
from pipegen.backends.servers import facts

CHAT, GENERATE = "/v1/chat/completions", "/generate"
COMPLETION = {"message": {"content": "Hi."}, "finish_reason": "stop"}


def schema_of(**fields: list[str]) -> dict[str, Any]:
    """The page of a server whose requests have these fields: by a reference, as FastAPI writes it,
    or in place.
    """
    paths, kinds = {}, {}
    for kind, path in (("chat", CHAT), ("generate", GENERATE)):
        properties = {"properties": {name: {} for name in fields.get(kind, [])}}
        kinds[kind] = {**properties, "additionalProperties": True}  # as vLLM says, and ignores them
        body = {"$ref": f"#/components/schemas/{kind}"} if kind == "chat" else properties
        content = {"application/json": {"schema": body}}
        paths[path] = {"post": {"requestBody": {"content": content}}}
    return {"paths": paths, "components": {"schemas": kinds}}


class Handler(JsonHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        page = self.server.pages.get(self.path)
        self.send({} if page is None else page, 404 if page is None else 200)

    def do_POST(self) -> None:
        self.server.bodies.append(self.body())
        self.send({"choices": [{"index": 0, **COMPLETION}]})


@pytest.fixture
def server() -> Iterator[Any]:
    pages = {"/v1/models": {"data": [{"id": "m"}]}}
    with Loopback(Handler, asked=[], bodies=[], pages=pages) as made:
        yield made


def answer(server: Any, dialect: Any, rows: int = 1, **extra_body: Any) -> Any:
    make = pg.backends.openai_server
    with make("m", base_url=server.url, dialect=dialect, extra_body=extra_body) as route:
        return pg.run(route, [{"prompt": f"Hi {row}"} for row in range(rows)])[-1]


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_field_that_the_schema_lacks_is_refused_with_the_nearest_one(
    server: Any, dialect: str
) -> None:
    server.pages["/openapi.json"] = schema_of(chat=["messages", "lora_path", "priority"])
    error = answer(server, dialect, lora_pth="a").failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, server.bodies) == ("lora_pth", [])
    assert error.message == (
        f"extra_body.lora_pth: the server's {CHAT} has no such field; did you mean 'lora_path'?"
    )


def test_a_field_that_the_schema_has_is_sent_and_the_schema_is_read_once(server: Any) -> None:
    server.pages["/openapi.json"] = schema_of(chat=["messages", "unheard_of"])
    assert pg.is_ok(answer(server, "vllm", rows=3, unheard_of=1, messages_of=None))
    assert [body["unheard_of"] for body in server.bodies] == [1, 1, 1]
    assert server.asked.count("/openapi.json") == 1


def test_without_extra_body_no_schema_is_read(server: Any) -> None:
    assert pg.is_ok(answer(server, "vllm"))
    assert pg.is_ok(answer(server, "vllm", top_k=None))
    assert "/openapi.json" not in server.asked


def test_a_server_of_no_dialect_is_asked_for_no_schema(server: Any) -> None:
    server.pages["/openapi.json"] = schema_of(chat=["messages"])
    assert pg.is_ok(answer(server, "plain", verbosity="low"))
    assert "/openapi.json" not in server.asked


NO_SCHEMA = [
    None,
    b"not JSON",
    [],
    {"paths": None},
    {"paths": {CHAT: {"post": {"requestBody": 7}}}},
    schema_of(),
    {**schema_of(chat=["messages"]), "components": {"schemas": {}}},
]


@pytest.mark.parametrize("page", NO_SCHEMA)
@pytest.mark.parametrize("dialect", ["vllm", "sglang", "plain"])
def test_without_a_schema_only_what_is_nearly_an_option_is_refused(
    server: Any, dialect: str, page: Any
) -> None:
    server.pages["/openapi.json"] = page
    assert pg.is_ok(answer(server, dialect, unheard_of=1, repeat_penalty=1.1, top_a=0.5))
    error = answer(server, dialect, temprature=0.5).failure()
    assert isinstance(error, pg.UnsupportedOption)
    words = "extra_body.temprature: it is no option; did you mean 'temperature'?"
    assert (error.option, error.message, len(server.bodies)) == ("temprature", words, 1)


def test_a_schema_that_is_too_large_is_not_read(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "PAGE_BYTES", 1000)
    server.pages["/openapi.json"] = schema_of(chat=["messages", *map(str, range(1000))])
    assert pg.is_ok(answer(server, "vllm", unheard_of=1))


def test_a_request_that_no_field_was_merged_into_is_no_question_of_fields() -> None:
    facts = Facts(fields={GENERATE: frozenset({"input_ids"})})
    rendering = WireRequest(path="/render", body={"messages": []})
    taken_away = WireRequest(path=GENERATE, body={"input_ids": [1]})
    for request in (rendering, taken_away):
        body = {"lora": "a", "top": None}
        assert with_known_fields(body, facts, request) == Success(request)


def test_the_fields_are_those_of_the_paths_that_are_asked() -> None:
    page = schema_of(chat=["messages"], generate=["input_ids", "rid"])
    wanted = {GENERATE: frozenset({"input_ids", "rid"})}
    assert schema_fields(page, [GENERATE, "/elsewhere"]) == wanted
