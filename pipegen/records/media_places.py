"""Where the images and videos beside messages go: into open parts and tags, or ahead of the text.

>>> from pipegen.records.messages import ImageSource, Message
>>> turns = (Message(role="user", content="Is <image> like <image>?"),)
>>> sources = tuple(ImageSource(path=path) for path in ("a.png", "b.png"))
>>> placed, _ = place(turns, (), sources, ())
>>> [getattr(part, "text", "an image") for part in placed[0].content]
['Is ', 'an image', ' like ', 'an image', '?']
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pipegen.core.names import InvalidField
from pipegen.records.messages import (
    ImagePart,
    ImageSource,
    Message,
    TextPart,
    VideoPart,
    VideoSource,
)

_KINDS: Mapping[type[ImagePart], str] = {ImagePart: "image", VideoPart: "video"}
TAGS: Mapping[type[ImagePart], str] = {kind: f"<{name}>" for kind, name in _KINDS.items()}
"""The tag that marks the place of an image or a video in a text."""


def place(
    messages: tuple[Message, ...],
    turns: tuple[Message, ...],
    images: tuple[ImageSource, ...],
    videos: tuple[VideoSource, ...],
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The messages and later turns with `images` and `videos` in their places.

    The places of images are the empty image parts and the tags `<image>`, in order. Where there are
    none, they are before the text of the first user turn. A tag without any images is text. So it
    is for videos. Raises `InvalidField` where there are more or fewer places than images.
    """
    media: dict[type[ImagePart], tuple[ImageSource, ...]] = {ImagePart: images, VideoPart: videos}
    tagged = {kind: TAGS[kind] for kind, sources in media.items() if sources}
    tags = Counter(
        {
            kind: sum(text.count(tag) for one in (*messages, *turns) for text in _texts(one))
            for kind, tag in tagged.items()
        }
    )
    sought = {tag: kind for kind, tag in tagged.items() if tags[kind]}
    if sought:
        messages = tuple(_opened(message, sought) for message in messages)
        turns = tuple(_opened(turn, sought) for turn in turns)
    empty = Counter(
        type(part)
        for message in (*messages, *turns)
        for part in _parts(message)
        if isinstance(part, ImagePart) and part.source is None
    )
    ahead = [kind() for kind, sources in media.items() if not empty[kind] for _ in sources]
    if ahead:
        messages = _ahead(messages, ahead)
        empty.update(map(type, ahead))
    for kind, name in _KINDS.items():
        if empty[kind] != len(media[kind]):
            raise InvalidField(_mismatch(name, empty[kind], tags[kind], len(media[kind])))
    left = {kind: iter(sources) for kind, sources in media.items()}
    done = [
        filled(
            message,
            iter(
                [
                    part.source if part.source is not None else next(left[type(part)])
                    for part in _parts(message)
                    if isinstance(part, ImagePart)
                ]
            ),
        )
        for message in (*messages, *turns)
    ]
    return tuple(done[: len(messages)]), tuple(done[len(messages) :])


def filled(message: Message, sources: Iterator[Any]) -> Message:
    """The message with its images and videos replaced by the next of these."""
    if not message.sources:
        return message
    parts = tuple(
        type(part)(source=next(sources)) if isinstance(part, ImagePart) else part
        for part in message.content or ()
    )
    # a message with sources has parts
    return dataclasses.replace(message, content=parts)  # type: ignore[arg-type]


def _parts(message: Message) -> tuple[TextPart | ImagePart, ...]:
    return message.content if isinstance(message.content, tuple) else ()


def _texts(message: Message) -> list[str]:
    if isinstance(message.content, str):
        return [message.content]
    return [part.text for part in _parts(message) if isinstance(part, TextPart)]


def _opened(message: Message, tags: Mapping[str, type[ImagePart]]) -> Message:
    """The message with an empty part in the place of each tag."""
    if not any(tag in text for text in _texts(message) for tag in tags):
        return message
    pattern = re.compile(f"({'|'.join(map(re.escape, tags))})")
    content = message.content
    parts = (TextPart(text=content),) if isinstance(content, str) else _parts(message)
    opened: list[TextPart | ImagePart] = []
    for part in parts:
        if isinstance(part, ImagePart):
            opened.append(part)
            continue
        opened += [
            tags[piece]() if piece in tags else TextPart(text=piece)
            for piece in pattern.split(part.text)
            if piece
        ]
    return dataclasses.replace(message, content=tuple(opened))


def _ahead(messages: tuple[Message, ...], parts: list[ImagePart]) -> tuple[Message, ...]:
    """The messages with empty parts before the text of the first user turn."""
    first = next(
        (position for position, message in enumerate(messages) if message.role == "user"), None
    )
    if first is None:
        raise InvalidField(
            "images and videos take a user message, or a part of their own in the messages"
        )
    content = messages[first].content
    written = (TextPart(text=content),) if isinstance(content, str) else content or ()
    holder = dataclasses.replace(messages[first], content=(*parts, *written))
    return (*messages[:first], holder, *messages[first + 1 :])


def _mismatch(name: str, places: int, tags: int, sources: int) -> str:
    holds = f"{name}s holds {sources} {name}{'s' * (sources != 1)}"
    if not tags:
        return f"the messages leave {places} {name} parts open, and {holds}"
    parts = f" and leave {places - tags} parts open" if places > tags else ""
    return (
        f"the messages hold {tags} tag{'s' * (tags != 1)} <{name}>{parts}, and {holds}: give one"
        f" {name} for each, or put the {name}s into parts of content, where a tag is text"
    )
