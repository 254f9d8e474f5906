r"""Numbers within bounds, as a regular expression.

>>> numbers({"type": "integer", "minimum": 1, "maximum": 12})
'[1-9]|1[0-2]'
>>> numbers({"type": "number", "minimum": 0, "exclusiveMaximum": 1})
'0(?:\\.[0-9]{1,15})?'
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["either", "numbers"]

_FRACTION = r"(?:\.[0-9]{1,15})?"
_DIGITS = 18
"""So many digits a number without a bound has before its point."""
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


class _Bound(NamedTuple):
    at: int
    is_open: bool = False
    """Whether the bound itself is left out."""


def numbers(schema: Mapping[str, Any]) -> str | None:
    """The numbers that a schema of type `integer` or `number` allows; None where they are not
    written so, or there are none. Bounds of `number` have to be whole ones.
    """
    whole = schema["type"] == "integer"
    given = {name: schema[name] for name in _BOUNDS if name in schema}
    if "multipleOf" in schema or not all(_is_bound(one, whole=whole) for one in given.values()):
        return None
    # bounds from above are those of the numbers with the other sign
    below = _tightest(given.get("minimum"), given.get("exclusiveMinimum"), whole=whole)
    above = _tightest(
        *(None if name not in given else -given[name] for name in _BOUNDS[2:]), whole=whole
    )
    fraction = "" if whole else _FRACTION
    found = _signed(below, None if above is None else _turned(above), fraction, _Bound(0))
    minus = _signed(above, None if below is None else _turned(below), fraction, _Bound(0, True))
    parts = [*found, *([f"-(?:{'|'.join(minus)})"] if minus else ())]
    return "|".join(parts) or None


def _is_bound(bound: Any, *, whole: bool) -> bool:
    is_number = isinstance(bound, (int, float)) and not isinstance(bound, bool)
    return is_number and math.isfinite(bound) and (whole or bound == int(bound))


def _tightest(closed: Any, opened: Any, *, whole: bool) -> _Bound | None:
    """The bound from below; None where every number of so many digits is above it."""
    bounds = [] if closed is None else [_Bound(math.ceil(closed))]
    if opened is not None:
        bounds.append(_Bound(math.floor(opened) + 1) if whole else _Bound(int(opened), True))
    bound = max(bounds, default=None)
    return None if bound is None or bound.at <= -(10**_DIGITS) else bound


def _turned(bound: _Bound) -> _Bound:
    return bound._replace(at=-bound.at)


def _signed(low: _Bound | None, high: _Bound | None, fraction: str, least: _Bound) -> list[str]:
    """The numbers from `least` on within these bounds, without a sign."""
    low = least if low is None else max(low, least)
    if high is not None and high.at < low.at:
        return []
    first = low.at + low.is_open
    last = None if high is None else high.at - bool(fraction)
    parts = []
    if last is None or first <= last:
        parts.append(either(_whole(first, last)) + fraction if fraction else _whole(first, last))
    if fraction and low.is_open and (high is None or low.at < high.at):
        parts.append(rf"{low.at}\.[0-9]{{0,14}}[1-9]")
    if fraction and high is not None and not high.is_open and first <= high.at:
        parts.append(str(high.at))
    return parts


def _whole(low: int, high: int | None) -> str:
    """The whole numbers from one to another."""
    if high is None:
        size = len(str(low))
        longer = f"[1-9][0-9]{{{size},{max(size, _DIGITS - 1)}}}"
        return f"{_whole(low, 10**size - 1)}|{longer}"
    parts = []
    while low <= high:
        last = min(high, 10 ** len(str(low)) - 1)
        parts.append(_of_one_size(str(low), str(last)))
        low = last + 1
    return "|".join(parts)


def _of_one_size(low: str, high: str) -> str:
    """The numbers from one to another of as many digits."""
    if not low or low == high:
        return low
    size = len(low) - 1
    if low[0] == high[0]:
        return low[0] + either(_of_one_size(low[1:], high[1:]))
    first, last, parts = int(low[0]), int(high[0]), []
    if low[1:].strip("0"):
        parts.append(low[0] + either(_of_one_size(low[1:], "9" * size)))
        first += 1
    if high[1:].strip("9"):
        parts.append(high[0] + either(_of_one_size("0" * size, high[1:])))
        last -= 1
    if first <= last:
        digits = f"[{first}-{last}]" if first < last else str(first)
        parts.append(digits + {0: "", 1: "[0-9]"}.get(size, f"[0-9]{{{size}}}"))
    return "|".join(parts)


def either(regex: str) -> str:
    """The alternatives as one part of a regular expression."""
    return f"(?:{regex})" if "|" in regex else regex
