"""Forced calls in templates that write arguments as tagged values: whatever the form allows is read
back as a call whose arguments the tool's schema allows.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("llguidance")

import jsonschema
from llguidance import LLMatcher, LLTokenizer
from support.small_tokenizers import chatml_tokenizer
from support.tagged import ASKED, END, TEMPLATES, called, read, tool

import pipegen as pg
from pipegen.answer.regex_check import matches
from pipegen.answer.tagged_calls import text_until
from pipegen.answer.value_patterns import numbers
from pipegen.backends.checkpoint.tokenizers import HFRenderer
from pipegen.backends.grammar import text_of
from pipegen.records.option_groups import StructuredOptions
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

QWEN, SEED, *_ = TEMPLATES.values()
PARTS = (
    *("\n", "<", "</", "</para", "</parameter>", "</parameter", "</arg_value>", "\n</parameter>"),
    *("x", "é", "🎈", "1", "-", "0", ".", '"', "'", "True", "null", "[", "]", " ", "a-b", "2024-"),
)
CLOSINGS = ("\n</parameter>\n", "</parameter>\n", "</arg_value>\n", "]", "}", '"', ",")


def drawn(form: StructuredOptions, rng: random.Random) -> str:
    """A text that has the form, of parts that are hard to read."""
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(text_of(form, ())))
    text, limit = bytearray(), rng.randrange(200)

    def added(part: str) -> bool:
        data = list(part.encode())
        if matcher.deep_copy().try_consume_tokens(data) < len(data):
            return False
        matcher.consume_tokens(data)
        text.extend(data)
        return True

    while not (matcher.is_accepting() and matcher.is_stopped()):
        forced = bytes(matcher.compute_ff_bytes())
        parts = [
            *(rng.sample(CLOSINGS, len(CLOSINGS)) if len(text) > limit else ()),
            *rng.sample(PARTS, len(PARTS)),
        ]
        if forced or any(map(added, parts)):
            matcher.consume_tokens(list(forced))
            text.extend(forced)
            continue
        allowed = [number for number, bias in enumerate(matcher.compute_logit_bias()) if bias]
        ascii_ones = [number for number in allowed if number < 128]
        if not ascii_ones:
            break
        matcher.consume_token(choice := rng.choice(ascii_ones))
        text.append(choice)
    return text.decode()


def schema_of(rng: random.Random, depth: int = 1) -> dict[str, Any]:
    """A schema of simple types, or of lists and objects of them."""
    bounds = {"minimum": rng.randrange(-20, 5), "maximum": rng.randrange(5, 2000)}
    simple: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "string", "minLength": 2},
        {"type": "string", "minLength": 1, "maxLength": 5},
        {"type": "string", "pattern": "^[a-f]{2,4}-(x|yz)[0-9]+$"},
        {"type": "string", "format": "date"},
        {"type": "integer", **bounds},
        {"type": "number", **bounds},
        {"type": rng.choice(["integer", "number", "boolean", "null"])},
        {"type": ["integer", "null"]},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "string", "maxLength": 3}]},
        {"enum": rng.sample(["a", "1", 1, True, None, 2.5, "a b", [1, "x"], {"k": None}], 4)},
        {"const": rng.choice(["true", False, "", 7])},
        {"$ref": "#/$defs/Colour", "description": "one"},
        {"allOf": [{"$ref": "#/$defs/Colour"}], "default": "red"},
        {},
    ]
    if not depth or rng.random() < 0.8:
        return rng.choice(simple)
    inner = schema_of(rng, 0)
    return rng.choice(
        [
            {"type": "array", "items": inner, "maxItems": 3},
            {"anyOf": [{"type": "array", "items": inner, "maxItems": 2}, {"type": "null"}]},
            {
                "type": "object",
                "properties": {"a": inner, "b": {"type": "boolean"}},
                "required": ["b"],
                "additionalProperties": False,
            },
        ]
    )


def asked(
    source: str, tools: Sequence[Any], rng: random.Random, choice: str = "required"
) -> tuple[pg.Slot[pg.GenerationResult], FakeEngine]:
    """The answer of an engine that writes whatever its form allows."""

    def script(row: Encoded) -> str:
        form = row.options.structured
        assert form is not None
        return (rng.choice(form.choice) if form.choice else drawn(form, rng)) + END

    renderer: Any = HFRenderer(chatml_tokenizer(), source)
    engine = FakeEngine(script, renderer=renderer)
    request = {"messages": ASKED, "tools": [*tools]}
    options = {"tool_choice": choice, "max_new_tokens": 4000}
    return pg.run(pg.route(engine), [request], options)[0], engine


def forms_of(engine: FakeEngine) -> list[StructuredOptions]:
    forms = [row.options.structured for batch in engine.calls for row in batch]
    return [form for form in forms if form is not None]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", TEMPLATES)
def test_whatever_the_form_allows_is_a_call_that_the_schema_allows(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    tools = {}
    for tool_name in ("get", "get_all"):
        keys = rng.sample(["city", "days", "ok", "some-list", "a"], rng.randrange(6))
        properties = {key: schema_of(rng) for key in keys}
        tools[tool_name] = {
            "type": "object",
            "properties": properties,
            "required": [key for key in keys if rng.random() < 0.5],
            "additionalProperties": False,
            "$defs": {"Colour": {"enum": ["red", "green"], "title": "Colour"}},
        }
    slot, engine = asked(TEMPLATES[name], [tool(*one) for one in tools.items()], rng)
    result = slot.unwrap()
    assert result.tool_calls_unread is None
    (function,) = [call["function"] for call in result.tool_calls]
    jsonschema.validate(json.loads(function["arguments"]), tools[function["name"]])
    assert (result.finish, result.content) == (pg.Finish.EOS, "")
    assert result.token_ids == engine.tokenizer.encode(result.raw_text)
    forms = forms_of(engine)
    lists = sum(form.json_schema is not None for form in forms)
    assert len(forms) <= 2 + 2 * lists  # the name, and what is not JSON in one call


def test_the_name_of_the_only_tool_is_written_and_its_flags_are_those_of_json_or_python() -> None:
    flags = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    slot, engine = asked(QWEN, [tool("say", flags)], random.Random(1), "say")
    (form,) = forms_of(engine)
    for text in ("True", "true", "False", "false"):
        whole = f"<parameter=yes>\n{text}\n</parameter>\n</function>\n</tool_call>"
        assert matches(str(form.regex), whole)
    (function,) = [call["function"] for call in slot.unwrap().tool_calls]
    assert (function["name"], type(json.loads(function["arguments"])["yes"])) == ("say", bool)


def test_parameters_that_are_not_required_may_all_be_left_out() -> None:
    many = {"type": "object", "properties": {key: {"type": "integer"} for key in "abc"}}
    found = set()
    for seed in range(60):
        slot, _ = asked(QWEN, [tool("say", many)], random.Random(seed), "say")
        found.add(tuple(json.loads(slot.unwrap().tool_calls[0]["function"]["arguments"])))
    assert found == {
        (),
        ("a",),
        ("b",),
        ("c",),
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
        ("a", "b", "c"),
    }


def test_the_length_may_end_a_call_of_tagged_values_anywhere() -> None:
    listed = {"type": "array", "items": {"type": "integer"}, "maxItems": 2, "minItems": 1}
    schema = {
        "type": "object",
        "properties": {"a": listed, "b": {"const": "x"}},
        "required": ["a", "b"],
    }

    def script(row: Encoded) -> str:
        form = row.options.structured
        assert form is not None
        return ("[1]" if form.json_schema else drawn(form, random.Random(0))) + END

    renderer: Any = HFRenderer(chatml_tokenizer(), QWEN)
    engine = FakeEngine(script, renderer=renderer)
    request = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool("say", schema)]}
    options = {"tool_choice": "say"}
    whole = pg.run(pg.route(engine), [request], options)[0].unwrap()
    assert json.loads(whole.tool_calls[0]["function"]["arguments"]) == {"a": [1], "b": "x"}
    for limit in range(1, len(whole.token_ids) - 1):
        limited = {**options, "max_new_tokens": limit}
        result = pg.run(pg.route(engine), [request], limited)[0].unwrap()
        assert result.token_ids == whole.token_ids[:limit]
        assert (result.finish, result.tool_calls) == (pg.Finish.LENGTH, ())


SAYS = "no regular expression says {"
REFUSED = {
    "not": ({"type": "string", "not": {"const": "x"}}, SAYS),
    "a pattern that finds": ({"type": "string", "pattern": "ab"}, SAYS),
    "a pattern that looks ahead": ({"type": "string", "pattern": "^\\\\\\\\(?=a)a$"}, SAYS),
    "a pattern of what ends values": ({"type": "string", "pattern": "^(a|[^b])$"}, SAYS),
    "a pattern of lines": ({"type": "string", "pattern": "^(?s)a.$"}, SAYS),
    "a pattern with an anchor within": ({"type": "string", "pattern": "^a$|^b$"}, SAYS),
    "a pattern that repeats a group": ({"type": "string", "pattern": "^(a)\\1$"}, SAYS),
    "a pattern and a bound": ({"type": "string", "pattern": "^a*$", "minLength": 3}, SAYS),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, SAYS),
    "bounds that are no whole numbers": ({"type": "number", "minimum": 0.5}, SAYS),
    "no number": ({"type": "integer", "minimum": 5, "maximum": 4}, SAYS),
    "a list or a number": ({"type": ["array", "integer"]}, "it is a list or an object, or another"),
    "no type": ({"minimum": 3}, SAYS),
    "a pattern with the edge of a word": ({"type": "string", "pattern": r"^\bx$"}, SAYS),
    "a pattern that is none": ({"type": "string", "pattern": "^($"}, SAYS),
    "no length": ({"type": "string", "minLength": 3, "maxLength": 2}, SAYS),
    "no schema": (False, "no schema says what it is"),
    "a type that is none": ({"type": {"a": 1}}, "no schema says what it is: at $.properties"),
    "a choice that is none": ({"enum": 5}, "at $.properties.city.enum: 5 is not of type array"),
    "a length that is none": ({"type": "string", "minLength": "x"}, '"x" is not of type integer'),
    "a reference to what is no schema": ({"$ref": "#/$defs/a/$ref"}, "no schema says what it is"),
    "two schemas": (
        {"allOf": [{"type": "string"}, {"minLength": 2}]},
        "'allOf' of several schemas",
    ),
    "a reference beside more": ({"$ref": "#/$defs/a", "minLength": 2}, SAYS),
    "a reference to itself": ({"$ref": "#/$defs/a"}, "'$ref' of several schemas"),
    "a reference to nothing": ({"$ref": "#/$defs/b"}, "no schema says what it is"),
    "another type": ({"type": "text"}, "no schema says what it is: at $.properties.city.type"),
    "no value": ({"enum": []}, "none of its values"),
    "values that its type does not allow": ({"enum": [1], "type": "string"}, "none of its values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_written_as_a_tagged_value_is_refused_by_its_name(name: str) -> None:
    entry, words = REFUSED[name]
    schema = {
        "type": "object",
        "properties": {"city": entry},
        "$defs": {"a": {"$ref": "#/$defs/a"}},
        "title": "Say",
    }
    slot, engine = asked(QWEN, [tool("say", schema)], random.Random(1))
    error = slot.failure()
    assert isinstance(error, pg.UnsupportedOption) and error.option == "tool_choice"
    place = "its parameter 'city': " if "at $.properties" not in error.message else "no schema"
    assert f"of the tool 'say' are not: {place}" in error.message
    assert words in error.message and engine.calls == []


def test_what_an_object_of_arguments_cannot_say_is_refused() -> None:
    for schema, words in (
        ({"properties": {}, "anyOf": [{"required": ["a"]}]}, "its schema has 'anyOf'"),
        ({"properties": {"a>\nb": {}}}, "which ends names"),
        ({"properties": ["a"]}, "no schema says what it is: at $.properties"),
        ({"required": 5}, "no schema says what it is: at $.required"),
        ({"required": ["a"], "additionalProperties": False}, "'a': no schema says what it is"),
        ({"properties": {"a": {"$ref": "#"}}}, "a reference that leads out of $defs"),
        ({"properties": {"a": {"$ref": "#here"}}}, "a reference that leads out of $defs"),
        (
            {"properties": {"a": {"type": "array", "items": {"$ref": "#/properties/b"}}}},
            "a reference that leads out of $defs",
        ),
    ):
        error = asked(QWEN, [tool("say", schema)], random.Random(1))[0].failure()
        assert isinstance(error, pg.UnsupportedOption) and words in error.message


def test_a_parameter_that_is_required_alone_is_any_text() -> None:
    slot, _ = asked(SEED, [tool("say", {"required": ["a"]})], random.Random(3))
    assert [*json.loads(slot.unwrap().tool_calls[0]["function"]["arguments"])] == ["a"]


@pytest.mark.parametrize("kind", ["integer", "string"])
def test_a_parameter_that_is_required_alone_has_the_schema_of_further_ones(kind: str) -> None:
    schema = {"type": "object", "required": ["a"], "additionalProperties": {"type": kind}}
    renderer: Any = HFRenderer(chatml_tokenizer(), QWEN)

    def script(row: Encoded) -> str:
        return "<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>" + END

    request = {"messages": ASKED, "tools": [tool("say", schema)]}
    route = pg.route(FakeEngine(script, renderer=renderer))
    result = pg.run(route, [request], {"tool_choice": "say"})[0].unwrap()
    jsonschema.validate(json.loads(result.tool_calls[0]["function"]["arguments"]), schema)


@pytest.mark.parametrize("end", ["\n</parameter>\n", "</parameter>\n", "</a>", ")", "ab", ">>"])
def test_a_text_ends_where_its_tag_stands_first(end: str) -> None:
    compiled, rng = re.compile(text_until(end)), random.Random(end)
    word = end if end.find(end[0], 1) < 0 else end[: end.find(end[0], 1)]
    for _ in range(3000):
        text = "".join(rng.choice([*end, word[:-1], word, "x"]) for _ in range(rng.randrange(6)))
        whole = text + end
        assert bool(compiled.fullmatch(whole)) == (whole.find(word) == len(text)), whole
        assert compiled.fullmatch(text + end[:-1]) is None or (text + end[:-1]).endswith(end)


def test_numbers_are_those_within_their_bounds() -> None:
    rng = random.Random(5)
    for _ in range(400):
        kind = rng.choice(["integer", "number"])
        schema: dict[str, Any] = {"type": kind}
        for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            if rng.random() < 0.4:
                half = rng.choice([0, 0.5]) if kind == "integer" else 0
                schema[key] = (
                    rng.choice([rng.randrange(-12, 13), rng.randrange(-1300, 1300)]) + half
                )
        allowed = jsonschema.Draft202012Validator(schema).is_valid
        near = {int(schema[key]) + more for key in schema if key != "type" for more in (-1, 0, 1)}
        regex = numbers(schema)
        for value in sorted({*range(-20, 20), *near, rng.randrange(-2000, 2000)}):
            for text in (f"{value}", f"{value}.5") if kind == "number" else (f"{value}",):
                matched = regex is not None and bool(re.fullmatch(regex, text))
                assert matched == allowed(json.loads(text)), (schema, text)
        assert regex is None or not re.fullmatch(regex, "-0")


@pytest.mark.parametrize("bound", [1, 9, 16, 100, 1000, 10**9, 10**15, 10**17])
def test_no_fraction_is_rounded_to_a_bound(bound: int) -> None:
    above, below = (
        ("exclusiveMinimum", "exclusiveMaximum"),
        ("exclusiveMaximum", "exclusiveMinimum"),
    )
    for sign, keys in (("", above), ("-", below)):
        for key, whole in zip(keys, (bound, bound - 1), strict=True):
            schema = {"type": "number", key: int(f"{sign}{bound}")}
            allowed = jsonschema.Draft202012Validator(schema).is_valid
            for size in range(1, 31):
                for fraction in ("0" * (size - 1) + "1", "9" * size):
                    text = f"{sign}{whole}.{fraction}"
                    if re.fullmatch(numbers(schema) or "", text):
                        assert allowed(json.loads(text)), (schema, text)
            assert re.fullmatch(numbers(schema) or "", f"{sign}{whole}.5") or bound > 10**14


def test_any_number_is_a_short_expression() -> None:
    regex = numbers({"type": "number"}) or ""
    assert len(regex) < 200
    for text in ("0", "-7", "0.5", "-0.25", f"{'9' * 18}.5", "1.50"):
        assert re.fullmatch(regex, text), text


def test_a_pattern_may_have_a_parenthesis_that_is_not_required() -> None:
    phone = {"type": "string", "pattern": r"^\(?[0-9]{3}\)?$"}
    slot, _ = asked(
        QWEN, [tool("say", {"properties": {"a": phone}, "required": ["a"]})], random.Random(1)
    )
    arguments = json.loads(slot.unwrap().tool_calls[0]["function"]["arguments"])
    jsonschema.validate(arguments, {"properties": {"a": phone}})


@pytest.mark.parametrize("name", [name for name in TEMPLATES if "GLM" not in name])
def test_the_embedded_model_calls_in_the_templates_own_syntax(name: str) -> None:
    pytest.importorskip("torch")
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 99},
            "unit": {"enum": ["C", "F"]},
            "ok": {"type": "boolean"},
            "some": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2},
            "words": {"type": "string", "maxLength": 6},
        },
        "required": ["a", "unit", "ok", "some", "words"],
    }
    request = {
        "messages": [{"role": "user", "content": "What is 3 + 4?"}],
        "tools": [tool("add", schema), tool("look", {"type": "object", "properties": {}})],
    }
    options = {"template": TEMPLATES[name], "max_new_tokens": 300, "temperature": 1.0, "samples": 4}
    with pg.backends.hf("embedded") as route:
        for choice in ("add", "required"):
            asks = {**options, "tool_choice": choice, "seed": 3}
            for slot in pg.run(route, [request], asks):
                result = slot.unwrap()
                (function,) = [call["function"] for call in result.tool_calls]
                arguments = json.loads(function["arguments"])
                jsonschema.validate(arguments, schema if function["name"] == "add" else {})
                assert (result.finish, result.tool_calls_unread) == (pg.Finish.EOS, None)


def test_a_call_is_not_forced_where_a_control_token_stands_beside_its_values() -> None:
    pytest.importorskip("torch")
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    request = {"messages": messages, "tools": [tool("say", {"required": ["a"]})]}
    glm = {"template": TEMPLATES["keys and values, as GLM"], "tool_choice": "say"}
    with pg.backends.hf("embedded") as route:
        error = pg.run(route, [request], glm)[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert "writes the control token '</tool_call>' beside tagged values" in error.message


def test_tags_that_depend_on_the_value_are_not_forced() -> None:
    glm = TEMPLATES["keys and values, as GLM"]
    typed = glm.replace("<arg_value>", '<arg_value text="{{ v is string }}">')
    escaped = glm.replace("{{ v if", "{{ v | replace('<', '&lt;') if")
    for source in (typed, escaped):
        error = asked(source, [tool("say", {"required": ["a"]})], random.Random(1))[0].failure()
        assert isinstance(error, pg.UnsupportedOption)
        assert "writes arguments neither as JSON nor each with tags of its own" in error.message


def test_a_list_is_not_forced_where_its_json_may_hold_what_closes_it() -> None:
    source = TEMPLATES["keys and values, as GLM"].replace("</arg_value>\n", "</arg_value>{#\n#}")
    listed = {"properties": {"a": {"type": "array"}}}
    error = asked(source, [tool("say", listed)], random.Random(1))[0].failure()
    assert "its parameter 'a': its JSON may hold '</arg_value>', which ends values" in error.message
    renderer: Any = HFRenderer(chatml_tokenizer(), source)
    (read_back,) = read(called(renderer, [tool("say", {"required": ["a"]})], "say", {"a": "</x>"}))
    assert read_back == ("say", {"a": "</x>"})
