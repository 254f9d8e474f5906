"""What a user is told when a server refuses, or is not there: the type of the error, whether it may
be sent again, and what to do.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.loopback import JsonHandler, Loopback

import pipegen as pg
from pipegen.core.errors import GenerationError

pytest.importorskip("aiohttp")
import aiohttp

from pipegen.backends.http.client import _broken
from pipegen.backends.servers.server_errors import unreachable

HI = {"messages": [{"role": "user", "content": "Hi"}]}


class Refusing(JsonHandler):
    """Serves the model `m`, and answers each request with one status."""

    def do_GET(self) -> None:
        self.send({"object": "list", "data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.body()
        self.server.asked += 1
        self.send(self.server.answer, self.server.status)


@pytest.fixture
def server() -> Iterator[Any]:
    answer = {"error": {"message": "the server's words"}}
    with Loopback(Refusing, status=200, asked=0, answer=answer) as made:
        yield made


def asked(url: str, *, stream: bool = False, **settings: Any) -> GenerationError:
    settings = {"retries": 0, **settings}
    with pg.backends.openai_server("m", base_url=url, api_key="k", **settings) as route:
        if stream:
            done = [*pg.stream(route, [HI])][-1]
            assert isinstance(done, pg.Done)
            return done.slot.failure()
        return pg.run(route, [HI])[0].failure()


STATUSES: list[tuple[int, type[GenerationError], bool, str]] = [
    (301, pg.BackendFailed, False, "base_url"),
    (307, pg.BackendFailed, False, "base_url"),
    (400, pg.InvalidRequest, False, "correct what the message names"),
    (401, pg.BackendFailed, False, "check the key: api_key"),
    (402, pg.BackendFailed, False, "account"),
    (403, pg.BackendFailed, False, "check the key"),
    (
        404,
        pg.InvalidRequest,
        False,
        "check the address (base_url) and the name that the server has for the model",
    ),
    (405, pg.InvalidRequest, False, "check base_url"),
    (407, pg.BackendFailed, False, "proxy"),
    (408, pg.Timeout, True, "send it again, or allow more time"),
    (409, pg.InvalidRequest, False, "contradicts what the server does just now"),
    (410, pg.InvalidRequest, False, "check base_url"),
    (413, pg.InvalidRequest, False, "fewer or smaller images"),
    (414, pg.InvalidRequest, False, "base_url"),
    (415, pg.InvalidRequest, False, "check base_url"),
    (422, pg.InvalidRequest, False, "correct what the message names"),
    (429, pg.RateLimited, True, "send it again later, or lower max_in_flight"),
    (431, pg.InvalidRequest, False, "headers"),
    (500, pg.BackendFailed, True, "see the server's log"),
    (501, pg.BackendFailed, True, "see the server's log"),
    (502, pg.BackendFailed, True, "gateway"),
    (503, pg.RateLimited, True, "send it again later"),
    (504, pg.Timeout, True, "send it again, or allow more time"),
    *((status, pg.BackendFailed, True, "gateway") for status in (520, 521, 523)),
    *((status, pg.Timeout, True, "send it again, or allow more time") for status in (522, 524)),
    (529, pg.RateLimited, True, "send it again later"),
    (599, pg.BackendFailed, True, "see the server's log"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "kind", "retryable", "hint"), STATUSES)
def test_each_status_says_what_to_do(
    status: int, kind: type[GenerationError], retryable: bool, hint: str, stream: bool, server: Any
) -> None:
    server.status = status
    error = asked(server.url, stream=stream)
    assert (type(error), error.retryable) == (kind, retryable)
    assert hint in error.hint
    assert str(status) in error.message
    assert "the server's words" in error.message
    assert "correct the request" not in error.hint
    assert (error.incident, "incident" in error.hint) == ("", False)


def test_a_request_that_a_key_or_an_address_fails_is_sent_once(server: Any) -> None:
    for status in (401, 403, 404, 500):
        server.status, server.asked = status, 0
        asked(server.url, retries=3)
        assert server.asked == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504, 520, 521, 522, 523, 524, 529])
def test_a_request_that_the_server_had_no_room_for_or_a_gateway_lost_is_sent_again(
    status: int, server: Any
) -> None:
    server.status = status
    asked(server.url, retries=1, outage=0)
    assert server.asked == 2


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_where_nothing_listens_the_address_is_to_be_checked() -> None:
    error = asked(f"http://127.0.0.1:{closed_port()}")
    assert (type(error), error.retryable, error.incident) == (pg.BackendFailed, True, "")
    assert "see that a server runs there and that base_url is its address" in error.hint


def test_a_host_that_nobody_knows_is_to_be_checked() -> None:
    error = asked("http://no-such-host.invalid:8000")
    assert (type(error), error.retryable) == (pg.BackendFailed, True)
    assert "check the name of the host in base_url" in error.hint


def test_https_where_http_is_spoken_is_said(server: Any) -> None:
    error = asked(server.url.replace("http:", "https:"), retries=3)
    assert (type(error), error.retryable, server.asked) == (pg.BackendFailed, False, 0)
    assert "may speak http:// and not https://" in error.hint


def test_a_certificate_that_nobody_trusts_is_said() -> None:
    key: Any = aiohttp.client_reqrep.ConnectionKey("h", 443, True, True, None, None, None)
    broken = _broken(
        aiohttp.ClientConnectorCertificateError(key, ValueError("self-signed certificate"))
    )
    error = unreachable("https://h", str(broken), broken.hint, lasting=broken.lasting)
    assert (
        error.retryable,
        "SSL_CERT_FILE" in error.hint,
        "self-signed certificate" in error.message,
    ) == (False, True, True)


def test_a_job_asks_again_once_the_key_is_right(server: Any, tmp_path: Path) -> None:
    answer = {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello"},
                "finish_reason": "stop",
            }
        ],
        "usage": {},
    }
    for status, told, done in ((401, {}, False), (200, answer, True), (200, answer, True)):
        server.status, server.answer = status, told
        with (
            pg.backends.openai_server("m", base_url=server.url) as route,
            pg.job(route, [HI], tmp_path) as running,
        ):
            assert [pg.is_ok(slot) for slot in running] == [done]
    assert server.asked == 2


def test_a_lasting_failure_is_written_and_read_again() -> None:
    for error in (pg.BackendFailed("no key", lasting=True), pg.BackendFailed("died")):
        plain = pg.to_plain(pg.Failure(error))
        assert ("lasting" in plain["error"], pg.from_plain(plain).failure()) == (
            error.lasting,
            error,
        )
