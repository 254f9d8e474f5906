r"""Read JSON objects out of a text, character by character.

The state is immutable, so continuations can be tried. It keeps digests instead of the text, so each
character costs the same.

>>> marks = []
>>> state = JsonState()
>>> for char in 'Two: [{"a": 1, "b": 2}, {"b": 2.0, "\\u0061": 1}]':
...     state, mark = read(state, char)
...     marks += [] if mark is None else [mark]
>>> len(marks), len(set(marks))
(2, 1)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from immutabledict import immutabledict

NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]{1,9}))?")
LITERALS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
ENDERS = '}],"\t\n\r '
"""Characters that can complete the value of a member."""
QUOTE, BRACE, STRUCTURE = frozenset('"'), frozenset("{"), frozenset('{}[]":, \t\r\n')
STRUCTURE_OR_SCALAR = STRUCTURE.union("0123456789+-.eE", *LITERALS)
VALUE_OR_CLOSE, VALUE, NAME_OR_CLOSE, NAME, COLON, COMMA_OR_CLOSE = range(6)


class Open(NamedTuple):
    """An open object or list."""

    outer: Open | None
    is_list: bool
    expected: int
    """What may come next, besides white space."""
    items: int = 0
    """Digest of the list's items."""
    members: Mapping[int, int] = immutabledict()
    """Names and values of the object, as digests; the last member of a name counts."""
    name: int = 0
    """Digest of the current member's name."""
    begun: int = 0
    """The `size` at which it began."""

    @property
    def counts(self) -> bool:
        """Whether it is a list item or an outermost value, and not the value of a member."""
        return self.outer is None or self.outer.is_list


class JsonState(NamedTuple):
    """How far a text has been read."""

    top: Open | None = None
    """The innermost open object or list; None outside JSON."""
    scalar: str = ""
    """The unfinished number, true, false or null."""
    string: int | None = None
    """Digest of the unfinished string; None outside strings."""
    escape: str = ""
    """The unfinished escape sequence."""
    size: int = 0
    """Characters of JSON read, without white space between its parts."""


Step = tuple[JsonState, int | None]


def read(
    reading: JsonState, char: str, keys: Sequence[int] | None = None, min_size: int = 0
) -> Step:
    """The state after one more character, and the digest of the object that this character
    completes, or None.

    Without `keys` an object is complete when it closes. Equal JSON has equal digests, whatever its
    white space, escapes, notation of numbers and order of members. With `keys` (digests of names)
    it is complete when the last of these members is, and its digest is that of their values.
    Reported are list items and outermost objects of at least `min_size` characters. If the text
    stops being JSON, everything open is dropped.
    """
    top, size = reading.top, reading.size
    if reading.string is not None:
        return _in_string(reading, reading.string, char, keys, min_size)
    if top is None:
        return _open(None, char, 0), None
    if char.isalnum() or char in "+-.":
        fits = reading.scalar or top.expected in (VALUE, VALUE_OR_CLOSE)
        return (JsonState(top, reading.scalar + char, size=size + 1) if fits else JsonState()), None
    mark = None
    if reading.scalar:
        value = _scalar(reading.scalar) if char in " \t\r\n,}]" else None
        if value is None:
            return _open(None, char, 0), None
        top, mark = _put(top, value, size, keys, min_size)
        reading = JsonState(top, size=size)
    if char in " \t\r\n":
        return reading, mark
    if char in "}]":
        closed, digest = _close(top, char, size + 1, keys, min_size)
        return closed, mark if digest is None else digest
    return _structure(top, char, size), mark


def _structure(top: Open, char: str, size: int) -> JsonState:
    """The state after a quote, an opener, a comma or a colon; anything else is not JSON."""
    expected = top.expected
    if char == '"' and expected not in (COLON, COMMA_OR_CLOSE):
        return JsonState(top, string=0, size=size + 1)
    if char in "{[" and expected in (VALUE, VALUE_OR_CLOSE):
        return _open(top, char, size)
    if char == "," and expected == COMMA_OR_CLOSE:
        return JsonState(top._replace(expected=VALUE if top.is_list else NAME), size=size + 1)
    if char == ":" and expected == COLON:
        return JsonState(top._replace(expected=VALUE), size=size + 1)
    return _open(None, char, 0)


def _open(outer: Open | None, char: str, size: int) -> JsonState:
    if char == "{":
        return JsonState(
            Open(outer, is_list=False, expected=NAME_OR_CLOSE, begun=size), size=size + 1
        )
    if char == "[":
        return JsonState(
            Open(outer, is_list=True, expected=VALUE_OR_CLOSE, begun=size), size=size + 1
        )
    return JsonState()


