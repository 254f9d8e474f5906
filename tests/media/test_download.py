"""The download: from a server on this machine, which is a private address and so refused unless
named.
"""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.loading import DATA, load, refusal

from pipegen.media import download
from pipegen.records.requests import ImagePolicy

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Server(http.server.ThreadingHTTPServer):
    """Serves one answer for each path, and keeps the requests that it got."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.got: list[tuple[str, str | None]] = []
        self.over = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.got.append((self.path, self.headers["Host"]))
                outer.answers[self.path.partition("?")[0]](self)

            def log_message(self, format: str, *args: Any) -> None:  # the name is the base class's
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}{path}"


def body(data: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": str(len(data)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.over.set()
    made.shutdown()
    thread.join()
    made.server_close()


ALLOWED = ImagePolicy(allow_http=True, allowed_hosts=("127.0.0.1", "images.test"), timeout=20)


def test_an_allowed_host_is_fetched_from(server: Server) -> None:  # P8
    server.answers["/a b.png"] = server.answers["/a%20b.png"] = body(DATA)
    assert load(server.url("/a b.png?key=1"), policy=ALLOWED) == [DATA]
    assert server.got == [("/a%20b.png?key=1", f"127.0.0.1:{server.server_port}")]


def test_a_private_address_is_refused_even_where_http_is_allowed(server: Server) -> None:  # P8
    error = refusal(server.url("/a"), policy=ImagePolicy(allow_http=True))
    assert "127.0.0.1 has a private or reserved address" in error.message
    assert "allowed_hosts" in error.hint
    assert server.got == []


def test_a_name_is_resolved_once_and_the_checked_address_is_the_one_reached(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    server.answers["/a"] = body(DATA)
    monkeypatch.setattr(
        "pipegen.media.download.socket.getaddrinfo",
        lambda host, *rest, **more: resolve(host, rest[0], **more),
    )
    assert load(server.url("/a", host="images.test"), policy=ALLOWED) == [DATA]
    assert server.got == [("/a", f"images.test:{server.server_port}")]
    # the second is the connection's own look at an address that is a number already
    assert asked == ["images.test", "127.0.0.1"]


def test_a_name_with_one_private_address_among_public_ones_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))
        for address in ("93.184.216.34", "10.0.0.1")
    ]
    monkeypatch.setattr("pipegen.media.download.socket.getaddrinfo", lambda *_, **__: entries)
    assert "private or reserved" in refusal("http://two-faced.test/", policy=ALLOWED).message


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.0.0.1", "127.1.2.3", "169.254.169.254", "172.16.0.1", "192.168.1.1"),
        *("100.64.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1"),
        *("fe80::1%2", "fc00::1", "ff02::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1"),
        *("64:ff9b::a00:1", "2002:7f00:1::", "2001:db8::1"),
    ],
)
def test_no_private_or_reserved_address_is_public(address: str) -> None:
    assert not download.is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8"]
)
def test_ordinary_addresses_are_public(address: str) -> None:
    assert download.is_public(address)


@pytest.mark.parametrize(
    "spelling",
    [
        *("http://2130706433/", "http://0x7f000001/", "http://127.1/"),
        *("http://[::ffff:127.0.0.1]/", "http://localhost/", "http://LOCALHOST/"),
    ],
)
def test_other_spellings_of_this_machine_are_refused(spelling: str) -> None:
    assert "private or reserved" in refusal(spelling, policy=ImagePolicy(allow_http=True)).message


def test_a_redirect_is_followed_and_checked_again(server: Server) -> None:
    server.answers["/a"] = body(b"", 302, Location="/b")
    server.answers["/b"] = body(DATA)
    assert load(server.url("/a"), policy=ALLOWED) == [DATA]
    server.answers["/b"] = body(b"", 302, Location=server.url("/a", host="localhost"))
    assert (
        "localhost has a private or reserved address"
        in refusal(server.url("/a"), policy=ALLOWED).message
    )


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://example.org/", "data:,x"])
def test_a_redirect_to_another_kind_of_url_is_refused(server: Server, target: str) -> None:
    server.answers["/a"] = body(b"", 307, Location=target)
    assert "not an http or https URL" in refusal(server.url("/a"), policy=ALLOWED).message


def test_redirects_are_bounded(server: Server) -> None:
    server.answers["/a"] = body(b"", 301, Location="/a")
    assert "redirects more than 5 times" in refusal(server.url("/a"), policy=ALLOWED).message
    assert len(server.got) == download.MAX_REDIRECTS + 1


def chunked(data: bytes) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))

    return answer


def test_a_download_is_bounded_whether_its_length_is_announced_or_not(server: Server) -> None:
    server.answers["/plain"], server.answers["/chunked"] = body(DATA), chunked(DATA)
    for path in ("/plain", "/chunked"):
        assert load(
            server.url(path),
            policy=ImagePolicy(allow_http=True, allowed_hosts=("127.0.0.1",), max_bytes=len(DATA)),
        ) == [DATA]
        policy = ImagePolicy(allow_http=True, allowed_hosts=("127.0.0.1",), max_bytes=len(DATA) - 1)
        assert (
            f"more than {len(DATA) - 1} bytes" in refusal(server.url(path), policy=policy).message
        )


def test_an_error_status_is_named_without_the_query(server: Server) -> None:
    server.answers["/a"] = body(b"no", 404)
    error = refusal(server.url("/a?key=SECRET"), policy=ALLOWED)
    assert error.message == f"image 0: {server.url('/a')} returned status 404"


def test_an_answer_that_breaks_off_is_refused(server: Server) -> None:
    server.answers["/a"] = body(DATA, Content_Length=str(len(DATA) + 5))
    assert (
        f"ended after {len(DATA)} of {len(DATA) + 5} bytes"
        in refusal(server.url("/a"), policy=ALLOWED).message
    )


def test_a_server_that_speaks_something_else_is_refused(server: Server) -> None:
    server.answers["/a"] = lambda handler: handler.wfile.write(b"\0\1\2 nonsense\r\n")  # type: ignore[assignment]
    assert (
        "could not be fetched: BadStatusLine" in refusal(server.url("/a"), policy=ALLOWED).message
    )
    assert (
        "could not be fetched"
        in refusal(server.url("/a").replace("http:", "https:"), policy=ALLOWED).message
    )


def test_a_server_that_sends_a_byte_now_and_then_is_left_at_the_timeout(server: Server) -> None:
    gone = threading.Event()

    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        try:
            for _ in range(500):
                server.over.wait(0.02)
                handler.wfile.write(b"x")
        except OSError:
            gone.set()

    server.answers["/a"] = drip
    policy = ImagePolicy(allow_http=True, allowed_hosts=("127.0.0.1",), timeout=0.3)
    assert "no answer within 0.3 seconds" in refusal(server.url("/a"), policy=policy).message
    assert gone.wait(5)  # the client hung up while the server was still sending


def test_nobody_listening_is_a_bad_image() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/a"
        assert "could not be fetched: Connection refused" in refusal(url, policy=ALLOWED).message


def test_a_password_in_a_url_is_refused_and_not_sent(server: Server) -> None:
    error = refusal(server.url("/a", host="me:SECRET@127.0.0.1"), policy=ALLOWED)
    assert "has a user name or password" in error.message
    assert server.got == []
