"""`extra_body` on real servers: what their own schema has is sent, anything else is refused."""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg

both = pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)
HI = [{"messages": [{"role": "user", "content": "Hi"}], "options": {"max_new_tokens": 2}}]
FIELDS = {
    ("vllm", "chat"): ("length_penalty", "lenght_penalty"),
    ("vllm", "opened"): ("cache_salt", "cache_slat"),
    ("sglang", "chat"): ("stop_regex", "stop_regx"),
    ("sglang", "opened"): ("priority", "prioritty"),
}
"""By each way, a field of the server's and one that it would ignore."""
VALUES = {"length_penalty": 1.0, "cache_salt": "s", "stop_regex": "zzz", "priority": 1}


@both
@pytest.mark.parametrize("way", ["chat", "opened"])
def test_a_field_of_its_schema_is_sent_and_another_is_refused(served: Any, way: str) -> None:
    name, wrong = FIELDS[served.engine, way]
    with getattr(served, way)(extra_body={name: VALUES[name]}) as route:
        assert pg.is_ok(pg.run(route, HI)[0])
        ((path, fields),) = [
            (path, fields)
            for path, fields in route.engine.sender.directory.known.fields.items()
            if path != "/v1/completions"
        ]
    assert {"chat": "/v1/chat/completions"}.get(way, path) == path
    assert {"messages", "temperature"} <= fields if way == "chat" else "sampling_params" in fields
    with getattr(served, way)(extra_body={wrong: VALUES[name]}) as route:
        error = pg.run(route, HI)[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert f"{path} has no such field; did you mean {name!r}?" in error.message


@both
def test_the_fields_that_pipegen_sends_by_itself_are_of_its_schema(served: Any) -> None:
    from pipegen.backends.servers.dry import wire_requests

    options = {"temperature": 0.5, "seed": 1, "top_k": 5, "logprobs": True, "stop": ["END"]}
    if served.engine == "sglang":
        options["temperature"] = 1.0
    for way in ("chat", "opened"):
        with getattr(served, way)(extra_body={"priority": 0}) as route:
            pg.run(route, HI)
            request = wire_requests(route, HI, options)[0].unwrap()
            known = route.engine.sender.directory.known
        assert set(request.body or {}) <= known.fields[request.path]
