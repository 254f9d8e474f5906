"""JSON without surprises: no key twice, no NaN or infinity, no endless nesting, no half characters.

>>> load('{"a": [1, 2.5, null]}')
{'a': [1, 2.5, None]}
>>> load('{"a": 1, "a": 2}')
Traceback (most recent call last):
...
pipegen.records.strict_json.NotStrict: the key 'a' occurs twice
>>> dump({"text": "é", "logprob": float("-inf")})
'{"text": "é", "logprob": "-Infinity"}'
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn

from pipegen.records.frozen import NESTING, thaw

_LINE_ENDS = {"\x7f": "\\u007f", "\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters that some readers take for the end of a line, as JSON escapes (they occur only within
strings).
"""


class NotStrict(ValueError):
    """The text is not strict JSON; the message says why."""


def load(text: str) -> Any:
    """The value of a JSON text. Raises `NotStrict`, which says what is wrong and where.

    >>> load('{"a": NaN}')
    Traceback (most recent call last):
    ...
    pipegen.records.strict_json.NotStrict: NaN is not a number in JSON
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except NotStrict:
        raise
    except json.JSONDecodeError as refusal:
        position = (
            f"line {refusal.lineno} column {refusal.colno}"
            if "\n" in text.strip()
            else f"column {refusal.colno}"
        )
        raise NotStrict(f"{refusal.msg.removesuffix(' at')} at {position}") from None
    except RecursionError:
        raise NotStrict(f"it is nested more than {NESTING} deep") from None
    except ValueError as refusal:  # a whole number with thousands of digits
        raise NotStrict(str(refusal).split(";")[0]) from None
    check_plain(value)
    return value


def floats_hold(text: str) -> bool:
    """Whether floats hold all numbers of a JSON text with a point or an exponent, to the digit.

    >>> floats_hold("[0.1, 1.50, 1e3]"), floats_hold("[0.12345678901234567890]")
    (True, False)
    """
    lost: list[str] = []

    def read(digits: str) -> None:
        if Decimal(digits) != Decimal(repr(float(digits))):
            lost.append(digits)

    json.loads(text, parse_float=read)
    return not lost


def loaded(value: object, kind: type) -> Any:
    """What a JSON text says, where it is a value of this kind; anything else as it is.

    >>> loaded('{"a": 1}', dict), loaded('{"a": 1}', list), loaded(7, dict)
    ({'a': 1}, '{"a": 1}', 7)
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        read = load(value)
    except NotStrict:
        return value
    return read if isinstance(read, kind) else value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value: dict[str, object] = {}
    for key, entry in pairs:
        if key in value:
            raise NotStrict(f"the key {key!r:.200} occurs twice")
        value[key] = entry
    return value


def _no_constant(name: str) -> NoReturn:
    raise NotStrict(f"{name} is not a number in JSON")


def check_plain(value: object) -> None:
    """Raise `NotStrict` for plain data that JSON cannot express, or that is nested too deep.

    >>> check_plain({"a": [float("nan")]})
    Traceback (most recent call last):
    ...
    pipegen.records.strict_json.NotStrict: nan is not a number in JSON
    """
    left = [(value, 1)]
    while left:
        entry, depth = left.pop()
        if isinstance(entry, str):
            _check_text(entry)
        elif isinstance(entry, float) and not math.isfinite(entry):
            raise NotStrict(f"{entry} is not a number in JSON")
        elif isinstance(entry, (dict, list)):
            if depth > NESTING:
                raise NotStrict(f"it is nested more than {NESTING} deep")
            inner = [*entry.keys(), *entry.values()] if isinstance(entry, dict) else entry
            left.extend((part, depth + 1) for part in inner)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as refusal:
        raise NotStrict(f"\\u{ord(text[refusal.start]):04x} is half a character") from None


def plain(value: object) -> Any:
    """Plain data as dicts and lists, with NaN and infinities as strings that `float` reads.

    >>> plain((1, float("nan")))
    [1, 'NaN']
    """
    return thaw(value, finite)


def finite(value: object) -> object:
    """A number as JSON has it: NaN and infinities as strings that `float` reads."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def dump(value: object) -> str:
    """The value as one line of strict JSON; text stays readable. Raises `TypeError` for what is not
    plain data.
    """
    try:
        line = _on_one_line(_encode(value))
        if line.isascii():
            return line
    except ValueError:  # numbers that are not finite
        line = _on_one_line(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))
    try:
        line.encode()
    except UnicodeEncodeError:  # half characters, as in file names that are not UTF-8
        return json.dumps(plain(value), allow_nan=False)
    return line


def _on_one_line(text: str) -> str:
    for character, escape in _LINE_ENDS.items():
        if character in text:  # most often none is: str.translate looks each one up
            text = text.replace(character, escape)
    return text


def _plain_mapping(value: object) -> dict[object, object]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"JSON has no form for a {type(value).__name__}")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain_mapping).encode
