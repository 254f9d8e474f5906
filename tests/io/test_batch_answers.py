"""Answers of batch files, as OpenAI, `vllm run-batch` and this library write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.slots import Slot
from pipegen.io.results_in import slots_in
from pipegen.records.frozen import thaw


def line(response: Any, error: Any = None) -> dict[str, Any]:
    return {"id": "b", "custom_id": "a", "response": response, "error": error}


def read(tmp_path: Path, values: dict[str, Any]) -> Slot[pg.GenerationResult]:
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(values))
    ((_, slot),) = slots_in(path, brief=True)
    return slot


NO = {"message": "no", "type": "t", "param": None, "code": 400}


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        # OpenAI: the server's error is the body of a response
        (line({"status_code": 400, "body": {"error": NO}}), pg.InvalidRequest, "no"),
        (line({"status_code": 429, "body": {"error": NO}}), pg.RateLimited, "no"),
        (line({"status_code": 500, "body": None}), pg.BackendFailed, "the line has status 500"),
        (line(None, {"code": "batch_expired", "message": "no"}), pg.BackendFailed, "no"),
        # vLLM, now and before
        (line({"status_code": 400, "body": None}, {"error": NO}), pg.InvalidRequest, "no"),
        (line({"status_code": 504, "body": None}, {"object": "error", **NO}), pg.Timeout, "no"),
        (line(None, "no"), pg.BackendFailed, "no"),
        (line(None), pg.BackendFailed, "no answer"),
        (line({"status_code": 200, "body": {"error": NO}}), pg.BackendFailed, "no"),
        (line({"status_code": 200, "body": {"choices": []}}), pg.MalformedResponse, "no choices"),
        (line({"status_code": 200, "body": {"data": [1]}}), pg.MalformedResponse, "no choices"),
        (line({"status_code": 200, "body": {"choices": [7]}}), pg.MalformedResponse, "no choices"),
        (
            line({"status_code": 200, "body": {"choices": [{"finish_reason": 7}]}}),
            pg.MalformedResponse,
            "no choices that can be read",
        ),
        (line(None, {"code": "PromptTooLong", "message": "no"}), pg.PromptTooLong, "no"),
    ],
)
def test_a_line_without_an_answer_is_an_error(
    tmp_path: Path, values: Any, kind: type[pg.GenerationError], words: str
) -> None:
    error = read(tmp_path, values).failure()
    assert type(error) is kind
    assert words in error.message


@pytest.mark.parametrize("status", [200, 201, "200", None])
def test_an_answer_counts_whatever_the_status_of_its_success(tmp_path: Path, status: Any) -> None:
    body = {"choices": [choice(0, "A")]}
    assert read(tmp_path, line({"status_code": status, "body": body})).unwrap().text == "A"


@pytest.mark.parametrize("status", ["429", 429.0, "429.0"])
def test_a_status_that_is_text_is_one(tmp_path: Path, status: Any) -> None:
    error = read(tmp_path, line({"status_code": status, "body": {"message": "no"}})).failure()
    assert isinstance(error, pg.RateLimited)


def test_a_choice_that_was_refused_leaves_the_others(tmp_path: Path) -> None:
    refused = {"index": 1, "finish_reason": "content_filter", "message": {"content": "B"}}
    body = {"choices": [choice(0, "A"), refused, choice(2, "C")]}
    result = read(tmp_path, line({"status_code": 200, "body": body})).unwrap()
    first, second, third = result.completions
    assert (first.unwrap().text, third.unwrap().text) == ("A", "C")
    assert isinstance(second.failure(), pg.Refused)


def test_a_line_whose_choices_were_all_refused_is_refused(tmp_path: Path) -> None:
    body = {"choices": [choice(index, None, refusal="No.") for index in range(2)]}
    error = read(tmp_path, line({"status_code": 200, "body": body})).failure()
    assert isinstance(error, pg.Refused)


@pytest.mark.parametrize("usage", [["many"], {"prompt_tokens": "many"}, {"prompt_tokens": -1}])
def test_counts_that_are_none_are_not_read(tmp_path: Path, usage: Any) -> None:
    body = {"choices": [choice(0, "A")], "usage": usage}
    result = read(tmp_path, line({"status_code": 200, "body": body})).unwrap()
    assert (result.text, result.prompt_tokens) == ("A", 0)


@pytest.mark.parametrize("number", [float, str])
def test_numbers_of_an_answer_are_read_however_they_are_written(
    tmp_path: Path, number: Any
) -> None:
    usage = {"prompt_tokens": number(5), "completion_tokens": number(2)}
    body = {"choices": [choice(number(1), "B"), choice(number(0), "A")], "usage": usage}
    result = read(tmp_path, line({"status_code": 200, "body": body})).unwrap()
    assert [sample.unwrap().text for sample in result.completions] == ["A", "B"]
    assert (result.prompt_tokens, result.completion_tokens) == (5, 2)
    assert type(result.prompt_tokens) is int


def choice(index: Any, content: Any, **message: Any) -> dict[str, Any]:
    return {"index": index, "finish_reason": "stop", "message": {"content": content, **message}}


def test_all_of_an_answer_is_read(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "A"}]
    choices = [
        choice(2, None, tool_calls=[call]),
        choice(1, "B", reasoning_content="Well."),
        choice(0, parts),
    ]
    usage = {"prompt_tokens": None, "completion_tokens": 2}
    values = line({"status_code": 200, "body": {"choices": choices, "usage": usage}})
    result = read(tmp_path, values).unwrap()
    samples = [sample.unwrap() for sample in result.completions]
    assert [(one.text, one.reasoning) for one in samples] == [
        ("A", "Hm."),
        ("B", "Well."),
        ("", None),
    ]
    assert [thaw(one) for one in samples[2].tool_calls] == [call]
    assert (result.text, result.prompt_tokens, result.completion_tokens) == ("A", 0, 2)
