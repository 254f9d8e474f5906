"""Where a server is, and a key that nothing shows."""

from __future__ import annotations

import base64
import html
import json
import pickle
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from support.canned_server import Canned, CannedServer

import pipegen as pg
from pipegen.backends.http.access import access_to, addresses_of
from pipegen.backends.servers.openai import DIALECTS
from pipegen.backends.servers.sglang_dialect import SGLANG
from pipegen.backends.servers.vllm_dialect import VLLM
from pipegen.testing.faulty import FaultyServer


# H7
@pytest.mark.parametrize(
    "address", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", " http://h:1/v1 "]
)
def test_an_address_means_the_same_however_it_ends(address: str) -> None:
    assert addresses_of(address, "")[0] == "http://h:1"


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://h:1", "http://h:1/v1/models"),
        ("https://h/llm/", "https://h/llm/v1/models"),
        ("https://api.z.ai/api/paas/v4", "https://api.z.ai/api/paas/v4/models"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/models"),
        ("https://h/client/v4/accounts/7/ai/v1", "https://h/client/v4/accounts/7/ai/v1/models"),
        ("https://h/vision", "https://h/vision/v1/models"),
        ("http://[::1]:8000//v1//", "http://[::1]:8000/v1/models"),
    ],
)
def test_an_address_with_a_version_of_its_own_keeps_it(address: str, url: str) -> None:
    access = access_to(address, default="", variable="X")
    assert access.url("/v1/models") == url
    assert access.url("/version") == f"{access.root}/version"


@pytest.mark.parametrize("wire", [VLLM, SGLANG, *DIALECTS.values()])
def test_without_an_address_it_is_this_machine(wire: object) -> None:
    assert addresses_of(None, wire.default_url)[0].startswith("http://localhost:")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost:8000", "ftp://h", "unix:///tmp/socket", "http://me:pw@h"),
        *("http://h?key=1", "http://h/#x", "http://"),
        *("http://h:port", "http://h:0", "http://h:99999", "http://[::1/v1", "http://h h/v1"),
        *("http://h:1\n2", "http://h/v1/chat/completions"),
    ],
)
def test_other_addresses_are_refused_without_their_secrets(address: str) -> None:
    with pytest.raises(pg.InvalidField) as refused:
        addresses_of(address, "")
    assert "pw" not in str(refused.value)


# H9
@pytest.mark.parametrize(
    ("set_to", "given", "sent"),
    [
        (None, None, "EMPTY"),
        ("", None, "EMPTY"),
        ("of-env", None, "of-env"),
        ("of-env", "said", "said"),
    ],
)
def test_the_key_is_what_was_given_or_set_or_nothing(
    monkeypatch: pytest.MonkeyPatch, set_to: str | None, given: str | None, sent: str
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    if set_to is not None:
        monkeypatch.setenv("VLLM_API_KEY", set_to)
    access = access_to("http://h", default="", variable="VLLM_API_KEY", api_key=given)
    assert access.headers()["Authorization"] == f"Bearer {sent}"


def test_the_key_is_in_no_repr_pickle_error_or_result() -> None:
    pytest.importorskip("aiohttp")
    key = "sk-very-secret"
    access = access_to(
        "http://h", default="", variable="X", api_key=key, headers={"X-Other": "other-secret"}
    )
    assert "secret" not in repr(access)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(access)
    assert access.scrub(f"bad key {key}, and other-secret") == "bad key ***, and ***"
    with (
        FaultyServer() as server,
        pg.backends.openai_server("toy", base_url=server.url, api_key=key) as route,
    ):
        slots = pg.run(route, [{"prompt": "a"}, {"prompt": "b", "options": {"top_k": 3}}])
        assert key not in repr((route, route.engine, slots, vars(route.engine)))


@pytest.mark.parametrize(
    "headers", [{"X": "a\r\nY: b"}, {"X": "ä"}, {"X": 1}, {"X Y": "a"}, {"": "a"}, {"ä": "a"}]
)
def test_headers_that_could_break_out_are_refused(headers: object) -> None:
    with pytest.raises(pg.InvalidField):
        access_to("http://h", default="", variable="X", headers=headers)  # type: ignore[arg-type]


KEY = "sk-proj/Ab1+cd=9&f<g>hij-KLM"
WRITTEN = [
    KEY,
    KEY.upper(),
    quote(KEY, safe=""),
    quote(KEY, safe="").lower(),
    quote_plus(KEY),
    html.escape(KEY),
    json.dumps(KEY),
    json.dumps(KEY).replace("/", r"\/"),
    base64.b64encode(KEY.encode()).decode(),
    base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("="),
    base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    base64.b64encode(f"user:{KEY}:x".encode()).decode(),
    KEY.encode().hex(),
    KEY[:8],
    f"{KEY[:14]}...",
]


@pytest.mark.parametrize("written", WRITTEN)
def test_a_key_is_masked_however_it_is_written(written: str) -> None:
    access = access_to("http://h", default="", variable="X", api_key=KEY)
    seen = access.scrub(f"the key {written} is not known to application/json")
    assert seen.startswith("the key ")
    assert seen.endswith(" is not known to application/json")
    left = seen.removeprefix("the key ").removesuffix(" is not known to application/json")
    assert "***" in left
    assert len(left.replace("***", "")) <= 12
    assert not any(KEY[at : at + 4].lower() in left.lower() for at in range(len(KEY) - 4))


def test_only_of_a_key_is_a_beginning_enough() -> None:
    headers = {"X-Team": "team-of-the-red"}
    access = access_to("http://h", default="", variable="X", api_key=KEY, headers=headers)
    assert access.scrub("team-of-the-blue, team-of-the-red") == "team-of-the-blue, ***"


def test_an_error_that_quotes_an_answer_has_no_key_and_an_answer_stays_as_it_is() -> None:
    pytest.importorskip("aiohttp")

    def answer(finish: str) -> Canned:
        choice = {"index": 0, "finish_reason": finish, "message": {"content": f"It is {KEY}."}}
        return Canned({"choices": [choice]})

    def asked(finish: str, **options: Any) -> Any:
        with (
            CannedServer(answer(finish)) as server,
            pg.backends.openai_server(
                "toy", base_url=server.url, api_key=KEY, dialect="vllm", retries=0
            ) as route,
        ):
            return pg.run(route, [{"prompt": "Hi", "options": options}])[0]

    refused, malformed = (
        asked("refusal").failure(),
        asked("stop", structured={"choice": ["no"]}).failure(),
    )
    assert isinstance(refused, pg.Refused)
    assert (refused.text, KEY[:8] in str(malformed)) == ("It is ***.", False)
    assert asked("stop").unwrap().text == f"It is {KEY}."
