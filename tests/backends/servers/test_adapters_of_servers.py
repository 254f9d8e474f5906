"""How a server is asked for the adapter of a request: vLLM by the model's name, SGLang by `lora_path`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.faulty import FaultyServer

pytest.importorskip("transformers")
pytest.importorskip("aiohttp")

LISTED = [
    {"id": "toy", "max_model_len": 4096, "parent": None},
    {"id": "a", "max_model_len": None, "parent": "toy"},
    {"id": "b", "max_model_len": None, "parent": "toy"},
]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    answers = {"/v1/models": (200, {"object": "list", "data": LISTED})}
    with FaultyServer(reply=lambda ids: [5, 6], answers=answers) as running:
        running.keeps_bodies = True
        yield running


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, Path]:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    return {name: tmp_path / name for name in "abc"}


def asked(backend: str, server: FaultyServer, rows: list[dict[str, Any]], **settings: Any) -> Any:
    requests: Any = rows
    make = getattr(pg.backends, backend)
    with make("embedded", base_url=server.url, retries=0, **settings) as route:
        return pg.run(route, requests, {"max_new_tokens": 2})


@pytest.mark.parametrize(
    ("backend", "field", "names"),
    [
        ("vllm_server", "model", {"a": "a", "b": "b", "": "toy", None: "toy"}),
        ("sglang_server", "lora_path", {"a": "a", "b": "b", "": None, None: None}),
    ],
)
def test_a_server_is_asked_for_the_adapter_by_its_own_means(
    backend: str,
    field: str,
    names: dict[str | None, str | None],
    server: FaultyServer,
    adapters: dict[str, Path],
) -> None:
    rows = [{"prompt": "a", "options": {"adapter": name}} for name in names]
    asked(backend, server, rows, adapters=adapters)
    assert {body.get(field) for body in server.bodies} == {*names.values()}


@pytest.mark.parametrize("backend", ["vllm_server", "sglang_server"])
def test_an_adapter_that_the_server_has_not_loaded_is_refused(
    backend: str, server: FaultyServer, adapters: dict[str, Path]
) -> None:
    rows = [{"prompt": "a", "options": {"adapter": name}} for name in ("c", "d")]
    here, nowhere = (slot.failure() for slot in asked(backend, server, rows, adapters=adapters))
    assert isinstance(here, pg.UnsupportedOption)
    assert "has no adapter 'c': its adapters are a, b" in here.message
    assert "has no adapter 'd': its adapters are 'a', 'b', 'c'" in nowhere.message
    assert server.bodies == []


@pytest.mark.parametrize("backend", ["vllm_server", "sglang_server"])
@pytest.mark.parametrize("adapter", ["a", ""])
def test_a_vllm_server_that_has_adapters_is_not_asked_to_score(
    backend: str, adapter: str, server: FaultyServer, adapters: dict[str, Path]
) -> None:
    """On a CPU its engine ends of it, and what an adapter adds to the last layer is left out."""
    row: Any = {"prompt": "a", "continuation": " b", "options": {"adapter": adapter}}
    make = getattr(pg.backends, backend)
    with make("embedded", base_url=server.url, retries=0, adapters=adapters) as route:
        (slot,) = pg.score(route, [row])
    assert len(server.bodies) == (backend == "sglang_server")
    if backend == "vllm_server":
        error = slot.failure()
        assert isinstance(error, pg.UnsupportedOption)
        assert "no log probabilities of given tokens" in error.message
        assert (error.option, "a vLLM server without adapters" in error.hint) == (
            "continuation",
            True,
        )


def test_what_takes_scores_is_named_where_a_vllm_server_is_not_asked_for_them(
    server: FaultyServer, adapters: dict[str, Path]
) -> None:
    options = {"adapter": "a", "prompt_logprobs": True}
    (slot,) = asked(
        "vllm_server", server, [{"prompt": "a b c d", "options": options}], adapters=adapters
    )
    error = slot.failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, server.bodies) == ("prompt_logprobs", [])


def test_a_vllm_server_that_lists_no_models_is_not_asked_to_score_by_an_adapter(
    adapters: dict[str, Path],
) -> None:
    row: Any = {"prompt": "a", "continuation": " b", "options": {"adapter": "a"}}
    with FaultyServer(answers={"/v1/models": (404, {})}) as server:
        server.keeps_bodies = True
        make, more = pg.backends.vllm_server, {"retries": 0, "served_model_name": "toy"}
        with make("embedded", base_url=server.url, adapters=adapters, **more) as route:
            (slot,) = pg.score(route, [row])
    assert isinstance(slot.failure(), pg.UnsupportedOption)
    assert server.bodies == []


def test_a_chat_server_takes_no_adapter(server: FaultyServer) -> None:
    route = pg.backends.openai_server("toy", base_url=server.url, dialect="vllm")
    with route:
        error = pg.run(route, [{"prompt": "a"}], {"adapter": "a"})[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == "adapter"


@pytest.mark.parametrize("backend", ["vllm_server", "sglang_server"])
def test_a_folder_that_is_none_is_refused(backend: str, server: FaultyServer) -> None:
    with pytest.raises(pg.InvalidField, match="is no adapter"):
        asked(backend, server, [], adapters={"a": "/nowhere/at/all"})
