"""What answers depend on: every setting of every engine says it, and the keys of a job's rows
differ exactly where it does.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiohttp")

import pipegen as pg
from pipegen import embedded
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.engines.settings import (
    SETTINGS,
    Changes,
    FallbackSettings,
    ModelLoadConfig,
    changes_of,
)
from pipegen.jobs.history import settings_of
from pipegen.jobs.row_keys import Keys
from pipegen.testing.faulty import FaultyServer

HERE = ("hf", "vllm")
TOKENS = ("vllm_server", "sglang_server")
CHAT = "openai_server"

VALUES: dict[str, tuple[Any, Any]] = {
    "variant": ("auto", "text"),
    "trust_remote_code": (False, True),
    "dtype": ("float16", "float32"),
    "engine_kwargs": ({"quantization": "fp8"}, {"quantization": "awq"}),
    "device": (None, "cpu"),
    "device_map": (None, "cpu"),
    "attn_implementation": (None, "eager"),
    "batch_size": (1, 2),
    "compile": (False, True),
    "deterministic": (False, True),
    "requests_per_minute": (None, 60),
    "tokens_per_minute": (None, 6000),
    "image_memory_bytes": (0, 1),
    "prefix_memory_bytes": (0, 1),
    "tensor_parallel_size": (1, 2),
    "gpu_memory_utilization": (0.5, 0.9),
    "kv_cache_memory_bytes": (1, 2),
    "kv_cache_dtype": (None, "fp8"),
    "max_model_len": (64, 128),
    "max_num_seqs": (1, 2),
    "enforce_eager": (False, True),
    "check_lengths": (False, True),
    "self_check": (True, False),
    "enable_prefix_caching": (False, True),
    "limit_mm_per_prompt": ({"image": 1}, {"image": 2}),
    "api_key": ("sk-one", "sk-two"),
    "headers": ({"X-Team": "red"}, {"X-Team": "blue"}),
    "timeout": (1.0, 2.0),
    "max_in_flight": (1, 2),
    "retries": (1, 2),
    "batch_budget": (None, 9.0),
    "outage": (120.0, 0.0),
    "server_limit": (False, True),
    "extra_body": ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}),
    "dialect": ("plain", "vllm"),
    "separate_reasoning": (None, True),
    "fallback_backend": (None, "openai_server"),
    "fallback_when": (("UnsupportedOption",), ("UnsupportedOption", "Timeout")),
}
"""Two values of each setting whose value counts, or does not."""
BY_VALUE = [
    (backend, name)
    for backend, kind in SETTINGS.items()
    for name, changes in changes_of(kind).items()
    if changes is not Changes.MODEL
]
BY_MODEL = [
    (backend, name)
    for backend, kind in SETTINGS.items()
    for name, changes in changes_of(kind).items()
    if changes is Changes.MODEL
]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package is needed to say what answers depend on."""

    class Every(frozenset[str]):
        def __contains__(self, name: object) -> bool:
            return True

    for name, member, other in (
        ("vllm.vllm_engine", "need", lambda *names: None),
        ("hf.hf_engine", "need", lambda *names: None),
        ("vllm.start", "argument_names", Every),
    ):
        monkeypatch.setattr(importlib.import_module(f"pipegen.backends.{name}"), member, other)


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyServer]:
    with FaultyServer() as running:
        yield running


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "model", b"weights")


