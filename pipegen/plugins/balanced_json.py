"""Halt a row when its JSON is complete.

>>> plugin = balanced_json()
>>> plugin.feed(plugin.start(), 'Sure: {"a": "}{"} tail')
(ScanState(depth=0, in_string=False, escaped=False, closed=1), 17)
"""

from __future__ import annotations

from typing import NamedTuple

from pipegen.core.names import InvalidField
from pipegen.engines.plugin import Plugin


class ScanState(NamedTuple):
    """Where in its JSON a row is; of constant size."""

    depth: int = 0
    """How many objects and lists are open."""
    in_string: bool = False
    escaped: bool = False
    """The next character is escaped: it does not end a string."""
    closed: int = 0
    """How many outermost values are closed."""


def balanced_json(max_objects: int | None = None) -> Plugin:
    r"""Halt an answer right after its outermost JSON value (object or list) closes.

    With `max_objects=n` the row halts when the n-th outermost value closes, as for JSON Lines;
    nested values are not counted. Text before and between values is ignored, and so are braces in
    strings. A closing brace or bracket of the wrong kind closes the innermost value too. If
    `min_new_tokens` forbids a halt, the next outermost value that closes halts the row. Raises
    `InvalidField` unless `max_objects` is None or an integer of at least 1.

    >>> feed = balanced_json(max_objects=2).feed
    >>> feed(ScanState(), '{"a": 1}\n{"a": ')
    (ScanState(depth=1, in_string=False, escaped=False, closed=1), None)
    >>> feed(ScanState(depth=1, closed=1), "2}\n{")
    (ScanState(depth=1, in_string=False, escaped=False, closed=2), 2)
    """
    if max_objects is not None and (type(max_objects) is not int or max_objects < 1):
        raise InvalidField(
            "balanced_json takes a whole number of at least 1 as max_objects, or None for 1, not"
            f" {max_objects!r}"
        )
    limit = 1 if max_objects is None else max_objects

    def feed(state: ScanState, new_text: str) -> tuple[ScanState, int | None]:
        depth, in_string, escaped, closed = state
        halt = None
        for end, char in enumerate(new_text, start=1):
            if in_string:
                in_string = escaped or char != '"'
                escaped = char == "\\" and not escaped
            elif char in "{[":
                depth += 1
            elif depth and char == '"':
                in_string = True
            elif depth and char in "}]":
                depth -= 1
                closed += not depth
                if not depth and closed >= limit and halt is None:
                    halt = end
        return ScanState(depth, in_string, escaped, closed), halt

    return Plugin(
        name="balanced_json", version=f"max_objects={max_objects}", start=ScanState, feed=feed
    )
