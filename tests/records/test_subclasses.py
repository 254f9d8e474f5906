"""Strings and numbers of subclasses, which compare, hash and print as they like, are kept as plain
ones: no row can disturb another by them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest

import pipegen as pg
from pipegen.records.frozen import exact, freeze
from pipegen.testing.fake import FakeEngine


class Unequal(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("compared")

    def __hash__(self) -> int:
        raise ZeroDivisionError("hashed")


class Odd(int):
    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("compared")

    def __hash__(self) -> int:
        raise ZeroDivisionError("hashed")


class Answer(enum.StrEnum):
    YES = "yes"


USER = {"role": "user", "content": "Hi"}
TEXT = Unequal("words")
CARRIERS: dict[str, Callable[[], dict[str, Any]]] = {
    "id": lambda: {"prompt": "Hi", "id": TEXT},
    "prompt": lambda: {"prompt": TEXT},
    "role": lambda: {"messages": [{"role": Unequal("user"), "content": "Hi"}]},
    "content": lambda: {"messages": [{"role": "user", "content": TEXT}]},
    "part": lambda: {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]},
    "name": lambda: {"messages": [{**USER, "name": TEXT}]},
    "a number in a call": lambda: {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [{"index": Odd(3)}]},
            USER,
        ]
    },
    "a tool": lambda: {
        "messages": [USER],
        "tools": [
            {"type": "function", "function": {"name": TEXT, "parameters": {"minimum": Odd(3)}}}
        ],
    },
    "template": lambda: {"messages": [USER], "options": {"chat": {"template": TEXT}}},
    "template's variables": lambda: {
        "messages": [USER],
        "options": {"chat": {"template_kwargs": {"a": TEXT}}},
    },
    "stop": lambda: {"prompt": "Hi", "options": {"stop": [TEXT]}},
    "metadata": lambda: {"prompt": "Hi", "metadata": {"a": TEXT}},
}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_string_or_a_number_of_a_subclass_disturbs_no_row(carrier: str) -> None:
    request = CARRIERS[carrier]()
    slots = pg.run(
        pg.route(FakeEngine("Well<|im_end|>")),
        [{"prompt": "Hi"}, request, request, {"prompt": "Hi"}],
    )
    assert [slot.unwrap().text for slot in slots] == ["Well"] * 4


def test_it_is_the_plain_value_that_is_kept() -> None:
    assert type(exact(Answer.YES)) is str
    assert exact(Answer.YES) == "yes"
    kept = freeze({Answer.YES: [Odd(3), Unequal("b"), True, 0.5, b"c"]})
    assert [(type(key), list(map(type, value))) for key, value in kept.items()] == [
        (str, [int, str, bool, float, bytes])
    ]
    request = pg.TextGenerationRequest(prompt=Unequal("a"), id=Unequal("b"))
    assert (type(request.prompt), type(request.id)) == (str, str)
    assert type(pg.ImageSource.of(Unequal("a.png")).path) is str
