"""`pg.verify` against servers that are wrong in one way each: a real model on loopback, with a
fault put in. Each fault that changes an answer is found, and is named rightly or "unknown"; a right
server has no fault."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiohttp")

from support.faults import FAULTS, MODELS, write_other
from support.wrong_server import RIGHT, Fault, ModelServer

import pipegen as pg
from pipegen.report.questions import long_prompt, prompts, with_images

TOKENS = 16


def asked() -> list[dict[str, Any]]:
    """Short and long prompts, with and without a system turn and images, and answers of several
    lengths.
    """
    names = {f"question-{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 16)} | {
        "system-1",
        "system-3",
        "system-5",
        "turns-3",
    }
    return [
        *(one for one in prompts() if one["id"] in names),
        long_prompt("long-40", 40),
        *with_images(),
    ]


@pytest.fixture(scope="module")
def route_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pg.Route]:
    """The embedded model, or another one by its name in `MODELS`."""

    @functools.cache
    def opened(name: str) -> pg.Route:
        weights, dtype = MODELS.get(name, ("", "float32"))
        return pg.backends.hf(
            write_other(weights, tmp_path_factory.mktemp("models") / "other"), dtype=dtype
        )

    return opened


@pytest.fixture(scope="module")
def serving(route_of: Callable[[str], pg.Route]) -> Iterator[Callable[[str], ModelServer]]:
    servers: dict[str, ModelServer] = {}

    def started(dialect: str) -> ModelServer:
        if dialect not in servers:
            servers[dialect] = ModelServer(route_of("right"), dialect)
        return servers[dialect]

    yield started
    for server in servers.values():
        server.__exit__()


def verified(server: ModelServer, route_of: Callable[[str], pg.Route], fault: Fault) -> Any:
    server.fault, server.route = fault, route_of(fault.model or "right")
    try:
        # a Precision
        return pg.verify(
            server.url,
            "embedded",
            asked(),
            reference=route_of("right"),
            precision=fault.precision,
            max_new_tokens=TOKENS,
        )  # type: ignore[arg-type]
    finally:
        server.fault = RIGHT


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dialect", ["vllm", "plain"])
def test_a_right_server_has_no_fault(
    dialect: str, precision: str, serving: Any, route_of: Any
) -> None:
    found = verified(serving(dialect), route_of, Fault("right", (), precision=precision))
    assert found.plain()["faults"] == []
    assert found.right
    assert found.asked_again > 40


CASES = [(fault, dialect) for fault in FAULTS for dialect in fault.dialects]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "dialect"), CASES, ids=[f"{fault.name} ({dialect})" for fault, dialect in CASES]
)
def test_each_fault_is_found_and_named_rightly_or_not_known(
    fault: Fault, dialect: str, serving: Any, route_of: Any
) -> None:
    found = verified(serving(dialect), route_of, fault)
    kinds = {one.kind for one in found.faults}
    assert kinds <= {*fault.kinds, *(("unknown",) if fault.kinds else ())}, [
        (one.kind, one.evidence, one.example) for one in found.faults
    ]
    assert found.right != bool(fault.kinds)
    assert all(one.evidence and one.example for one in found.faults)
