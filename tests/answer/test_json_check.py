"""What of a value a JSON Schema does not allow."""

from __future__ import annotations

from typing import Any

import pytest

from pipegen.answer.json_check import wrong_in_json

LIST = {
    "$defs": {
        "list": {
            "type": "object",
            "properties": {"next": {"$ref": "#/$defs/list"}},
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/list",
}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [1], []),
    (False, [], [1]),
    ({"type": "integer"}, [1, 1.0], [1.5, True, "1"]),
    ({"type": "number"}, [1, 1.5], [True, None]),
    ({"type": ["null", "boolean"]}, [None, True], [0]),
    ({"type": "strange"}, [1], []),
    ({"type": 5}, [1], []),
    ({"type": "array"}, [[]], [{}]),
    ({"enum": [1, "a", [True]]}, [1.0, "a", [True]], [True, [1]]),
    ({"const": {"a": 1}}, [{"a": 1.0}], [{"a": True}]),
    ({"minimum": 1, "exclusiveMaximum": 3}, [1, 2.5, "x", True], [0, 3]),
    ({"maximum": 1, "exclusiveMinimum": -1}, [1], [-1, 2]),
    ({"multipleOf": 3}, [6], [7]),
    ({"multipleOf": 0.1}, [0.3, 1e300 * 1e300], [0.35]),
    ({"multipleOf": 0}, [7], []),
    ({"minLength": 2, "maxLength": 3}, ["ab"], ["a", "abcd"]),
    ({"pattern": r"^\d+$"}, ["12", 5], ["a", "٢"]),
    ({"pattern": "(a+)+$"}, ["b"], []),
    ({"minItems": 1, "maxItems": 2, "uniqueItems": True}, [[1, True]], [[], [1, 2, 3], [1, 1.0]]),
    ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
    ({"required": ["a", 5]}, [{"a": 1}, []], [{}]),
    ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}, {}], [{"a": 1}]),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, [{"a": 1, "b": 1}, {}], [{"a": 1}]),
    (
        {"properties": {"a": {"type": "null"}}, "additionalProperties": False},
        [{"a": None}],
        [{"a": 1}, {"b": 1}],
    ),
    ({"additionalProperties": {"type": "null"}}, [{"a": None}], [{"a b": 1}]),
    (
        {"patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False},
        [{"xa": None}],
        [{"xa": 1}, {"b": 1}],
    ),
    (
        {"patternProperties": {"(x+)+": {"type": "null"}}, "additionalProperties": False},
        [{"b": 1}],
        [],
    ),
    ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    ({"items": {"type": "null"}}, [[None], "x"], [[1]]),
    ({"prefixItems": [{"type": "null"}], "items": False}, [[None]], [[1], [None, 1]]),
    (
        {"items": [{"type": "null"}], "additionalItems": {"type": "string"}},
        [[None, "a"]],
        [[1], [None, 1]],
    ),
    ({"contains": {"type": "null"}, "maxContains": 1}, [[None, 1]], [[1], [None, None]]),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, [3], [2, "x"]),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [3, None], ["x"]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, [2, 3.5], [3]),
    ({"oneOf": [{"type": "string"}, {"format": "email"}]}, ["x"], []),
    ({"not": {"type": "null"}}, [1], [None]),
    ({"not": {"allOf": [{"format": "email"}]}}, ["x"], []),
    (
        {"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"type": "null"}},
        [3, None],
        [2, "x"],
    ),
    ({"if": {"format": "email"}, "then": {"type": "null"}}, ["x", None], []),
    (
        {
            "if": {"type": "integer", "format": "x"},
            "then": {"type": "null"},
            "else": {"type": "string"},
        },
        [3, "x"],
        [None],
    ),
    ({"contains": {"format": "email"}, "maxContains": 1}, [["x", "y"]], [[]]),
    ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, [1], []),
    (LIST, [{"next": {"next": {}}}], [{"next": {"other": 1}}, {"next": 1}]),
    ({"$ref": "#/allOf/0", "allOf": [{"type": "null"}]}, [None], [1]),
    ({"$ref": "#/allOf/7", "allOf": [{}]}, [1], []),
    ({"$ref": "https://example.com/other"}, [1], []),
    # another id within the schema: what `#` is there
    (
        {
            "$defs": {
                "a": {"type": "null"},
                "b": {
                    "$id": "https://example.com/b",
                    "$defs": {"a": {"type": "integer"}},
                    "$ref": "#/$defs/a",
                },
            },
            "$ref": "#/$defs/b",
        },
        [1],
        [None],
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "definitions": {"a": {"type": "null"}},
            "allOf": [{"id": "other", "allOf": [{"$ref": "#/definitions/a"}]}],
        },
        [1],
        [],
    ),
    (
        {"$id": "https://example.com/a", "$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"},
        [None],
        [1],
    ),
    (
        {"$defs": {"a": {"type": "null"}}, "properties": {"$id": {"$ref": "#/$defs/a"}}},
        [{"$id": None}],
        [{"$id": 1}],
    ),
    ({"$ref": 5}, [1], []),
    ({"$ref": "#"}, [1], []),
    ({"$defs": {"a/b~": {"type": "null"}}, "$ref": "#/$defs/a~1b~0"}, [None], [1]),
    ({"$defs": {"a b": {"type": "null"}}, "$ref": "#/$defs/a%20b"}, [None], [1]),
    # a draft is named: patterns and references mean the same there
    (
        {
            "properties": {"a": {"$schema": DRAFT_7, "pattern": r"^\d$"}, "b": {"$ref": "#"}},
            "$schema": DRAFT_7,
            "additionalProperties": False,
        },
        [{"a": "1", "b": {"b": {"a": "2"}}}],
        [{"a": "٢"}, {"b": {"a": "٢"}}, {"b": {"b": {"c": 1}}}],
    ),
    # what no draft, or an old one, has
    ({"minimum": 1, "exclusiveMinimum": True}, [1], [0]),
    ({"enum": "abc", "type": [], "oneOf": [], "required": "ab"}, [{"c": 1}, "b"], []),
    ({"properties": {"a": 5}, "maximum": 1}, [{"a": 1}], [2]),
    (None, [1], []),
    ({"multipleOf": 0.1}, [10**400], []),
    ({"uniqueItems": True}, [[[1], [True], {"a": 1}]], [[[1], [True], [1.0]], [{"a": 1}] * 2]),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), CASES)
