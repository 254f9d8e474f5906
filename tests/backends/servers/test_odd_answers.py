"""Answers that are JSON and events, and yet no answer: half characters, and streams that go on
after their end. And a mark that means nothing. And forms that some servers have alone.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import pipegen as pg
from pipegen.backends.http.client import Events
from pipegen.backends.servers.call_pieces import CallPieces
from pipegen.backends.servers.chat_engine import ChatRow
from pipegen.backends.servers.openai import DIALECTS, from_event, from_wire
from pipegen.backends.servers.reading import json_of
from pipegen.backends.servers.wire import Completion, ServerRequest, WireReply
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import ResolvedRequest


@pytest.mark.parametrize("text", ["\ud83d", "a\ude00b", "\ude00\ud83d"])
def test_half_a_character_is_no_answer(text: str) -> None:
    error = json_of(json.dumps({"choices": [{"message": {"content": text}}]}).encode()).failure()
    assert isinstance(error, pg.MalformedResponse)
    assert "half a surrogate pair" in error.message


def test_whole_characters_are_read_however_they_are_written() -> None:
    for data in (
        b'{"a": "\\ud83d\\ude00"}',
        b'{"a": "\\uD83D\\uDE00"}',
        '{"a": "\U0001f600"}'.encode(),
    ):
        assert json_of(data).unwrap() == {"a": "\U0001f600"}
    assert json_of(b'{"a": "C:\\\\ud83d"}').unwrap() == {"a": "C:\\ud83d"}


def row(**options: Any) -> ChatRow:
    return ChatRow(
        ResolvedRequest(
            request=TextGenerationRequest(prompt="Hi"),
            options=resolve(GenerationOptions(**options)),
        )
    )


MORE = (
    Completion(text="b"),
    Completion(reasoning="b"),
    Completion(tool_calls=({"function": {"name": "f", "arguments": "{}"}},)),
)


@pytest.mark.parametrize("piece", MORE)
def test_a_stream_that_goes_on_after_its_end_is_no_answer(piece: Completion) -> None:
    made = row()
    for one in (Completion(text="a"), Completion(finish="stop"), piece):
        made.take(one)
    assert isinstance(made.slot().failure(), pg.MalformedResponse)
    assert "after finish_reason 'stop'" in made.slot().failure().message


def test_what_comes_after_the_end_and_says_nothing_is_of_no_account() -> None:
    made = row()
    for one in (
        Completion(text="a"),
        Completion(finish="stop"),
        Completion(text=""),
        Completion(usage={"completion_tokens": 1}),
        Completion(finish="stop"),
    ):
        made.take(one)
    assert made.slot().unwrap().text == "a"


def test_a_server_that_runs_on_after_a_stop_is_cut() -> None:
    made = row(stop=("END",))
    for one in (Completion(text="a END"), Completion(finish="length"), Completion(text="b")):
        made.take(one)
    assert made.slot().unwrap().text == "a "


def test_a_byte_order_mark_before_a_stream_hides_no_event() -> None:
    events = Events()
    assert [
        event
        for piece in (b"\xef", b"\xbb\xbfdata: 1\n", b"\ndata: \xef\xbb\xbf2\n\n")
        for event in events.feed(piece)
    ] == [b"1", b"\xef\xbb\xbf2"]


ASK = ServerRequest(options=resolve(GenerationOptions()))
SUMMARY = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
HELLO = {"type": "text", "text": "Hello"}


@pytest.mark.parametrize(
    ("message", "thought"),
    [
        ({"content": [SUMMARY, HELLO]}, "Hm."),  # Databricks
        ({"content": [{"type": "reasoning", "reasoning": "Hm."}, HELLO]}, "Hm."),  # LangChain
        ({"content": [{"type": "reasoning", "text": "Hm."}, HELLO]}, "Hm."),
        ({"content": [{"type": "thinking", "thinking": "Hm."}, HELLO]}, "Hm."),
        ({"content": [{"type": "redacted_thinking", "data": "0"}, HELLO]}, None),
        ({"content": "Hello", "reasoning_content": "", "reasoning": "Hm."}, "Hm."),
        ({"content": "Hello", "reasoning_content": "", "reasoning": None}, None),
    ],
)
def test_thoughts_are_no_part_of_the_text(message: Any, thought: str | None) -> None:
    end = {"index": 0, "finish_reason": "stop"}
    for made in (
        from_wire({"choices": [{**end, "message": message}]}, ASK),
        from_event({"choices": [{**end, "delta": message}]}, ASK, 0),
    ):
        (read,) = made.unwrap()
        assert (read.text, read.reasoning) == ("Hello", thought)


def test_a_thought_that_is_no_text_is_malformed() -> None:
    message = {"content": [{"type": "thinking", "thinking": 7}, HELLO]}
    answer = {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
    assert "content is list" in from_wire(answer, ASK).failure().message


def test_an_event_that_is_no_object_is_no_sign_of_life() -> None:
    assert from_event({}, ASK, 0).unwrap() == (Completion(),)
    assert "choices is NoneType" in from_event(["alive"], ASK, 0).failure().message


def call(name: str | None, arguments: str | None, **more: Any) -> Any:
    return {"index": 0, "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        (
            [call("f", '{"a": 1}', id=""), call("f", '{"b": 2}', id=""), call("g", "{}")],
            [("f", '{"a": 1}'), ("f", '{"b": 2}'), ("g", "{}")],
        ),
        ([call("f", '{"a'), call("f", '": 1}')], [("f", '{"a": 1}')]),
        ([call("f", ""), call("f", "{}"), call("f", ""), call(None, None)], [("f", "{}")]),
        ([call("f", "{}", id="x"), call("f", " ", id="x")], [("f", "{} ")]),
    ],
)
def test_calls_of_one_index_and_without_ids_are_calls_of_their_own(
    pieces: list[Any], calls: list[tuple[str, str]]
) -> None:
    made = CallPieces()
    assert [made.add(piece, 0) for piece in pieces] == [None] * len(pieces)
    functions = [made_call["function"] for made_call in made.joined]
    assert [(made["name"], made["arguments"]) for made in functions] == calls


@pytest.mark.parametrize(
    ("error", "lengths"),
    [
        ({"message": "prompt is too long: 21 tokens > 20 maximum"}, (21, 20)),
        ({"message": "the request exceeds the available", "type": "exceed_context_size_error"}, ()),
        (
            {"message": "request (21 tokens) exceeds the available context size (20 tokens), try"},
            (21, 20),
        ),
        (
            {
                "message": "`inputs` tokens + `max_new_tokens` must be <= 20. Given: 21 `inputs` tokens"
            },
            (21, 20),
        ),
        (
            {
                "message": "The input token count (21) exceeds the maximum number of tokens allowed"
                " (20)."
            },
            (21, 20),
        ),
        (
            {
                "message": "Prompt contains 21 tokens and 0 draft tokens, too large for model with"
                " 20 maximum context length"
            },
            (21, 20),
        ),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_a_prompt_that_is_too_long_is_that_in_the_words_of_each_server(
    error: Any, lengths: Any, listed: bool
) -> None:
    body = [{"error": error}] if listed else {"error": error}
    made = DIALECTS["plain"].classify(WireReply(400, json.dumps(body).encode()), ASK)
    assert isinstance(made, pg.PromptTooLong)
    assert (made.prompt_tokens, made.limit) == (lengths or (None, None))
    assert "[{" not in made.message


def test_an_answer_without_choices_shows_its_words() -> None:
    answer = {"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}
    assert '"status_msg": "rate limit"' in from_wire(answer, ASK).failure().message
