"""A schema before any library sees it: numbers within 64 bits, formats, names that patterns meet."""

from __future__ import annotations

import json
from typing import Any

import pytest

import pipegen as pg
from pipegen.answer.answer_check import wrong_form
from pipegen.backends.grammar import (
    form_of,
    grammar_of,
    has_form,
    unsupported_with_form,
    written_out,
)
from pipegen.backends.settled_schema import rounded_in, settled, wrong_in_schema
from pipegen.records.options import resolve
from pipegen.testing.toy import ToyTokenizer

LOWEST, HIGHEST = -(2**63), 2**63 - 1


def asked(schema: Any) -> Any:
    form = pg.StructuredOptions(json_schema=schema)
    return resolve(pg.GenerationOptions(structured=form))


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"minimum": LOWEST, "maximum": HIGHEST}, {}),
        ({"minimum": 0, "maximum": 2**64 - 1}, {"minimum": 0}),
        ({"exclusiveMinimum": LOWEST - 1, "exclusiveMaximum": 2**63}, {}),
        ({"minimum": -1e300, "maximum": 7}, {"maximum": 7}),
        ({"minimum": 0.5, "maximum": 2.5}, {"minimum": 1, "maximum": 2}),
        ({"exclusiveMinimum": 3, "exclusiveMaximum": 9.5}, {"minimum": 4, "maximum": 9}),
        ({"minimum": 5, "exclusiveMinimum": 5}, {"minimum": 6}),
        ({"minimum": 9, "exclusiveMinimum": 5}, {"minimum": 9}),
        ({"minimum": 5, "exclusiveMinimum": True}, {"minimum": 6}),
        ({"maximum": 5.5, "exclusiveMaximum": True}, {"maximum": 5}),
        ({"maximum": HIGHEST, "exclusiveMaximum": True}, {}),
        ({"minimum": -3.0}, {"minimum": -3}),
    ],
)
@pytest.mark.parametrize("kind", ["integer", ["integer", "null"]])
def test_bounds_of_integers_are_whole_and_those_that_allow_all_are_left_out(
    schema: dict[str, Any], kept: dict[str, Any], kind: Any
) -> None:
    assert settled({"type": kind, **schema}) == {"type": kind, **kept}


@pytest.mark.parametrize("name", ["Length", "Items", "Properties"])
def test_counts_that_no_answer_has_are_left_out_above_and_refused_below(name: str) -> None:
    assert settled({f"max{name}": 2**31 - 1, f"min{name}": 1}) == {f"min{name}": 1}
    assert settled({f"max{name}": 100}) == {f"max{name}": 100}
    assert "more than an answer can have" in wrong_in_schema({f"min{name}": 2**31 - 1})
    assert wrong_in_schema({f"max{name}": 2**64}) == ""


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: {"properties": {"a": {"items": [{"anyOf": [inner]}]}}},
        lambda inner: {"$defs": {"const": inner}, "$ref": "#/$defs/const"},
        lambda inner: {"components": {"schemas": {"A": inner}}, "$ref": "#/components/schemas/A"},
    ],
)
def test_bounds_are_settled_wherever_a_reference_may_lead(wrap: Any) -> None:
    assert settled(wrap({"type": "integer", "maximum": HIGHEST})) == wrap({"type": "integer"})
    assert "minimum" in wrong_in_schema(wrap({"type": "integer", "minimum": 2**63}))


