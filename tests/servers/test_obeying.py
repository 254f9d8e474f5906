"""Forms on real servers with a reasoning parser: an answer has its form, or its row fails; none
looks right and is not.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import fastjsonschema
import jsonschema
import pytest
from support.forms import drawn_form
from support.tagged import TEMPLATES, read, tool

import pipegen as pg
from pipegen.core.slots import is_ok
from pipegen.testing.ask import greedy

FORMS = [drawn_form(random.Random(seed).randrange) for seed in range(26)]
FORMS += [{"regex": r"\d{4}"}, {"regex": r"\w{3}\s\S\D[\d-]"}, {"choice": ("yes", "no")}]
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
THINKS = pg.ChatTemplateOptions(enable_thinking=True)


def has_form(text: str, form: dict[str, Any]) -> bool:
    """As Python's own libraries see it."""
    if "json_schema" not in form:
        pattern = form.get("regex") or "|".join(map(re.escape, form["choice"]))
        return any(re.fullmatch(pattern, one, re.ASCII) is not None for one in (text, f" {text}"))
    try:
        fastjsonschema.validate(form["json_schema"], json.loads(text))
    except (ValueError, fastjsonschema.JsonSchemaException):
        return False
    return True


def asked(route: pg.Route, prompts: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Any]]:
    rows = [
        (form, {**prompt, "options": {"structured": form}}) for form in FORMS for prompt in prompts
    ]
    slots = pg.run(route, [row for _, row in rows], greedy(max_new_tokens=60))
    return [(form, slot) for (form, _), slot in zip(rows, slots, strict=True)]


CHAT = {"messages": [{"role": "user", "content": "What is 3 + 4?"}]}
PLAIN = {"prompt": "3 + 4 ="}


@pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)
def test_every_form_holds_by_token_ids_with_and_without_a_template(served: Any) -> None:
    with served.opened() as route:
        made = asked(route, [CHAT, PLAIN])
    wrong = [(form, slot.failure().message) for form, slot in made if not is_ok(slot)]
    assert all(
        "white space" in words or "cannot be compiled" in words or "compile" in words.lower()
        for _, words in wrong
    ), wrong
    results = [(form, slot.unwrap()) for form, slot in made if is_ok(slot)]
    assert len(results) > 40
    assert [
        (form, one.text)
        for form, one in results
        if one.finish is pg.Finish.EOS and not has_form(one.text, form)
    ] == []


@pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded", "vllm-text"], indirect=True)
def test_no_answer_without_its_form_is_a_success_where_the_parser_may_hold_it_back(
    served: Any,
) -> None:
    """By chat, and by vLLM's other endpoint for ids, the form may be left out: then the row
    fails.
    """
    routes = [served.chat()] + ([served.opened()] if served.model == "text" else [])
    for route in routes:
        with route:
            made = asked(route, [CHAT] if route is routes[0] else [CHAT, PLAIN])
        results = [(form, slot.unwrap()) for form, slot in made if is_ok(slot)]
        assert [
            (form, one.text)
            for form, one in results
            if one.finish is pg.Finish.EOS and not has_form(one.text, form)
        ] == []
        if route is not routes[0]:
            assert any(
                "does not obey its request" in slot.failure().message
                for _, slot in made
                if not is_ok(slot)
            )


@pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)
def test_thinking_beside_a_form_is_thought_by_chat_and_refused_by_token_ids(served: Any) -> None:
    options = greedy(
        max_new_tokens=100, structured=pg.StructuredOptions(json_schema=ANSWER), chat=THINKS
    )
    with served.chat() as route:
        result = pg.run(route, [CHAT], options)[0].unwrap()
    assert result.reasoning
    assert result.finish is pg.Finish.LENGTH or has_form(result.text, {"json_schema": ANSWER})
    with served.opened() as route:
        result = pg.run(route, [CHAT], options)[0].unwrap()
    assert result.reasoning
    assert result.finish is pg.Finish.LENGTH or has_form(result.text, {"json_schema": ANSWER})


@pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)
def test_json_that_runs_into_white_space_says_how_to_forbid_it(served: Any) -> None:
    """The embedded model writes spaces behind a name that it was not trained on, where the server
    lets it.
    """
    form = {"type": "object", "properties": {"b": {"type": "number"}}, "required": ["b"]}
    options = greedy(max_new_tokens=64, structured=pg.StructuredOptions(json_schema=form))
    prompts = [{"prompt": words} for words in ("3 + 4 =", "{", " ", "answer", "Hi", "spaces")]
    with served.opened() as route:
        slots = pg.run(route, [CHAT, *prompts], options)
    errors = [slot.failure() for slot in slots if not is_ok(slot)]
    assert {
        (type(error), "white space" in error.message, "disable_any_whitespace" in error.hint)
        for error in errors
    } == {(pg.MalformedResponse, True, True)}


@pytest.mark.parametrize("served", ["sglang-embedded"], indirect=True)
def test_both_routes_of_sglang_refuse_its_repetition_penalty(served: Any) -> None:
    for make in (served.opened, served.chat):
        with make() as route:
            error = pg.run(route, [CHAT], greedy(repetition_penalty=1.5))[0].failure()
        seen = (type(error), error.option, "sglang" in error.hint)
        assert seen == (pg.UnsupportedOption, "repetition_penalty", False)


@pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)
@pytest.mark.parametrize("name", [name for name in TEMPLATES if "GLM" not in name])
def test_a_forced_call_of_tagged_values_is_read_back(served: Any, name: str) -> None:
    properties = {
        "a": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["C", "F"]},
        "some": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2},
        "words": {"type": "string", "maxLength": 6},
        "ok": {"type": "boolean"},
    }
    needed = ["a", "unit", "some", "words"]
    schema = {"type": "object", "properties": properties, "required": needed}
    request = {
        "messages": [{"role": "user", "content": "What is 3 + 4?"}],
        "tools": [tool("add", schema), tool("look", {"type": "object", "properties": {}})],
    }
    options = {"template": TEMPLATES[name], "max_new_tokens": 400, "temperature": 1.0}
    with served.opened() as route:
        slots = pg.run(route, [request] * 8, {**options, "tool_choice": "add"})
    ended = 0
    for slot in slots:
        if not is_ok(slot):  # white space may go on to the end, where the server allows it
            assert "ran into white space" in slot.failure().message
            continue
        result = slot.unwrap()
        if result.finish == pg.Finish.LENGTH:  # so it does within a value
            continue
        ended += 1
        ((called, arguments),) = read(result)
        jsonschema.validate(arguments, schema)
        assert (called, result.finish) == ("add", pg.Finish.EOS)
        assert (result.tool_calls_unread, result.content) == (None, "")
    assert ended
