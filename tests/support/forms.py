"""Forms of answers, drawn at random, and whether a text has them, as Python's own libraries see
it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import fastjsonschema

__all__ = ["Pick", "drawn_form", "has_form"]

Pick = Callable[[int], int]
"""Draws a number from 0 to below its argument."""
TEXTS = (
    *(
        "yes",
        "no",
        "no way",
        "né",
        '"q"',
        "a\nb",
        "\\",
        "🎈🎉",
        "<|im_end",
        "/x/",
        "{",
        "日本",
        "y",
    ),
    "A much longer one, with a comma.",
)
ATOMS = (
    *("[a-c]{2}", "[0-9]{1,3}", "(x|yz)", r"\d", "-", " ", r"[^a-z\n]{1,2}", "é?", r"\."),
    *("(?:ab)+", "/", '"', ".", "(no|yes|no way)", "[🎈é]"),
)
WORDS = ("name", "a", "the value", "é", 'q"')


def drawn_form(pick: Pick) -> dict[str, Any]:
    """One of the three options that set the form of an answer, with a value."""
    kind = pick(3)
    if kind == 0:
        return {"choice": tuple(dict.fromkeys(TEXTS[pick(len(TEXTS))] for _ in range(1 + pick(4))))}
    if kind == 1:
        return {"regex": "".join(ATOMS[pick(len(ATOMS))] for _ in range(1 + pick(5)))}
    return {"json_schema": _schema(pick, 2)}


def _schema(pick: Pick, depth: int) -> dict[str, Any]:
    kind = pick(9 if depth else 6)
    if kind == 0:
        low = pick(50) - 20
        return {"type": "integer", "minimum": low, "maximum": low + pick(300)}
    if kind == 1:
        return {"type": ("boolean", "null", "number")[pick(3)]}
    if kind == 2:
        return {
            "enum": [
                (True, None, 3, "x y", "é", [1], {"a": 1})[pick(7)] for _ in range(1 + pick(3))
            ]
        }
    if kind == 3:
        return {"type": "string", "minLength": pick(3), "maxLength": 3 + pick(9)}
    if kind == 4:
        return {
            "type": "string",
            "pattern": ("^[a-z]{1,5}$", "^(yes|no)$", "^[0-9]{4}-[0-9]{2}$")[pick(3)],
        }
    if kind == 5:
        return {"const": (0, "one", None, ["a"])[pick(4)]}
    if kind == 6:
        least = pick(3)
        return {
            "type": "array",
            "items": _schema(pick, depth - 1),
            "minItems": least,
            "maxItems": least + pick(3),
        }
    if kind == 7:
        return {"anyOf": [_schema(pick, depth - 1) for _ in range(2)]}
    properties = {WORDS[pick(len(WORDS))]: _schema(pick, depth - 1) for _ in range(1 + pick(3))}
    required = [name for name in properties if pick(3)]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def has_form(text: str, form: Mapping[str, Any]) -> bool:
    """Whether a whole answer has the form."""
    if "choice" in form:
        return text in form["choice"]
    if "regex" in form:
        return re.fullmatch(form["regex"], text) is not None
    try:
        value = json.loads(text)
        fastjsonschema.validate(form["json_schema"], value)
    except (ValueError, fastjsonschema.JsonSchemaException):
        return False
    return True
