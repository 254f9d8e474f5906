"""What every engine's answer is read with: JSON, token ids, and logprobs that are numbers for the very tokens.

>>> number(-0.5, "logprobs[0]")
-0.5
>>> number(True, "logprobs[0]")
Traceback (most recent call last):
...
pipegen.contrib.renderers.refusals.MalformedGenerateResponseError: Engine response logprobs[0] must be a number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pipegen.contrib.renderers.refusals import MalformedGenerateResponseError

__all__ = ["experts", "ids", "loaded", "malformed", "number"]

SENTINEL = -9999.0
"""What servers write for minus infinity, and where a logprob is missing: it proves nothing."""


def malformed(message: str) -> MalformedGenerateResponseError:
    """The exception, to be raised."""
    return MalformedGenerateResponseError(f"Engine response {message}.")


def loaded(raw: bytes) -> Any:
    """The JSON in these bytes."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as refusal:
        raise malformed(f"({len(raw)} bytes) must be JSON: {refusal}") from None


def ids(value: Any, name: str) -> list[int]:
    """A list of token ids."""
    if not isinstance(value, list) or any(type(number) is not int or number < 0 for number in value):
        raise malformed(f"{name} must be a list of token ids")
    return value


def number(value: Any, name: str) -> float:
    """A logprob: finite, and not the sentinel. 0.0 is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise malformed(f"{name} must be a number")
    try:
        logprob = float(value)
    except OverflowError:
        raise malformed(f"{name} must be finite") from None
    if not math.isfinite(logprob):
        raise malformed(f"{name} must be finite")
    if logprob <= SENTINEL:
        raise malformed(f"{name} does not contain sampling evidence")
    return logprob


def experts(value: Any) -> Any:
    """Routed experts as the server wrote them, however it spaced and ordered them; their base64 data as a memoryview, as `renderers` gives it."""
    if isinstance(value, Mapping) and isinstance(value.get("data"), str):
        return {**value, "data": memoryview(value["data"].encode())}
    return value
