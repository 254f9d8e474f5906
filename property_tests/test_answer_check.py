"""The check of answers never calls wrong what an independent checker accepts, nor the start of it."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given, strategies as st
from support.forms import drawn_form, has_form

import pipegen as pg
from pipegen.answer.answer_check import wrong_form
from pipegen.answer.json_check import wrong_in_json
from pipegen.answer.regex_check import ascii_regex

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-30, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("name", "a", "é", 'q"')), inner, max_size=3)
    ),
)


@st.composite
def forms(draw: Any) -> dict[str, Any]:
    return drawn_form(lambda most: draw(st.integers(0, most - 1)))


@given(forms().filter(lambda form: "json_schema" in form), VALUES)
def test_a_value_is_judged_as_another_checker_judges_it(form: dict[str, Any], value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert (not wrong_in_json(value, form["json_schema"])) is has_form(text, form)


@given(VALUES, st.data(), st.sampled_from((None, 2)))
def test_the_start_of_json_is_no_violation_where_the_answer_was_cut(
    value: Any, data: st.DataObject, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()), indent=indent)
    start = text[: data.draw(st.integers(0, len(text)))]
    assert wrong_form(start, pg.StructuredOptions(json_schema={}), complete=False) == ""


@given(forms().filter(lambda form: "json_schema" not in form), st.data())
def test_what_has_its_form_is_no_violation_and_what_has_not_is_one(
    form: dict[str, Any], data: st.DataObject
) -> None:
    pattern = form.get("regex") or "|".join(map(re.escape, form["choice"]))
    text = data.draw(
        st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True) | st.text(max_size=5)
    )
    right = (
        re.fullmatch(pattern, text, re.ASCII) is not None
        or re.fullmatch(pattern, f" {text}", re.ASCII) is not None
    )
    wrong = wrong_form(text, pg.StructuredOptions(**form))
    assert not (wrong and right)
    assert not (wrong_form(text, pg.StructuredOptions(**form), complete=False) and right)


PIECES = st.sampled_from(
    (r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "[", "]", "[^", "-", "a", r"\]", r"\\", "+", ".")
)


@given(
    st.lists(PIECES, max_size=8)
    .map("".join)
    .filter(lambda pattern: not re.search(r"\[\[|--", pattern)),
    st.text(st.characters(codec="utf-8") | st.sampled_from("a1 _-]٢é\n\x1c"), max_size=4),
)
def test_a_pattern_written_out_in_ascii_means_what_python_means_by_ascii(
    pattern: str, text: str
) -> None:
    try:
        compiled = re.compile(pattern, re.ASCII)
    except re.error:
        return
    assert (re.compile(ascii_regex(pattern)).fullmatch(text) is None) is (
        compiled.fullmatch(text) is None
    )
