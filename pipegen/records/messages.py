"""Messages in the OpenAI chat form, as frozen records, with their images.

>>> message = message_from(
...     {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, "messages[0]"
... )
>>> message.role, message.content[0].text
('user', 'Hi')
>>> message_from({"role": "user", "content": [{"type": "smell"}]}, "messages[0]")
Traceback (most recent call last):
...
pipegen.core.names.InvalidField: messages[0].content[0].type takes 'text', 'image' or 'image_url', not 'smell'
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

from immutabledict import immutabledict
from returns.result import Failure

from pipegen.core.border import guard
from pipegen.core.errors import InvalidRequest
from pipegen.records.fields import InvalidField, mapping, record
from pipegen.records.frozen import exact, freeze, printed, thaw

__all__ = [
    "ROLES",
    "ImagePart",
    "ImageSource",
    "Message",
    "TextPart",
    "message_from",
    "plain_messages",
    "shown",
]

_SIZES = ("min_pixels", "max_pixels", "resized_height", "resized_width", "detail")
"""Keys of an image part that set its size in other programs."""
ROLES = ("system", "developer", "user", "assistant", "tool")


@record
class ImageSource:
    """Where an image comes from: exactly one of `path`, `url` (http, https, file or data) and
    `data` (the bytes of an image file).
    """

    path: str | None = None
    """A path of a file."""
    url: str | None = None
    """A `file:`, `data:`, `http:` or `https:` URL."""
    data: bytes | None = None
    """The bytes of the file."""
    max_pixels: int | None = None
    """The most pixels that the image may have, from the `ImagePolicy` under which it was read."""
    origin: ImageSource | None = dataclasses.field(default=None, compare=False, repr=False)
    """The path or URL that `data` was read from."""

    def check_all(self) -> None:
        if sum(value is not None for value in (self.path, self.url, self.data)) != 1:
            raise InvalidField("ImageSource takes exactly one of path, url and data")
        for name, value, kind in (
            ("path", self.path, str),
            ("url", self.url, str),
            ("data", self.data, bytes),
        ):
            if value is not None and not isinstance(value, kind):
                raise InvalidField(
                    f"ImageSource.{name} takes {kind.__name__}, not {type(value).__name__}"
                )
            if value is not None and type(value) is not kind:
                object.__setattr__(self, name, exact(value))

    @classmethod
    def of(cls, value: Any, where: str = "image") -> ImageSource:
        """A source from a path, a URL, bytes, a PIL image, a source, or `{"bytes", "path"}`, as
        data sets store images: the bytes count where both are set.

        A PIL image is stored losslessly, upright by its EXIF orientation. Raises `InvalidField`
        (which begins with `where`) for anything else, and for a PIL image whose pixels cannot be
        read, such as a truncated file.

        >>> ImageSource.of("https://example.org/a.png").url
        'https://example.org/a.png'
        >>> ImageSource.of("images/a.png").path
        'images/a.png'
        """
        if isinstance(value, ImageSource):
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return cls(data=bytes(value))
        if isinstance(value, os.PathLike):
            return cls(path=os.fspath(value))
        if isinstance(value, str) and value:
            is_url = (
                value.split(":", 1)[0].lower() in ("http", "https", "file", "data") and ":" in value
            )
            return cls(url=value) if is_url else cls(path=value)
        if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"}:
            given = value.get("bytes") if value.get("bytes") is not None else value.get("path")
            if isinstance(given, (str, bytes)):
                return cls.of(given, where)
            raise InvalidField(
                f"{where} takes bytes or a path in its mapping, not {type(given).__name__}"
            )
        if hasattr(value, "getexif") and hasattr(value, "save"):  # a PIL image
            return cls(data=_losslessly(value, where))
        raise InvalidField(
            f"{where} takes a path, a URL, bytes or a PIL image, not"
            f" {repr(value) if value == '' else type(value).__name__}"
        )

    def __repr__(self) -> str:
        """Short and without secrets: no bytes, and URLs as `shown` prints them."""
        if self.data is not None:
            return f"ImageSource(data=<{len(self.data)} bytes>)"
        return (
            f"ImageSource(path={self.path!r})"
            if self.path is not None
            else f"ImageSource(url={shown(self.url or '')!r})"
        )


def _losslessly(image: Any, where: str) -> bytes:
    """A PIL image as the bytes of a file, upright."""
    data = guard(
        lambda: _tiff(image), lambda raised: InvalidRequest(raised.words), known=(Exception,)
    )
    if isinstance(data, Failure):
        raise InvalidField(f"{where}: the PIL image cannot be read: {data.failure().message}"[:300])
    return data.unwrap()


def _tiff(image: Any) -> bytes:
    from PIL import Image, ImageOps

    buffer = io.BytesIO()
    upright = ImageOps.exif_transpose(cast("Image.Image", image))
    # TIFF has no transparent palette entry or level: alpha keeps them.
    (upright.convert("RGBA") if "transparency" in upright.info else upright).save(buffer, "TIFF")
    return buffer.getvalue()


@record
class TextPart:
    """A piece of text within a message."""

    text: str
    """The text."""

    def check_all(self) -> None:
        if not isinstance(self.text, str):
            raise InvalidField(f"TextPart.text takes a string, not {type(self.text).__name__}")
        if type(self.text) is not str:
            object.__setattr__(self, "text", exact(self.text))


@record
class ImagePart:
    """An image within a message; `source` is None until the request's `images` fill it, in
    order.
    """

    source: ImageSource | None = None
    """The image; None takes the next one of the request's `images`."""

    def check_all(self) -> None:
        if self.source is not None and not isinstance(self.source, ImageSource):
            raise InvalidField(
                "ImagePart.source takes an ImageSource (ImageSource.of makes one), not"
                f" {type(self.source).__name__}"
            )


