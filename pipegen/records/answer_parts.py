"""The parts of an answer's content, where a server gives a list of them, its numbers, and what it has in
common with another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_MANY = 2**53
"""A number of tokens is smaller than this; what is not is not taken for one."""
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
"""The types of parts that hold what a model thought: Mistral's, Anthropic's and Databricks'. The
words of one may be missing, or hidden.
"""
_HOLDERS = ("thinking", "reasoning", "summary", "text")


def texts_of(content: object) -> tuple[object, str | None]:
    """The text of a message, and what it thought, where its content is a list of parts.

    >>> texts_of([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi"}])
    ('Hi', 'Hm.')
    """
    if not isinstance(content, list):
        return content, None
    text, thought = "", ""
    for part in content:
        if isinstance(part, str):
            text += part
        elif isinstance(part, Mapping) and part.get("type") in _THOUGHTS:
            words = next((part[name] for name in _HOLDERS if part.get(name) is not None), "")
            inner, _ = texts_of(words)
            if not isinstance(inner, str):
                return content, None
            thought += inner
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            text += part["text"]
        else:
            return content, None
    return text, thought or None


def whole_number(value: object) -> int | None:
    """A whole number as a server writes it, also as `3.0` or as text; None for anything else.

    >>> whole_number(3), whole_number(3.0), whole_number("3"), whole_number(True), whole_number(-1)
    (3, 3, 3, None, None)
    """
    if type(value) in (float, str) and re.fullmatch(r"[0-9]{1,16}(\.0)?", str(value)):
        value = int(float(str(value)))
    return value if type(value) is int and 0 <= value < _MANY else None


def common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """How many entries the two have in common, from the first on.

    >>> common_prefix("stop", "stick"), common_prefix([1], [1, 2])
    (2, 1)
    """
    return next(
        (
            index
            for index, (left, right) in enumerate(zip(first, second, strict=False))
            if left != right
        ),
        min(len(first), len(second)),
    )
