"""A server is asked for answers that do not depend on their batch where it reports that it gives
them, and refused in words elsewhere.
"""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.records.engine_list import DIALECTS
from pipegen.testing.faulty import FaultyServer

pytest.importorskip("transformers")
pytest.importorskip("aiohttp")

ON_A_GPU: Any = {
    "vllm_env": {"VLLM_BATCH_INVARIANT": True},
    "vllm_config": {"device_config": {"device_type": "cuda"}},
}
SGLANG, VLLM = "--enable-deterministic-inference", "VLLM_BATCH_INVARIANT=1"


@pytest.mark.parametrize(
    ("backend", "page", "hint"),
    [
        ("sglang_server", {"enable_deterministic_inference": True}, ""),
        ("sglang_server", {"enable_deterministic_inference": False}, SGLANG),
        ("sglang_server", {}, SGLANG),
        ("vllm_server", ON_A_GPU, ""),
        ("vllm_server", ON_A_GPU | {"vllm_env": {"VLLM_BATCH_INVARIANT": False}}, VLLM),
        (
            "vllm_server",
            ON_A_GPU | {"vllm_config": {"device_config": {"device_type": "cpu"}}},
            VLLM,
        ),
        ("vllm_server", {}, VLLM),
    ],
)
def test_it_is_asked_where_it_reports_that_it_is_deterministic(
    backend: str, page: Any, hint: str
) -> None:
    pages = ("/server_info", "/server_info?config_format=json")
    with FaultyServer(
        reply=lambda ids: [5, 6], answers=dict.fromkeys(pages, (200, page))
    ) as server:
        server.keeps_bodies = True
        make = getattr(pg.backends, backend)
        with make("embedded", base_url=server.url, retries=0, deterministic=True) as route:
            slots = [
                pg.run(route, [{"prompt": "a"}], {"max_new_tokens": 2})[0],
                pg.score(route, [{"prompt": "a", "continuation": " b"}])[0],
            ]
        if not hint:
            assert len(server.bodies) == 2
            return
        for slot in slots:
            error = slot.failure()
            assert isinstance(error, pg.UnsupportedOption)
            assert error.option == "deterministic"
            assert "does not report that answers are independent of their batch" in error.message
            assert hint in error.hint
        assert server.bodies == []


def test_a_server_of_another_engine_is_refused() -> None:
    from pipegen.backends.servers.vllm_dialect import VLLM as wire
    from pipegen.backends.servers.wire import Facts, Wire

    plain = Wire(
        name="other",
        default_url="http://localhost:1",
        key_variable="OTHER_KEY",
        to_wire=wire.to_wire,
        from_wire=wire.from_wire,
        from_event=wire.from_event,
        classify=wire.classify,
    )
    assert plain.not_deterministic(Facts(about={"VLLM_BATCH_INVARIANT": True})) != ""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_chat_server_has_no_such_setting(dialect: Any) -> None:
    more: Any = {"deterministic": True}
    with pytest.raises(
        pg.InvalidField, match=r"no field 'deterministic': it is a setting of hf, vllm"
    ):
        pg.backends.openai_server("m", dialect=dialect, **more)
    with pytest.raises(pg.InvalidField, match="deterministic is not for backend 'openai_server'"):
        pg.backends.load(pg.ModelLoadConfig(model="m", backend="openai_server", deterministic=True))
