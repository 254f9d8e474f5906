"""Which server answers: it says so in its list of models, which may want a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.loopback import JsonHandler, Loopback

from pipegen.core.errors import BackendFailed, CallFailed

pytest.importorskip("aiohttp")
from pipegen.backends.servers.dialects import dialect_of, find_dialect


class Handler(JsonHandler):
    def do_GET(self) -> None:
        wanted = self.server.key
        known = wanted is None or self.headers["Authorization"] == f"Bearer {wanted}"
        self.send(self.server.listed if known else {}, 200 if known else 401)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("VLLM_API_KEY", "SGLANG_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with Loopback(Handler, key=None, listed=b"not JSON") as made:
        yield made


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_the_owner_of_the_models_says_which_it_is(server: Any, owner: str) -> None:
    server.listed = {"data": [{"id": "m", "owned_by": owner}]}
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
    server.listed = listed
    assert find_dialect(server.url) == "plain"


def test_a_list_that_cannot_be_read_is_that_of_a_plain_server(server: Any) -> None:
    assert find_dialect(server.url) == "plain"


def test_the_keys_of_all_kinds_of_servers_are_tried(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key, server.listed = "secret", {"data": [{"id": "m", "owned_by": "sglang"}]}
    assert find_dialect(server.url) == "plain"
    assert find_dialect(server.url, api_key="secret") == "sglang"
    monkeypatch.setenv("SGLANG_API_KEY", "secret")
    assert find_dialect(server.url) == "sglang"


def test_where_nothing_listens_the_call_fails() -> None:
    with pytest.raises(CallFailed) as failed:
        find_dialect("http://127.0.0.1:9", timeout=5.0)
    assert isinstance(failed.value.error, BackendFailed)