def test_a_schema_allows_what_it_says(schema: Any, right: list[Any], wrong: list[Any]) -> None:
    assert [wrong_in_json(value, schema) for value in right] == [""] * len(right)
    assert all(wrong_in_json(value, schema) for value in wrong)


def test_the_words_name_the_place() -> None:
    schema = {"properties": {"a": {"items": {"properties": {"b c": {"type": "string"}}}}}}
    assert (
        wrong_in_json({"a": [{}, {"b c": 5}]}, schema)
        == 'at $.a[1]["b c"]: 5 is not of type string'
    )
    assert len(wrong_in_json("x" * 1000, {"const": 1})) < 200


def test_alternatives_that_refer_to_each_other_are_judged_once_for_each_value() -> None:
    kinds = [
        {"type": "object", "properties": {"left": {"$ref": "#"}, "op": {"const": name}}}
        for name in ("add", "sub", "mul", "div")
    ]
    value: dict[str, Any] = {"left": 1, "op": "pow"}
    for _ in range(20):
        value = {"left": value, "op": "div"}
    assert "none of what oneOf allows" in wrong_in_json(
        value, {"oneOf": [{"type": "number"}, *kinds]}
    )


@pytest.mark.parametrize(
    "more", [{"not": {"required": ["bad"]}}, {"if": {"required": ["bad"]}, "then": False}]
)
def test_what_is_nested_too_deeply_is_not_judged(more: dict[str, Any]) -> None:
    value: dict[str, Any] = {}
    for _ in range(100):
        value = {"next": value}
    assert wrong_in_json(value, {"properties": {"next": {"$ref": "#"}}, **more}) == ""


def test_of_an_alternative_only_what_is_wrong_first_is_looked_at() -> None:
    class Items(list[str]):
        read = 0

        def __getitem__(self, index: Any) -> Any:
            self.read += 1
            return super().__getitem__(index)

    for name in ("anyOf", "oneOf"):
        items = Items(["a"] * 1000)
        parts = [{"items": {"type": kind}} for kind in ("integer", "null")]
        assert f"none of what {name} allows" in wrong_in_json(items, {name: parts})
        assert items.read == len(parts)


@pytest.mark.parametrize("name", ["$ref", "$dynamicRef", "$schema", "$id"])
def test_nothing_is_fetched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *request: fetched.append(request))
    schema = {name: "http://127.0.0.1/a", "properties": {"a": {name: "http://127.0.0.1/b#/c"}}}
    assert wrong_in_json({"a": 1}, schema) == ""
    assert wrong_in_json({"a": 1}, {**schema, "maxProperties": 0})
    assert fetched == []
