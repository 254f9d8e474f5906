"""Messages in the OpenAI chat form, as frozen records, with their images and videos.

>>> message = message_from(
...     {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, "messages[0]"
... )
>>> message.role, message.content[0].text
('user', 'Hi')
>>> message_from({"role": "user", "content": [{"type": "smell"}]}, "messages[0]")
Traceback (most recent call last):
...
pipegen.core.names.InvalidField: messages[0].content[0].type takes 'text', 'image', 'image_url', 'video' or 'video_url', not 'smell'
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Self, cast

from immutabledict import immutabledict

from pipegen.core.names import InvalidField, nearest
from pipegen.records import strict_json
from pipegen.records.fields import mapping, number, record, tuple_of
from pipegen.records.frozen import exact, freeze, plain_list, printed, thaw

_SIZES = ("min_pixels", "max_pixels", "resized_height", "resized_width", "detail")
"""Keys of an image part that set its size in other programs."""
_FRAMES = (*_SIZES, "total_pixels", "fps", "nframes", "min_frames", "max_frames", "num_frames")
"""Keys of a video part that choose its frames in other programs."""
_SOUND = ("audio", "audio_url", "input_audio")
_PARTS = "put it into content, as a part of its own"
_UNREAD: Mapping[str, str] = {
    **dict.fromkeys(("image", "images", "image_url", "video", "videos", "video_url"), _PARTS),
    **dict.fromkeys(("audio", "audios"), "pipegen takes no sound: write it down as text"),
    "function_call": "give it as one of tool_calls",
    "refusal": "give it as content",
}
"""Keys of a message that other programs show the model, and templates do not read."""
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
    unread: Any = dataclasses.field(default=None, compare=False, repr=False)
    """Why it could not be read, in a request that a fallback hands on."""

    def check_all(self) -> None:
        if sum(value is not None for value in (self.path, self.url, self.data)) != 1:
            raise InvalidField("ImageSource takes exactly one of path, url and data")
        self._check_values()

    def _check_values(self) -> None:
        for name, value, kind in (
            ("path", self.path, str),
            ("url", self.url, str),
            ("data", self.data, bytes),
        ):
            if value is not None and not isinstance(value, kind):
                raise InvalidField(
                    f"{type(self).__name__}.{name} takes {kind.__name__}, not"
                    f" {type(value).__name__}"
                )
            if value is not None and type(value) is not kind:
                object.__setattr__(self, name, exact(value))

    @property
    def contents(self) -> tuple[bytes, ...]:
        """The bytes that were read: of the file, or of each frame of a video without one."""
        return () if self.data is None else (self.data,)

    @classmethod
    def of(cls, value: object, where: str = "image") -> ImageSource:
        """A source from a path, a URL, bytes, a `BytesIO`, a PIL image, a source, or `{"bytes",
        "path"}`, as data sets store images. The bytes count where both are set.

        A PIL image is stored losslessly, upright by its EXIF orientation. Raises `InvalidField`
        (which begins with `where`) for anything else, and for a PIL image whose pixels cannot be
        read, such as a truncated file.

        >>> ImageSource.of("https://example.org/a.png").url
        'https://example.org/a.png'
        >>> ImageSource.of("images/a.png").path
        'images/a.png'
        """
        source = cls._of_file(value, where)
        if source is not None:
            return source
        if hasattr(value, "getexif") and hasattr(value, "save"):  # a PIL image
            return cls(data=_losslessly(value, where))
        raise InvalidField(
            f"{where} takes a path, a URL, bytes or a PIL image, not {_kind_of(value)}"
        )

    @classmethod
    def _of_file(cls, value: object, where: str) -> Self | None:
        """The source of a file; None for what names none."""
        if type(value) is cls:
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return cls(data=bytes(value))
        if isinstance(value, io.BytesIO):
            return cls(data=value.getvalue())
        if isinstance(value, os.PathLike):
            return cls(path=os.fspath(value))
        if isinstance(value, str) and value:
            is_url = (
                value.split(":", 1)[0].lower() in ("http", "https", "file", "data") and ":" in value
            )
            return cls(url=value) if is_url else cls(path=value)
        if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"}:
            file = value.get("bytes") if value.get("bytes") is not None else value.get("path")
            if isinstance(file, (str, bytes, bytearray, memoryview, os.PathLike, io.BytesIO)):
                return cls._of_file(file, where)
            raise InvalidField(
                f"{where} takes bytes or a path in its mapping, not {type(file).__name__}"
            )
        return None

    def __repr__(self) -> str:
        """Short and without secrets: no bytes, and URLs as `shown` prints them."""
        name = type(self).__name__
        if self.data is not None:
            return f"{name}(data=<{len(self.data)} bytes>)"
        return (
            f"{name}(path={self.path!r})"
            if self.path is not None
            else f"{name}(url={shown(self.url or '')!r})"
        )


def _kind_of(value: object) -> str:
    """What a value is that names no file, and how to make a source of it."""
    if isinstance(value, str):
        return repr(value)
    advice = array_advice(value)
    if not advice and callable(getattr(value, "read", None)):
        advice = "; pass its path, or what .read() gives"
    return f"{type(value).__name__}{advice}"


def array_advice(value: Any) -> str:
    """How to make a PIL image of an array or a tensor; empty for anything else.

    >>> array_advice([1, 2])
    ''
    """
    kind = f"{type(value).__module__}.{type(value).__name__}"
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return ""
    if kind.startswith("torch."):
        return "; torchvision.transforms.functional.to_pil_image(tensor) makes a PIL image of one"
    floats = "float" in str(value.dtype)
    array = "(array * 255).astype('uint8')" if floats else "array"
    where = " whose values are from 0 to 1" if floats else ""
    return f"; PIL.Image.fromarray({array}) makes a PIL image of one{where}"


def sources_in(
    kind: type[ImageSource], words: str, name: str, value: object
) -> tuple[ImageSource, ...]:
    """A field with images or videos. Raises `ValueError` with what it takes."""
    value = plain_list(value)
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"a list of {words}")
    return tuple(kind.of(source, f"{name}[{index}]") for index, source in enumerate(value))


def _frames(value: object) -> object:
    return sources_in(ImageSource, "images", "frames", value)


@record
class VideoSource(ImageSource):
    """Where a video comes from: exactly one of `path`, `url`, `data` (the bytes of a video file)
    and `frames`, which are images with their `times`. Its sound is not used.

    >>> VideoSource.of({"frames": ["a.png", "b.png"], "times": [0, 0.5]}).times
    (0.0, 0.5)
    """

    frames: Annotated[tuple[ImageSource, ...], _frames] = ()
    """The images, where there is no file. All of them have one size."""
    times: Annotated[tuple[float, ...], tuple_of(number(0))] = ()
    """The time of each of `frames` in seconds, each later than the one before."""
    max_seconds: float | None = None
    """The longest that the video may be, from the `ImagePolicy` under which it was read."""
    max_decoded_pixels: int | None = None
    """The most pixels that are decoded for it, of all frames together, from that policy."""

    def check_all(self) -> None:
        sources = (self.path, self.url, self.data, self.frames or None)
        if sum(value is not None for value in sources) != 1:
            raise InvalidField(
                "VideoSource takes exactly one of path, url, data, and frames with times"
            )
        if len(self.frames) != len(self.times):
            raise InvalidField(
                "VideoSource takes a time for each of its frames, not"
                f" {len(self.times)} times for {len(self.frames)} frames"
            )
        for earlier, later in pairwise(self.times):
            if earlier >= later:
                raise InvalidField(
                    f"VideoSource.times takes rising times, not {later:g} after {earlier:g}"
                )
        self._check_values()

    @property
    def contents(self) -> tuple[bytes, ...]:
        """The bytes that were read: of the file, or of each frame."""
        if not self.frames:
            return () if self.data is None else (self.data,)
        return tuple(piece for frame in self.frames for piece in frame.contents)

    @classmethod
    def of(cls, value: object, where: str = "video") -> VideoSource:
        """A source from a path, a URL, bytes, a source, `{"bytes", "path"}`, or `{"frames",
        "times"}`. Raises `InvalidField` (which begins with `where`) for anything else.

        >>> VideoSource.of("https://example.org/a.mp4").url
        'https://example.org/a.mp4'
        """
        source = cls._of_file(value, where)
        if source is not None:
            return source
        if isinstance(value, Mapping) and value.keys() == {"frames", "times"}:
            return cls(frames=value["frames"], times=value["times"])
        hint = (
            '; images with their times are {"frames": [...], "times": [...]}, in seconds'
            if isinstance(value, (list, tuple, Mapping))
            else ""
        )
        raise InvalidField(
            f"{where} takes a path, a URL or bytes of a video, not"
            f" {type(value).__name__ if hint else _kind_of(value)}{hint}"
        )

    def __repr__(self) -> str:
        return (
            f"VideoSource(frames=<{len(self.frames)} images>)"
            if self.frames
            else ImageSource.__repr__(self)
        )


def numbered(sources: Iterable[ImageSource]) -> Iterator[tuple[int, ImageSource]]:
    """Each source with its number among the images, or among the videos.

    >>> sources = ImageSource(path="a.png"), VideoSource(path="a.mp4"), ImageSource(path="b.png")
    >>> [number for number, _ in numbered(sources)]
    [0, 0, 1]
    """
    counts = {False: 0, True: 0}
    for source in sources:
        is_video = isinstance(source, VideoSource)
        yield counts[is_video], source
        counts[is_video] += 1


_NO_FILE = frozenset({"HSV", "La", "RGBa"})
"""Modes of PIL images that TIFF does not write, or that come back as another one."""


def _losslessly(image: Any, where: str) -> bytes:
    """A PIL image as the bytes of a file, upright."""
    if image.mode in _NO_FILE:
        raise InvalidField(
            f"{where} is a PIL image of mode {image.mode}, which has no file form that is read:"
            ' image.convert("RGB") makes one that has'
        )
    # a first request without such an image loads little
    from pipegen.core.errors import InvalidRequest
    from pipegen.core.foreign_calls import guard
    from pipegen.core.slots import is_ok

    data = guard(
        lambda: _tiff(image), lambda raised: InvalidRequest(raised.words), known=(Exception,)
    )
    if not is_ok(data):
        raise InvalidField(f"{where}: the PIL image cannot be read: {data.failure().message}"[:300])
    return data.unwrap()


def _tiff(image: Any) -> bytes:
    from PIL import Image, ImageOps

    buffer = io.BytesIO()
    upright = ImageOps.exif_transpose(cast("Image.Image", image))
    if upright.mode == "I" and image.format == "PPM":  # Pillow's levels up to 65535
        upright = upright.convert("I;16")
    clear = upright.info.get("transparency")
    if isinstance(clear, tuple) and max(clear) > 255:
        raise ValueError("it has 16 bits and a transparent colour, which Pillow reads as 8 bits")
    if clear is not None and upright.mode.startswith("I;16"):  # alpha has 8 bits
        upright.save(buffer, "PNG")
    else:  # TIFF has no transparent palette entry or level: alpha keeps them
        (upright if clear is None else upright.convert("RGBA")).save(buffer, "TIFF")
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
        self._check_kind(ImageSource)

    def _check_kind(self, kind: type[ImageSource]) -> None:
        if self.source is not None and type(self.source) is not kind:
            name = kind.__name__
            raise InvalidField(
                f"{type(self).__name__}.source takes an {name} ({name}.of makes one), not"
                f" {type(self.source).__name__}".replace("an Video", "a Video")
            )


@record
class VideoPart(ImagePart):
    """A video within a message; `source` is None until the request's `videos` fill it, in order."""

    source: VideoSource | None = None
    """The video; None takes the next one of the request's `videos`."""

    def check_all(self) -> None:
        self._check_kind(VideoSource)


