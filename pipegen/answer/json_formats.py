"""What the formats of dates and times allow (RFC 3339), as a pattern for grammars and for a check.

>>> [is_of("date", text) for text in ("2024-02-29", "2023-02-29", "2024-2-9")]
[True, False, False]
>>> [is_of("time", text) for text in ("23:59:60Z", "12:00:60Z", "12:00:00")]
[True, False, False]
>>> is_of("email", "not judged") is None
True
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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
