r"""The texts that a form may force, and whether a tokenizer changes them: then no tokens spell them.

A tokenizer in the manner of Qwen composes characters (NFC). The library llguidance asks it for the
tokens of forced text, and gets those of another text.

>>> import unicodedata
>>> from pipegen.records.option_groups import StructuredOptions
>>> def composed(text):
...     return unicodedata.normalize("NFC", text)
>>> changed_in(StructuredOptions(choice=("e\u0301", "x")), composed) == "e\u0301"
True
>>> changed_in(StructuredOptions(choice=("\u00e9", "x")), composed) is None
True
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from pipegen.backends.settled_schema import scalars, schema_parts
from pipegen.records.option_groups import StructuredOptions


def changed_in(form: StructuredOptions, normalised: Callable[[str], str]) -> str | None:
    """The first text in a form that is another one when it is `normalised`; None where none is."""
    for text in form.choice or ():
        if normalised(text) != text:
            return text
    if form.regex is not None:
        return _changed_in_regex(form.regex, normalised)
    if form.json_schema is None:
        return None
    for text, is_pattern in _texts(json.loads(str(form.json_schema))):
        changed = _changed_in_regex(text, normalised) if is_pattern else None
        if not is_pattern and normalised(text) != text:
            changed = text
        if changed is not None:
            return changed
    return None


def _texts(schema: Any) -> Iterator[tuple[str, bool]]:
    """The texts that a schema may force: constants, names, and patterns, for which it says so."""
    for part in schema_parts(schema):
        forced = scalars([part.get(key) for key in ("const", "enum", "required")])
        yield from ((text, False) for text in forced if isinstance(text, str))
        if isinstance(pattern := part.get("pattern"), str):
            yield pattern, True
        for key in ("properties", "patternProperties"):
            names = part.get(key)
            if isinstance(names, dict):
                yield from ((name, key == "patternProperties") for name in names)


_PART = re.compile(
    r"\\(?:x\{(?P<a>[0-9A-Fa-f]+)\}|u\{(?P<b>[0-9A-Fa-f]+)\}|x(?P<c>[0-9A-Fa-f]{2})"
    r"|u(?P<d>[0-9A-Fa-f]{4})|U(?P<e>[0-9A-Fa-f]{8})|[pP](?:\{[^}]*\}|.)|(?P<other>.))"
    r"|\[(?P<only>[^\\\]^])\]|\[\^?\]?(?:\\.|[^\]\\])*\]|\{[0-9]*,?[0-9]*\}|[()|*+?^$.]"
    r"|(?P<plain>.)",
    re.DOTALL,
)
"""A part of a regular expression: a character, a class of them, or what is no character."""


def _literals(pattern: str) -> list[str]:
    """The characters that a regular expression names alone, each once.

    >>> _literals(r"a(b|[c-e]){2,3}\\.\\u0301[f]\\d")
    ['a', 'b', '.', '\u0301', 'f']
    """
    found: list[str] = []
    for match in _PART.finditer(pattern):
        digits = next(filter(None, map(match.group, "abcde")), None)
        other = match["other"] or ""
        if digits is not None and int(digits, 16) <= 0x10FFFF:
            found.append(chr(int(digits, 16)))
        else:
            found.append(match["plain"] or match["only"] or ("" if other.isalnum() else other))
    return [*dict.fromkeys(filter(None, found))]


def _changed_in_regex(pattern: str, normalised: Callable[[str], str]) -> str | None:
    """A character, or two of them, that the pattern may force and that would change. Where they
    stand in it is not looked at.
    """
    literals = _literals(pattern)
    for one in literals:
        if normalised(one) != one:
            return one
    # only what is beyond ASCII joins the character before it
    for second in literals:
        for first in [] if second.isascii() else literals:
            if normalised(first + second) != first + second:
                return first + second
    return None