@record
class Message:
    """One turn. `content` is a string or a tuple of parts, as the caller wrote it; `extras` holds
    `tool_calls`, `name` and the like.
    """

    role: str
    """`system`, `developer`, `user`, `assistant` or `tool`."""
    content: str | tuple[TextPart | ImagePart, ...] | None = None
    """Text, or parts of text and images."""
    extras: Annotated[Mapping[str, Any], mapping] = immutabledict()
    """Other entries of the message, such as `tool_calls`."""

    def check_all(self) -> None:
        if self.role not in ROLES:
            raise InvalidField(f"role takes one of {', '.join(ROLES)}, not {printed(self.role)}")
        content = _content_from(self.role, self.content, "Message")
        if content is not self.content:
            object.__setattr__(self, "content", content)

    @property
    def sources(self) -> tuple[ImageSource | None, ...]:
        """The message's images, in order."""
        return (
            tuple(part.source for part in self.content if isinstance(part, ImagePart))
            if isinstance(self.content, tuple)
            else ()
        )


def shown(url: str) -> str:
    """The URL as messages show it: without user, password, query and fragment; without the content
    of a data URL.

    >>> (
    ...     shown("https://me:secret@example.org:8080/a.png?key=1#x"),
    ...     shown("data:image/png;base64,AAAA"),
    ... )
    ('https://example.org:8080/a.png', 'a data URL')
    """
    if url[:5].lower() == "data:":
        return "a data URL"
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:  # such as a bracket that is not closed
        return "a malformed URL"
    # An @ in the path may be the end of a password with a slash in it.
    address = (
        f"{parts.scheme}://{parts.hostname}{port}{'' if '@' in parts.path else parts.path}"
        if parts.hostname
        else f"a URL of kind {parts.scheme!r}"
    )
    return address[:200].encode(errors="replace").decode()