@record
class Message:
    """One turn. `content` is a string or a tuple of parts, as the caller wrote it; `extras` holds
    `tool_calls`, `name` and the like.
    """

    role: str
    """`system`, `developer`, `user`, `assistant` or `tool`."""
    content: str | tuple[TextPart | ImagePart, ...] | None = None
    """Text, or parts of text, images and videos."""
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
        """The message's images and videos, in order."""
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


def _part_from(value: object, where: str) -> TextPart | ImagePart:
    if isinstance(value, (TextPart, ImagePart)):
        return value
    if not isinstance(value, Mapping):
        raise InvalidField(f"{where} takes a mapping with a 'type', not {type(value).__name__}")
    kind = value.get("type")
    _refuse_two(value, kind, where)
    if kind == "text":
        if not isinstance(value.get("text"), str):
            raise InvalidField(
                f"{where}.text takes a string, not {type(value.get('text')).__name__}"
            )
        return TextPart(text=value["text"])
    if kind == "image":
        _refuse_sizes(value, where)
        source = next(
            (value[key] for key in ("image", "url", "path", "data") if value.get(key) is not None),
            None,
        )
        others = [key for key, entry in value.items() if key != "type" and entry is not None]
        if source is None and others:
            raise InvalidField(
                f"{where} takes its image as image, url, path or data, not as {', '.join(map(str, others))}"[
                    :300
                ]
            )
        return ImagePart(
            source=None if source is None else ImageSource.of(source, f"{where}.image")
        )
    if kind == "video":
        return _video_from(value, where)
    if kind in ("image_url", "video_url"):
        source = value.get(kind)
        names = _SIZES if kind == "image_url" else _FRAMES
        _refuse_sizes(value, where, names)
        _refuse_sizes(source if isinstance(source, Mapping) else {}, f"{where}.{kind}", names)
        url = source.get("url") if isinstance(source, Mapping) else source
        if not isinstance(url, str) or not url:
            raise InvalidField(
                f"{where}.{kind}.url takes a string that is not empty, not {type(url).__name__}"
            )
        if kind == "video_url":
            return VideoPart(source=VideoSource.of(url, f"{where}.video_url.url"))
        return ImagePart(source=ImageSource.of(url, f"{where}.image_url.url"))
    if kind in _SOUND:
        raise InvalidField(
            f"{where} is sound, which pipegen does not take: write it down as text, or leave it out"
        )
    raise InvalidField(
        f"{where}.type takes 'text', 'image', 'image_url', 'video' or 'video_url', not"
        f" {printed(kind)}"
    )


