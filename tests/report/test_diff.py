"""Where two runs part: the first stage that differs is named, and nothing after it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest, PromptTooLong
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.results import Finish, GenerationResult
from pipegen.report.diff import (
    Compared,
    Difference,
    Occurrence,
    Occurrences,
    compare,
    first_difference,
    summary,
)

BASE = GenerationResult(
    text="ab",
    raw_text="ab",
    prompt_token_ids=(1, 2),
    token_ids=(3, 4),
    finish=Finish.EOS,
    options=resolve(GenerationOptions()),
    image_grid_thw=((1, 2, 2),),
)
CHANGES: dict[str, dict[str, Any]] = {
    "prompt ids": {"prompt_token_ids": (1, 9)},
    "grid": {"image_grid_thw": ((1, 2, 4),)},
    "options": {"options": resolve(GenerationOptions(top_k=2))},
    "ids": {"token_ids": (3, 4, 5)},
    "raw text": {"raw_text": "abc"},
    "text": {"text": "a"},
    "reasoning": {"reasoning": "It rains."},
    "calls": {"tool_calls": ({"function": {"name": "weather", "arguments": '{"in": "Rome"}'}},)},
    "finish": {"stop": "x"},
}


def test_equal_results_do_not_differ() -> None:
    assert (
        first_difference(Success(BASE), Success(dataclasses.replace(BASE, route="other"))) is None
    )


@pytest.mark.parametrize("stage", CHANGES)
def test_the_first_stage_that_differs_is_named_whatever_differs_after_it(stage: str) -> None:
    later = list(CHANGES)[list(CHANGES).index(stage) :]
    other = dataclasses.replace(
        BASE, **{name: value for change in later for name, value in CHANGES[change].items()}
    )
    found = first_difference(Success(BASE), Success(other))
    assert found is not None
    assert found.stage == stage
    assert found.first != found.second


def test_where_ids_part_is_said() -> None:
    found = first_difference(Success(BASE), Success(dataclasses.replace(BASE, token_ids=(3, 4, 5))))
    assert found == Difference("ids", "2 tokens, at 2: the end", "3 tokens, at 2: 5")


def test_ids_that_a_brief_file_left_out_are_not_compared() -> None:
    assert (
        first_difference(
            Success(BASE), Success(dataclasses.replace(BASE, token_ids=(), prompt_token_ids=()))
        )
        is None
    )


def test_errors_are_equal_when_they_are_of_one_kind() -> None:
    assert first_difference(Failure(InvalidRequest("a")), Failure(InvalidRequest("b"))) is None
    found = first_difference(Failure(PromptTooLong(3, 2)), Success(BASE))
    assert found == Difference("outcome", "PromptTooLong", "a result")


def test_samples_are_compared_one_by_one() -> None:
    many = dataclasses.replace(BASE, samples=(BASE, BASE))
    other = dataclasses.replace(BASE, samples=(BASE, dataclasses.replace(BASE, text="x")))
    found = first_difference(Success(many), Success(other))
    assert found is not None
    assert found.stage == "text"
    assert first_difference(Success(many), Success(BASE)) == Difference("samples", "2", "0")


def test_a_lost_sample_is_compared_with_the_sample_of_its_number() -> None:
    whole = dataclasses.replace(BASE, samples=(BASE, BASE))
    lost = dataclasses.replace(
        BASE, samples=(BASE, BASE), failed_samples=((1, PromptTooLong(3, 2)),)
    )
    found = first_difference(Success(whole), Success(lost))
    assert found == Difference("outcome", "a result", "PromptTooLong")
    assert first_difference(Success(lost), Success(lost)) is None


def test_earlier_rounds_are_compared_before_the_last_one() -> None:
    first = dataclasses.replace(BASE, text="x", raw_text="x")
    two = dataclasses.replace(BASE, rounds=(BASE, BASE))
    other = dataclasses.replace(BASE, rounds=(first, BASE), token_ids=(8,))
    found = first_difference(Success(two), Success(other))
    assert found is not None
    assert (found.stage, found.second) == ("raw text", "at 0: 'x'")
    three = dataclasses.replace(BASE, rounds=(BASE, BASE, BASE))
    assert first_difference(Success(two), Success(three)) == Difference("rounds", "2", "3")
    counts = summary([Compared("a", Difference("rounds", "2", "3"))])
    assert counts == {"requests": 1, "equal": 0, "rounds": 1}


def test_calls_are_compared_without_their_ids_and_in_either_form_of_their_arguments() -> None:
    def called(id: str, arguments: object) -> Success[GenerationResult]:
        call = {"id": id, "function": {"name": "weather", "arguments": arguments}}
        return Success(dataclasses.replace(BASE, tool_calls=(call,)))

    rome = called("1", {"city": "Rome"})
    assert first_difference(rome, called("2", '{"city":"Rome"}')) is None
    found = first_difference(rome, called("1", {"city": "Oslo"}))
    assert found is not None
    assert found.stage == "calls"
    assert "Oslo" in found.second


def test_what_tables_do_not_have_of_rounds_is_not_compared() -> None:
    """Neither reasoning nor calls; and lines of a batch have no rounds at all."""
    call = {"function": {"name": "weather", "arguments": {}}}
    round_ = dataclasses.replace(BASE, tool_calls=(call,), reasoning="It rains.")
    line = dataclasses.replace(BASE, rounds=(round_, BASE))
    bare = GenerationResult(
        text="ab", raw_text="ab", finish=Finish.EOS, options=GenerationOptions()
    )
    table = dataclasses.replace(BASE, rounds=(bare, bare))
    assert first_difference(Success(line), Success(table)) is None
    assert first_difference(Success(line), Success(bare)) is None


def test_an_id_that_looks_like_a_second_one_is_one_of_its_own() -> None:
    def slots(*rows: tuple[str, str]) -> dict[Occurrence, Success[GenerationResult]]:
        name_of = Occurrences()
        return {
            name_of(row_id): Success(dataclasses.replace(BASE, text=text)) for row_id, text in rows
        }

    first = slots(("a", "1"), ("a", "2"), ("a [2]", "3"))
    second = slots(("a [2]", "3"), ("a", "1"), ("a", "other"))
    compared = [*compare(first, second)]
    assert [(one.id, one.difference is None) for one in compared] == [
        ("a", True),
        ("a [2]", False),
        ("a [2]", True),
    ]


def test_requests_are_paired_by_id_and_the_unpaired_are_named() -> None:
    compared = list(
        compare(
            {"a": Success(BASE), "b": Success(BASE)},
            {"b": Success(BASE), "c": Failure(InvalidRequest("no"))},
        )
    )
    assert compared == [
        Compared("a", Difference("outcome", "a result", "not there")),
        Compared("b", None),
        Compared("c", Difference("outcome", "not there", "InvalidRequest")),
    ]
    assert summary(compared) == {"requests": 3, "equal": 1, "outcome": 2}
