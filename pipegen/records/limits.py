"""Whether a request asks for no more than the run allows.

>>> from pipegen.records.option_table import OPTIONS
>>> from pipegen.records.options import GenerationOptions
>>> from pipegen.records.requests import TextGenerationRequest
>>> allowed(
...     TextGenerationRequest(prompt="a", options=GenerationOptions(samples=10**9)),
...     RequestPolicy(),
...     None,
... ).failure().message
'samples is 1000000000; the limit is 1024'
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import Slot
from pipegen.records.messages import TextPart, VideoSource
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import GenerationOptions, flat_values
from pipegen.records.requests import GenerationRequest, RequestPolicy

__all__ = ["allowed"]

INTEGER = 2**31 - 1
"""The largest whole number of an option: engines keep them in 32 bits."""


def allowed(
    request: GenerationRequest, policy: RequestPolicy, own: GenerationOptions | None
) -> Slot[GenerationRequest]:
    """The request, or `InvalidRequest` if it asks for more than the policy allows. `own` are the
    request's options before those of the run.
    """
    template = own.chat.template if own is not None and own.chat is not None else None
    # without a brace it is the name of a template of the checkpoint
    if template is not None and "{" in template:
        hint = (
            "give the template with the options of the run (--template), or with those of the"
            " route: route.with_options(...)"
        )
        return Failure(
            InvalidRequest(
                "options.chat.template: a request may not have a chat template of its own",
                hint=hint,
            )
        )
    for what, name, amount in _amounts(request):
        if amount > (limit := getattr(policy, name)):
            return Failure(_too_much(what, amount, name, limit))
    try:
        _check_options(request.options, policy)
    except InvalidRequest as refusal:
        return Failure(refusal.with_traceback(None))
    return Success(request)


def _too_much(what: str, amount: int, name: str, limit: int) -> InvalidRequest:
    hint = f"ask for less, or raise RequestPolicy({name}=...)"
    return InvalidRequest(f"{what} is {_shown(amount)}; the limit is {limit}", hint=hint)


def _shown(number: int) -> str:
    # Python does not print thousands of digits
    return str(number) if number < 10**30 else "more than 30 digits long"


_LIMITS = {
    "max_samples": "samples",
    "max_stops": "the number of stops",
    "max_choices": "the number of choices",
    "max_option_bytes": "the options' size in bytes",
}
"""The fields of a policy that bound options, each with what it counts."""


@functools.lru_cache(maxsize=1024)  # of few distinct options; what is refused is not kept
def _check_options(options: GenerationOptions | None, policy: RequestPolicy) -> None:
    """Raise `InvalidRequest` if the options ask for more than their rows of the option table, and
    the policy, allow.
    """
    values = {} if options is None else flat_values(options)
    set_values = {name: value for name, value in values.items() if value is not None}
    for name in _limited("integer", set_values):
        value = set_values[name]
        is_integer = type(value) is int
        what, number = (
            (name, value) if is_integer else (f"the largest of {name}", max(value, default=0))
        )
        if number > INTEGER:
            raise InvalidRequest(f"{what} is {_shown(number)}; the limit is {INTEGER}")
    for limit, what in _LIMITS.items():
        limited_values = [set_values[name] for name in _limited(limit, set_values)]
        amount = _bytes(limited_values) if limit == "max_option_bytes" else _count(limited_values)
        if amount > (most := getattr(policy, limit)):
            raise _too_much(what, amount, limit, most)


def _limited(limit: str, set_values: Mapping[str, Any]) -> list[str]:
    return [name for name in set_values if limit in OPTIONS[name].row.limits.split()]


def _amounts(request: GenerationRequest) -> Iterator[tuple[str, str, int]]:
    """Each amount that is limited: what it is, the policy's name for its limit, and the amount."""
    messages = (*(request.messages or ()), *request.turns)
    parts = [
        part
        for message in messages
        if isinstance(message.content, tuple)
        for part in message.content
    ]
    yield "the number of messages", "max_messages", len(messages)
    yield "the number of content parts", "max_parts", len(parts)
    images = [
        len(source.frames) if isinstance(source, VideoSource) and source.frames else 1
        for source in request.sources
    ]
    yield "the number of images", "max_images", sum(images)
    texts: list[Any] = [request.prompt or "", *request.tools]
    texts += [part.text for part in parts if isinstance(part, TextPart)]
    texts += [message.content for message in messages if isinstance(message.content, str)]
    texts += [message.extras for message in messages if message.extras]
    yield (
        "the prompt's size in bytes",
        "max_prompt_bytes",
        _bytes(texts) + 4 * len(request.prompt_token_ids or ()),
    )


def _count(values: list[Any]) -> int:
    return sum([value if type(value) is int else len(value) for value in values])


def _bytes(values: list[Any]) -> int:
    """The size of all the text in plain data, in UTF-8."""
    size, left = 0, values
    while left:
        value = left.pop()
        if isinstance(value, str):
            size += len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, Mapping):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, (tuple, list)):
            left += value
    return size