_KINDS = ("text", "image", "image_url", "video", "video_url")


def _refuse_two(part: Mapping[str, object], kind: object, where: str) -> None:
    """Refuse a part that also holds what a part of another kind does."""
    for name in _KINDS if kind in _KINDS else ():
        entry = part.get(name)
        # tables fill what only other parts have with nulls
        inner = [*entry.values()] if isinstance(entry, Mapping) else entry
        empty = isinstance(inner, (str, bytes, list, tuple)) and all(one is None for one in inner)
        if name != kind and entry is not None and not empty:
            raise InvalidField(
                f"{where} is a part of the type {kind!r} and has {name} too, which would be lost:"
                f" give the {name} a part of its own, or leave it out"
            )


def _video_from(part: Mapping[str, object], where: str) -> VideoPart:
    _refuse_sizes(part, where, _FRAMES)
    fields = {name: entry for name, entry in part.items() if name != "type" and entry is not None}
    if isinstance(fields.get("video"), (list, tuple)):
        fields["frames"] = fields.pop("video")
    if fields.keys() & {"frames", "times"}:
        return VideoPart(source=VideoSource.of(fields, f"{where}.video"))
    named = [name for name in ("video", "url", "path", "data") if name in fields]
    if fields and not named:
        names = ", ".join(map(str, fields))
        raise InvalidField(
            f"{where} takes its video as video, url, path, data, or frames and times, not as"
            f" {names}"[:300]
        )
    return VideoPart(source=VideoSource.of(fields[named[0]], f"{where}.video") if named else None)


