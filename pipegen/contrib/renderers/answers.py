"""Read the answers of engines; the exceptions are subclasses of those of `renderers`, if that is installed.

>>> PromptTooLongError(prompt_len=10, max_prompt_len=4).error
PromptTooLong(message='the prompt has 10 tokens; the limit is 4', ...)
>>> number(-0.5, "logprobs[0]")
-0.5
>>> number(True, "logprobs[0]")
Traceback (most recent call last):
...
pipegen.contrib.renderers.answers.MalformedGenerateResponseError: Engine response logprobs[0] must be a number.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipegen.core.errors import PromptTooLong

if TYPE_CHECKING:

    class _Overlong(Exception): ...

    class _Malformed(ValueError): ...

else:
    try:
        from renderers.client import MalformedGenerateResponseError as _Malformed, OverlongPromptError as _Overlong
    except ImportError:
        _Overlong, _Malformed = Exception, ValueError

__all__ = ["MalformedGenerateResponseError", "PromptTooLongError", "experts", "ids", "loaded", "malformed", "number", "words_of"]

SENTINEL = -9999.0
"""What servers write for minus infinity and for missing logprobs."""


class PromptTooLongError(_Overlong):
    """The rendered prompt has more tokens than the model takes."""

    def __init__(self, *, prompt_len: int, max_prompt_len: int) -> None:
        self.prompt_len, self.max_prompt_len = prompt_len, max_prompt_len
        Exception.__init__(self, f"Prompt length ({prompt_len}) exceeds maximum context length ({max_prompt_len}).")

    def __reduce__(self) -> Any:
        return functools.partial(type(self), prompt_len=self.prompt_len, max_prompt_len=self.max_prompt_len), ()

    @property
    def error(self) -> PromptTooLong:
        """The error as a record, for a slot."""
        return PromptTooLong(self.prompt_len, self.max_prompt_len)


class MalformedGenerateResponseError(_Malformed):
    """The server's answer violates its protocol; the message names the field."""


def words_of(error: BaseException) -> str:
    """The message of an exception of any client, with the body of its response.

    >>> from types import SimpleNamespace
    >>> error = RuntimeError("Client error '400 Bad Request'")
    >>> error.response = SimpleNamespace(text="The input (3000 tokens) is longer than ...")
    >>> words_of(error)
    "Client error '400 Bad Request' The input (3000 tokens) is longer than ..."
    """
    holder: Any = error
    try:
        body = holder.response.text
    except (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError):  # no response, or one that was not read
        body = ""
    return f"{error} {body}".strip() if isinstance(body, str) else str(error)


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
    """A logprob: finite, and not the sentinel."""
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
    """Routed experts as the server wrote them, with base64 data as a memoryview, as in `renderers`."""
    if isinstance(value, Mapping) and isinstance(value.get("data"), str):
        return {**value, "data": memoryview(value["data"].encode())}
    return value
