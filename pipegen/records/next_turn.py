"""The request that goes on with a conversation: what `result.then(...)` gives.

>>> from pipegen.records.options import resolve
>>> from pipegen.records.requests import TextGenerationRequest
>>> from pipegen.records.results import Finish, GenerationResult, Turn
>>> first = GenerationResult(
...     text="Four.",
...     raw_text="Four.",
...     prompt_token_ids=(1, 2),
...     token_ids=(3,),
...     finish=Finish.EOS,
...     options=resolve(),
...     turn=Turn(request=TextGenerationRequest(messages=[{"role": "user", "content": "2 + 2?"}])),
... )
>>> second = next_turn(first, "And 3 + 3?")
>>> [message.content for message in second.messages], second.continues.before
(['2 + 2?', 'Four.', 'And 3 + 3?'], (1, 2, 3))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipegen.core.names import InvalidField
from pipegen.core.slots import is_ok
from pipegen.records.continues import Continues, History, text_crc32
from pipegen.records.frozen import printed, thaw
from pipegen.records.messages import (
    ImagePart,
    ImageSource,
    Message,
    TextPart,
    message_from,
    plain_messages,
)
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import merge, options_from
from pipegen.records.requests import (
    GenerationRequest,
    ScoringRequest,
    TextGenerationRequest,
    VlmGenerationRequest,
)
from pipegen.records.rollouts import runs_of

if TYPE_CHECKING:
    from pipegen.records.results import GenerationResult


Words = str | Mapping[str, Any] | Message | Sequence[Mapping[str, Any] | Message]


def next_turn(
    result: GenerationResult,
    new_messages: Words,
    *,
    images: Sequence[object] = (),
    history: History = "kept",
    options: GenerationOptions | Mapping[str, object] | None = None,
    continuation: str | Sequence[int] | None = None,
    request: GenerationRequest | Mapping[str, object] | None = None,
) -> GenerationRequest:
    """The request that continues the conversation of a result; see `GenerationResult.then`."""
    if request is not None and result.turn is None and len(result.rounds) > 1:
        raise InvalidField(
            f"this result has {len(result.rounds)} rounds, and was read from a file, which does not"
            " hold the messages between them: continue it in the program that made it, or give all"
            " of its conversation as messages in a new request"
        )
    if request is not None and result.turn is None and result.image_digests:
        raise InvalidField(
            "this result has images, and was read from a file, which does not hold its prompt with"
            " one placeholder for each image: continue it in the program that made it, or from its"
            " job (pg.job), or give all of its conversation as messages in a new request"
        )
    last_request = None if result.turn is None else result.turn.request
    first = last_request if request is None else _record(request)
    if first is None:
        raise InvalidField(
            "this result does not hold its conversation, as one read from a file does not: give"
            " its request too, result.then(..., request=request)"
        )
    if not first.messages:
        raise InvalidField(
            "then continues a conversation, and this result's request has no messages: ask with"
            " messages, also for one user turn; what comes after a plain prompt or ids is given by"
            ' its ids: {"prompt_token_ids": [*result.prompt_token_ids, *result.token_ids, *more]}'
        )
    if isinstance(images, (str, bytes)) or not isinstance(images, Sequence):
        raise InvalidField(f"images takes a list of images, not {type(images).__name__}")
    before = _with_answer(first.messages, result)
    new = _placed(_messages(new_messages), images)
    runs = runs_of(result, None if result.rounds and result.turn else first)
    earlier, run = ((), None) if isinstance(runs, str) else runs
    continues = Continues(
        messages=len(before),
        prompt_token_ids=result.prompt_token_ids or None,
        token_ids=result.token_ids if result.prompt_token_ids else (),
        compact_token_ids=None if result.turn is None else result.turn.compact_token_ids,
        image_digests=result.image_digests,
        history=history,
        render_differs=bool(result.render_differs),
        first=len(first.messages) if first.continues is None else first.continues.first,
        raw_text_crc32=text_crc32(result.raw_text) if result.prompt_token_ids else None,
        sampled=None if run is None else run.places,
        logprobs=None if run is None else run.logprobs,
        logprobs_of="raw" if run is None else run.logprobs_of,
        image_grid_thw=result.image_grid_thw,
        earlier=earlier,
    )
    messages = (*before, *new)
    kind = (
        VlmGenerationRequest
        if any(message.sources for message in messages)
        else TextGenerationRequest
    )
    kept = _of_prompts(first.options)
    if result.options.adapter is not None:
        kept = merge(GenerationOptions(adapter=result.options.adapter), kept)
    fields: dict[str, Any] = {
        "id": first.id,
        "messages": messages,
        "tools": first.tools,
        "options": merge(
            options_from(options) if isinstance(options, Mapping) else options,
            kept,
        ),
        "metadata": first.metadata,
        "continues": continues,
    }
    if continuation is not None:
        return ScoringRequest(continuation=continuation, **fields)
    return kind(**fields)


def transcript_of(result: GenerationResult) -> list[dict[str, Any]]:
    """The conversation as plain messages; see `GenerationResult.transcript`."""
    if result.turn is None:
        if result.written_transcript:
            messages: list[dict[str, Any]] = thaw(result.written_transcript)
            return messages
        raise InvalidField(
            "this result does not hold its conversation, as one read from a file does not: its"
            " messages are those of its request, and result.message"
        )
    request = result.turn.request
    if not request.messages:
        raise InvalidField(
            "a transcript is of messages, and this result's request has none: it has a plain"
            " prompt or ids"
        )
    conversation = _with_answer(request.messages, result)
    return [_with_sources(message) for message in conversation]


def _with_sources(message: Message) -> dict[str, object]:
    """A message as plain data, with the paths and URLs of its images."""
    plain = plain_messages([message])[0]
    for part, written in zip(message.content or (), plain["content"] or (), strict=False):
        source = part.source if isinstance(part, ImagePart) else None
        if source is not None and isinstance(written, dict):
            place = source.path or source.url
            if place is not None and place[:5].lower() != "data:":
                written[written["type"]] = place
    return plain


def _record(request: object) -> GenerationRequest:
    """A request as a record, which may be given as plain data. Raises `InvalidField`."""
    from pipegen.records.parse_request import (
        request_from,  # which needs more than a record of results
    )

    if isinstance(request, GenerationRequest):
        return request
    if not isinstance(request, Mapping):
        raise InvalidField(f"request takes a request or a mapping, not {type(request).__name__}")
    slot = request_from(request)
    if not is_ok(slot):
        raise InvalidField(slot.failure().message)
    return slot.unwrap()


def _with_answer(messages: Sequence[Message], result: GenerationResult) -> tuple[Message, ...]:
    """The messages with the answer; one that continued an assistant's message is a part of it."""
    answer = message_from(result.message, "the answer")
    chat, last = result.options.chat, messages[-1]
    if chat is not None and chat.continue_final_message and last.role == "assistant":
        prefix = last.content if isinstance(last.content, str) else ""
        parts = last.content if isinstance(last.content, tuple) else ()
        content = (*parts, TextPart(text=result.text)) if parts else prefix + result.text
        answer = dataclasses.replace(
            answer, content=content, extras={**last.extras, **answer.extras}
        )
        messages = messages[:-1]
    return (*(map(as_given, messages)), answer)


