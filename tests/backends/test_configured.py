"""A configuration names any backend; what a server does not take is refused, and a key has no place
in it.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

import pipegen as pg
from pipegen.engines.settings import fields_of
from pipegen.testing.fake import FakeEngine
from pipegen.testing.faulty import FaultyServer


def config(backend: str, **said: Any) -> pg.ModelLoadConfig:
    return pg.ModelLoadConfig(model="embedded", backend=backend, **said)


def test_every_backend_is_named_as_its_function() -> None:
    assert all(callable(getattr(pg.backends, name)) for name in pg.backends.BACKENDS)
    assert set(pg.backends.BACKENDS) == set(pg.backends.__all__) - {"BACKENDS", "load"}


def test_a_server_is_asked_where_the_configuration_says() -> None:
    pytest.importorskip("aiohttp")
    with FaultyServer() as server:
        said = {"base_url": server.url, "dialect": "vllm", "served_model_name": "toy"}
        with pg.backends.load(config("openai_server", batch_size=3, engine_kwargs=said)) as route:
            (slot,) = pg.run(route, [{"messages": [{"role": "user", "content": "abc"}]}])
            # of an online engine
            settings = route.engine.sender.settings  # type: ignore[attr-defined]
    assert (slot.unwrap().route, slot.unwrap().text) == ("vllm_chat", "cba")
    assert (settings.max_in_flight, settings.served_model_name) == (3, "toy")


@pytest.mark.parametrize("backend", ["vllm_server", "sglang_server"])
def test_a_server_asked_by_token_ids_takes_what_its_checkpoint_needs(backend: str) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("transformers")
    assert (
        pg.backends.load(
            config(backend, variant="vlm", engine_kwargs={"base_url": "http://h:1"})
        ).name
        == backend
    )


@pytest.mark.parametrize(
    ("backend", "said", "words"),
    [
        ("vllm_server", {"dtype": "float32"}, "ModelLoadConfig.dtype is not for backend"),
        ("sglang_server", {"device": "cpu"}, "ModelLoadConfig.device is not for backend"),
        ("sglang_server", {"compile": True}, "ModelLoadConfig.compile is not for backend"),
        (
            "vllm_server",
            {"image_memory_bytes": 0},
            "ModelLoadConfig.image_memory_bytes is not for backend",
        ),
        ("openai_server", {"revision": "main"}, "ModelLoadConfig.revision is not for backend"),
        (
            "vllm_server",
            {"engine_kwargs": {"base_ulr": "http://h"}},
            "vllm_server takes no 'base_ulr'; did you mean 'base_url'",
        ),
        (
            "vllm_server",
            {"engine_kwargs": {"api_key": "sk-secret"}},
            "takes no api_key: set the environment variable",
        ),
        (
            "vllm_server",
            {"engine_kwargs": {"headers": {"X": "sk-secret"}}},
            "takes no headers: set the environment variable",
        ),
        ("vllm_server", {"engine_kwargs": {"model": "m"}}, "takes no 'model'"),
        ("vllm_sever", {}, "did you mean 'vllm_server'"),
    ],
)
def test_what_a_server_does_not_take_is_refused(
    backend: str, said: dict[str, Any], words: str
) -> None:
    with pytest.raises(pg.InvalidField, match=words) as refusal:
        pg.backends.load(config(backend, **said))
    assert "sk-secret" not in str(refusal.value)


def test_a_server_may_be_fallen_back_to() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("aiohttp")
    with pg.backends.load(config("hf", fallback_backend="openai_server")) as both:
        assert both.name


@pytest.mark.parametrize(
    ("when", "takes_over"),
    [
        ({}, True),
        ({"fallback_when": (pg.Timeout,)}, False),
        ({"fallback_when": ["UnsupportedOption"]}, True),
    ],
)
def test_the_second_engine_takes_over_for_the_errors_that_are_named(
    when: dict[str, Any], takes_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = {
        "vllm": FakeEngine("a", name="vllm", honours=pg.ENGINES["vllm"]),
        "hf": FakeEngine("b", name="hf", honours=pg.ENGINES["hf"]),
    }
    monkeypatch.setattr(
        "pipegen.backends._route_of", lambda config: pg.route(engines[config.backend])
    )
    route = pg.backends.load(config("vllm", fallback_backend="hf", **when))
    (slot,) = pg.run(route, [{"prompt": "Hi"}], {"no_repeat_ngram_size": 2})
    assert pg.is_ok(slot) is takes_over
    assert slot.map(lambda result: result.text).value_or("") == ("b" if takes_over else "")


def test_an_error_to_fall_back_for_that_there_is_none_of_is_refused() -> None:
    seen = config("hf").fallback_when
    assert seen == ("UnsupportedMultimodal", "UnsupportedOption", "UnsupportedPlugin")
    with pytest.raises(pg.InvalidField, match=r"the name of an error.*did you mean 'Timeout'"):
        config("hf", fallback_when=("Timeot",))


def test_the_functions_have_the_settings_of_their_records_for_arguments() -> None:
    assert inspect.signature(pg.backends.hf).parameters["batch_size"].annotation == int | None
    assert "batch_size: Sequences that run side by side" in (pg.backends.hf.__doc__ or "")
    assert pg.backends.hf.__name__ == "hf"
    shared = {field.name for field in dataclasses.fields(pg.ModelLoadConfig)}
    assert shared >= {*fields_of("hf")}
