"""Strict JSON: what a line may hold."""

from __future__ import annotations

import json

import pytest

from pipegen.records import strict_json


@pytest.mark.parametrize("character", ["\x7f", "\x85", "\u2028", "\u2029", "\n", "\x1c"])
@pytest.mark.parametrize("more", ["", "\u00e9"])
def test_no_character_of_a_line_is_taken_for_its_end(character: str, more: str) -> None:
    line = strict_json.dump({"a": more + character})
    assert character not in line
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {"a": more + character}
