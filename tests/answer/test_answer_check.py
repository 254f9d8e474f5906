"""Does this answer obey its request? Each promise of a request, kept and broken."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import pipegen as pg
from pipegen.answer import regex_check
from pipegen.answer.answer_check import UntrimmedAnswer, check_answer, disobeyed, wrong_form
from pipegen.records.options import resolve

EIGHT = {"max_new_tokens": 8}


def kinds(answer: dict[str, Any], options: dict[str, Any]) -> list[str]:
    return [
        finding.kind
        for finding in check_answer(
            UntrimmedAnswer(**answer), resolve(pg.GenerationOptions(**options))
        )
    ]


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        ({}, {}, []),
        (
            {"text": "ab", "finish": "stop", "token_ids": (5, 6, 2), "ending_ids": frozenset({2})},
            EIGHT,
            [],
        ),
        # Length.
        ({"token_count": 8, "finish": "length"}, EIGHT, []),
        ({"token_count": 9, "finish": "length"}, EIGHT, ["length"]),
        ({"token_ids": (5,) * 9}, EIGHT, ["length"]),
        ({"token_count": 5, "finish": "length"}, EIGHT, []),  # it may have had no more room
        ({"token_count": 5, "finish": "length", "room": 5}, EIGHT, []),
        ({"token_count": 5, "finish": "length", "room": 6}, EIGHT, ["length"]),
        ({"token_ids": (5,) * 7, "finish": "length", "room": 100}, EIGHT, ["length"]),
        ({"token_ids": (5, 6), "token_count": 3, "finish": "stop"}, EIGHT, ["length"]),
        ({"token_count": 2, "finish": "stop"}, {"min_new_tokens": 3}, ["length"]),
        ({"token_count": 2, "finish": "abort"}, {"min_new_tokens": 3}, []),
        # Barred words.
        ({"token_ids": (5, 6, 7), "barred": ((5, 6), (9,))}, EIGHT, ["tokens"]),
        ({"token_ids": (5, 6, 7), "barred": ((6, 5), (9,))}, EIGHT, []),
        # Finish, against the ids.
        (
            {"token_ids": (5, 2), "finish": "length", "ending_ids": frozenset({2}), "room": 100},
            EIGHT,
            ["finish"],
        ),
        (
            {"token_ids": (5, 2), "finish": "length", "ending_ids": frozenset({2}), "room": 100},
            {**EIGHT, "min_new_tokens": 2},
            ["length"],
        ),
        # some servers look at the length first
        (
            {"token_ids": (5,) * 7 + (2,), "finish": "length", "ending_ids": frozenset({2})},
            EIGHT,
            [],
        ),
        ({"token_ids": (5, 6), "finish": "stop", "ending_ids": frozenset({2})}, EIGHT, ["finish"]),
        (
            {"token_ids": (5, 6), "finish": "stop", "ending_ids": frozenset({2}), "stops": True},
            EIGHT,
            [],
        ),
        ({"token_ids": (5, 6), "finish": "abort", "ending_ids": frozenset({2})}, EIGHT, []),
        # The text, against the ids.
        ({"text": "ab", "spelled": "ab"}, {}, []),
        ({"text": "ab", "spelled": " ab"}, {}, []),
        ({"text": "ab", "spelled": "ab\ufffd"}, {}, []),
        ({"text": "AB", "spelled": "ab"}, {}, ["text"]),
        ({"text": "b", "spelled": "ab"}, {}, ["text"]),
        ({"text": "a", "spelled": "ab", "stops": True}, {}, []),
        # The prompt.
        ({"prompt": (1, 2), "prompt_ran": (1, 2), "prompt_count": 2}, {}, []),
        ({"prompt": (1, 2), "prompt_ran": (1, 3)}, {}, ["prompt"]),
        ({"prompt": (1, 2), "prompt_ran": (1,)}, {}, ["prompt"]),
        ({"prompt": (1, 2), "prompt_count": 3}, {}, ["prompt"]),
        ({"prompt": (1, 2), "prompt_count": 1}, {}, ["prompt"]),
        ({"prompt_ran": (1, 2), "prompt_count": 3}, {}, []),
        # How many.
        ({"choices": 1}, {}, []),
        ({"choices": 2}, {}, ["count"]),
        ({"choices": 2}, {"samples": 3}, ["count"]),
        # Stop strings.
        ({"text": "a END b"}, {"stop": ("END",)}, ["stop"]),
        ({"text": "a EN"}, {"stop": ("END",)}, []),
        ({"text": "a END b"}, {"stop": ("END",), "min_new_tokens": 2}, []),
        # The form.
        ({"text": "yes", "finish": "stop"}, {"structured": {"choice": ("yes", "no")}}, []),
        ({"text": "maybe", "finish": "stop"}, {"structured": {"choice": ("yes", "no")}}, ["form"]),
        (
            {"text": "maybe", "finish": "stop", "called": True},
            {"structured": {"choice": ("yes", "no")}},
            [],
        ),
        ({"text": "ye", "finish": "stop"}, {"structured": {"choice": ("yes", "no")}}, ["form"]),
        (
            {"text": "ye", "finish": "stop", "stops": True},
            {"structured": {"choice": ("yes", "no")}},
            [],
        ),
        ({"text": "maybe", "finish": "stop"}, {"structured": {}}, []),
        (
            {"text": "[1," + " " * 30, "finish": "length"},
            {"structured": {"json_schema": {}}},
            ["form"],
        ),
        (
            {"text": "[1, 2, 3" + " " * 15, "finish": "length"},
            {"structured": {"json_schema": {}}},
            [],
        ),
        ({"text": "[1]" + " " * 30, "finish": "length"}, {"structured": {"json_schema": {}}}, []),
        ({"text": '["' + " " * 30, "finish": "length"}, {"structured": {"json_schema": {}}}, []),
        ({"text": "1" * 5000, "finish": "length"}, {"structured": {"json_schema": {}}}, []),
        # the end is cut here
        ({"token_ids": (5, 2, 6), "finish": "stop", "ending_ids": frozenset({2})}, EIGHT, []),
        (
            {"text": "yes", "finish": "stop"},
            {"structured": {"choice": ("yes ",)}, "decode": {"strip_whitespace": True}},
            [],
        ),
    ],
)
def test_an_answer_is_judged_by_what_was_asked(
    answer: dict[str, Any], options: dict[str, Any], wanted: list[str]
) -> None:
    assert kinds(answer, options) == wanted


AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.parametrize(
    ("form", "text", "right", "may_begin"),
    [
        ({"choice": ("yes", "no")}, "yes", True, True),
        ({"choice": (" yes",)}, "yes", True, True),
        ({"choice": ("yes", "no")}, "y", False, True),
        ({"choice": ("yes", "no")}, "x", False, False),
        ({"json_schema": AGE}, ' {\n"age": 3}\n', True, True),
        ({"json_schema": AGE}, '{"age": "3"}', False, False),
        ({"json_schema": AGE}, '{"ag', False, True),
        ({"json_schema": AGE}, '{"age": ', False, True),
        ({"json_schema": AGE}, '{"age": -', False, True),
        ({"json_schema": {}}, '["a\\u00', False, True),
        ({"json_schema": {}}, '["a\\q bc def gh', False, False),
        ({"json_schema": {}}, "tru", False, True),
        ({"json_schema": {}}, "[1e+", False, True),
        ({"json_schema": {}}, "1.5", True, True),
        ({"json_schema": {"minimum": 10}}, "1", False, True),  # it may go on
        ({"json_schema": {}}, "<think>\nLet me see", False, False),
        ({"json_schema": {}}, "", False, True),
        ({}, "free", True, True),
        ({"json_schema": {}}, "[NaN]", False, False),
        ({"json_schema": AGE}, '{"age": 3, "age": 4}', False, False),
        ({"json_schema": {}}, f"[{'1' * 5000}]", True, True),  # too long to be read here
        ({"json_schema": {}}, "[" * 100_000, True, True),  # too deep to be read here
    ],
)
def test_a_form_is_whole_or_where_the_answer_was_cut_begun(
    form: dict[str, Any], text: str, right: bool, may_begin: bool
) -> None:
    asked = pg.StructuredOptions(**form)
    assert (not wrong_form(text, asked), not wrong_form(text, asked, complete=False)) == (
        right,
        may_begin,
    )


@pytest.mark.parametrize(
    ("pattern", "text", "right", "may_begin"),
    [
        (r"\d{4}", "2024", True, True),
        (r"\d{4}", "20", False, True),
        (r"\d{4}", "٢٠٢٤", False, False),
        (r"\w+", "né", False, False),
        (r" [a-c]{2}", "ab", True, True),  # a first space may not be shown
        (r"(yes|no)", "maybe", False, False),
        (r"(ab)+", "abab", True, True),
    ],
)
def test_a_regular_expression_is_matched_whole(
    pattern: str, text: str, right: bool, may_begin: bool
) -> None:
    pytest.importorskip("llguidance")
    asked = pg.StructuredOptions(regex=pattern)
    assert (not wrong_form(text, asked), not wrong_form(text, asked, complete=False)) == (
        right,
        may_begin,
    )
    assert not wrong_form("anything", asked, stripped=True)  # it may have had white space about it


@pytest.mark.parametrize("text", ["7", " 7", "7 ", " 7 "])
def test_white_space_that_is_stripped_is_no_part_of_a_choice(text: str) -> None:
    for choice in (" 7 ", "7 ", " 7", "7"):
        asked = pg.StructuredOptions(choice=(choice, "8"))
        assert wrong_form(text, asked, stripped=True) == ""
    assert wrong_form("9 ", asked, stripped=True)
    assert wrong_form("7 ", asked)


@pytest.fixture
def without_llguidance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_check, "_matcher", lambda pattern: None)


@pytest.mark.parametrize(
    ("pattern", "text", "right"),
    [
        *((r"\d{4}", "2024", True), (r"\d{4}", "٢٠٢٤", False), ("(a+)+b", "a" * 100, None)),
        *(("a*a*a*b", "a", None), ("(", "a", None), ("[[a]", "a", None)),
        ("a", "a" * 20_000, None),
    ],
)
@pytest.mark.usefixtures("without_llguidance")
def test_without_llguidance_python_is_asked_where_that_cannot_take_long(
    pattern: str, text: str, right: bool | None
) -> None:
    assert regex_check.matches(pattern, text) is right
    assert regex_check.matches(pattern, text, cut=True) is None


def test_a_pattern_that_llguidance_does_not_take_is_left_to_python() -> None:
    pytest.importorskip("llguidance")
    assert [regex_check.matches(r"\bab", text) for text in ("ab", "b")] == [True, False]
    assert regex_check.matches("\ud800", "a") is False
    assert regex_check.matches("((a{1000}){1000}){1000}", "aa") is False


def test_without_the_extra_nothing_is_asked_of_llguidance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    regex_check._matcher.cache_clear()
    assert regex_check._matcher("a") is None
    regex_check._matcher.cache_clear()


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (r"\d\w\s", r"[0-9][0-9A-Za-z_][ \t\n\r\f\v]"),
        (r"\D\W\S", r"[^0-9][^0-9A-Za-z_][^ \t\n\r\f\v]"),
        (r"[\d-][^\w.]", "[0-9-][^0-9A-Za-z_.]"),
        (r"[]\d]x\\d", r"[]0-9]x\\d"),
        (r"a.b\.[.]", r"a[^\n]b\.[.]"),
        (r"(?s)a.b", r"(?s)a.b"),
        (r"[+-\d]", r"[+\-0-9]"),
        (r"[^]\d\]]\[\d", r"[^]0-9\]]\[[0-9]"),
        (r"[[:digit:].\w]a].", r"[[:digit:].0-9A-Za-z_]a][^\n]"),
        ("\\", "\\"),
    ],
)
def test_classes_of_characters_are_written_out_in_ascii(pattern: str, wanted: str) -> None:
    assert regex_check.ascii_regex(pattern) == wanted


def test_an_error_says_what_came_what_was_asked_and_what_to_do() -> None:
    asked = resolve(pg.GenerationOptions(max_new_tokens=8, structured={"choice": ("yes", "no")}))
    assert disobeyed(UntrimmedAnswer(text="no", finish="stop"), asked, "x") is None
    error = disobeyed(UntrimmedAnswer(text="Perhaps", finish="stop"), asked, "vllm_server")
    assert isinstance(error, pg.MalformedResponse)
    assert (
        error.message
        == "the answer of vllm_server does not obey its request: 'Perhaps' is none of the 2 choices"
    )
    assert "reasoning parser" in error.hint
