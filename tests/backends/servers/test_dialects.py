"""Which server answers: it says so in its list of models, which may want a key."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pipegen.core.errors import BackendFailed, CallFailed

pytest.importorskip("aiohttp")
from pipegen.backends.servers.dialects import dialect_of, find_dialect


class Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        wanted = self.server.key
        data = (
            self.server.body
            if wanted is None or self.headers["Authorization"] == f"Bearer {wanted}"
            else b"{}"
        )
        self.send_response(200 if data != b"{}" else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("VLLM_API_KEY", "SGLANG_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.key, made.body, made.url = None, b"not JSON", f"http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(
        target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_the_owner_of_the_models_says_which_it_is(server: Any, owner: str) -> None:
    server.body = json.dumps({"data": [{"id": "m", "owned_by": owner}]}).encode()
    assert find_dialect(server.url + "/v1") == owner


@pytest.mark.parametrize(
    "listed",
    [
        *(None, [], {"data": None}, {"data": [7]}, {"data": [{"id": "m"}]}),
        {"data": [{"owned_by": ["vllm"]}]},
    ],
)
def test_any_other_list_is_that_of_a_plain_server(server: Any, listed: Any) -> None:
    assert dialect_of(listed) == "plain"
    server.body = json.dumps(listed).encode()
    assert find_dialect(server.url) == "plain"


def test_a_list_that_cannot_be_read_is_that_of_a_plain_server(server: Any) -> None:
    assert find_dialect(server.url) == "plain"


def test_the_keys_of_all_kinds_of_servers_are_tried(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key, server.body = (
        "secret",
        json.dumps({"data": [{"id": "m", "owned_by": "sglang"}]}).encode(),
    )
    assert find_dialect(server.url) == "plain"
    assert find_dialect(server.url, api_key="secret") == "sglang"
    monkeypatch.setenv("SGLANG_API_KEY", "secret")
    assert find_dialect(server.url) == "sglang"


def test_where_nothing_listens_the_call_fails() -> None:
    with pytest.raises(CallFailed) as failed:
        find_dialect("http://127.0.0.1:9", timeout=5.0)
    assert isinstance(failed.value.error, BackendFailed)
