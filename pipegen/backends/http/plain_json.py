"""Plain data as JSON and back: orjson where it says the same as the standard library, and the
standard library where it does not.

Routes to servers need orjson; the pure functions of the wires work without it, to the same effect.

>>> encoded({"ids": (1, 2), "text": "é"}).decode()
'{"ids":[1,2],"text":"é"}'
>>> decoded(b'[18446744073709551615, "a"]')
[18446744073709551615, 'a']
"""

from __future__ import annotations

import functools
import json
from typing import Any


def encoded(value: object) -> bytes:
    """JSON in UTF-8, without spaces. Raises `ValueError` for NaN, infinity and half surrogate
    pairs, and `TypeError` for what is not plain data.
    """
    orjson = _orjson()
    try:
        made: bytes = orjson.dumps(value, default=_plain) if orjson is not None else b"null"
    except TypeError:  # also where only orjson refuses: whole numbers of more than 64 bits
        made = b"null"
    if b"null" not in made:
        return made
    # orjson writes NaN and infinity as null.
    return json.dumps(
        value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
    ).encode()


def decoded(data: bytes) -> object:
    """What the JSON says. Raises as `json.loads` does, which also reads what orjson refuses: NaN,
    half surrogate pairs, a byte order mark.
    """
    orjson = _orjson()
    try:
        return json.loads(data) if orjson is None else orjson.loads(data)
    except json.JSONDecodeError:  # orjson's is one of these
        return json.loads(data)


@functools.cache
def _orjson() -> Any:
    try:
        import orjson
    except ModuleNotFoundError:
        return None
    return orjson


def _plain(value: Any) -> object:
    if isinstance(value, (tuple, frozenset)):
        return list(value)
    return dict(value)
