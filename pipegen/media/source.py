"""Loading images: the effect at the edge. Afterwards a request holds bytes, and everything that follows is pure.

>>> from pipegen.records.requests import ImagePolicy, VlmGenerationRequest
>>> request = VlmGenerationRequest(prompt="What is it?", images=["data:text/plain,not%20yet%20looked%20at"])
>>> load_sources(request, ImagePolicy()).unwrap().sources[0].data
b'not yet looked at'
>>> remote = VlmGenerationRequest(prompt="What is it?", images=["https://example.org/a.png?key=secret"])
>>> load_sources(remote, ImagePolicy()).failure().message
'image 0: https://example.org/a.png is not fetched, since allow_http is off'
"""

from __future__ import annotations

import base64
import os
import stat
import string
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from returns.result import Failure, Success

from pipegen.core.border import Raised, guard_slot
from pipegen.core.errors import BadImage
from pipegen.records.messages import ImageSource, shown

if TYPE_CHECKING:
    from pipegen.core.slots import Slot
    from pipegen.records.requests import GenerationRequest, ImagePolicy

__all__ = ["SourceRejected", "load_sources"]


_WHITESPACE = string.whitespace.encode()
_PIECE = 2**16
"""Characters of a data URL that are decoded at a time."""


class SourceRejected(Exception):
    """A source is not read; the words say why, and what to do. It does not leave `load_sources`, which makes a `BadImage` of it."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


def load_sources(request: GenerationRequest, policy: ImagePolicy) -> Slot[GenerationRequest]:
    """Read every image of the request: each source becomes `ImageSource(data=...)`, in message order. The same source is read once.

    With `policy.root`, relative paths start there and nothing outside is read. `max_bytes` bounds what is read, whether from a file, a URL or a data
    URL; bytes that the caller holds already are taken as they are. Only whether bytes can be had is settled here, not whether they are an image.
    Fails with `BadImage(index)` for the first image that is not there, not allowed or too large. Messages hold no credentials and no query of a URL.
    """
    loaded: dict[ImageSource, ImageSource] = {}
    for index, source in enumerate(request.sources):
        if source in loaded:
            continue
        data = guard_slot(partial(_read_one, index, source, policy), partial(_unread, index))
        if not isinstance(data, Success):
            return Failure(data.failure())
        loaded[source] = ImageSource(data=data.unwrap(), max_pixels=policy.max_source_pixels)
    return Success(request.with_sources(tuple(loaded[source] for source in request.sources)) if loaded else request)


def _read_one(index: int, source: ImageSource, policy: ImagePolicy) -> Slot[bytes]:
    try:
        return Success(source.data if source.data is not None else _read(source, policy))
    except SourceRejected as refused:
        return Failure(BadImage(index, message=f"image {index}: {refused}", hint=refused.hint))
    except UnicodeError:
        return Failure(BadImage(index, message=f"image {index}: its address holds characters that have no bytes (lone surrogates)"))


def _unread(index: int, raised: Raised) -> BadImage:
    return BadImage(index, message=f"image {index} cannot be read: {raised.words}", incident=raised.incident)


def _read(source: ImageSource, policy: ImagePolicy) -> bytes:
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
        raise SourceRejected(f"{shown(url)} is no URL of a kind that is read", "use http, https, file or data")
    if not policy.allow_http:
        raise SourceRejected(f"{shown(url)} is not fetched, since allow_http is off", "set ImagePolicy(allow_http=True), or pass the bytes")
    from pipegen.media.download import download

    return download(url, policy)


def _path_of(url: SplitResult) -> str:
    """The path of a `file:` URL (RFC 8089)."""
    if url.netloc.lower() not in ("", "localhost"):
        raise SourceRejected("a file URL names another host", "write file:///absolute/path")
    if url.query or url.fragment:
        raise SourceRejected("a file URL has no query and no fragment", "write ? as %3F and # as %23 in a file's name")
    if not url.path.startswith("/"):
        raise SourceRejected("a file URL holds an absolute path", "write file:///absolute/path")
    return os.fsdecode(unquote_to_bytes(url.path))


def _read_data_url(url: str, policy: ImagePolicy) -> bytes:
    """The bytes of a `data:` URL (RFC 2397); its size is checked before it is decoded."""
    header, comma, body = url.partition(",")
    if not comma:
        raise SourceRejected("a data URL holds no comma", "write data:image/png;base64,<the bytes in base64>")
    if not header.lower().endswith(";base64"):
        if len(body) - 2 * body.count("%") > policy.max_bytes:
            raise _too_large("a data URL", policy)
        return _unquoted(body)
    digits = len(body) - 2 * body.count("%") - sum(map(body.count, string.whitespace))
    if digits // 4 * 3 - 3 > policy.max_bytes:
        raise _too_large("a data URL", policy)
    try:
        data = base64.b64decode(_unquoted(body).translate(None, _WHITESPACE), validate=True)
    except ValueError as raised:  # binascii.Error is one
        raise SourceRejected(f"a data URL holds bad base64: {raised}", "write data:image/png;base64,<the bytes in base64>") from None
    if len(data) > policy.max_bytes:
        raise _too_large("a data URL", policy)
    return data


def _unquoted(text: str) -> bytes:
    """The bytes of a text with `%41` and the like, a piece at a time: the standard library makes an object of each of them.

    >>> _unquoted("a%20%zz%2"), _unquoted("é" * 3 + "%C3%A9") == ("é" * 4).encode()
    (b'a %zz%2', True)
    """
    if "%" not in text:
        return text.encode()
    data, start = bytearray(), 0
    while start < len(text):
        end = start + _PIECE
        end -= next((back for back in (1, 2) if text[end - back : end - back + 1] == "%"), 0)  # an escape stays whole
        data += unquote_to_bytes(text[start:end])
        start = end
    return bytes(data)


def _too_large(what: str, policy: ImagePolicy) -> SourceRejected:
    return SourceRejected(f"{what} holds more than {policy.max_bytes} bytes", "make it smaller, or raise ImagePolicy.max_bytes")


def _read_file(path: str, policy: ImagePolicy) -> bytes:
    """The bytes of a regular file. Only regular files are opened: a device or a pipe might never end."""
    try:
        real = _confined(path, policy)
        mode = os.stat(real).st_mode
        if stat.S_ISDIR(mode):
            raise SourceRejected(f"{_named(path)} is a folder", "give the path of an image file; pipegen.images_in(folder) lists those of a folder")
        if not stat.S_ISREG(mode):
            raise SourceRejected(f"{_named(path)} is no regular file")
        # Between the look and the opening somebody might swap the file: no following of a link, no waiting for a pipe, and a second look.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(real, flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise SourceRejected(f"{_named(path)} is no regular file")
            if found.st_size > policy.max_bytes:
                raise _too_large(_named(path), policy)
            data = file.read(policy.max_bytes + 1)
    except OSError as raised:
        raise SourceRejected(f"{_named(path)} cannot be read: {raised.strerror or type(raised).__name__}", _advice(path)) from None
    except ValueError as raised:  # a null byte, or characters that no file name can hold
        raise SourceRejected(f"{_named(path)} is no path: {raised}", "check the path") from None
    if len(data) > policy.max_bytes:
        raise _too_large(_named(path), policy)
    return data


def _named(path: str) -> str:
    """The path as messages show it: what was meant for bytes may be as long as an image.

    >>> _named("a.png"), len(_named("A" * 100_000))
    ("'a.png'", 222)
    """
    return repr(path) if len(path) <= 1000 else f"{path[:200]!r} ({len(path)} characters)"


def _advice(path: str) -> str:
    """What to do about a path without a file that can be read, where it looks like something else.

    >>> _advice("s3://bucket/a.png"), _advice("a.png")
    ('URLs are read of the kinds http, https, file and data: fetch it yourself, and pass the bytes', 'check the path')
    """
    if "://" in path:
        return "URLs are read of the kinds http, https, file and data: fetch it yourself, and pass the bytes"
    return "check the path; base64 goes into a data URL: data:image/png;base64,<the bytes in base64>" if len(path) > 1000 else "check the path"


def _confined(path: str, policy: ImagePolicy) -> str:
    """The path with links and `..` resolved. Raises `SourceRejected` where it leaves `policy.root`."""
    if policy.root is None:
        return os.path.realpath(path)
    root = os.path.realpath(policy.root)
    real = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath((root, real)) != root:
        raise SourceRejected(f"{_named(path)} lies outside {policy.root!r}", "put the image inside ImagePolicy.root")
    return real
