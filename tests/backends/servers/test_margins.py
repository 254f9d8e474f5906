"""The margin between the two likeliest tokens, as servers tell it."""

from __future__ import annotations

import pytest

from pipegen.backends.servers.logprobs import logprob, scores_of_tables
from pipegen.backends.servers.wire import ServerRequest
from pipegen.core.errors import MalformedResponse
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve


@pytest.mark.parametrize(
    ("top", "margin"),
    [
        ([(5, -0.5), (7, -0.75)], 0.25),
        ([(7, -0.75), (5, -0.5), (9, -3.0)], 0.25),  # in any order, with a drawn one
        ([(5, -0.5)], None),
        ([], None),
        ([(5, -0.5), (7, -9999.0)], None),  # a form leaves one token
        ([(5, -0.5), (None, None)], None),
    ],
)
def test_it_is_known_where_two_numbers_are_told_and_unknown_elsewhere(
    top: list[tuple[int, float]], margin: float | None
) -> None:
    read = logprob(5, 0, (5, -0.5), top, 0).unwrap()
    assert (read.margin, read.top) == (margin, ())


def test_what_was_asked_must_be_told_in_numbers() -> None:
    assert isinstance(
        logprob(5, 0, (5, -0.5), [(5, -0.5), (7, -9999.0)], 2).failure(), MalformedResponse
    )
    assert logprob(5, 0, (5, -0.5), [(5, -0.5), (7, -9999.0)], 1).unwrap().top == ((5, -0.5),)


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_whole_number_beyond_all_floats_is_no_logprob(number: int) -> None:
    assert "not a number" in logprob(5, 0, (5, number), (), 0).failure().message
    assert logprob(5, 0, (5, -0.5), [(5, -0.5), (7, number)], 1).unwrap().margin is None
    ask = ServerRequest(
        options=resolve(GenerationOptions()), token_ids=(7, 8), prompt_tokens=2, scored=1
    )
    read = scores_of_tables([None, {"8": {"logprob": -0.5}, "9": {"logprob": number}}], ask)
    # minus infinity is one
    assert (
        (read.unwrap() == ((-0.5, (8, -0.5), ()),))
        if number < 0
        else isinstance(read.failure(), MalformedResponse)
    )
