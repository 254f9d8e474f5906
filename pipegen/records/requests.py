"""Requests: what to generate from, and which image sources may be read for it.

>>> request = TextGenerationRequest(messages=[{"role": "user", "content": "Hi"}])
>>> request.messages[0].content
'Hi'
>>> TextGenerationRequest()
Traceback (most recent call last):
...
pipegen.records.fields.InvalidField: TextGenerationRequest takes exactly one of messages, prompt and prompt_token_ids
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pipegen.records import limits
from pipegen.records.fields import (
    InvalidField,
    boolean,
    integer,
    mapping,
    nearest,
    non_empty_string,
    number,
    path,
    printed,
    record,
    schema_of,
    tuple_of,
    with_schema,
)
from pipegen.records.messages import ImagePart, ImageSource, Message, TextPart, message_from
from pipegen.records.option_names import OTHER_NAMES
from pipegen.records.options import GROUPS, GenerationOptions, option_names

__all__ = ["FIELDS", "GenerationRequest", "ImagePolicy", "RequestPolicy", "TextGenerationRequest", "VlmGenerationRequest", "field_hint"]


def _messages(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ValueError("a list of messages")
    if not value:
        raise ValueError("at least one message")
    return tuple(message_from(message, f"messages[{position}]") for position, message in enumerate(value))


def _images(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ValueError("a list of images")
    return tuple(ImageSource.of(image, f"images[{position}]") for position, image in enumerate(value))


_ids = tuple_of(integer(low=0))


def _token_ids(value: Any) -> Any:
    """As `_ids`, which says what is wrong and where: a prompt may have a hundred thousand ids, so all are looked at together first."""
    if isinstance(value, (tuple, list)) and value and set(map(type, value)) == {int} and min(value) >= 0:
        return tuple(value)
    return _ids(value)


with_schema(_token_ids, schema_of(_ids))

FIELDS = ("id", "messages", "prompt", "prompt_token_ids", "images", "tools", "options")
"""What a request may hold."""


def field_hint(name: str) -> str:
    """What to say of a field that a request does not have.

    >>> field_hint("temperature")
    '; it is an option, and goes into options'
    """
    if name == "images":
        return "; images go into a VlmGenerationRequest"
    if name in GROUPS or name in option_names():
        return "; it is an option, and goes into options"
    if name in OTHER_NAMES:
        return f"; did you mean the option {OTHER_NAMES[name]!r}? It goes into options"
    return nearest(name, FIELDS)


@record
class GenerationRequest:
    """What to generate from: messages, or a plain prompt, or token ids. `id` is the caller's own name for it.

    A plain prompt is completed as it stands, without a chat template. `tools` go to the chat template.
    """

    id: Annotated[str | None, non_empty_string] = None
    messages: Annotated[tuple[Message, ...] | None, _messages] = None
    prompt: str | None = None
    prompt_token_ids: Annotated[tuple[int, ...] | None, _token_ids] = None
    tools: Annotated[tuple[Mapping[str, Any], ...], tuple_of(mapping)] = ()
    options: GenerationOptions | None = None

    if TYPE_CHECKING:  # what may be given is wider than what is kept

        def __init__(
            self,
            *,
            id: str | None = None,
            messages: Sequence[Message | Mapping[str, Any]] | None = None,
            prompt: str | None = None,
            prompt_token_ids: Sequence[int] | None = None,
            tools: Sequence[Mapping[str, Any]] = (),
            options: GenerationOptions | None = None,
        ) -> None: ...

    @staticmethod
    def _hint_for(name: str) -> str:
        return field_hint(name)

    def check_all(self) -> None:
        name = type(self).__name__
        if (self.messages, self.prompt, self.prompt_token_ids).count(None) != 2:
            raise InvalidField(f"{name} takes exactly one of messages, prompt and prompt_token_ids")
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise InvalidField(f"{name}.prompt takes a string, not {printed(self.prompt)}")
        if self.prompt_token_ids is not None and not self.prompt_token_ids:
            raise InvalidField(f"{name}.prompt_token_ids takes at least one token id")
        if self.options is not None and not isinstance(self.options, GenerationOptions):
            raise InvalidField(f"{name}.options takes GenerationOptions, not {type(self.options).__name__}")

    @property
    def sources(self) -> tuple[ImageSource, ...]:
        """The request's images, in message order."""
        return tuple(source for message in self.messages or () for source in message.sources if source is not None)

    def with_sources(self, sources: tuple[ImageSource, ...]) -> GenerationRequest:
        """The same request with its images replaced, in message order."""
        left = iter(sources)
        return dataclasses.replace(self, messages=tuple(_filled(message, left) for message in self.messages or ()))


def _filled(message: Message, sources: Any) -> Message:
    if not message.sources:
        return message
    parts = tuple(ImagePart(source=next(sources)) if isinstance(part, ImagePart) else part for part in message.content or ())
    return dataclasses.replace(message, content=parts)  # type: ignore[arg-type]  # a message with sources has parts


