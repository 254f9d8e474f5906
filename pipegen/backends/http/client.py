"""The HTTP client: the only file that knows aiohttp. A `Client` belongs to one event loop and keeps
its connections open between requests.
"""

from __future__ import annotations

import codecs
import functools
import io
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipegen.backends.servers.wire import ServerRequest


BASE = 2**24
"""The bytes that any answer may have."""
TOKEN, LIKELIEST, EXPERTS = 2**8, 2**8, 2**12
"""The bytes that a token may add to an answer; each of its likeliest others, where logprobs are
asked; and what is reported of its experts, where that is.
"""
EVENT = 2**10
"""The bytes that an event of a stream may have besides: one comes for each token."""
PIXEL = 2**6
"""The bytes that a pixel may take where the server prepares images."""
LONGEST = 2**15
"""Tokens where no length was asked for."""


def most_bytes(request: ServerRequest) -> int:
    """The most bytes that an answer, or one event of a stream, may have."""
    options, reported = (
        request.options,
        (EXPERTS if any("routed_experts" in name for name in request.extra_body) else 0),
    )
    # SGLang reports all tokens that a filter leaves
    kept = options.top_k or 0 if options.logprobs == "processed" else 0
    likeliest = 2 + max(options.top_logprobs or 0, kept)
    token = TOKEN + reported + (LIKELIEST * likeliest if options.logprobs else 0)
    prompt = 2**4 + reported + ((2 + request.scored_top) * LIKELIEST if request.scored else 0)
    pixels = (
        sum(image.width * image.height for image in request.images)
        if request.resized and request.features is None
        else 0
    )
    return (
        BASE
        + (options.max_new_tokens or LONGEST) * token
        + request.prompt_tokens * prompt
        + pixels * PIXEL
    )


def most_bytes_of_stream(request: ServerRequest) -> int:
    """The most bytes that the events of a stream may have in all, where each brings only what is
    new.
    """
    return most_bytes(request) + (request.options.max_new_tokens or LONGEST) * EVENT


LARGE = 2**18
"""Bytes of a body that is sent by pieces: images make some that long."""
ANSWERED = frozenset({200, 201})
"""The statuses of an answer; some gateways say that a request has made one."""
REFUSAL = 2**18
"""Bytes that are read of an answer with another status: its message is at the beginning."""
CONNECT_SECONDS = 15.0


class Broken(Exception):
    """The connection could not be made, or broke before the answer was whole; the words name no key
    and no query.

    `hint` says what to do about it, where the kind of error tells. A `lasting` one comes again
    until a setting is corrected.
    """

    def __init__(self, words: str, hint: str = "", *, lasting: bool = False) -> None:
        super().__init__(words)
        self.hint, self.lasting = hint, lasting


class TooLong(Exception):
    """An answer holds more bytes than one to such a request may have."""


class Upload:
    """The body of a request that is sent by pieces, and let go of as soon as it is sent: many may
    wait for their answers. Then `gone` has its size.
    """

    def __init__(self, data: bytes, gone: Callable[[int], None]) -> None:
        self.data: bytes | None = data
        self.size = len(data)
        self._gone = gone

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body, once."""
        for start in range(0, self.size, LARGE):
            if self.data is None:
                return
            yield self.data[start : start + LARGE]
        self.let_go()

    def let_go(self) -> None:
        """Let go of the body, sent or not."""
        if self.data is not None:
            self.data = None
            self._gone(self.size)


class Unpacked:
    """A body that a proxy has packed on the way, unpacked as it comes: gzip or deflate. Some do so
    unasked.

    >>> import gzip
    >>> packed = gzip.compress(b"an answer")
    >>> unpacked = Unpacked("gzip")
    >>> b"".join(piece for part in (packed[:12], packed[12:]) for piece in unpacked.feed(part))
    b'an answer'
    >>> unpacked.whole
    True
    """

    def __init__(self, encoding: str) -> None:
        encoding = encoding.strip().lower()
        self._stream: Any = None
        self._begun = False
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._stream = zlib.decompressobj(32 + zlib.MAX_WBITS)
        elif encoding not in ("", "identity"):
            raise Broken(
                f"the answer is packed as {encoding!r:.40}, which was not asked for",
                "see what stands between pipegen and the server: it may pack answers as gzip alone",
                lasting=True,
            )

    @property
    def whole(self) -> bool:
        """Whether nothing is missing at the end."""
        return not self._begun or self._stream is None or self._stream.eof

    def feed(self, piece: bytes) -> Iterable[bytes]:
        """What these bytes are, by pieces of at most `LARGE`: a few may stand for very many. Raises
        `Broken`.
        """
        return (piece,) if self._stream is None else self._unpacked(piece)

    def _unpacked(self, piece: bytes) -> Iterator[bytes]:
        self._begun = True
        try:
            while piece:
                made = self._stream.decompress(piece, LARGE)
                piece = self._stream.unconsumed_tail
                if made:
                    yield made
                if self._stream.eof and not piece and self._stream.unused_data:
                    # one after another is one body
                    piece, self._stream = (
                        self._stream.unused_data,
                        zlib.decompressobj(32 + zlib.MAX_WBITS),
                    )
        except zlib.error as error:
            raise Broken(f"the answer is not what it was packed as: {error}") from error


class Opened:
    """An answer whose head has come, and whose body is still coming."""

    __slots__ = ("_came", "_response", "headers", "status")

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers  # whatever the case of the names
        self._came: list[bytes] = []

    async def body(self, most: int) -> bytes:
        """The whole body; of a refusal its beginning. Raises `Broken`, and `TooLong` where it has
        more than `most` bytes.
        """
        answered = self.status in ANSWERED
        most = most if answered else min(most, REFUSAL)
        content, came, length = self._response.content, self._came, 0
        unpacked = Unpacked(self.headers.get("Content-Encoding", ""))
        try:
            while packed := await content.readany():
                for piece in unpacked.feed(packed):
                    came.append(piece)
                    length += len(piece)
                    if length > most and answered:
                        raise TooLong(f"an answer of more than {most} bytes")
                    if length > most:
                        return b"".join(came)
        except _of_connections() as error:
            raise _broken(error) from error
        if not unpacked.whole:
            raise Broken("the packed answer ended before it was whole")
        return b"".join(came)

    def came(self) -> bytes:
        """What has come of a body that broke off."""
        return b"".join(self._came)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes. Raises `Broken`."""
        unpacked = Unpacked(self.headers.get("Content-Encoding", ""))
        try:
            async for packed in self._response.content.iter_any():
                for piece in unpacked.feed(packed):
                    yield piece
        except _of_connections() as error:
            raise _broken(error) from error

    def close(self) -> None:
        """Give the connection back, or close it where the body has not ended: it is of no use
        then.
        """
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