def test_a_schema_within_a_constant_is_settled_where_a_reference_leads_there() -> None:
    constant = {"type": "integer", "maximum": HIGHEST}
    assert wrong_in_schema({"enum": [constant]}) == ""
    assert settled({"enum": [constant]}) == {"enum": [constant]}
    assert "leads to a constant" in wrong_in_schema(
        {"items": {"$ref": "#/enum/0"}, "enum": [constant]}
    )


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"minimum": 2**63}, "minimum"),
        ({"exclusiveMaximum": LOWEST - 1}, "exclusiveMaximum"),
        ({"type": "number", "maximum": -1e300}, "maximum"),
        ({"minimum": 10**18}, "minimum"),
        ({"multipleOf": 2**64}, "multipleOf"),
        ({"const": 2**63}, "const or enum"),
        ({"enum": [[{"a": -(2**70)}]]}, "const or enum"),
    ],
)
def test_a_number_that_no_64_bits_hold_is_refused_before_llguidance_sees_it(
    schema: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llguidance = pytest.importorskip("llguidance")

    def seen(*given: Any) -> Any:
        raise AssertionError("llguidance saw it")

    monkeypatch.setattr(llguidance.LLMatcher, "grammar_from_lark", seen, raising=True)
    tokenizer, options = ToyTokenizer(), asked({"type": "integer", **schema})
    ends = (tokenizer.special_tokens["<|im_end|>"],)
    made = grammar_of(options, tokenizer, ends, None, "hf").failure()
    assert isinstance(made, pg.UnsupportedOption)
    assert made.option == "json_schema"
    assert words in made.message
    for engine in ("hf", "vllm", "vllm_server"):
        assert unsupported_with_form(options, engine, masked_here=engine == "hf") == made
    assert not has_form(options.structured, "1")


@pytest.mark.parametrize(
    ("schema", "rounded"),
    [
        ('{"const": 9007199254740993}', True),
        ('{"enum": [1, {"a": [9007199254740993]}]}', True),
        ('{"const": 0.12345678901234567890}', True),
        ('{"type": "integer", "minimum": 9007199254740993}', True),
        ('{"const": 9007199254740992}', False),
        ('{"enum": [0.1, 1e15, 1.50, -0.0, 1152921504606846976]}', False),
        ('{"maximum": 3.14159265358979323846}', False),
        ('{"type": "integer", "maximum": 9223372036854775807}', False),
        ('{"description": 9007199254740993}', False),
    ],
)
def test_a_number_that_a_grammar_would_round_is_refused(schema: str, rounded: bool) -> None:
    pytest.importorskip("llguidance")
    assert bool(rounded_in(schema)) is rounded
    tokenizer = ToyTokenizer()
    ends = (tokenizer.special_tokens["<|im_end|>"],)
    made = grammar_of(asked(schema), tokenizer, ends, None, "hf")
    assert pg.is_ok(made) is not rounded
    if rounded:
        assert "has more digits than a grammar keeps" in made.failure().message
        # a server may keep them: its answers are checked
        assert unsupported_with_form(asked(schema), "vllm_server") is None


DATES = (
    ("date", '"2024-02-29"', True),
    ("date", '"2023-02-29"', False),
    ("date", '"1900-02-29"', False),
    ("date", '"2000-02-29"', True),
    ("date", '"2023-04-31"', False),
    ("date", '"2023-4-01"', False),
    ("date", '"2023-04-01T"', False),
    ("time", '"23:59:60Z"', True),
    ("time", '"12:00:60Z"', False),
    ("time", '"12:00:59.5+01:30"', True),
    ("time", '"12:00:00"', False),
    ("time", '"24:00:00Z"', False),
    ("date-time", '"2023-02-29T12:00:00Z"', False),
    ("date-time", '"2024-02-29T12:00:00.25-08:00"', True),
    ("date-time", '"2024-02-28T12:00:60Z"', False),
)


@pytest.mark.parametrize(("name", "text", "right"), DATES)
def test_dates_and_times_are_what_they_say_in_grammars_and_in_the_check(
    name: str, text: str, right: bool
) -> None:
    pytest.importorskip("llguidance")
    form = pg.StructuredOptions(json_schema={"type": "string", "format": name})
    assert has_form(form, text) is right
    assert (wrong_form(text, form) == "") is right
    assert wrong_form("1", pg.StructuredOptions(json_schema={"format": name})) == ""


def test_a_date_beside_a_pattern_has_both() -> None:
    pytest.importorskip("llguidance")
    form = pg.StructuredOptions(
        json_schema={"type": "string", "format": "date", "pattern": "^2024"}
    )
    texts = ('"2024-02-29"', '"2024-02-30"', '"2023-01-01"')
    assert [has_form(form, text) for text in texts] == [True, False, False]


@pytest.mark.parametrize("name", ["foo", "int32", "uri-reference", "regex", 5])
def test_an_unknown_format_is_an_annotation(name: Any) -> None:
    pytest.importorskip("llguidance")
    form = pg.StructuredOptions(json_schema={"type": "string", "format": name})
    if isinstance(name, str):
        assert json.loads(form_of(asked(form.json_schema))["json_schema"]) == {"type": "string"}
        assert has_form(form, '"anything"')
    assert wrong_form('"anything"', form) == ""


def test_known_formats_stay() -> None:
    form = pg.StructuredOptions(json_schema={"type": "string", "format": "uuid"})
    assert written_out(form) is form


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"ab": {}}, "patternProperties": {"^a": {"type": "string"}}},
        {"items": {"properties": {"ab": {}}, "patternProperties": {"b": {"type": "string"}}}},
        {"properties": {"ab": {}}, "allOf": [{"patternProperties": {"^a": {}}}]},
        {
            "$defs": {"more": {"properties": {"7": {}}}},
            "$ref": "#/$defs/more",
            "patternProperties": {r"^\d$": {}},
        },
        {"properties": {"aa": {}}, "patternProperties": {"^(a+)+$": {}}},  # that cannot be told
    ],
)
def test_a_pattern_that_meets_a_named_property_is_refused(schema: dict[str, Any]) -> None:
    for engine in ("hf", "vllm_server", "sglang_server"):
        error = unsupported_with_form(asked(schema), engine, masked_here=engine == "hf")
        assert error is not None
        assert (error.option, "meets the property" in error.message) == ("json_schema", True)


def test_a_pattern_beside_other_names_is_taken() -> None:
    schema = {"properties": {"a": {}}, "patternProperties": {"^x-": {"type": "string"}}}
    assert unsupported_with_form(asked(schema), "hf", masked_here=True) is None


@pytest.mark.parametrize(
    ("text", "key"),
    [('{"a":1,"a":1}', "a"), (r'[{"b":{"é":1,"\u00e9":2}}]', "é"), ('{"a":1,"b":{"a":2}}', "")],
)
def test_a_key_twice_in_an_object_is_not_right(text: str, key: str) -> None:
    wrong = wrong_form(text, pg.StructuredOptions(json_schema={}))
    assert wrong == (f'the JSON has the key "{key}" twice' if key else "")
