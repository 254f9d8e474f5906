"""Answers that a proxy has packed with gzip, though nobody asked for that."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
from support.canned_server import Canned, CannedServer, events

import pipegen as pg
from pipegen.backends.http.client import BASE

pytest.importorskip("aiohttp")

ANSWER: dict[str, Any] = {
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "Hello"}}]
}
PLAIN = json.dumps(ANSWER).encode()


def packed(body: bytes, encoding: str = "gzip", status: int = 200) -> Canned:
    return Canned(body, status, {"Content-Encoding": encoding})


def asked(answer: Canned, *, stream: bool = False) -> Any:
    with (
        CannedServer(answer) as server,
        pg.backends.openai_server("toy", base_url=server.url, retries=0) as route,
    ):
        if not stream:
            return pg.run(route, [{"prompt": "Hi"}])[0]
        (done,) = [
            event for event in pg.stream(route, [{"prompt": "Hi"}]) if isinstance(event, pg.Done)
        ]
        return done.slot


@pytest.mark.parametrize(
    "answer",
    [
        packed(gzip.compress(PLAIN)),
        packed(gzip.compress(PLAIN), "GZIP"),
        packed(gzip.compress(PLAIN[:20]) + gzip.compress(PLAIN[20:])),
        packed(zlib.compress(PLAIN), "deflate"),
        packed(PLAIN, "identity"),
    ],
)
def test_a_packed_answer_is_read(answer: Canned) -> None:
    assert asked(answer).unwrap().text == "Hello"


def test_a_packed_stream_is_read() -> None:
    delta = {"choices": [{"index": 0, "finish_reason": "stop", "delta": {"content": "Hello"}}]}
    assert asked(packed(gzip.compress(events(delta).body)), stream=True).unwrap().text == "Hello"


def test_a_packed_refusal_is_read() -> None:
    words = json.dumps({"error": {"message": "no such model"}}).encode()
    error = asked(packed(gzip.compress(words), status=404)).failure()
    assert isinstance(error, pg.InvalidRequest)
    assert "no such model" in error.message


def test_what_is_packed_counts_as_it_is_unpacked() -> None:
    flood = gzip.compress(b'{"choices": "' + b" " * (4 * BASE))
    assert len(flood) < BASE / 100
    for stream in (False, True):
        body = b"data: " + b" " * (4 * BASE)
        error = asked(packed(gzip.compress(body) if stream else flood), stream=stream).failure()
        assert isinstance(error, pg.MalformedResponse)
        assert "more than" in error.message


def test_a_packed_answer_that_is_cut_or_false_is_a_broken_connection() -> None:
    for body in (gzip.compress(PLAIN)[:-12], b"no gzip at all"):
        error = asked(packed(body)).failure()
        assert isinstance(error, pg.BackendFailed)
        assert error.retryable


def test_what_cannot_be_unpacked_is_said() -> None:
    error = asked(packed(PLAIN, "br")).failure()
    assert isinstance(error, pg.BackendFailed)
    assert "'br'" in error.message