def as_given(message: Message) -> Message:
    """The message with its images as they were given: a path, not the bytes that it was read to."""
    if not any(source is not None and source.origin for source in message.sources):
        return message
    parts = [
        (
            dataclasses.replace(part, source=part.source.origin)
            if isinstance(part, ImagePart) and part.source is not None and part.source.origin
            else part
        )
        for part in message.content or ()
    ]
    return dataclasses.replace(message, content=tuple(parts))  # type: ignore[arg-type]  # has parts


def _messages(value: Words) -> tuple[Message, ...]:
    if isinstance(value, str):
        return (Message(role="user", content=value),)
    entries = (value,) if isinstance(value, (Mapping, Message)) else value
    if not isinstance(entries, Sequence) or isinstance(entries, bytes) or not entries:
        raise InvalidField(
            f"then takes the words of a user, a message or a list of messages, not {printed(value)}"
        )
    return tuple(message_from(entry, f"messages[{index}]") for index, entry in enumerate(entries))


def _placed(messages: tuple[Message, ...], images: Sequence[object]) -> tuple[Message, ...]:
    """The new messages with their images, by the rule of a `VlmGenerationRequest`."""
    if isinstance(images, (str, bytes, Mapping)):
        raise InvalidField("images takes a list of images")
    sources = [ImageSource.of(image, f"images[{index}]") for index, image in enumerate(images)]
    if not sources and not any(message.sources for message in messages):
        return messages
    return VlmGenerationRequest(messages=messages, images=sources).messages or ()


def _of_prompts(options: GenerationOptions | None) -> GenerationOptions | None:
    """The options that say how prompts are made: the next turn is made as the first. The template
    itself is the run's to give, and how a prompt ends is each turn's.
    """
    if options is None or (options.chat is None and options.preprocess is None):
        return None
    chat = options.chat
    if chat is not None:
        template = None if "{" in (chat.template or "") else chat.template
        chat = dataclasses.replace(
            chat, template=template, add_generation_prompt=None, continue_final_message=None
        )
    return GenerationOptions(
        chat=None if chat == ChatTemplateOptions() else chat, preprocess=options.preprocess
    )