def checkpoint(folder: Path, weights: bytes | None) -> Path:
    """The embedded model's small files, and weights that are none."""
    shutil.copytree(embedded.path(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    if weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
    return folder


def key(
    backend: str,
    model: Path | str,
    server: FaultyServer | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> str:
    """The key of a row that is asked for on an engine with these settings."""
    if server is not None and backend not in HERE:
        settings = {"base_url": server.url, "served_model_name": "toy", **settings}
    return key_of(getattr(pg.backends, backend)(model, **settings), options)


def key_of(route: pg.Pipe[Any, Any], options: Mapping[str, Any] | None = None) -> str:
    with route:
        settings = settings_of(route, None, "")
        json.dumps(settings)
        chosen = None if options is None else pg.GenerationOptions(**options)
        return Keys(settings).of(pg.TextGenerationRequest(prompt="Hi", options=chosen))


@pytest.mark.parametrize("kind", [*SETTINGS.values(), FallbackSettings, ModelLoadConfig])
def test_every_setting_says_whether_answers_depend_on_it(kind: type) -> None:
    assert [name for name, changes in changes_of(kind).items() if changes is None] == []


@pytest.mark.parametrize(("backend", "name"), BY_VALUE)
def test_keys_differ_exactly_where_answers_depend_on_the_setting(
    backend: str, name: str, model: Path, server: FaultyServer
) -> None:
    one, two = (key(backend, model, server, **{name: value}) for value in VALUES[name])
    assert (one != two) is (changes_of(SETTINGS[backend])[name] is Changes.ANSWERS)


@pytest.mark.parametrize(("backend", "name"), BY_MODEL)
def test_the_model_counts_by_its_content(
    backend: str,
    name: str,
    model: Path,
    server: FaultyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same, other = (
        checkpoint(tmp_path / "same", b"weights"),
        checkpoint(tmp_path / "other", b"WEIGHTS"),
    )
    if name == "model":
        named = {"served_model_name": None} if backend == CHAT else {}
        first, second, third = (
            key(backend, folder, server, **named) for folder in (model, same, other)
        )
        # a chat server shows no files: there it is the name that is sent
        assert (first == second, first == third) == (backend != CHAT, False)
    elif name == "revision":
        folders = {"one": model, "tag": same, "two": other}
        monkeypatch.setattr(
            "huggingface_hub.hf_hub_download",
            lambda source, file, revision=None: str(folders[revision] / file),
        )
        monkeypatch.setattr(Checkpoint, "own_dtype", "bfloat16")
        keys = [key(backend, "org/model", server, revision=revision) for revision in folders]
        assert keys[0] == keys[1] != keys[2]
    elif name == "adapter":
        for folder, weights in (("one", b"a"), ("copy", b"a"), ("two", b"b")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "adapter_config.json").write_text("{}")
            (tmp_path / folder / "adapter_model.safetensors").write_bytes(weights)
        keys = [key(backend, model, adapter=tmp_path / folder) for folder in ("one", "copy", "two")]
        assert len({*keys, key(backend, model)}) == 3
        assert keys[0] == keys[1]
    elif name == "adapters":
        for folder, weights in (("one", b"a"), ("copy", b"a"), ("two", b"b")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "adapter_config.json").write_text("{}")
            (tmp_path / folder / "adapter_model.safetensors").write_bytes(weights)

        def keyed(folder: str, chosen: str | None) -> str:
            adapters = {"a": tmp_path / folder, "b": tmp_path / "one"}
            return key(backend, model, server, options={"adapter": chosen}, adapters=adapters)

        # the one that a request names, by its content
        keys = [keyed(folder, "a") for folder in ("one", "copy", "two")]
        assert keys[0] == keys[1] != keys[2]
        assert keyed("one", "b") == keyed("two", "b") != keys[0]
        assert keyed("one", None) == keyed("two", "") == key(backend, model, server)
    elif name == "check_weights":
        keys = [key(backend, model, server, check_weights=checks) for checks in (True, False)]
        assert keys[0] != keys[1]
        assert keys[0] == key(backend, same, server, check_weights=True)
    elif name == "served_model_name":
        # a plain server is asked for the model by the name that is given
        asks = {"dialect": "vllm"} if backend == CHAT else {}
        keys = [
            key(backend, model, server, served_model_name=named, **asks)
            for named in ("m2", "m-lora", "toy", None)
        ]
        assert len({*keys}) == 3
        assert keys[2] == keys[3]  # what the server says is what is sent
    elif name == "base_url":
        bare = model if backend == CHAT else checkpoint(tmp_path / "bare", None)
        first, second, third = (
            key(backend, bare, base_url=url, served_model_name="m")
            for url in ("http://a:1", "http://a:1/v1/", "http://b:1")
        )
        assert first == second != third
        here = [
            key(backend, model, base_url=url, served_model_name="m")
            for url in ("http://a:1", "http://b:1")
        ]
        # the checkpoint is here, and the server runs it
        assert (here[0] == here[1]) is (backend != CHAT)
    else:
        pytest.fail(f"{name} has no case")


@pytest.mark.parametrize(
    ("backend", "settings", "alike"),
    [
        ("hf", {"dtype": "bf16"}, {"dtype": "bfloat16"}),
        ("hf", {"dtype": "bfloat16"}, {}),
        ("vllm", {"dtype": "auto"}, {}),
        ("hf", {"variant": "vlm"}, {}),
        ("hf", {"attn_implementation": "sdpa"}, {}),
        ("hf", {"engine_kwargs": {"low_cpu_mem_usage": True, "token": "hf_secret"}}, {}),
        ("vllm", {"kv_cache_dtype": "auto"}, {}),
        ("vllm", {"max_model_len": 4096}, {}),
        ("vllm", {"engine_kwargs": {"kv_cache_dtype": "fp8"}}, {"kv_cache_dtype": "fp8"}),
        (
            "vllm",
            {"engine_kwargs": {"quantization": None, "swap_space": 2, "enforce_eager": True}},
            {},
        ),
        (
            "vllm_server",
            {"extra_body": {"a": 1, "b": {"c": 2, "d": 3}}},
            {"extra_body": {"b": {"d": 3, "c": 2}, "a": 1}},
        ),
        ("vllm_server", {"extra_body": {"user": "me", "priority": 3}}, {}),
        (
            "openai_server",
            {"separate_reasoning": True, "dialect": "sglang"},
            {"extra_body": {"separate_reasoning": True}, "dialect": "sglang"},
        ),
        ("openai_server", {"dialect": "vllm", "server_limit": False}, {"dialect": "vllm"}),
    ],
)
def test_a_default_or_another_way_to_say_the_same_is_no_change(
    backend: str, settings: dict[str, Any], alike: dict[str, Any], model: Path, server: FaultyServer
) -> None:
    assert key(backend, model, server, **settings) == key(backend, model, server, **alike)


@pytest.mark.parametrize(
    ("backend", "first", "second"),
    [
        ("hf", {"engine_kwargs": {"quantization_config": {"load_in_4bit": True}}}, {}),
        (
            "hf",
            {"engine_kwargs": {"rope_scaling": {"factor": 2.0}}},
            {"engine_kwargs": {"rope_scaling": {"factor": 4.0}}},
        ),
        ("vllm", {"engine_kwargs": {"anything": 1}}, {"engine_kwargs": {"anything": True}}),
        ("vllm", {"engine_kwargs": {"tokenizer": "a"}}, {"engine_kwargs": {"tokenizer": "b"}}),
        ("vllm", {"engine_kwargs": {"hf_overrides": {"sliding_window": None}}}, {}),
        ("sglang_server", {"extra_body": {"lora_path": "a"}}, {"extra_body": {"lora_path": "b"}}),
        (
            "openai_server",
            {"extra_body": {"auth_token": "sk-one"}},
            {"extra_body": {"auth_token": "sk-two"}},
        ),
        ("openai_server", {"extra_body": {"x": None}}, {}),
    ],
)
def test_whatever_else_is_given_to_an_engine_counts(
    backend: str, first: dict[str, Any], second: dict[str, Any], model: Path, server: FaultyServer
) -> None:
    assert key(backend, model, server, **first) != key(backend, model, server, **second)


def test_which_engine_computes_does_not_count(model: Path, server: FaultyServer) -> None:
    keys = [key(backend, model, dtype="float32") for backend in HERE]
    assert keys[0] == keys[1]
    own = [key(backend, model) for backend in HERE] + [
        key(backend, model, base_url="http://h:1", served_model_name=str(model))
        for backend in TOKENS
    ]
    assert len({*own}) == 1  # a server that is asked for the checkpoint by its own name
    assert own[0] != keys[0]


def test_the_embedded_model_computes_in_float32_wherever_it_is_named(model: Path) -> None:
    assert (
        key("hf", "embedded")
        == key("hf", embedded.path(), dtype="float32")
        != key("hf", embedded.path())
    )


def test_no_secret_is_written_down(model: Path, server: FaultyServer) -> None:
    body = {"auth_token": "sk-one", "deep": [{"password": "sk-two"}]}
    with pg.backends.openai_server(
        "m", base_url=server.url, api_key="sk-three", headers={"X": "sk-four"}, extra_body=body
    ) as route:
        assert "sk-" not in json.dumps(settings_of(route, None, ""))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(FallbackSettings)])
def test_the_engine_that_takes_over_counts(name: str, model: Path) -> None:
    more = {} if name == "fallback_backend" else {"fallback_backend": CHAT}
    one, two = (
        key_of(pg.backends.load(ModelLoadConfig(str(model), **more, **{name: value})))
        for value in VALUES[name]
    )
    assert (one != two) is (changes_of(FallbackSettings)[name] is Changes.ANSWERS)


def test_the_options_of_a_route_within_a_fallback_count(model: Path) -> None:
    one, two = (pg.backends.hf(model) for _ in range(2))
    keys = [
        key_of(pg.fallback(one.with_options({"temperature": value}), two, when=pg.Timeout))
        for value in (0.1, 0.2, 0.2)
    ]
    assert keys[0] != keys[1] == keys[2]
