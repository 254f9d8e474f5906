"""Load the images and videos of a request: afterwards it has their bytes.

>>> from pipegen.records.requests import ImagePolicy, VlmGenerationRequest
>>> request = VlmGenerationRequest(
...     prompt="What is it?", images=["data:text/plain,not%20yet%20looked%20at"]
... )
>>> load_sources(request, ImagePolicy()).unwrap().sources[0].data
b'not yet looked at'
>>> remote = VlmGenerationRequest(
...     prompt="What is it?", images=["https://example.org/a.png?key=secret"]
... )
>>> load_sources(remote, ImagePolicy()).failure().message
'image 0: https://example.org/a.png is not fetched, since allow_http is off'
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import os
import stat
import string
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from returns.result import Failure, Success

from pipegen.core.errors import BadImage, BadVideo, GenerationError
from pipegen.core.foreign_calls import Raised, guard_result
from pipegen.core.slots import Unread, all_of, is_ok
from pipegen.records.messages import ImageSource, VideoSource, numbered, shown

if TYPE_CHECKING:
    from pipegen.core.slots import Slot
    from pipegen.records.requests import GenerationRequest, ImagePolicy


_WHITESPACE = string.whitespace.encode()
_PIECE = 2**16
"""Characters of a data URL that are decoded at a time."""
_SAMPLED = 4096
"""Bytes of each piece of a sample."""


def bad_source(source: ImageSource, index: int, words: str, **more: Any) -> BadImage | BadVideo:
    """The error of an image or a video; `words` follow its kind and its number.

    >>> bad_source(VideoSource(path="a.mp4"), 1, " is not read").message
    'video 1 is not read'
    """
    if isinstance(source, VideoSource):
        return BadVideo(index, message=f"video {index}{words}", **more)
    return BadImage(index, message=f"image {index}{words}", **more)


class SourceRejected(Exception):
    """Why a source is not read, and what to do; `load_sources` turns it into a `BadImage` or a
    `BadVideo`.
    """

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


def load_sources(request: GenerationRequest, policy: ImagePolicy) -> Slot[GenerationRequest]:
    """Read every image and video of the request: each source becomes one with `data`. Equal sources
    are read once. A failure has the request with it, for a fallback: its images from that one on are
    not read, and say why (`ImageSource.unread`).

    With `policy.root`, relative paths start there and nothing outside is read. `max_bytes`, of
    videos `max_video_bytes`, limits files, URLs and data URLs, but not bytes of the caller. Fails
    with `BadImage(index)` or `BadVideo(index)` for the first that is missing, not allowed or too
    large. Messages do not contain credentials or
    the query of a URL.
    """
    loaded: dict[ImageSource, ImageSource] = {}
    for index, source in numbered(request.sources):
        if source in loaded:
            continue
        loaded_source = _loaded(index, source, policy)
        if not is_ok(loaded_source):
            error: Any = loaded_source.failure()
            return Unread(error, partial(_given, request, loaded, error))
        loaded[source] = loaded_source.unwrap()
    return Success(
        request.with_sources(tuple(loaded[source] for source in request.sources))
        if loaded
        else request
    )


def _given(
    request: GenerationRequest, loaded: dict[ImageSource, ImageSource], error: BadImage | BadVideo
) -> GenerationRequest:
    """The request with what was read of its sources."""
    sources = (
        loaded.get(source) or dataclasses.replace(source, unread=error)
        for source in request.sources
    )
    return request.with_sources(tuple(sources))


def _loaded(index: int, source: ImageSource, policy: ImagePolicy) -> Slot[ImageSource]:
    bounds: dict[str, Any] = {"max_pixels": policy.max_source_pixels}
    if isinstance(source, VideoSource):
        bounds |= {
            "max_seconds": policy.max_video_seconds,
            "max_decoded_pixels": policy.max_decoded_pixels,
        }
        if source.frames:
            return _loaded_frames(index, source, policy, bounds)
        policy = dataclasses.replace(policy, max_bytes=policy.max_video_bytes)
    data = guard_result(
        partial(_read_one, index, source, policy), partial(_unread, index, source=source)
    )
    origin = source if source.data is None else source.origin
    return data.map(lambda content: type(source)(data=content, origin=origin, **bounds))


def _loaded_frames(
    index: int, source: VideoSource, policy: ImagePolicy, bounds: dict[str, Any]
) -> Slot[ImageSource]:
    def of_video(error: GenerationError) -> GenerationError:
        message = f"video {index}: frame {error.message.removeprefix('image ')}"
        return BadVideo(index, message=message, hint=error.hint, incident=error.incident)

    frames = all_of(_loaded(place, frame, policy) for place, frame in enumerate(source.frames))
    origin = source.origin or source
    return frames.alt(of_video).map(
        lambda loaded: VideoSource(frames=loaded, times=source.times, origin=origin, **bounds)
    )


def sample_of(source: ImageSource, policy: ImagePolicy) -> bytes:
    """A short stand-in for an image's bytes: their number, and some from their start, middle and
    end. Equal bytes have equal samples, wherever they lie.

    An image at an http address is not fetched, and one that cannot be read has no bytes: the sample
    is what the source says.

    >>> from pipegen.records.requests import ImagePolicy
    >>> sample_of(ImageSource(url="data:,abc"), ImagePolicy()) == sample_of(
    ...     ImageSource(data=b"abc"), ImagePolicy()
    ... )
    True
    >>> sample_of(ImageSource(path="no-such.png"), ImagePolicy())
    b'no-such.png'
    """
    if isinstance(source, VideoSource) and source.frames:
        return b"\0".join(
            [repr(source.times).encode(), *(sample_of(frame, policy) for frame in source.frames)]
        )
    reference = (source.path or source.url or "").encode("utf-8", "surrogatepass")
    sampled = guard_result(
        lambda: Success(_sample(source, policy)),
        partial(_unread, 0, source=source),
        known=(SourceRejected, ValueError),
    )
    return sampled.value_or(reference)


def _sample(source: ImageSource, policy: ImagePolicy) -> bytes:
    path, url = source.path, source.url or ""
    if url and url[:5].lower() != "data:":
        parts = urlsplit(url)
        if parts.scheme != "file":
            raise SourceRejected("only a file is read for a sample")
        path = _path_of(parts)
    if path is not None:
        with _file(path, policy) as file:
            return _pieces(file, os.fstat(file.fileno()).st_size)
    data = _read(source, policy)
    return _pieces(io.BytesIO(data), len(data))


def _pieces(stream: BinaryIO, size: int) -> bytes:
    if size <= 3 * _SAMPLED:
        return b"%d:" % size + stream.read()
    pieces = [b"%d:" % size]
    for start in (0, size // 2, size - _SAMPLED):
        stream.seek(start)
        pieces.append(stream.read(_SAMPLED))
    return b"".join(pieces)


def _read_one(index: int, source: ImageSource, policy: ImagePolicy) -> Slot[bytes]:
    try:
        return Success(_read(source, policy))
    except SourceRejected as refused:
        hint = refused.hint
        if isinstance(source, VideoSource):
            hint = hint.replace("ImagePolicy.max_bytes", "ImagePolicy.max_video_bytes")
        return Failure(bad_source(source, index, f": {refused}", hint=hint))
    except UnicodeError:
        words = ": its address contains lone surrogates, which cannot be encoded"
        return Failure(bad_source(source, index, words))


def _unread(index: int, raised: Raised, source: ImageSource) -> BadImage | BadVideo:
    words = f" cannot be read: {raised.words}"
    return bad_source(source, index, words, incident=raised.incident)


def _read(source: ImageSource, policy: ImagePolicy) -> bytes:
    if source.data is not None:
        return source.data
    if source.path is not None:
        return _read_file(source.path, policy)
    url = source.url or ""
    if url[:5].lower() == "data:":
        return _read_data_url(url, policy)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SourceRejected(f"{shown(url)} is not read") from None
    if parts.scheme == "file":
        return _read_file(_path_of(parts), policy)
    if parts.scheme not in ("http", "https"):
        raise SourceRejected(
            f"{shown(url)} is not a URL of a supported kind", "use http, https, file or data"
        )
    if not policy.allow_http:
        raise SourceRejected(
            f"{shown(url)} is not fetched, since allow_http is off",
            "set ImagePolicy(allow_http=True), or pass the bytes",
        )
    from pipegen.media.download import download

    return download(url, policy)


def _path_of(url: SplitResult) -> str:
    """The path of a `file:` URL (RFC 8089)."""
    if url.netloc.lower() not in ("", "localhost"):
        raise SourceRejected("a file URL names another host", "write file:///absolute/path")
    if url.query or url.fragment:
        raise SourceRejected(
            "a file URL has no query and no fragment",
            "write ? as %3F and # as %23 in a file's name",
        )
    if not url.path.startswith("/"):
        raise SourceRejected("a file URL must have an absolute path", "write file:///absolute/path")
    return os.fsdecode(unquote_to_bytes(url.path))


def _read_data_url(url: str, policy: ImagePolicy) -> bytes:
    """The bytes of a `data:` URL (RFC 2397). The size is checked before decoding."""
    header, comma, body = url.partition(",")
    if not comma:
        raise SourceRejected(
            "a data URL has no comma", "write data:image/png;base64,<the bytes in base64>"
        )
    if not header.lower().endswith(";base64"):
        if len(body) - 2 * body.count("%") > policy.max_bytes:
            raise too_large("a data URL", policy)
        return _unquoted(body)
    digits = len(body) - 2 * body.count("%") - sum(map(body.count, string.whitespace))
    if digits // 4 * 3 - 3 > policy.max_bytes:
        raise too_large("a data URL", policy)
    try:
        data = base64.b64decode(_unquoted(body).translate(None, _WHITESPACE), validate=True)
    except ValueError as raised:  # binascii.Error is one
        raise SourceRejected(
            f"a data URL has bad base64: {raised}",
            "write data:image/png;base64,<the bytes in base64>",
        ) from None
    if len(data) > policy.max_bytes:
        raise too_large("a data URL", policy)
    return data


def _unquoted(text: str) -> bytes:
    """The bytes of a percent-encoded text, a piece at a time: the standard library makes an object
    for each escape.

    >>> _unquoted("a%20%zz%2"), _unquoted("é" * 3 + "%C3%A9") == ("é" * 4).encode()
    (b'a %zz%2', True)
    """
    if "%" not in text:
        return text.encode()
    data, start = bytearray(), 0
    while start < len(text):
        end = start + _PIECE
        # do not cut an escape
        end -= next((back for back in (1, 2) if text[end - back : end - back + 1] == "%"), 0)
        data += unquote_to_bytes(text[start:end])
        start = end
    return bytes(data)


def too_large(name: str, policy: ImagePolicy) -> SourceRejected:
    """Why a source of this name is not read."""
    return SourceRejected(
        f"{name} has more than {policy.max_bytes} bytes",
        "make it smaller, or raise ImagePolicy.max_bytes",
    )


def _read_file(path: str, policy: ImagePolicy) -> bytes:
    with _file(path, policy) as file:
        data = file.read(policy.max_bytes + 1)
    if len(data) > policy.max_bytes:
        raise too_large(_named(path), policy)
    return data


@contextlib.contextmanager
def _file(path: str, policy: ImagePolicy) -> Iterator[BinaryIO]:
    """A regular file, open; what reading it raises is `SourceRejected` too. A device or a pipe
    might never end.
    """
    try:
        real = _confined(path, policy)
        mode = os.stat(real).st_mode
        if stat.S_ISDIR(mode):
            raise SourceRejected(
                f"{_named(path)} is a folder",
                "give the path of an image file; pipegen.images_in(folder) lists those of a folder",
            )
        if not stat.S_ISREG(mode):
            raise SourceRejected(f"{_named(path)} is not a regular file")
        # The file might be swapped before it is opened: do not follow a link, do not wait for a
        # pipe, and check again.
        flags = (
            os.O_RDONLY
            | getattr(os, "O_NOFOLLOW", 0)
            | getattr(os, "O_NONBLOCK", 0)
            | getattr(os, "O_BINARY", 0)
        )
        with os.fdopen(os.open(real, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SourceRejected(f"{_named(path)} is not a regular file")
            if status.st_size > policy.max_bytes:
                raise too_large(_named(path), policy)
            yield file
    except OSError as raised:
        raise SourceRejected(
            f"{_named(path)} cannot be read: {raised.strerror or type(raised).__name__}",
            _advice(path),
        ) from None
    except ValueError as raised:  # a null byte, or characters that a file name cannot have
        raise SourceRejected(f"{_named(path)} is not a path: {raised}", "check the path") from None


def _named(path: str) -> str:
    """The path as messages show it, shortened if it is as long as an image's data.

    >>> _named("a.png"), len(_named("A" * 100_000))
    ("'a.png'", 222)
    """
    return repr(path) if len(path) <= 1000 else f"{path[:200]!r} ({len(path)} characters)"


def _advice(path: str) -> str:
    """What to do about a path that cannot be read, if it looks like something else.

    >>> _advice("s3://bucket/a.png"), _advice("a.png")
    ('supported URLs are http, https, file and data: fetch it yourself, and pass the bytes', 'check the path')
    """
    if "://" in path:
        return (
            "supported URLs are http, https, file and data: fetch it yourself, and pass the bytes"
        )
    return (
        "check the path; pass base64 as a data URL: data:image/png;base64,<the bytes in base64>"
        if len(path) > 1000
        else "check the path"
    )


def _confined(path: str, policy: ImagePolicy) -> str:
    """The path with links and `..` resolved. Raises `SourceRejected` if it leaves `policy.root`."""
    if policy.root is None:
        return os.path.realpath(path)
    root = os.path.realpath(policy.root)
    real = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath((root, real)) != root:
        raise SourceRejected(
            f"{_named(path)} is outside {policy.root!r}",
            "put the image into that folder, or name another one: --image-root DIR,"
            " ImagePolicy(root=DIR)",
        )
    return real
