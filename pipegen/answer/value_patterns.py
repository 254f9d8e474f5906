r"""JSON values as patterns for grammars: dates and times (RFC 3339), and numbers within bounds. Dates
and times are checked by them too.

>>> [is_of("date", text) for text in ("2024-02-29", "2023-02-29", "2024-2-9")]
[True, False, False]
>>> [is_of("time", text) for text in ("23:59:60Z", "12:00:60Z", "12:00:00")]
[True, False, False]
>>> is_of("email", "not judged") is None
True
>>> numbers({"type": "integer", "minimum": 1, "maximum": 12})
'(?:[1-9]|1[0-2])'
>>> numbers({"type": "number", "minimum": 0, "exclusiveMaximum": 1})
'(?:0)(?:\\.0{1,15})?|(?:0)\\.[0-9]{0,14}[1-9]0{0,15}'
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_ZEROS, _FRACTION = r"(?:\.0{1,15})?", r"\.[0-9]{0,%d}[1-9]0{0,15}"
_SIZE = 18
"""So many digits a number may have before its point."""
_MOST = 10**_SIZE - 1


def numbers(schema: Mapping[str, Any]) -> str | None:
    """The numbers that a schema of type `integer` or `number` allows; None where they are not
    written so, or there are none. Bounds of `number` have to be whole ones.
    """
    is_whole, given = schema["type"] == "integer", [schema.get(name) for name in BOUNDS]
    known = [bound for bound in given if bound is not None]
    if not is_whole and any(bound % 1 for bound in known):
        return None
    # with more digits a fraction would be rounded to a bound
    digits = 15 - max(map(len, map(str, map(int, known))), default=1)
    is_whole |= digits < 0
    # bounds from above are those from below of the numbers with the other sign
    low, high = _bounds(*given[:2]), _bounds(*(None if one is None else -one for one in given[2:]))
    parts = []
    for sign, (least, open_least), (most, open_most) in (("", low, high), ("-", high, low)):
        found = _whole(max(least, len(sign)), -most)
        parts += [f"{sign}(?:{found}){'' if is_whole else _ZEROS}"] if found else []
        # a number with a fraction is between two whole ones that may be the bounds
        found = _whole(max(open_least, 0), -open_most - 1)
        parts += [f"{sign}(?:{found}){_FRACTION % digits}"] if found and not is_whole else []
    return "|".join(parts) or None


def _bounds(closed: Any, opened: Any) -> tuple[int, int]:
    """The least whole number within the bounds, and the bound itself."""
    least = -_MOST if closed is None else max(-_MOST, math.ceil(closed))
    if opened is None:
        return least, least
    bound = math.floor(opened)
    return max(least, bound + 1), max(least, bound)


def _whole(low: int, high: int) -> str:
    """The whole numbers from one to another."""
    parts: list[str] = []
    while low <= high:
        size = len(str(low))
        if high >= _MOST - 1 and low == 10 ** (size - 1):
            return "|".join((*parts, f"[1-9][0-9]{{{size - 1},{_SIZE - 1}}}"))
        last = min(high, 10**size - 1)
        parts.append(_of_one_size(str(low), str(last)))
        low = last + 1
    return "|".join(parts)


def _of_one_size(low: str, high: str) -> str:
    """The numbers from one to another of as many digits."""
    size, first, last = len(low) - 1, int(low[0]), int(high[0])
    digits = "[0-9]" * size
    if low == high:
        return low
    if first == last:
        return f"{first}{_of_one_size(low[1:], high[1:])}"
    if not low[1:].strip("0") and not high[1:].strip("9"):
        return f"[{first}-{last}]{digits}"
    parts = [f"{first}{_of_one_size(low[1:], '9' * size)}"]
    if last - first > 1:
        parts.append(f"[{first + 1}-{last - 1}]{digits}")
    parts.append(f"{last}{_of_one_size('0' * size, high[1:])}")
    return f"(?:{'|'.join(parts)})"


_LEAP_YEAR = (
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"  # not 1900
)
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_OFFSET = f"[+-]{_HOUR}:[0-5][0-9]"
_PART = "(?:[.][0-9]+)?"
_TIME = f"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9]{_PART}(?:[Zz]|{_OFFSET})|23:59:60{_PART}[Zz])"
PATTERNS: Mapping[str, str] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
}
"""Each allows what RFC 3339 does. Of leap seconds, it allows those that are written in UTC."""
_COMPILED = {name: re.compile(pattern[1:-1]) for name, pattern in PATTERNS.items()}
_LEAP_SECOND = re.compile(f"(.*?)([0-9]{{2}}):([0-9]{{2}}):60({_PART})([+-])({_OFFSET[4:]})")


def is_of(name: str, text: str) -> bool | None:
    """Whether a text has a format; None for a format that is not judged."""
    if name not in _COMPILED:
        return None
    return _COMPILED[name].fullmatch(_in_utc(text)) is not None


def _in_utc(text: str) -> str:
    """A time with a leap second and an offset, as 23:59:60Z where it is that moment.

    >>> _in_utc("00:59:60+01:00"), _in_utc("00:59:60+02:00")
    ('23:59:60Z', '00:59:60+02:00')
    """
    match = _LEAP_SECOND.fullmatch(text)
    if match is None:
        return text
    before, hour, minute, part, sign, offset = match.groups()
    ahead = (int(offset[:2]) * 60 + int(offset[3:])) * (1 if sign == "+" else -1)
    at = int(hour) * 60 + int(minute)
    is_last = at < 24 * 60 and int(minute) < 60 and (at - ahead) % (24 * 60) == 24 * 60 - 1
    return f"{before}23:59:60{part}Z" if is_last else text
