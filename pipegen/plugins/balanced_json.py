"""Halt a row when its JSON is complete.

>>> plugin = balanced_json()
>>> plugin.feed(plugin.start(), 'Sure: {"a": "}{"} tail')
(ScanState(depth=0, in_string=False, escaped=False, closed=1), 17)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pipegen.engines.plugin import Plugin
from pipegen.records.fields import InvalidField

__all__ = ["ScanState", "balanced_json"]


class ScanState(NamedTuple):
    """Where in its JSON a row is: of constant size, however long or deep the JSON."""

    depth: int = 0
    """Objects and lists that are open."""
    in_string: bool = False
    escaped: bool = False
    """The next character is escaped: it ends no string."""
    closed: int = 0
    """Outermost values that have been closed."""


def balanced_json(max_objects: int | None = None) -> Plugin:
    r"""Halt a row right after its outermost JSON value closes, be it an object or a list; on every engine that can be watched.

    With `max_objects=n` the row halts when the n-th outermost value closes: values one after the other, such as JSON Lines. What is nested in a value is
    not counted, so the text is balanced wherever it ends. What stands before a value, and between two, is passed over: prose, a code fence. Braces
    and brackets in strings do not count, nor do escaped quotes end a string. Any closer closes the innermost open value, even one of the wrong kind:
    the text could not become JSON any more. A halt that `min_new_tokens` forbids is not made up for: the next outermost value to close halts the row.

    Raises `InvalidField` unless `max_objects` is None or a whole number of at least 1. The cost is linear in the text, whatever the chunks.

    >>> feed = balanced_json(max_objects=2).feed
    >>> feed(ScanState(), '{"a": 1}\n{"a": ')
    (ScanState(depth=1, in_string=False, escaped=False, closed=1), None)
    >>> feed(ScanState(depth=1, closed=1), '2}\n{')
    (ScanState(depth=1, in_string=False, escaped=False, closed=2), 2)
    """
    if max_objects is not None and (type(max_objects) is not int or max_objects < 1):
        raise InvalidField(f"balanced_json takes a whole number of at least 1 as max_objects, or None for 1, not {max_objects!r}")
    return Plugin(name="balanced_json", start=ScanState, feed=_feed(1 if max_objects is None else max_objects))


def _feed(wanted: int) -> Callable[[ScanState, str], tuple[ScanState, int | None]]:
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
                if not depth and closed >= wanted and halt is None:
                    halt = end
        return ScanState(depth, in_string, escaped, closed), halt

    return feed
