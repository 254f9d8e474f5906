"""The HTTP client: what of aiohttp's errors is a broken connection, and what comes of a body that
breaks off.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiohttp")


def what_comes_of(error: Exception, *, reading: bool) -> BaseException:
    """What the client raises where aiohttp raises this: as it opens a request, or reads its
    answer.
    """
    from pipegen.backends.http.client import Client, Opened

    async def fails(*_: Any, **__: Any) -> Any:
        raise error

    async def work() -> None:
        if reading:
            await Opened(
                SimpleNamespace(status=200, headers={}, content=SimpleNamespace(readany=fails))
            ).body(10)
        client: Any = Client(1, {})
        await client.close()
        client._session = SimpleNamespace(request=fails)
        await client.open("GET", "http://localhost", None)

    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what the tests see
        asyncio.run(work())
    return caught.value


@pytest.mark.parametrize("reading", [False, True])
def test_errors_of_a_connection_are_translated(reading: bool) -> None:
    import aiohttp
    from aiohttp.http_exceptions import BadHttpMessage

    from pipegen.backends.http.client import Broken

    for error in (
        aiohttp.ClientPayloadError("cut"),
        BadHttpMessage("bad"),
        ConnectionResetError("reset"),
    ):
        seen = what_comes_of(error, reading=reading)
        assert isinstance(seen, Broken)
        assert str(seen).startswith(type(error).__name__)
        assert seen.__cause__ is error


@pytest.mark.parametrize("reading", [False, True])
def test_what_is_a_bug_comes_through(reading: bool) -> None:
    import aiohttp

    for bug in (aiohttp.InvalidURL("x"), KeyError("x")):
        assert what_comes_of(bug, reading=reading) is bug


def test_what_came_of_a_body_that_breaks_off_is_kept() -> None:
    from pipegen.backends.http.client import Broken, Opened

    async def work() -> bytes:
        pieces = iter((b"ab", b"cd"))

        async def readany() -> bytes:
            for piece in pieces:
                return piece
            raise ConnectionResetError

        opened = Opened(
            SimpleNamespace(status=200, headers={}, content=SimpleNamespace(readany=readany))
        )
        with pytest.raises(Broken):
            await opened.body(10)
        return opened.came()

    assert asyncio.run(work()) == b"abcd"
