"""The HTTP client: the only file that knows aiohttp. A `Client` belongs to one event loop and keeps its connections open between requests."""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from pipegen.backends.online.wire import WireReply

__all__ = ["Broken", "Client", "Opened"]

MAX_BODY = 2**28
"""The longest answer that is read, in bytes."""
LARGE = 2**18
"""Bytes of a body that is sent by pieces: pictures make some that long."""
CONNECT_SECONDS = 15.0


class Broken(Exception):
    """The connection could not be made, or broke before the answer was whole; the words name no key and no query."""


class Opened:
    """An answer whose body is still coming."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers  # whatever the case of the names

    async def body(self) -> bytes:
        """The whole body. Raises `Broken`."""
        with _TRANSLATED:
            return await _whole(self._response)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes. Raises `Broken`."""
        with _TRANSLATED:
            async for piece in self._response.content.iter_any():
                yield piece


async def _whole(response: Any) -> bytes:
    size = response.content_length
    if size is not None and size <= MAX_BODY:
        whole: bytes = await response.read()
        return whole
    pieces, length = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        length += len(piece)
        if length > MAX_BODY:
            raise Broken(f"the answer is longer than {MAX_BODY} bytes")
    return b"".join(pieces)


class _Translated:
    """aiohttp's errors of a connection, as `Broken`; whatever else it raises is a bug and comes through."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        import aiohttp

        if isinstance(error, (aiohttp.ClientError, ConnectionError)) and not isinstance(error, aiohttp.InvalidURL):
            raise Broken(f"{type(error).__name__}: {error}"[:300]) from error


_TRANSLATED = _Translated()


class Client:
    """A pool of connections. `limit` is how many may be open at once."""

    def __init__(self, limit: int, headers: Mapping[str, str]) -> None:
        import aiohttp
        from aiohttp.payload import BytesPayload

        self._payload = BytesPayload
        # No redirects, cookies or compression: nothing carries the key elsewhere, and an answer is no larger than it says.
        connector = aiohttp.TCPConnector(limit=limit, ttl_dns_cache=300, keepalive_timeout=60)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers={"Accept-Encoding": "identity", **headers}, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )

    @contextlib.asynccontextmanager
    async def open(self, method: str, url: str, body: bytes | None) -> AsyncIterator[Opened]:
        """Send a request; leaving the block before the body has ended closes the connection. Raises `Broken`."""
        with _TRANSLATED:
            response = await self._session.request(method, url, data=self._data(body), allow_redirects=False)
        try:
            yield Opened(response)
        finally:
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def ask(self, method: str, url: str, body: bytes | None) -> WireReply:
        """Send a request and read its whole answer. Raises `Broken`."""
        with _TRANSLATED:
            response = await self._session.request(method, url, data=self._data(body), allow_redirects=False)
            try:
                return WireReply(status=response.status, headers=response.headers, body=await _whole(response))
            finally:
                if not response.content.at_eof():
                    response.close()  # a connection whose body was not read to its end is of no use

    def _data(self, body: bytes | None) -> Any:
        """The body as aiohttp wants it: a large one by pieces, since one write of it all would hold up every other request."""
        if body is None or len(body) > LARGE:
            return body and io.BytesIO(body)
        return self._payload(body)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