def _refuse_sizes(part: Mapping[str, object], where: str, names: tuple[str, ...] = _SIZES) -> None:
    for name in names:
        if part.get(name) not in (None, "auto"):
            of = (
                "frames of a request's videos in its options (preprocess.fps,"
                " preprocess.max_frames, preprocess.max_video_pixels)"
                if names is _FRAMES
                else "pixel budget of a request's images in its options (preprocess.max_pixels)"
            )
            raise InvalidField(f"{where}.{name} is not supported: set the {of}")


def _content_from(role: str, content: object, where: str) -> Any:
    if isinstance(content, str):
        return exact(content)
    content = plain_list(content)
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


def _refuse_misspelt(message: Mapping[object, object], where: str) -> None:
    """Refuse a message whose content has nearly that name. Its words would be lost."""
    texts = [str(key) for key, entry in message.items() if isinstance(entry, (str, list, tuple))]
    near = nearest("content", [key for key in texts if key not in ("role", "name", "content")], 0.7)
    found = near.removeprefix("; did you mean ").removesuffix("?") or (
        "'text'" if "text" in texts else ""
    )
    if found:
        raise InvalidField(f"{where} has no content, but {found}: name it content")


def message_from(value: object, where: str) -> Message:
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
        near = nearest("role", [key for key in value if key != "role"]) if role is None else ""
        raise InvalidField(
            f"{where}.role takes one of {', '.join(ROLES)}, not {printed(role)}"
            + near.replace("did you mean", "the message has").removesuffix("?")
        )
    if content is None and not value.get("tool_calls"):
        _refuse_misspelt(value, where)
    content = _content_from(role, content, where)
    # tables fill in what a message lacks
    extras = {
        key: entry
        for key, entry in value.items()
        if key not in ("role", "content") and entry is not None
    }
    if not extras:
        return Message(role=role, content=content)
    unread = next((key for key in extras if key in _UNREAD and extras[key] not in ("", [], ())), "")
    if unread:
        raise InvalidField(
            f"{where} has a key {unread!r}, which no chat template reads: {_UNREAD[unread]}"
        )
    try:
        if "tool_calls" in extras:
            extras["tool_calls"] = _calls_from(extras["tool_calls"])
        extras = freeze(extras)
    except ValueError as refusal:
        raise InvalidField(f"{where} takes {refusal}") from None
    return Message(role=role, content=content, extras=extras)


def _calls_from(value: object) -> Any:
    """Tool calls: a list, or what a table has, which is JSON text or a list of JSON texts."""
    value = strict_json.loaded(plain_list(value), list)
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"tool_calls as a list of calls, not {type(value).__name__}")
    return [strict_json.loaded(call, dict) for call in value]


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as plain dicts and lists, as chat templates expect them; an image is `{"type":
    "image"}`, a video `{"type": "video"}`.

    >>> plain_messages([Message(role="user", content="Hi")])
    [{'role': 'user', 'content': 'Hi'}]
    """
    return [
        {
            "role": message.role,
            "content": _plain_content(message.content),
            **(thaw(message.extras) if message.extras else {}),
        }
        for message in messages
    ]


def _plain_content(content: str | tuple[TextPart | ImagePart, ...] | None) -> object:
    if not isinstance(content, tuple):
        return content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "video" if isinstance(part, VideoPart) else "image"}
        for part in content
    ]