class TextGenerationRequest(GenerationRequest):
    """A request without images."""

    __slots__ = ()

    @property
    def sources(self) -> tuple[ImageSource, ...]:
        """None."""
        return ()

    def check_all(self) -> None:
        GenerationRequest.check_all(self)
        for position, message in enumerate(self.messages or ()):
            if message.sources:
                raise InvalidField(f"messages[{position}].content holds an image: use VlmGenerationRequest")


@record
class VlmGenerationRequest(GenerationRequest):
    """A request with any number of images.

    Images stand in the messages, or in `images`: these fill the messages' empty image parts in order, and where there are none they go before
    the text of the first user turn. `prompt` with images is short for one user turn: the images, then the text.

    >>> VlmGenerationRequest(prompt="What is it?", images=["a.png"]).messages[0].content[0].source
    ImageSource(path='a.png')
    """

    images: Annotated[tuple[ImageSource, ...], _images] = ()

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            id: str | None = None,
            messages: Sequence[Message | Mapping[str, Any]] | None = None,
            prompt: str | None = None,
            prompt_token_ids: Sequence[int] | None = None,
            images: Sequence[Any] = (),
            tools: Sequence[Mapping[str, Any]] = (),
            options: GenerationOptions | None = None,
        ) -> None: ...

    def check_all(self) -> None:
        if self.prompt is not None and self.images and self.messages is None:
            object.__setattr__(self, "messages", (Message(role="user", content=(TextPart(text=self.prompt),)),))
            object.__setattr__(self, "prompt", None)
        GenerationRequest.check_all(self)
        if self.prompt_token_ids is not None and self.images:
            raise InvalidField("VlmGenerationRequest takes images with messages or prompt, not with prompt_token_ids")
        if self.messages is not None:
            object.__setattr__(self, "messages", _place(self.messages, self.images))
            object.__setattr__(self, "images", ())


def _place(messages: tuple[Message, ...], images: tuple[ImageSource, ...]) -> tuple[Message, ...]:
    """Put `images` into the empty image parts, or before the text of the first user turn where there are none."""
    empty = sum(source is None for message in messages for source in message.sources)
    if images and not empty:
        first = next((position for position, message in enumerate(messages) if message.role == "user"), None)
        if first is None:
            raise InvalidField("images take a user message to stand in, or an image part in the messages")
        content = messages[first].content
        parts = (TextPart(text=content),) if isinstance(content, str) else content or ()
        holder = dataclasses.replace(messages[first], content=(*(ImagePart() for _ in images), *parts))
        messages, empty = (*messages[:first], holder, *messages[first + 1 :]), len(images)
    if empty != len(images):
        raise InvalidField(f"the messages leave {empty} image parts open, and images holds {len(images)} images")
    left = iter(images)
    placed = (iter([source if source is not None else next(left) for source in message.sources]) for message in messages)
    return tuple(_filled(message, sources) for message, sources in zip(messages, placed, strict=True))


@record
class ImagePolicy:
    """Which image sources may be read, and how much of them.

    Paths are read everywhere unless `root` names a folder, which then nothing gets out of (neither `..` nor links). `http:` and `https:` are off;
    private addresses stay refused even when they are on, unless their host stands in `allowed_hosts`.
    """

    root: Annotated[str | os.PathLike[str] | None, path] = None
    allow_http: Annotated[bool, boolean] = False
    allowed_hosts: Annotated[tuple[str, ...], tuple_of(non_empty_string)] = ()
    max_bytes: Annotated[int, integer(low=1)] = 64 * 2**20
    max_source_pixels: Annotated[int, integer(low=1)] = 100_000_000
    """Width times height that an image may announce before it is decoded against decompression bombs; an image takes 3 to 12 bytes of memory for each."""
    timeout: Annotated[float, number(above=0)] = 30.0
    """Seconds for one download."""


@record
class RequestPolicy:
    """What a request may ask for: more fails it with `InvalidRequest`, which names the setting here. The numbers stand in `pipegen.records.limits`."""

    allow_templates: Annotated[bool, boolean] = False
    """Whether a request may bring a chat template of its own (`options.chat.template`); the options of the run may in any case."""
    max_samples: Annotated[int, integer(low=1)] = limits.SAMPLES
    max_messages: Annotated[int, integer(low=1)] = limits.MESSAGES
    max_parts: Annotated[int, integer(low=1)] = limits.PARTS
    """Parts of content, of all messages together."""
    max_images: Annotated[int, integer(low=0)] = limits.IMAGES
    max_stops: Annotated[int, integer(low=0)] = limits.STOPS
    """Stop strings and stop token ids together."""
    max_choices: Annotated[int, integer(low=1)] = limits.CHOICES
    """Texts of the option `choice`."""
    max_prompt_bytes: Annotated[int, integer(low=1)] = limits.PROMPT_BYTES
    """Text of the prompt, the messages and the tools in UTF-8, before it is tokenised; four bytes for each given token id."""
    max_option_bytes: Annotated[int, integer(low=1)] = limits.OPTION_BYTES
    """Text of the options in UTF-8: stops, template and its variables, schema, regex and choices together."""
