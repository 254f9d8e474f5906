"""What servers say at the end of an answer, in whole answers and in streams, on every route: an end,
a failure, a refusal, or a word that nobody knows.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.canned_server import Canned, CannedServer, events
from support.served import route_to

import pipegen as pg
from pipegen.backends.servers.finishes import error_within
from pipegen.core.slots import Slot
from pipegen.records.finish_words import meaning_of

pytest.importorskip("aiohttp")

END = 257
OPTIONS = {"max_new_tokens": 8}


def chatted(
    *answers: Canned, dialect: Any = "plain", options: Any = OPTIONS, **settings: Any
) -> Slot[pg.GenerationResult]:
    """What is made of these answers of a chat server."""
    with (
        CannedServer(*answers) as server,
        pg.backends.openai_server(
            "toy", base_url=server.url, dialect=dialect, **{"retries": 0, **settings}
        ) as route,
    ):
        return pg.run(route, [{"prompt": "Hi"}], options)[0]


def streamed(*answers: Canned, **settings: Any) -> Slot[pg.GenerationResult]:
    """What is made of these streams of a chat server."""
    with (
        CannedServer(*answers) as server,
        pg.backends.openai_server("toy", base_url=server.url, retries=0, **settings) as route,
    ):
        (done,) = [
            event
            for event in pg.stream(route, [{"prompt": "Hi"}], OPTIONS)
            if isinstance(event, pg.Done)
        ]
        return done.slot


def whole(finish: Any, content: Any = "Hello", **more: Any) -> Canned:
    message = {"role": "assistant", "content": content, **more}
    return Canned({"choices": [{"index": 0, "finish_reason": finish, "message": message}]})


def chunk(content: Any = None, finish: Any = None, **delta: Any) -> dict[str, Any]:
    delta = delta if content is None else {"content": content, **delta}
    return {"id": "a", "choices": [{"index": 0, "finish_reason": finish, "delta": delta}]}


def by_ids(wire: str, finish: str, ids: list[int], options: Any = OPTIONS) -> Any:
    """What a token route makes of an answer that ends so, whole."""
    choice = {"index": 0, "finish_reason": finish, "token_ids": ids}
    answer: Any = {"choices": [choice]}
    if wire == "sglang":
        reason = {"type": finish, "message": "no memory", "status_code": None}
        answer = {"output_ids": ids, "meta_info": {"finish_reason": reason}}
    with CannedServer(Canned(answer)) as server, route_to(server, wire, retries=0) as route:
        return pg.run(route, [{"prompt": "Hi"}], options)[0]


ENDS = [
    "stop",
    "eos",
    "end_turn",
    "STOP",
    "tool_calls",
    "stop_sequence",
    "FinishReason.STOP",
    "endTurn",
]
LENGTHS = ["length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens", "maxTokens"]


@pytest.mark.parametrize(
    ("word", "finish"),
    [(word, pg.Finish.EOS) for word in ENDS] + [(word, pg.Finish.LENGTH) for word in LENGTHS],
)
def test_an_end_is_an_end_by_any_name(word: str, finish: pg.Finish) -> None:
    slots = (chatted(whole(word)), streamed(events(chunk("Hel"), chunk("lo", word))))
    for slot in slots:
        assert (slot.unwrap().text, slot.unwrap().finish) == ("Hello", finish)


def test_the_token_routes_know_the_same_words() -> None:
    for wire in ("vllm", "sglang"):
        ended = by_ids(wire, "end_turn", [72, END]).unwrap()
        cut = by_ids(wire, "MAX_TOKENS", [72], {"max_new_tokens": 1}).unwrap()
        assert (ended.finish, cut.finish) == (pg.Finish.EOS, pg.Finish.LENGTH)


@pytest.mark.parametrize("word", ["error", "abort", "ABORTED", "cancelled", "network_error"])
def test_an_answer_that_the_server_gave_up_is_a_failure_that_can_be_sent_again(word: str) -> None:
    slots = (
        chatted(whole(word)),
        streamed(events(chunk("Hel"), chunk("lo", word))),
        by_ids("vllm", word, [72]),
        by_ids("sglang", word, [72]),
    )
    for slot in slots:
        error = slot.failure()
        assert isinstance(error, pg.BackendFailed)
        assert (error.retryable, error.scope) == (True, "row")
        assert repr(word) in error.message
    assert "no memory" in slots[-1].failure().message


def test_what_a_server_gave_up_is_sent_again() -> None:
    slot = chatted(whole("abort"), whole("stop", "Now"), retries=1)
    assert slot.unwrap().text == "Now"


@pytest.mark.parametrize("word", ["content_filter", "refusal", "SAFETY", "PROHIBITED_CONTENT"])
def test_a_refusal_is_an_error_of_its_own_with_the_text_so_far(word: str) -> None:
    for slot in (chatted(whole(word)), streamed(events(chunk("Hel"), chunk("lo", word)))):
        error = slot.failure()
        assert isinstance(error, pg.Refused)
        assert (error.text, error.retryable) == ("Hello", False)
    blocked = chatted(Canned({"choices": [{"finish_reason": word, "index": 0}]})).failure()
    assert isinstance(blocked, pg.Refused)


def test_the_words_of_a_refusal_are_kept() -> None:
    slots = (
        chatted(whole("stop", None, refusal="I cannot help.")),
        streamed(events(chunk(refusal="I cannot "), chunk(refusal="help."), chunk(finish="stop"))),
    )
    for slot in slots:
        error = slot.failure()
        assert isinstance(error, pg.Refused)
        assert (error.refusal, error.text) == ("I cannot help.", "")
    assert chatted(whole("stop", "Yes.", refusal=None)).unwrap().text == "Yes."


def test_a_refusal_before_the_model_is_a_refusal() -> None:
    body = {"error": {"code": "content_filter", "message": "filtered: violence"}}
    for status in (200, 400):
        error = chatted(Canned(body, status=status)).failure()
        assert isinstance(error, pg.Refused)
        assert "violence" in error.refusal


def test_an_unknown_word_is_no_answer() -> None:
    slots = (
        chatted(whole("moon")),
        streamed(events(chunk("Hello", "moon"))),
        by_ids("vllm", "moon", [72]),
        by_ids("sglang", "moon", [72]),
    )
    for slot in slots:
        assert isinstance(slot.failure(), pg.MalformedResponse)
        assert "'moon'" in slot.failure().message


def test_an_answer_that_is_complete_needs_no_known_word() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 8}
    counted = Canned({**whole("moon").body, "usage": usage})
    assert chatted(counted).unwrap().finish is pg.Finish.LENGTH
    form = {"structured": {"choice": ["Hello", "Bye"]}}
    assert chatted(whole("moon"), dialect="vllm", options=form).unwrap().finish is pg.Finish.EOS
    stopped = chatted(whole("moon", "a END b"), dialect="vllm", options={"stop": ["END"]})
    assert stopped.unwrap().finish is pg.Finish.STOP_STRING
    assert by_ids("vllm", "moon", [72, END]).unwrap().finish is pg.Finish.EOS
    assert by_ids("sglang", "moon", [72] * 8).unwrap().finish is pg.Finish.LENGTH


ERRORS: list[tuple[Any, type[pg.GenerationError]]] = [
    ({"code": 429, "message": "slow down"}, pg.RateLimited),
    ({"code": "429", "message": "slow down"}, pg.RateLimited),
    ({"code": 429.0, "message": "slow down"}, pg.RateLimited),
    ({"type": "rate_limit_error", "message": "slow down"}, pg.RateLimited),
    ({"code": "rate_limit_exceeded", "message": "slow down"}, pg.RateLimited),
    ({"status": "UNAVAILABLE", "message": "busy"}, pg.RateLimited),
    ({"code": 502, "message": "gateway"}, pg.BackendFailed),
    ({"code": 504, "message": "slow"}, pg.Timeout),
    ({"code": None, "type": "invalid_request_error", "message": "no"}, pg.InvalidRequest),
    ({"message": "out of memory"}, pg.BackendFailed),
    ("out of memory", pg.BackendFailed),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_an_error_within_an_answer_is_read_by_its_code_and_words(error: Any, kind: Any) -> None:
    complete = whole("stop").body["choices"][0]
    words = error if isinstance(error, str) else error["message"]
    for body in (
        {"error": error},
        {"choices": None, "error": error},
        {"choices": [complete], "error": error},
        {"choices": [{**complete, "finish_reason": "error", "error": error}]},
        {"choices": [{**complete, "message": {"error": error}}]},
        {"choices": [{**complete, "delta": {"error": error}}]},
    ):
        for slot in (
            chatted(Canned(body)),
            streamed(events(body)),
            streamed(events(chunk("Hel"), body)),
        ):
            assert type(slot.failure()) is kind
            assert words in slot.failure().message


def test_an_error_that_is_none_is_no_error() -> None:
    for none in (None, {}, ""):
        assert chatted(Canned({**whole("stop").body, "error": none})).unwrap().text == "Hello"
    assert error_within({"error": None, "object": "chat.completion"}) is None


def test_an_abort_of_sglang_is_the_status_that_it_names() -> None:
    reason = {"type": "abort", "message": "the queue is full", "status_code": 503}
    answer = Canned({"output_ids": [], "meta_info": {"finish_reason": reason}})
    with CannedServer(answer) as server, route_to(server, "sglang", retries=0) as route:
        error = pg.run(route, [{"prompt": "Hi"}], OPTIONS)[0].failure()
    assert isinstance(error, pg.RateLimited)
    assert "the queue is full" in error.message


@pytest.mark.parametrize("word", ["content filter", "Content-Filter", "FINISH_REASON_SAFETY"])
def test_words_are_read_however_they_are_spelled(word: str) -> None:
    assert meaning_of(word) == "refused"


def test_more_tokens_than_were_asked_are_no_answer() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 60}
    answer = Canned({**whole("length").body, "usage": usage})
    for dialect in ("plain", "vllm"):
        error = chatted(answer, dialect=dialect, options={"max_new_tokens": 5}).failure()
        assert isinstance(error, pg.MalformedResponse)
        assert "60 tokens came, and at most 5 were asked" in error.message
    other = {"max_tokens": None, "max_completion_tokens": 100}
    assert chatted(answer, options={"max_new_tokens": 5}, extra_body=other).unwrap().text == "Hello"


def test_the_older_form_of_a_call_is_a_call() -> None:
    call = {"name": "add", "arguments": '{"a": 1}'}
    pieces = (
        chunk(function_call={"name": "add", "arguments": ""}),
        chunk(function_call={"arguments": '{"a"'}),
        chunk(function_call={"arguments": ": 1}"}),
        chunk(finish="function_call"),
    )
    for slot in (
        chatted(whole("function_call", None, function_call=call)),
        streamed(events(*pieces)),
    ):
        (made,) = slot.unwrap().tool_calls
        assert dict(made["function"]) == call
        assert slot.unwrap().finish is pg.Finish.EOS


def call(identity: Any, name: Any, arguments: Any, index: Any = 0) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    one = {"index": index, "id": identity, "type": "function", "function": function}
    return chunk(
        tool_calls=[
            {key: value for key, value in one.items() if key != "index" or index is not None}
        ]
    )


def calls(*pieces: Any) -> list[tuple[Any, Any, Any]]:
    slot = streamed(events(*pieces, chunk(finish="tool_calls")))
    return [
        (made["id"], made["function"]["name"], made["function"]["arguments"])
        for made in slot.unwrap().tool_calls
    ]


@pytest.mark.parametrize("nothing", ["", None])
def test_empty_words_in_pieces_of_calls_overwrite_nothing(nothing: Any) -> None:
    pieces = (call("c1", "add", ""), call(nothing, nothing, '{"a"'), call(nothing, nothing, ": 1}"))
    assert calls(*pieces) == [("c1", "add", '{"a": 1}')]


def test_two_calls_of_one_index_are_two() -> None:
    pieces = (call("c1", "add", '{"a"'), call("", "", ": 1}"), call("c2", "sub", "{}"))
    wanted = [("c1", "add", '{"a": 1}'), ("c2", "sub", "{}")]
    assert calls(*pieces) == wanted
    without = (call("c1", "add", '{"a": 1}', None), call("c2", "sub", "{}", None))
    assert calls(*without) == wanted
    together = [part["choices"][0]["delta"]["tool_calls"][0] for part in (pieces[0], pieces[2])]
    made = chatted(whole("tool_calls", None, tool_calls=together)).unwrap().tool_calls
    assert [one["id"] for one in made] == ["c1", "c2"]


def test_a_whole_answer_has_as_many_calls_as_its_list() -> None:
    function = {"name": "add", "arguments": "{}"}
    same = [{"index": 0, "id": "", "function": function}] * 2
    assert len(chatted(whole("tool_calls", None, tool_calls=same)).unwrap().tool_calls) == 2


def test_an_id_that_changes_in_the_middle_of_a_call_is_no_answer() -> None:
    slot = streamed(events(call("c1", "add", '{"a"'), call("c2", None, ": 1}")))
    assert isinstance(slot.failure(), pg.MalformedResponse)
    assert "changes from 'c1' to 'c2'" in slot.failure().message


def test_pieces_of_several_answers_are_no_answer() -> None:
    mixed = [{**chunk(text), "id": name} for text, name in (("a", "x"), ("b", "x"), ("c", "y"))]
    slot = streamed(events(*mixed, chunk(finish="stop")))
    assert isinstance(slot.failure(), pg.MalformedResponse)
    assert "'x' and 'y'" in slot.failure().message
    each = [{**chunk(text), "id": name} for text, name in (("a", "x"), ("b", "y"), ("c", "z"))]
    assert streamed(events(*each, chunk(finish="stop"))).unwrap().text == "abc"


CLOSING: list[Any] = [
    {"choices": [{"index": 0, "finish_reason": "stop"}]},
    {"choices": [{"index": 0, "finish_reason": "stop", "delta": None}]},
]
SILENT: list[Any] = [
    b"data:\n\n",
    b"data: \r\n\r\n",
    b": ping\n\n",
    b"event: ping\ndata: {}\n\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
    b"retry: 100\nid: 7\n\n",
    {"choices": []},
    {"choices": None},
    {"choices": [], "usage": None},
    chunk("", ""),
    {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
]


@pytest.mark.parametrize("silent", SILENT)
@pytest.mark.parametrize("closing", CLOSING)
def test_what_says_nothing_in_a_stream_is_passed_over(silent: Any, closing: Any) -> None:
    pieces = (silent, chunk("Hel", ""), silent, chunk("lo", ""), silent, closing, silent)
    result = streamed(events(*pieces)).unwrap()
    assert (result.text, result.finish) == ("Hello", pg.Finish.EOS)


def test_content_as_a_list_of_parts_is_read() -> None:
    def parts(text: str) -> list[Any]:
        return [{"type": "text", "text": text}]

    thought = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]
    for slot in (
        chatted(whole("stop", [*thought, *parts("Hel"), *parts("lo")])),
        streamed(events(chunk(thought), chunk(parts("Hel")), chunk(parts("lo"), "stop"))),
    ):
        assert (slot.unwrap().text, slot.unwrap().reasoning) == ("Hello", "Hm.")
    unknown = chatted(whole("stop", [{"type": "image"}])).failure()
    assert isinstance(unknown, pg.MalformedResponse)


def test_two_ends_are_no_answer() -> None:
    slot = streamed(events(chunk("Hello", "stop"), chunk(finish="length")))
    assert isinstance(slot.failure(), pg.MalformedResponse)
    assert "'stop'" in slot.failure().message
    assert "'length'" in slot.failure().message
    again = streamed(events(chunk("Hello", "stop"), chunk(finish="stop")))
    assert again.unwrap().text == "Hello"


def test_more_stops_than_vllm_takes_are_cut_here() -> None:
    stops = ["one", "two", "three", "four", "END"]
    with (
        CannedServer(events(chunk("a E"), chunk("ND b", "stop"))) as server,
        pg.backends.openai_server("toy", base_url=server.url, dialect="vllm") as route,
    ):
        result = pg.run(route, [{"prompt": "Hi"}], {"stop": stops})[0].unwrap()
        assert (result.text, result.stop) == ("a ", "END")
        assert "stop" not in server.bodies[0]


JSON = {"Content-Type": "application/json; charset=utf-8"}


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"error": {"message": "slow down", "code": 429}}, pg.RateLimited, "slow down"),
        (
            {"error": {"message": "no such tool", "type": "invalid_request_error"}},
            pg.InvalidRequest,
            "no such tool",
        ),
        ({"error": "out of memory"}, pg.BackendFailed, "out of memory"),
        ({"error": {"code": "content_filter", "message": "filtered"}}, pg.Refused, "filtered"),
        (whole("content_filter").body, pg.Refused, "content_filter"),
        (whole("abort").body, pg.BackendFailed, "abort"),
    ],
)
def test_a_stream_that_is_an_error_in_json_is_that_error(body: Any, kind: Any, words: str) -> None:
    error = streamed(Canned(body, headers=JSON)).failure()
    assert isinstance(error, kind)
    assert words in f"{error.message} {error.hint}"


def test_a_stream_that_is_a_whole_answer_is_read() -> None:
    body = {**whole("length").body, "usage": {"prompt_tokens": 2, "completion_tokens": 8}}
    result = streamed(Canned(body, headers=JSON)).unwrap()
    assert (result.text, result.finish) == ("Hello", pg.Finish.LENGTH)
    assert (result.prompt_tokens, result.completion_tokens) == (2, 8)
    cut = streamed(Canned(b'{"choices": [', headers=JSON)).failure()
    assert isinstance(cut, pg.MalformedResponse)


def called(name: Any, arguments: Any = "{}", finish: str = "tool_calls") -> list[Canned]:
    """An answer that calls a tool, whole and in pieces."""
    call = {"id": "a", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        whole(finish, None, tool_calls=[call]),
        events(chunk(tool_calls=[{"index": 0, **call}]), chunk(finish=finish)),
    ]


@pytest.mark.parametrize("name", ["", None])
def test_a_call_that_names_no_function_is_malformed(name: Any) -> None:
    answer, stream = called(name)
    for slot in (chatted(answer), streamed(stream)):
        error = slot.failure()
        assert isinstance(error, pg.MalformedResponse)
        assert "tool_calls[0] names no function" in error.message


@pytest.mark.parametrize("word", ["tool_calls", "tool_use", "FUNCTION_CALL"])
def test_an_end_that_calls_tools_and_no_call_is_malformed(word: str) -> None:
    answers = (whole(word, None, tool_calls=[]), events(chunk(""), chunk(finish=word)))
    for slot in (chatted(answers[0]), streamed(answers[1])):
        error = slot.failure()
        assert isinstance(error, pg.MalformedResponse)
        assert "holds no call" in error.message
    assert chatted(whole(word, "No need.")).unwrap().text == "No need."


def test_arguments_that_are_an_object_become_json_text() -> None:
    answer, stream = called("add", {"a": 1, "b": ["é"]})
    for slot in (chatted(answer), streamed(stream)):
        (call,) = slot.unwrap().tool_calls
        assert call["function"]["arguments"] == '{"a": 1, "b": ["é"]}'


@pytest.mark.parametrize("index", [None, 0.0, "0"])
def test_a_choice_whose_index_is_null_is_the_one(index: Any) -> None:
    answer = whole("stop").body
    answer["choices"][0]["index"] = index
    assert chatted(Canned(answer)).unwrap().text == "Hello"


@pytest.mark.parametrize("number", [float, str])
def test_counts_are_read_however_numbers_are_written(number: Any) -> None:
    usage = {"prompt_tokens": number(2), "completion_tokens": number(8)}
    for slot in (
        chatted(Canned({**whole("stop").body, "usage": usage})),
        streamed(events(chunk("Hello"), chunk(finish="stop"), {"choices": [], "usage": usage})),
    ):
        result = slot.unwrap()
        assert (result.prompt_tokens, result.completion_tokens) == (2, 8)


def test_a_gateway_may_say_that_it_has_made_an_answer() -> None:
    assert chatted(whole("stop")._replace(status=201)).unwrap().text == "Hello"
    stream = events(chunk("Hello"), chunk(finish="stop"))._replace(status=201)
    assert streamed(stream).unwrap().text == "Hello"


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_message_that_is_null_beside_a_delta_says_nothing(nothing: Any) -> None:
    pieces = [chunk("Hello"), chunk(finish="stop")]
    for piece in pieces:
        piece["choices"][0]["message"] = nothing
    assert streamed(events(*pieces)).unwrap().text == "Hello"
