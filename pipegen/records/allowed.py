"""Whether a request asks for no more than the run allows.

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

from collections.abc import Iterator, Mapping
from typing import Any

from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import Slot
from pipegen.records.messages import TextPart
from pipegen.records.options import GenerationOptions
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
    for what, number in _numbers(request.options):
        if number > INTEGER:
            return Failure(InvalidRequest(f"{what} is {_shown(number)}; the limit is {INTEGER}"))
    for what, name, found in _amounts(request):
        limit: int = getattr(policy, name)
        if found > limit:
            return Failure(
                InvalidRequest(
                    f"{what} is {_shown(found)}; the limit is {limit}",
                    hint=f"ask for less, or raise RequestPolicy({name}=...)",
                )
            )
    return Success(request)


def _shown(number: int) -> str:
    # Python does not print thousands of digits
    return str(number) if number < 10**30 else "more than 30 digits long"


def _numbers(options: GenerationOptions | None) -> Iterator[tuple[str, int]]:
    """The integers of the options that engines compute with."""
    if options is None:
        return
    preprocess, stop = options.preprocess, options.stop
    for name in (
        "max_new_tokens",
        "min_new_tokens",
        "max_prompt_tokens",
        "top_k",
        "no_repeat_ngram_size",
    ):
        yield name, getattr(options, name) or 0
    for name in ("min_pixels", "max_pixels"):
        yield name, (getattr(preprocess, name) if preprocess is not None else None) or 0
    yield (
        "the largest of stop_token_ids",
        max((stop.stop_token_ids if stop is not None else None) or (0,)),
    )


def _amounts(request: GenerationRequest) -> Iterator[tuple[str, str, int]]:
    """Each amount that is limited: what it is, the policy's name for its limit, and the amount."""
    messages, options = request.messages or (), request.options
    parts = [
        part
        for message in messages
        if isinstance(message.content, tuple)
        for part in message.content
    ]
    yield "the number of messages", "max_messages", len(messages)
    yield "the number of content parts", "max_parts", len(parts)
    yield "the number of images", "max_images", len(request.sources)
    texts: list[Any] = [
        request.prompt or "",
        *request.tools,
        *(part.text for part in parts if isinstance(part, TextPart)),
    ]
    texts += [
        text
        for message in messages
        for text in (message.content, message.extras)
        if text and not isinstance(text, tuple)
    ]
    yield (
        "the prompt's size in bytes",
        "max_prompt_bytes",
        _bytes(texts) + 4 * len(request.prompt_token_ids or ()),
    )
    if options is None:
        return
    yield "samples", "max_samples", options.samples or 1
    stop, structured, chat = options.stop, options.structured, options.chat
    stops = (stop.stop or (), stop.stop_token_ids or ()) if stop is not None else ((), ())
    yield "the number of stops", "max_stops", sum(map(len, stops))
    choices = (structured.choice or ()) if structured is not None else ()
    yield "the number of choices", "max_choices", len(choices)
    forms = (structured.json_schema, structured.regex) if structured is not None else ()
    own = (chat.template, chat.template_kwargs) if chat is not None else ()
    yield (
        "the options' size in bytes",
        "max_option_bytes",
        _bytes([*stops[0], *choices, *forms, *own]),
    )


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
