"""By which name a server is asked for its model: a plain one by the very name that was given, the
engines by what they list.
"""

from __future__ import annotations

import pytest
from support.canned_server import Canned, CannedServer

import pipegen as pg
from pipegen.backends.servers import facts
from pipegen.testing.faulty import FaultyServer

pytest.importorskip("aiohttp")


@pytest.mark.parametrize("without", [(), ("/v1/models",)], ids=["lists another", "lists none"])
@pytest.mark.parametrize(("said", "sent"), [({}, "gpt"), ({"served_model_name": "other"}, "other")])
def test_a_plain_server_is_asked_for_the_very_name(
    without: tuple[str, ...], said: dict[str, str], sent: str
) -> None:
    with (
        FaultyServer(without=without) as server,
        pg.backends.openai_server("gpt", base_url=server.url, **said) as route,
    ):  # type: ignore[arg-type]
        server.keeps_bodies = True
        (slot,) = pg.run(route, [{"prompt": "abc"}])
        assert slot.unwrap().text == "cba"
        assert [body["model"] for body in server.bodies] == [sent]


def test_an_engine_is_asked_for_the_one_model_that_it_lists() -> None:
    with (
        FaultyServer() as server,
        pg.backends.openai_server("some/folder", base_url=server.url, dialect="vllm") as route,
    ):
        server.keeps_bodies = True
        pg.run(route, [{"prompt": "abc"}])
        assert [body["model"] for body in server.bodies] == ["toy"]


@pytest.mark.parametrize(
    ("models", "limit"),
    [
        ([{"id": "toy", "max_model_len": 64}], 64),  # Together, GitHub Models
        ({"object": "list", "data": [{"id": "toy", "max_model_len": 64}]}, 64),
        ({"object": "list", "data": None}, None),  # Ollama without models
        ([7, {"id": 7}, {"name": "toy"}], None),
    ],
)
def test_a_list_of_models_is_read_once_whatever_its_form(
    models: object, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "PAUSE_SECONDS", 0.0)
    message = {"finish_reason": "stop", "message": {"content": "Hello"}}
    with (
        CannedServer(Canned({"choices": [message]})) as server,
        pg.backends.openai_server("toy", base_url=server.url) as route,
    ):
        server.models = models
        for _ in range(2):
            assert pg.run(route, [{"prompt": "Hi"}])[0].unwrap().text == "Hello"
        assert server.looks == 1
        assert route.engine.capabilities.context_length == limit
