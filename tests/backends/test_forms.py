"""The form of an answer, wherever it is asked: what cannot be honoured is refused before an engine
is asked, in the same words on each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import pipegen as pg
from pipegen.backends.grammar import has_form, unsupported_with_form
from pipegen.backends.servers import openai, sglang_dialect, vllm_dialect
from pipegen.backends.servers.wire import Facts, ServerRequest
from pipegen.records.options import resolve

WIRES: dict[str, Callable[[Any, Any], Any]] = {
    "vllm_server": vllm_dialect.to_wire,
    "sglang_server": sglang_dialect.to_wire,
    **{
        f"{dialect}_chat": openai.DIALECTS[dialect].to_wire
        for dialect in ("vllm", "sglang", "plain")
    },
}
FORM = {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def ask(**options: Any) -> ServerRequest:
    return ServerRequest(
        token_ids=(1, 2),
        messages=({"role": "user", "content": "Hi"},),
        options=resolve(pg.GenerationOptions(**options)),
        model="m",
    )


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("option", "more", "words"),
    [
        (
            "min_new_tokens",
            {"min_new_tokens": 3},
            "does not honour min_new_tokens=3 with json_schema",
        ),
        (
            "ignore_eos",
            {"stop": pg.StopOptions(ignore_eos=True)},
            "does not honour ignore_eos=True with json_schema",
        ),
        ("logprobs", {"logprobs": True}, "does not honour logprobs=True with json_schema"),
        (
            "json_schema",
            {"structured": {"json_schema": {"items": [{"type": "text"}]}}},
            "json_schema cannot be compiled: Invalid type: text",
        ),
    ],
)
def test_what_no_server_keeps_beside_a_form_is_refused_and_nothing_is_sent(
    wire: str, option: str, more: dict[str, Any], words: str
) -> None:
    error = WIRES[wire](ask(**{"structured": FORM, **more}), Facts()).failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, words in error.message) == (option, True)


@pytest.mark.parametrize("wire", WIRES)
def test_the_form_goes_into_the_servers_own_field(wire: str) -> None:
    body = WIRES[wire](ask(structured=FORM), Facts()).unwrap().body
    text = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    wanted: dict[str, Any] = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": FORM["json_schema"], "strict": True},
    }
    if wire == "sglang_server":
        assert body["sampling_params"]["json_schema"] == text
    elif wire.startswith("vllm"):
        assert (body.get("sampling_params") or body)["structured_outputs"] == {"json": text}
    else:
        assert body["response_format"] == wanted


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["integer", "null"], "enum": [{"type": "text"}]},
        {
            "properties": {"type": {"type": "string"}},
            "additionalProperties": True,
            "items": [True, {"type": "array"}],
        },
        {"const": {"type": 3}, "$defs": {"a": {"anyOf": [{"type": "object"}]}}},
    ],
)
def test_a_schema_that_may_be_right_is_left_to_the_engine(schema: dict[str, Any]) -> None:
    assert (
        unsupported_with_form(
            resolve(pg.GenerationOptions(structured={"json_schema": schema})), "vllm_server"
        )
        is None
    )


def test_hf_keeps_a_least_length_and_the_models_own_logprobs_beside_a_form() -> None:
    options = resolve(pg.GenerationOptions(structured=FORM, min_new_tokens=3, logprobs=True))
    assert unsupported_with_form(options, "hf", masked_here=True) is None


@pytest.mark.parametrize(
    ("form", "text", "has"),
    [
        ({"choice": ("yes", "né🎈")}, "né🎈", True),
        ({"choice": ("yes", "né🎈")}, "né", False),
        ({"regex": " [0-9]+"}, "12", True),  # a tokenizer may hide a space at the very start
        ({"regex": "[0-9]+"}, "12a", False),
        ({"json_schema": {"type": "object"}}, '{"a":[1,2]}', True),
        ({"json_schema": {"type": "object"}}, '{"a":[1,2', False),
        ({"regex": "((a{1000}){1000}){1000}"}, "aa", False),
    ],
)
def test_a_text_has_a_form_or_not(form: dict[str, Any], text: str, has: bool) -> None:
    pytest.importorskip("llguidance")
    assert has_form(pg.StructuredOptions(**form), text) is has


def test_a_choice_that_spells_a_control_token_is_refused() -> None:
    pytest.importorskip("llguidance")
    from pipegen.backends.grammar import grammar_of
    from pipegen.testing.toy import ToyTokenizer

    tokenizer = ToyTokenizer()
    ends = (tokenizer.special_tokens["<|im_end|>"],)
    for choice in ("<|im_end|>", "say <|im_end|>."):
        error = grammar_of(
            resolve(pg.GenerationOptions(structured={"choice": ("a", choice)})),
            tokenizer,
            ends,
            None,
            "hf",
        ).failure()
        assert (type(error), error.option) == (pg.UnsupportedOption, "choice")
        assert "'<|im_end|>'" in error.message
    assert pg.is_ok(
        grammar_of(
            resolve(pg.GenerationOptions(structured={"choice": ("a", "<|im_end")})),
            tokenizer,
            ends,
            None,
            "hf",
        )
    )


# What a pattern means

ARABIC = "٢٠٢٤"


@pytest.mark.parametrize("wire", ["vllm_server", "sglang_server", "vllm_chat", "sglang_chat"])
@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"regex": r"\d{4}"}, "[0-9]{4}"),
        ({"regex": r"[\w.]+\s"}, r"[0-9A-Za-z_.]+[ \t\n\r\f\v]"),
        (
            {
                "json_schema": {
                    "properties": {"pattern": {"pattern": r"^\d+$"}, r"\d": {}},
                    "patternProperties": {r"^\w$": {}},
                }
            },
            None,
        ),
    ],
)
def test_classes_of_characters_are_sent_as_ascii_has_them(
    wire: str, form: dict[str, Any], wanted: str | None
) -> None:
    body = (
        json.dumps(WIRES[wire](ask(structured=form), Facts()).unwrap().body, ensure_ascii=False)
        .replace("\\\\", "\\")
        .replace("\\\\", "\\")
    )
    if wanted is not None:
        assert wanted in body
    else:  # patterns are written out, names are not
        body = body.replace('\\"', '"')
        assert '"pattern": {"pattern": "^[0-9]+$"}' in body
        assert '"^[0-9A-Za-z_]$": {}' in body
        assert r'"\d": {}' in body


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ({"regex": r"\d{4}"}, "2024", ARABIC),
        ({"regex": r"\w+"}, "ab_1", "né"),
        ({"regex": r"a\sb"}, "a\tb", "a\u2003b"),
        ({"regex": r"\D\W\S"}, "é.é", "1.é"),
        ({"regex": r"[\D]"}, ARABIC[0], "1"),
        ({"regex": "a.b"}, "a\rb", "a\nb"),
        ({"json_schema": {"type": "string", "pattern": r"^\d{4}$"}}, '"2024"', f'"{ARABIC}"'),
    ],
)
def test_classes_of_characters_mean_ascii_in_a_grammar(
    form: dict[str, Any], right: str, wrong: str
) -> None:
    pytest.importorskip("llguidance")
    asked = pg.StructuredOptions(**form)
    assert (has_form(asked, right), has_form(asked, wrong)) == (True, False)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "form",
    [
        {"regex": r"a\b"},
        {"json_schema": {"items": {"pattern": r"\Ba"}}},
        {"json_schema": {"patternProperties": {r"\b": {}}}},
    ],
)
def test_the_edge_of_a_word_is_refused_by_every_engine_in_the_same_words(
    wire: str, form: dict[str, Any]
) -> None:
    (name,) = form
    error = WIRES[wire](ask(structured=form), Facts()).failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, "without \\b and \\B" in error.message) == (name, True)
    assert (
        unsupported_with_form(
            resolve(pg.GenerationOptions(structured=form)), "hf", masked_here=True
        )
        == error
    )