def _part_from(value: Any, where: str) -> TextPart | ImagePart:
    if isinstance(value, (TextPart, ImagePart)):
        return value
    if not isinstance(value, Mapping):
        raise InvalidField(f"{where} takes a mapping with a 'type', not {type(value).__name__}")
    kind = value.get("type")
    if kind == "text":
        if not isinstance(value.get("text"), str):
            raise InvalidField(
                f"{where}.text takes a string, not {type(value.get('text')).__name__}"
            )
        return TextPart(text=value["text"])
    if kind == "image":
        _refuse_sizes(value, where)
        given = next(
            (value[key] for key in ("image", "url", "path", "data") if value.get(key) is not None),
            None,
        )
        others = [key for key, entry in value.items() if key != "type" and entry is not None]
        if given is None and others:
            raise InvalidField(
                f"{where} takes its image as image, url, path or data, not as {', '.join(map(str, others))}"[
                    :300
                ]
            )
        return ImagePart(source=None if given is None else ImageSource.of(given, f"{where}.image"))
    if kind == "image_url":
        given = value.get("image_url")
        _refuse_sizes(value, where)
        _refuse_sizes(given if isinstance(given, Mapping) else {}, f"{where}.image_url")
        url = given.get("url") if isinstance(given, Mapping) else given
        if not isinstance(url, str) or not url:
            raise InvalidField(
                f"{where}.image_url.url takes a string that is not empty, not {type(url).__name__}"
            )
        return ImagePart(source=ImageSource.of(url, f"{where}.image_url.url"))
    raise InvalidField(f"{where}.type takes 'text', 'image' or 'image_url', not {printed(kind)}")


def _refuse_sizes(part: Mapping[str, Any], where: str) -> None:
    for name in _SIZES:
        if part.get(name) not in (None, "auto"):
            raise InvalidField(
                f"{where}.{name} is not supported: set the pixel budget of a request's images in"
                " its options (preprocess.max_pixels)"
            )


def _content_from(role: str, content: Any, where: str) -> Any:
    if isinstance(content, str):
        return exact(content)
    if isinstance(content, tuple) and all(
        isinstance(part, (TextPart, ImagePart)) for part in content
    ):
        return content
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return tuple(
            _part_from(part, f"{where}.content[{position}]")
            for position, part in enumerate(content)
        )
    if content is None and role == "assistant":
        return None
    raise InvalidField(
        f"{where}.content takes a string or a list of parts, not"
        f" {'None' if content is None else type(content).__name__}"
    )


def message_from(value: Any, where: str) -> Message:
    """A message from its OpenAI form. Raises `InvalidField`, which begins with the path, such as
    `messages[2].content[0].type`.
    """
    if isinstance(value, Message):
        return value
    if not isinstance(value, Mapping):
        raise InvalidField(
            f"{where} takes a mapping with 'role' and 'content', not {type(value).__name__}"
        )
    role, content = exact(value.get("role")), value.get("content")
    if role not in ROLES:
        raise InvalidField(f"{where}.role takes one of {', '.join(ROLES)}, not {printed(role)}")
    content = _content_from(role, content, where)
    # tables fill in what a message lacks
    extras = {
        key: entry
        for key, entry in value.items()
        if key not in ("role", "content") and entry is not None
    }
    if not extras:
        return Message(role=role, content=content)
    try:
        extras = freeze(extras)
    except ValueError as refusal:
        raise InvalidField(f"{where} takes {refusal}") from None
    return Message(role=role, content=content, extras=extras)


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as plain dicts and lists, as chat templates expect them; an image is `{"type":
    "image"}`.

    >>> plain_messages([Message(role="user", content="Hi")])
    [{'role': 'user', 'content': 'Hi'}]
    """
    return [
        {"role": message.role, "content": _plain_content(message.content), **thaw(message.extras)}
        for message in messages
    ]


def _plain_content(content: str | tuple[TextPart | ImagePart, ...] | None) -> Any:
    if not isinstance(content, tuple):
        return content
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
        for part in content
    ]
