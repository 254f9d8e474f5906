"""Forced calls of tagged values allow whatever arguments a tool takes, and are read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("llguidance")

from hypothesis import given, strategies as st
from support.small_tokenizers import chatml_tokenizer
from support.tagged import TEMPLATES, called, fits, read, texts_of, tool

from pipegen.backends.checkpoint.tokenizers import HFRenderer

RENDERERS: list[Any] = [HFRenderer(chatml_tokenizer(), source) for source in TEMPLATES.values()]
PARTS = (
    *("\n", "<", "</parameter>", "</arg_value>", "</function>", "</tool_call>", "<parameter=a>"),
    *("x", "é", "🎈", "1", "e5", "-", ".", '"', "\\", "True", "null", "[", "{", " ", "\t"),
)
WORDS = st.lists(st.sampled_from(PARTS), max_size=6).map("".join)
NUMBERS = st.integers(-(10**17), 10**17)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def parameter(closes: str) -> st.SearchStrategy[tuple[dict[str, Any], Any, str]]:
    """The schema of a parameter, a value, and a text of it."""
    words = WORDS.filter(lambda text: fits(text, closes))
    texts = words.map(lambda text: ({"type": "string"}, text, text))
    whole = NUMBERS.map(lambda number: ({"type": "integer"}, number, str(number)))
    parts = st.integers(-(10**6), 10**6).map(lambda number: number / 1000)
    decimals = parts.map(lambda number: ({"type": "number", "minimum": -1000}, number, str(number)))
    flags = st.sampled_from([(True, "True"), (True, "true"), (False, "False"), (False, "false")])
    nothing = st.sampled_from(["null", "None"]).map(lambda text: (None, text))
    either = {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None}
    chosen = st.sampled_from(["1", "a b", None, 2.5, [1, "x"]])
    listed = (st.lists(VALUES) | st.dictionaries(WORDS, VALUES)).map(
        lambda value: ({"type": ["array", "object"]}, value, json.dumps(value, ensure_ascii=False))
    )
    return st.one_of(
        texts,
        whole,
        decimals,
        (flags | nothing).map(lambda pair: (either, *pair)),
        chosen.map(
            lambda value: (
                {"enum": ["1", "a b", None, 2.5, [1, "x"]]},
                value,
                value if isinstance(value, str) else json.dumps(value),
            )
        ),
        listed,
    )


@given(data=st.data(), renderer=st.sampled_from(RENDERERS))
def test_arguments_that_a_tool_takes_are_allowed_and_read_back(data: Any, renderer: Any) -> None:
    tags = texts_of(renderer).tags
    assert tags is not None
    keys = st.sampled_from(["a", "b", "some-list", "city", "é"])
    drawn = data.draw(st.dictionaries(keys, parameter(tags.closes), max_size=5))
    given_keys = data.draw(st.sets(st.sampled_from([*drawn]))) if drawn else set()
    required = [key for key in drawn if key in given_keys and data.draw(st.booleans())]
    schema = {
        "type": "object",
        "properties": {key: entry for key, (entry, _, _) in drawn.items()},
        "required": required,
    }
    texts = {key: text for key, (_, _, text) in drawn.items() if key in given_keys}
    result = called(renderer, [tool("get_all", {}), tool("get", schema)], "get", texts)
    values = {key: value for key, (_, value, _) in drawn.items() if key in given_keys}
    assert (read(result), result.tool_calls_unread) == ([("get", values)], None)