def _close(top: Open, char: str, size: int, keys: Sequence[int] | None, min_size: int) -> Step:
    if top.is_list != (char == "]") or top.expected not in (
        COMMA_OR_CLOSE,
        VALUE_OR_CLOSE if top.is_list else NAME_OR_CLOSE,
    ):
        return JsonState(), None
    value = (
        hash(("list", top.items))
        if top.is_list
        else hash(("object", frozenset(top.members.items())))
    )
    mark = (
        value
        if keys is None and not top.is_list and top.counts and size - top.begun >= min_size
        else None
    )
    if top.outer is None:
        return JsonState(), mark
    outer, outer_mark = _put(top.outer, value, size, keys, min_size)
    return JsonState(outer, size=size), outer_mark if mark is None else mark


def _put(
    top: Open, value: int, size: int, keys: Sequence[int] | None, min_size: int
) -> tuple[Open, int | None]:
    """The container with one more value, and the digest of the object if that completes it."""
    if top.is_list:
        return top._replace(expected=COMMA_OR_CLOSE, items=hash((top.items, value))), None
    members = {**top.members, top.name: value}
    is_complete = (
        keys is not None
        and top.counts
        and top.name in keys
        and size - top.begun >= min_size
        and all(key in members for key in keys)
    )
    return top._replace(expected=COMMA_OR_CLOSE, members=members), (
        hash(tuple(members[key] for key in keys)) if is_complete and keys is not None else None
    )


def _in_string(
    reading: JsonState, string: int, char: str, keys: Sequence[int] | None, min_size: int
) -> Step:
    top, escape, size = reading.top, reading.escape, reading.size + 1
    if escape.startswith("\\u"):
        if char in "0123456789abcdefABCDEF":
            done = len(escape) == 5
            string = _longer(string, chr(int(escape[2:] + char, 16))) if done else string
            return (
                JsonState(top, string=string, escape="" if done else escape + char, size=size),
                None,
            )
        string = _longer(string, escape)  # not JSON; taken literally
    elif escape:
        return (
            JsonState(
                top,
                string=string if char == "u" else _longer(string, ESCAPES.get(char, char)),
                escape="\\u" if char == "u" else "",
                size=size,
            ),
            None,
        )
    if char == "\\":
        return JsonState(top, string=string, escape=char, size=size), None
    if char != '"' or top is None:
        return JsonState(top, string=_longer(string, char), size=size), None
    if top.expected in (NAME, NAME_OR_CLOSE):
        return JsonState(
            top._replace(expected=COLON, name=hash(("string", string))), size=size
        ), None
    top, mark = _put(top, hash(("string", string)), size, keys, min_size)
    return JsonState(top, size=size), mark


def _longer(string: int, text: str) -> int:
    """The digest of a string with more text, in UTF-16 units, as escapes are."""
    for char in text:
        unit = ord(char)
        if unit > 0xFFFF:
            string = hash((string, 0xD7C0 + (unit >> 10)))
            unit = 0xDC00 + (unit & 0x3FF)
        string = hash((string, unit))
    return string


def _scalar(text: str) -> int | None:
    """The digest of a number or a literal, or None. Numbers are equal by value: 1, 1.0 and
    10e-1.
    """
    # str(exponent): hash(-1) is hash(-2), so numbers must not be digested as such
    if text in LITERALS:
        return hash(("literal", text))
    match = NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, power = match.groups(default="")
    digits = (whole + fraction).strip("0")
    exponent = (
        int(power or "0")
        - len(fraction)
        + len(whole + fraction)
        - len((whole + fraction).rstrip("0"))
    )
    return hash(("number", sign, digits, str(exponent))) if digits else hash(("number", "0"))


def following(reading: JsonState) -> frozenset[str]:
    """The characters that continue the JSON after `reading`; in a string, `QUOTE`, which ends it.

    >>> sorted(following(read(JsonState(), "{")[0]) - following(JsonState()))
    ['\\t', '\\n', '\\r', ' ', '"', ',', ':', '[', ']', '}']
    """
    if reading.string is not None:
        return QUOTE
    if reading.top is None:
        return BRACE
    return (
        STRUCTURE_OR_SCALAR
        if reading.scalar or reading.top.expected in (VALUE, VALUE_OR_CLOSE)
        else STRUCTURE
    )


def needed(reading: JsonState, keys: Sequence[int] | None) -> str:
    """Characters of which a text must contain one to complete an object that is open after
    `reading`; for `keys` see `read`.

    >>> in_list, in_object = read(JsonState(), "[")[0], read(JsonState(), "{")[0]
    >>> needed(in_list, (digest("a"),)), needed(in_object, (digest("a"),)), needed(in_object, None)
    ('', ':', '}')
    """
    top = reading.top
    if keys is None or top is None:
        return "" if top is None else "}"
    if top.is_list or not top.counts:  # it must close before one around it can be complete
        return "" if top.outer is None else "]" if top.is_list else "}"
    in_value = reading.scalar or top.expected in (VALUE, VALUE_OR_CLOSE)
    if in_value and top.name in keys and all(key in top.members or key == top.name for key in keys):
        return ENDERS
    return ":" if top.outer is None or top.outer.outer is None else ":}"


def digest(name: str) -> int:
    """The digest of a member's name."""
    return hash(("string", _longer(0, name)))
