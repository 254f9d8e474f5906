"""Read the answers of engines; the exceptions are subclasses of those of `renderers`, if that is
installed.

>>> PromptTooLongError(prompt_len=10, max_prompt_len=4).error
PromptTooLong(message='the prompt has 10 tokens; the limit is 4', ...)
>>> taken(ids_of([1, 2], "token_ids"))
(1, 2)
>>> taken(ids_of([True], "token_ids"))
Traceback (most recent call last):
...
pipegen.contrib.renderers.renderer_answers.MalformedGenerateResponseError: Engine response: token_ids[0] is True, not a token id.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pipegen.backends.servers.reading import ids_of
from pipegen.backends.servers.wire import Facts, ServerRequest, Wire, WireRequest
from pipegen.contrib.renderers.renderer_engine import Completion, TokenPrompt
from pipegen.core.errors import PromptTooLong
from pipegen.core.functional import without_none
from pipegen.core.slots import Slot, is_ok
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve

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

T = TypeVar("T")
OPTIONS = resolve(GenerationOptions(logprobs=True))
"""What is asked of every engine; the sampling parameters are the caller's own."""


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


def request_of(
    wire: Wire,
    prompt: TokenPrompt,
    token_ids: Sequence[int],
    params: Mapping[str, object],
    rid: str = "",
    **more: object,
) -> WireRequest:
    """The request that the wire of an engine makes, with these sampling parameters and fields."""
    extra = without_none({"cache_salt": prompt.cache_salt, "priority": prompt.priority})
    request = ServerRequest(
        model=prompt.model,
        token_ids=tuple(token_ids),
        options=OPTIONS,
        params=params,
        rid=rid,
        extra_body={**extra, **more},
    )
    return taken(wire.to_wire(request, Facts()))


def items_of(listed: Any, prompt: TokenPrompt, holder: str) -> list[Mapping[str, Any]]:
    """The completions of an answer: as many objects as were asked."""
    count = prompt.sampling_params.get("n") or 1
    objects = isinstance(listed, list) and all(isinstance(item, Mapping) for item in listed)
    if not objects or len(listed) != count:
        raise malformed(f"{holder} must be a list of {count}")
    return list(listed)


def completion(wire: Wire, answer: object, facts: Any) -> Completion:
    """The one completion of an answer, as the wire of its engine reads it.

    facts: what holds the reports that `renderers` alone reads.
    """
    (read,) = taken(wire.from_wire(answer, ServerRequest(options=OPTIONS)))
    return Completion(
        token_ids=list(read.token_ids or ()),
        logprobs=[token.logprob for token in read.logprobs or ()],
        finish_reason=read.finish,
        routed_experts=experts(facts.get("routed_experts")),
        sampling_mask=facts.get("sampling_mask"),
    )


def ids(value: object, name: str) -> list[int]:
    """A list of token ids."""
    return list(taken(ids_of(value, name)))


def experts(value: object) -> object:
    """Routed experts as the server wrote them, with base64 data as a memoryview, as in
    `renderers`.
    """
    if isinstance(value, Mapping) and isinstance(value.get("data"), str):
        return {**value, "data": memoryview(value["data"].encode())}
    return value
