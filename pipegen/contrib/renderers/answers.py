"""Read the answers of engines; the exceptions are subclasses of those of `renderers`, if that is
installed.

>>> PromptTooLongError(prompt_len=10, max_prompt_len=4).error
PromptTooLong(message='the prompt has 10 tokens; the limit is 4', ...)
>>> taken(ids_of([1, 2], "token_ids"))
(1, 2)
>>> taken(ids_of([True], "token_ids"))
Traceback (most recent call last):
...
pipegen.contrib.renderers.answers.MalformedGenerateResponseError: Engine response: token_ids[0] is True, not a token id.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pipegen.backends.servers.logprobs import Entry, logprobs_of
from pipegen.backends.servers.reading import ids_of
from pipegen.core.errors import PromptTooLong
from pipegen.core.slots import Slot, is_ok

if TYPE_CHECKING:

    class _Overlong(Exception): ...

    class _Malformed(ValueError): ...

else:
    try:
        from renderers.client import (
            MalformedGenerateResponseError as _Malformed,
            OverlongPromptError as _Overlong,
        )
    except ImportError:
        _Overlong, _Malformed = Exception, ValueError

__all__ = [
    "MalformedGenerateResponseError",
    "PromptTooLongError",
    "experts",
    "ids",
    "malformed",
    "noted",
    "taken",
    "words_of",
]

T = TypeVar("T")


class PromptTooLongError(_Overlong):
    """The rendered prompt has more tokens than the model takes."""

    def __init__(self, *, prompt_len: int, max_prompt_len: int) -> None:
        self.prompt_len, self.max_prompt_len = prompt_len, max_prompt_len
        Exception.__init__(
            self, f"Prompt length ({prompt_len}) exceeds maximum context length ({max_prompt_len})."
        )

    def __reduce__(self) -> Any:
        return (
            functools.partial(
                type(self), prompt_len=self.prompt_len, max_prompt_len=self.max_prompt_len
            ),
            (),
        )

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
    except (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError):
        # no response, or one that was not read
        body = ""
    return f"{error} {body}".strip() if isinstance(body, str) else str(error)


def malformed(message: str) -> MalformedGenerateResponseError:
    """The exception, to be raised."""
    return MalformedGenerateResponseError(f"Engine response {message}.")


def taken(slot: Slot[T]) -> T:
    """What was read; raises what is wrong with it."""
    if not is_ok(slot):
        raise MalformedGenerateResponseError(f"Engine response: {slot.failure().message}.")
    return slot.unwrap()


def ids(value: Any, name: str) -> list[int]:
    """A list of token ids."""
    return list(taken(ids_of(value, name)))


def noted(entries: Sequence[Entry], token_ids: Sequence[int]) -> list[float]:
    """The logprob of each of these tokens: finite numbers, of these tokens and of no others."""
    return [one.logprob for one in taken(logprobs_of(entries, token_ids))]


def experts(value: Any) -> Any:
    """Routed experts as the server wrote them, with base64 data as a memoryview, as in
    `renderers`.
    """
    if isinstance(value, Mapping) and isinstance(value.get("data"), str):
        return {**value, "data": memoryview(value["data"].encode())}
    return value
