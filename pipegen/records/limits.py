"""Whether a request asks for no more than the run allows.

>>> from pipegen.records.option_table import OPTIONS
>>> from pipegen.records.option_records import GenerationOptions
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import Slot
from pipegen.records.messages import TextPart, VideoSource
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import flat_values
from pipegen.records.requests import GenerationRequest, RequestPolicy

Amount: TypeAlias = tuple[str, str, int]
"""An amount that is limited: what it is, the policy's name for its limit (empty for `INTEGER`), and
the amount.
"""
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
    refusal = _excess(_amounts(request), policy)
    if refusal is None and request.options is not None:
        refusal = _excess_of_options(request.options, policy)
    if refusal is not None:
        words, hint = refusal
        return Failure(InvalidRequest(words, hint=hint))
    return Success(request)


def _excess(amounts: Iterable[Amount], policy: RequestPolicy) -> tuple[str, str] | None:
    """The first amount above its limit, in words, and what to do."""
    for what, name, amount in amounts:
        limit: int = getattr(policy, name) if name else INTEGER
        if amount > limit:
            hint = f"ask for less, or raise RequestPolicy({name}=...)" if name else ""
            return f"{what} is {_shown(amount)}; the limit is {limit}", hint
    return None


@functools.lru_cache(maxsize=1024)  # of few distinct options
def _excess_of_options(options: GenerationOptions, policy: RequestPolicy) -> tuple[str, str] | None:
    return _excess(_option_amounts(options), policy)


def _shown(number: int) -> str:
    # Python does not print thousands of digits
    return str(number) if number < 10**30 else "more than 30 digits long"


_COUNTED = {
    "max_samples": "samples",
    "max_stops": "the number of stops",
    "max_choices": "the number of choices",
}
"""The fields of a policy that bound how many an option asks for, each with what it counts."""


def _option_amounts(options: GenerationOptions) -> Iterator[Amount]:
    """Each amount that the rows of the option table limit."""
    limited: dict[str, dict[str, Any]] = {}
    for name, value in flat_values(options).items():
        for limit in OPTIONS[name].row.limits.split() if value is not None else ():
            limited.setdefault(limit, {})[name] = value
    for name, value in limited.get("integer", {}).items():
        whole = type(value) is int
        yield (
            (name, "", value) if whole else (f"the largest of {name}", "", max(value, default=0))
        )
    for limit, what in _COUNTED.items():
        yield what, limit, sum(map(_count, limited.get(limit, {}).values()))
    texts = limited.get("max_option_bytes", {}).values()
    yield "the options' size in bytes", "max_option_bytes", _bytes(texts)


def _amounts(request: GenerationRequest) -> Iterator[Amount]:
    """Each amount of what is to be read."""
    messages = (*(request.messages or ()), *request.turns)
    contents = [message.content for message in messages]
    parts = [part for content in contents if isinstance(content, tuple) for part in content]
    images = [
        len(source.frames) if isinstance(source, VideoSource) and source.frames else 1
        for source in request.sources
    ]
    texts = [
        request.prompt or "",
        *request.tools,
        *contents,
        *[part.text for part in parts if isinstance(part, TextPart)],
        *[message.extras for message in messages if message.extras],
    ]
    ids = 4 * len(request.prompt_token_ids or ())
    yield "the number of messages", "max_messages", len(messages)
    yield "the number of content parts", "max_parts", len(parts)
    yield "the number of images", "max_images", sum(images)
    yield "the prompt's size in bytes", "max_prompt_bytes", _bytes(texts) + ids


def _count(value: int | Sequence[object]) -> int:
    return value if isinstance(value, int) else len(value)


def _bytes(values: Iterable[object]) -> int:
    """The size of all the text in plain data, in UTF-8."""
    size, left = 0, [*values]
    while left:
        value = left.pop()
        if isinstance(value, str):
            size += len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, (tuple, list)):
            left += value
        elif isinstance(value, Mapping):
            left += [*value.keys(), *value.values()]
    return size
