"""Foreign text and the marks that stand for its characters."""

from __future__ import annotations

from typing import Any

import pytest

from pipegen.template.untrusted import (
    OWN,
    Conversation,
    Marks,
    choose_marks,
    foreign_strings,
    rewrite_foreign,
)

CALL = {
    "type": "function",
    "id": "call1",
    "function": {"name": "look", "arguments": {"key": "value"}},
}
SAID = Conversation(
    [
        {"role": "system", "content": "own", "name": "named"},
        {"role": "user", "content": [{"type": "text", "text": "part"}, {"type": "image"}]},
        {"role": "assistant", "content": "answer", "tool_calls": [CALL]},
        {"role": "tool", "content": {"found": ["words", 1, None]}, "tool_call_id": "call1"},
    ],
    [{"type": "function", "function": {"name": "look"}}],
    {"documents": [{"text": "document"}], "top": 3},
)


def words(trust: frozenset[str]) -> set[str]:
    return {text for _, text in foreign_strings(SAID, trust)}


def test_everything_but_the_words_of_system_turns_is_foreign() -> None:
    everything = words(frozenset())
    assert {
        "named",
        "part",
        "answer",
        "look",
        "call1",
        "key",
        "value",
        "found",
        "words",
        "text",
        "document",
    } <= everything
    assert everything - words(OWN) == {"own"}


@pytest.mark.parametrize(
    ("carrier", "gone"),
    [
        ("assistant", {"answer", "value", "key"}),
        ("template_kwargs", {"document", "text"}),
        ("tools", set()),
    ],
)
def test_what_is_trusted_is_not_foreign(carrier: str, gone: set[str]) -> None:
    trusted = rewrite_foreign(SAID, OWN | {carrier}, lambda text, place: "x")
    assert gone <= words(OWN) - words(OWN | {carrier})
    assert (trusted.tools == SAID.tools) == (carrier == "tools")


def test_places_say_where_the_words_are() -> None:
    places = {text: place for place, text in foreign_strings(SAID, OWN)}
    assert places["part"] == "messages[1].content[0].text"
    assert places["value"] == "messages[2].tool_calls[0].function.arguments.key"
    assert places["document"] == "template_kwargs.documents[0].text"


@pytest.mark.parametrize(
    "avoid", ["", "\ue000 \ue001", "\\ue000", "".join(map(chr, range(0xE000, 0xF900)))]
)
def test_marks_are_in_none_of_the_texts_and_can_be_undone(avoid: str) -> None:
    marks = choose_marks("<>", ["plain", avoid])
    assert marks is not None
    assert choose_marks("<>", ["plain"], source=avoid) == marks
    assert not marks.in_text(avoid)
    text = f"a < b > {avoid}"
    assert marks.in_text(marks.mark(text))
    assert marks.put_back(marks.mark(text)) == text


def test_no_marks_are_left_where_a_text_holds_all_of_private_use() -> None:
    blocks: Any = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
    assert choose_marks("<", ["".join(chr(code) for block in blocks for code in block)]) is None


def test_escaped_marks_are_put_back_too() -> None:
    marks = Marks(originals={"\ue000": "<"})
    assert marks.put_back('"\\ue000s>" \ue000') == '"<s>" <'
    assert marks.only(frozenset(">")).originals == {}