@functools.cache
def _of_connections() -> tuple[type[Exception], ...]:
    """What aiohttp raises for a connection; whatever else it raises is a bug and comes through."""
    import aiohttp
    from aiohttp.http_exceptions import HttpProcessingError

    return aiohttp.ClientError, HttpProcessingError, ConnectionError


def _broken(error: Exception) -> Broken:
    """aiohttp's error as `Broken`. Raises one for an address that is none, which is a bug too."""
    import aiohttp

    if isinstance(error, aiohttp.InvalidURL):
        raise error
    words = f"{type(error).__name__}: {error}"[:300]
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Broken(
            words,
            "check the name of the host in base_url, and that this machine can look it up; the"
            " request can be sent again",
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return Broken(words, _CERTIFICATE, lasting=True)
    if isinstance(error, aiohttp.ClientSSLError):
        return Broken(
            words,
            "check base_url: the server there may speak http:// and not https://",
            lasting=True,
        )
    return Broken(words)


_CERTIFICATE = (
    "check base_url: its certificate is for another name, or of an authority that is not trusted"
    " here. For your own authority, set SSL_CERT_FILE to its file"
)


class Client:
    """A pool of connections. `limit` is how many may be open at once."""

    def __init__(self, limit: int, headers: Mapping[str, str]) -> None:
        import aiohttp
        from aiohttp.payload import BytesPayload

        self._payload = BytesPayload
        # No redirects, cookies or compression: nothing carries the key elsewhere. What is packed
        # all the same is unpacked within the bound of the answer.
        connector = aiohttp.TCPConnector(limit=limit, ttl_dns_cache=300, keepalive_timeout=60)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            headers={"Accept-Encoding": "identity", **headers},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def open(self, method: str, url: str, body: bytes | Upload | None) -> Opened:
        """Send a request, and wait for the head of its answer, which the caller closes. Raises
        `Broken`.
        """
        data: object
        headers = None
        if isinstance(body, Upload):
            # not every server takes a body of unknown length
            data, headers = body.pieces(), {"Content-Length": str(body.size)}
        elif body is None or len(body) > LARGE:
            # one write of a large one would hold up every other request
            data = body and io.BytesIO(body)
        else:
            data = self._payload(body)
        try:
            return Opened(
                await self._session.request(
                    method, url, data=data, headers=headers, allow_redirects=False
                )
            )
        except _of_connections() as error:
            raise _broken(error) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


LINE = 64
"""Bytes that a line of an event takes beside its own."""


class Events:
    """A parser of one stream, whose events have at most `most` bytes each. `done` says that the
    server has closed it with `[DONE]`.
    """

    def __init__(self, most: int = BASE) -> None:
        self.done = False
        self._most = most
        self._begun = False
        self._line = bytearray()
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that are whole with this piece. Raises `TooLong` for one that is too long."""
        out: list[bytes] = []
        start = 0
        while not self.done and (end := piece.find(b"\n", start)) >= 0:
            self._line += piece[start:end]
            line, self._line, start = bytes(self._line).rstrip(b"\r"), bytearray(), end + 1
            if not self._begun:
                line, self._begun = line.removeprefix(codecs.BOM_UTF8), True
            if line.startswith(b"data:"):
                self._data.append(line[5:].lstrip(b" "))
                self._hold(len(line) + LINE)
            elif not line and self._data:
                data, self._data, self._held = b"\n".join(self._data), [], 0
                self.done = data == b"[DONE]"
                if not self.done and data.strip():  # some servers send empty ones now and then
                    out.append(data)
        if not self.done:
            self._line += piece[start:]
            self._hold(0)
        return out

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held + len(self._line) > self._most:
            raise TooLong(f"an event of more than {self._most} bytes")
