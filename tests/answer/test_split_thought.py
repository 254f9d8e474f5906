"""Reasoning and answer of a text, whose borders are two different strings."""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.answer.split_thought import reasoning_of


@pytest.mark.parametrize(
    ("start", "end"), [("<t>", "<t>"), (" ", "</t>"), ("<t>", ""), (None, "x")]
)
def test_borders_of_reasoning_are_two_different_strings(start: Any, end: Any) -> None:
    with pytest.raises(pg.InvalidField, match="between two different strings that are not blank"):
        reasoning_of("a", start, end)
