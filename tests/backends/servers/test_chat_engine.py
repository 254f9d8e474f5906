"""Chat completions: the wire records of each dialect, what is collected of a row, and the route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.stopping_server import StoppingServer

import pipegen as pg
from pipegen.backends.servers import openai
from pipegen.backends.servers.wire import Completion, Facts, WireReply
from pipegen.core.errors import MalformedResponse, PromptTooLong, UnsupportedOption
from pipegen.records.option_groups import ChatTemplateOptions, StopOptions
from pipegen.testing.faulty import FaultyServer

MESSAGES = ({"role": "user", "content": "Hi"},)


def body(ask: Any, dialect: str, **more: Any) -> Any:
    return (
        openai.DIALECTS[dialect]
        .to_wire(ask((), messages=MESSAGES, model="m", **more), Facts())
        .unwrap()
        .body
    )


def test_a_plain_server_is_sent_the_fields_of_openai_alone(ask: Any) -> None:
    assert body(ask, "plain", max_new_tokens=7, seed=5) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 7,
        "temperature": 0.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 5,
    }


# H8
@pytest.mark.parametrize(("dialect", "all_of_them"), [("vllm", 0), ("sglang", -1)])
def test_what_an_engine_has_of_its_own_goes_where_it_wants_it(
    ask: Any, dialect: str, all_of_them: int
) -> None:
    extra = {"chat_template_kwargs": {"foo": 1}}
    payload = body(
        ask,
        dialect,
        top_k=0,
        chat=ChatTemplateOptions(enable_thinking=True),
        extra_body=extra,
        stops=("END",),
    )
    assert payload["chat_template_kwargs"] == {"enable_thinking": True, "foo": 1}
    assert payload["top_k"] == all_of_them
    assert payload["stop"] == ["END"]
    assert (payload.get("no_stop_trim"), "include_stop_str_in_output" in payload) == (
        (None, False) if dialect == "vllm" else (True, False)
    )
    assert "seed" not in payload
    assert extra == {"chat_template_kwargs": {"foo": 1}}


def test_thinking_in_extra_body_goes_to_the_template_too(ask: Any) -> None:
    payload = body(
        ask, "vllm", extra_body={"enable_thinking": True, "chat_template_kwargs": {"foo": 1}}
    )
    assert payload["chat_template_kwargs"] == {"enable_thinking": True, "foo": 1}
    assert "enable_thinking" not in payload


# H9
def test_a_field_of_another_engine_is_refused(ask: Any) -> None:
    assert (
        body(ask, "sglang", extra_body={"separate_reasoning": True})["separate_reasoning"] is True
    )
    error = (
        openai.DIALECTS["vllm"]
        .to_wire(ask((), messages=MESSAGES, extra_body={"separate_reasoning": True}), Facts())
        .failure()
    )
    assert isinstance(error, UnsupportedOption)
    assert error.option == "separate_reasoning"


def test_a_plain_server_is_sent_the_extra_body_as_it_is(ask: Any) -> None:
    extra = {"top_k": 5, "chat_template_kwargs": {"enable_thinking": True}, "regex": "a"}
    assert extra.items() <= body(ask, "plain", extra_body=extra).items()
    error = (
        openai.DIALECTS["plain"]
        .to_wire(ask((), messages=MESSAGES, extra_body={"separate_reasoning": True}), Facts())
        .failure()
    )
    assert isinstance(error, pg.UnsupportedOption)


def answer(**message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


# H13
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_and_content_are_two_fields(ask: Any, name: str) -> None:
    (completion,) = openai.from_wire(answer(content="4", **{name: "2 and 2"}), ask()).unwrap()
    seen = (completion.reasoning, completion.text, completion.usage["prompt_tokens"])
    assert seen == ("2 and 2", "4", 3)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        [],
        {"choices": [{"index": 0, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "message": {"content": "x"}}]},
        {"choices": [{"index": "1", "message": {"content": "x"}, "finish_reason": "stop"}]},
        answer(content=3),
        answer(content="x", reasoning=[]),
        answer(content="x", tool_calls="x"),
        {**answer(content="x"), "prompt_token_ids": "x"},
        {"choices": answer(content="x")["choices"] * 2},
    ],
)
def test_an_answer_that_the_protocol_does_not_allow_is_malformed(ask: Any, payload: Any) -> None:
    assert isinstance(openai.from_wire(payload, ask()).failure(), MalformedResponse)


# H5
def test_an_over_long_prompt_is_known(ask: Any) -> None:
    payload = (
        b'{"error":{"message":"This model\'s maximum context length is 4097 tokens. However, your'
        b' messages resulted in 5000 tokens."}}'
    )
    error = openai.DIALECTS["plain"].classify(WireReply(status=400, body=payload), ask(()))
    assert isinstance(error, PromptTooLong)
    assert (error.prompt_tokens, error.limit) == (5000, 4097)
    coded = WireReply(
        status=400, body=b'{"error":{"message":"too much","code":"context_length_exceeded"}}'
    )
    unknown = openai.DIALECTS["plain"].classify(coded, ask(()))
    assert isinstance(unknown, PromptTooLong)
    seen = (unknown.prompt_tokens, unknown.limit, "0" in str(unknown).replace("400", ""))
    assert seen == (None, None, False)


def row(*stops: str, **more: Any) -> Any:
    from pipegen.backends.servers.chat_engine import ChatRow
    from pipegen.records.option_records import GenerationOptions
    from pipegen.records.options import resolve
    from pipegen.records.results import ResolvedRequest

    options = resolve(GenerationOptions(stop=StopOptions(stop=stops, **more)))
    return ChatRow(ResolvedRequest(request=pg.TextGenerationRequest(prompt="Hi"), options=options))


def test_tool_calls_that_come_in_pieces_are_joined() -> None:
    collected = row()
    for call in (
        {
            "index": 0,
            "id": "a",
            "type": "function",
            "function": {"name": "add", "arguments": '{"x"'},
        },
        {"index": 1, "id": "b", "type": "function", "function": {"name": "sub", "arguments": ""}},
        {"index": 0, "function": {"arguments": ": 1}"}},
        {"index": 1, "function": {"arguments": "{}"}},
    ):
        collected.take(Completion(tool_calls=(call,)))
    collected.take(Completion(finish="tool_calls"))
    calls = collected.slot().unwrap().tool_calls
    assert [(call["id"], dict(call["function"])) for call in calls] == [
        ("a", {"name": "add", "arguments": '{"x": 1}'}),
        ("b", {"name": "sub", "arguments": "{}"}),
    ]


@pytest.mark.parametrize(
    ("finish", "stop", "wanted"),
    [
        ("stop", None, (pg.Finish.EOS, None)),
        ("stop", 7, (pg.Finish.STOP_TOKEN, 7)),
        ("stop", 8, (pg.Finish.EOS, None)),
        ("stop", "END", (pg.Finish.STOP_STRING, "END")),
        ("length", None, (pg.Finish.LENGTH, None)),
    ],
)
def test_how_a_row_ended_is_told_apart(finish: str, stop: Any, wanted: Any) -> None:
    collected = row("END", stop_token_ids=(7,))
    collected.take(Completion(text="a", finish=finish, stop=stop))
    payload = collected.slot().unwrap()
    assert (payload.finish, payload.stop) == wanted


def test_the_text_is_cut_here_by_the_same_rule() -> None:
    collected = row("abcd", "bc")
    collected.take(Completion(text="xabcdef", finish="stop", stop="abcd"))
    payload = collected.slot().unwrap()
    assert (payload.text, payload.raw_text, payload.stop) == ("xa", "xabc", "bc")


def test_what_comes_after_the_stop_is_no_part_of_the_row() -> None:
    collected = row("END")
    seen = [collected.take(Completion(text=text)).text for text in ("a", "END", "more")]
    assert seen == ["a", "", ""]
    assert (collected.slot().unwrap().text, collected.slot().unwrap().raw_text) == ("a", "aEND")


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    pytest.importorskip("aiohttp")
    with FaultyServer(reply=lambda ids: [*reversed(ids), 257]) as running:
        running.keeps_bodies = True
        yield running


def test_the_route_answers_and_streams(server: FaultyServer) -> None:
    with pg.backends.openai_server("toy", base_url=server.url + "/v1/", dialect="vllm") as route:
        result = pg.run(route, [{"prompt": "abc"}], pg.GenerationOptions(max_new_tokens=8))[
            0
        ].unwrap()
        seen = (result.text, result.finish, result.route, result.completion_tokens)
        assert seen == ("cba", pg.Finish.EOS, "vllm_chat", 4)
        events = list(pg.stream(route, [{"prompt": "abc"}], pg.GenerationOptions(max_new_tokens=8)))
    assert "".join(event.text for event in events if isinstance(event, pg.Delta)) == "cba"
    assert isinstance(events[-1], pg.Done)
    assert events[-1].slot.unwrap().text == "cba"


def test_a_plain_server_is_followed_and_left_where_the_stop_completes(server: FaultyServer) -> None:
    with pg.backends.openai_server("toy", base_url=server.url) as route:
        result = pg.run(route, [{"prompt": "fedcba"}], pg.GenerationOptions(stop=("cd",)))[
            0
        ].unwrap()
    assert (result.text, result.finish, result.stop) == ("ab", pg.Finish.STOP_STRING, "cd")
    assert server.bodies[0]["stream"] is True
    assert "stop" not in server.bodies[0]


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_row_that_the_server_ends_at_a_stop_has_its_counts_in_a_stream_too(dialect: str) -> None:
    requests, options = [{"prompt": "one STOP two"}], {"stop": ["STOP"]}
    with StoppingServer() as server:
        server.dialect, server.width = dialect, 3
        with pg.backends.openai_server("toy", base_url=server.url, dialect=dialect) as route:
            whole = pg.run(route, requests, options)
            (streamed,) = [
                event.slot
                for event in pg.stream(route, requests, options)
                if isinstance(event, pg.Done)
            ]
    assert (streamed,) == whole
    result = streamed.unwrap()
    assert (result.text, result.prompt_tokens, result.completion_tokens) == ("one ", 12, 3)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (pg.GenerationOptions(logprobs=True), "logprobs"),
        (pg.GenerationOptions(top_k=3), "top_k"),
        (pg.GenerationOptions(on_overflow="clip"), "on_overflow"),
        (pg.GenerationOptions(use_generation_config=True), "use_generation_config"),
        (pg.GenerationOptions(chat=ChatTemplateOptions(enable_thinking=True)), "enable_thinking"),
        (pg.GenerationOptions(chat=ChatTemplateOptions(enable_thinking=False)), "enable_thinking"),
        (pg.GenerationOptions(chat=ChatTemplateOptions(control_tokens="reject")), "control_tokens"),
    ],
)
def test_what_does_not_hold_where_the_server_renders_is_refused(
    server: FaultyServer, options: pg.GenerationOptions, name: str
) -> None:
    with pg.backends.openai_server("toy", base_url=server.url) as route:
        error = pg.run(route, [{"prompt": "a"}], options)[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == name
    assert not server.asked


def test_what_would_be_sent_is_told_without_sending_it(server: FaultyServer) -> None:
    from pipegen.backends.servers.dry import wire_requests

    with pg.backends.openai_server("toy", base_url=server.url, served_model_name="m") as route:
        first, second = wire_requests(route, [{"prompt": "a"}, {"messages": []}])
    assert (first.unwrap().path, first.unwrap().body["model"]) == ("/v1/chat/completions", "m")
    assert not pg.is_ok(second)
    assert not server.paths
