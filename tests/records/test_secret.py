"""Keys among settings: no repr, no message and no pickle shows one, wherever it stands, and whom it
is for gets it.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

import pipegen as pg
from pipegen.engines.settings import settings_of
from pipegen.records.secret import Secret, masked, revealed, secretive

KEY = "sk-do-not-show"
HOLDING: list[dict[str, Any]] = [
    *({"api_key": KEY}, {"hf_token": KEY}, {"token": KEY}, {"headers": {"X-Team": KEY}}),
    *({"default_headers": {"X-Team": KEY}}, {"Authorization": f"Bearer {KEY}"}),
    *({"extra": [{"db": {"PASSWORD": KEY}}]}, {"clientSecret": KEY, "n": 1}),
    {"proxy": f"http://me:{KEY}@proxy:1"},
    {"credentials": {"user": "me", "code": [KEY]}},
    {"aws-secret-access-key": KEY},
]


@pytest.mark.parametrize("held", HOLDING, ids=str)
def test_a_configuration_shows_no_key(held: dict[str, Any]) -> None:
    config = pg.ModelLoadConfig(model="m", engine_kwargs=held)
    again = dataclasses.replace(config, backend="vllm")
    for shown in (
        repr(config),
        str(config),
        f"{config.engine_kwargs}",
        repr(again),
        repr(dataclasses.asdict(config)),
    ):
        assert KEY not in shown
    with pytest.raises(TypeError, match="a Secret cannot be pickled"):
        pickle.dumps(config)
    assert revealed(config.engine_kwargs) == revealed(again.engine_kwargs) == held
    assert hash(config) == hash(pg.ModelLoadConfig(model="m", engine_kwargs=held))
    assert copy.deepcopy(config) == config


@pytest.mark.parametrize("held", HOLDING, ids=str)
def test_a_refusal_shows_no_key(held: dict[str, Any]) -> None:
    with pytest.raises(pg.InvalidField) as refusal:
        pg.ModelLoadConfig(model="m", engine_kwargs={**held, "bad": object()})
    assert KEY not in str(refusal.value)
    with pytest.raises(pg.InvalidField) as refusal:
        pg.ModelLoadConfig(model="m", engine_kwargs=[held])  # type: ignore[arg-type]
    assert KEY not in str(refusal.value)


@pytest.mark.parametrize(
    "plain",
    [
        {
            "max_tokens": 5,
            "eos_token": "</s>",
            "pad_token": "a",
            "stop_token_ids": [1],
            "tokenizer": "t",
            "monkey": "m",
            "skip_special_tokens": True,
        },
        {"token": True},
    ],
)
def test_what_is_no_secret_stays_as_it_is_and_pickles(plain: dict[str, Any]) -> None:
    config = pg.ModelLoadConfig(model="m", engine_kwargs=plain)
    assert "hidden" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config


def test_extra_body_and_chat_files_hide_keys_too() -> None:
    from pipegen.config import Place, backend_from
    from pipegen.engines.settings import ServerSettings

    settings = ServerSettings(extra_body={"provider": {"api_key": KEY}})
    assert KEY not in repr(settings)
    backend = backend_from(
        {
            "type": "openai",
            "model": "m",
            "base_url": "http://h/v1",
            "extra_body": {"provider": {"api_key": KEY}},
        },
        Place("chat.yaml"),
    )
    assert KEY not in repr(backend)
    here = backend_from(
        {"type": "hf", "model": "m", "engine_kwargs": {"token": KEY}}, Place("chat.yaml")
    )
    assert KEY not in repr(here)
    with pytest.raises(pg.InvalidField) as refusal:
        backend_from(
            {"type": "hf", "model": "m", "engine_kwargs": {"token": KEY, "bad": object()}},
            Place("chat.yaml"),
        )
    assert KEY not in str(refusal.value)


def test_a_server_is_sent_what_is_hidden() -> None:
    pytest.importorskip("aiohttp")
    from pipegen.testing.faulty import FaultyServer

    with (
        FaultyServer() as server,
        pg.backends.openai_server(
            "toy", base_url=server.url, extra_body={"provider": {"api_key": KEY}}
        ) as route,
    ):
        server.keeps_bodies = True
        assert pg.is_ok(pg.run(route, [{"messages": [{"role": "user", "content": "Hi"}]}])[0])
        assert [body["provider"] for body in server.bodies] == [{"api_key": KEY}]


def test_a_servers_function_gets_plain_settings() -> None:
    config = pg.ModelLoadConfig(
        model="m", backend="vllm_server", engine_kwargs={"extra_body": {"token": KEY}}
    )
    assert KEY not in repr(settings_of(config))
    assert revealed(settings_of(config).extra_body) == {"token": KEY}


def test_what_is_masked_is_masked_however_deep() -> None:
    assert KEY not in repr(masked([{"a": ({"api-key": KEY},)}, f"https://u:{KEY}@h"]))
    assert masked({"a": 1}) == {"a": 1}


def test_a_secret_is_equal_to_its_like_alone() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
    assert secretive({"api_key": Secret("a")})["api_key"].reveal() == "a"
