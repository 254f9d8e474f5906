"""The margin between the two likeliest tokens, as servers tell it."""

from __future__ import annotations

import pytest

from pipegen.backends.servers.logprobs import logprob
from pipegen.core.errors import MalformedResponse


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
def test_it_is_known_where_two_numbers_are_told_and_unknown_elsewhere(top: list[tuple[int, float]], margin: float | None) -> None:
    read = logprob(5, 0, (5, -0.5), top, 0).unwrap()
    assert (read.margin, read.top) == (margin, ())


def test_what_was_asked_must_be_told_in_numbers() -> None:
    assert isinstance(logprob(5, 0, (5, -0.5), [(5, -0.5), (7, -9999.0)], 2).failure(), MalformedResponse)
    assert logprob(5, 0, (5, -0.5), [(5, -0.5), (7, -9999.0)], 1).unwrap().top == ((5, -0.5),)
