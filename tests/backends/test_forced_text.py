"""Text that a form forces and the model's tokenizer composes: no tokens spell it, so it is refused
when the form is compiled.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest

import pipegen as pg
from pipegen.backends.grammar import changed_in

APART, ONE = "e\u0301", "\u00e9"


def composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    "form",
    [
        {"choice": ("xy", f"caf{APART}")},
        {"choice": ("\u212b",)},  # the sign of a unit, which is a letter of its own
        {"regex": f"caf{APART}"},
        {"regex": f"(e|x){APART[1]}y"},
        {"regex": f"({APART}){{3}}"},
        {"regex": r"e\x{301}"},
        {"regex": r"e\u0301"},
        {"regex": f"e[{APART[1]}]"},
        {"json_schema": {"const": APART}},
        {"json_schema": {"items": {"enum": [1, {"a": [APART]}]}}},
        {"json_schema": {"properties": {APART: {}}}},
        {"json_schema": {"anyOf": [{"required": [APART]}]}},
        {"json_schema": {"items": {"pattern": f"^{APART}"}}},
        {"json_schema": {"patternProperties": {f"^{APART}": {}}}},
    ],
)
def test_what_a_tokenizer_changes_is_found_wherever_a_form_may_force_it(
    form: dict[str, Any],
) -> None:
    found = changed_in(pg.StructuredOptions(**form), composed)
    assert found is not None
    assert composed(found) != found
    assert changed_in(pg.StructuredOptions(**form), str) is None


@pytest.mark.parametrize(
    "form",
    [
        {"choice": (f"caf{ONE}", "\u3099")},
        {"regex": f"[e-g][{APART[1]}\u0302]+.{{2}}"},  # classes force nothing
        {"regex": r"\p{Lu}\d(?:usd)?"},
        {"json_schema": {"description": APART, "type": "string", "const": ONE}},
    ],
)
def test_what_no_tokenizer_changes_is_taken(form: dict[str, Any]) -> None:
    assert changed_in(pg.StructuredOptions(**form), composed) is None


def test_a_real_tokenizer_says_what_it_changes_but_not_how_it_writes_spaces() -> None:
    pytest.importorskip("transformers")
    from support.small_tokenizers import chatml_tokenizer, instruct_tokenizer

    from pipegen.backends.checkpoint.tokenizers import HFTokenizer

    tokenizer = HFTokenizer(chatml_tokenizer())
    assert tokenizer.normalised(f"a {APART}") == f"a {ONE}"
    spaces = HFTokenizer(instruct_tokenizer("normalizer"))
    texts = ("a b", " a", "a", "  a", f" {APART}")
    assert [spaces.normalised(text) for text in texts] == [*texts]
