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
from pipegen.report.diff import Compared, Difference, compare, first_difference, summary

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
