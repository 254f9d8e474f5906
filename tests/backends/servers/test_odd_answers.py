"""Answers that are JSON and events, and yet no answer: half characters, and streams that go on
after their end. And a mark that means nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import pipegen as pg
from pipegen.backends.http.client import Events
from pipegen.backends.servers.chat_engine import ChatRow
from pipegen.backends.servers.reading import json_of
from pipegen.backends.servers.wire import Completion
from pipegen.records.options import GenerationOptions, resolve
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
