"""The exceptions of the renderer-driven client; subclasses of those of `renderers`, if that is installed.

>>> PromptTooLongError(prompt_len=10, max_prompt_len=4).error
PromptTooLong(message='the prompt has 10 tokens; the limit is 4', ...)
"""

from __future__ import annotations

import functools
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

__all__ = ["MalformedGenerateResponseError", "PromptTooLongError", "words_of"]


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
