"""`pg.verify` against servers that are wrong in one way each: a real model on loopback, with a
fault put in. Each fault that changes an answer is found, and is named rightly or "unknown"; a right
server has no fault."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiohttp")

from support.faults import FAULTS, MODELS, write_other
from support.wrong_server import RIGHT, Fault, ModelServer

import pipegen as pg
from pipegen import embedded
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


def default_set(server: ModelServer, route_of: Callable[[str], pg.Route], fault: Fault) -> Any:
    """The verdict on what is asked without a file."""
    server.fault = fault
    try:
        return pg.verify(server.url, "embedded", reference=route_of("right"), precision="float32")
    finally:
        server.fault = RIGHT


@pytest.mark.parametrize("dialect", ["vllm", "plain"])
def test_a_right_server_has_no_fault_in_what_is_asked_without_a_file(
    dialect: str, serving: Any, route_of: Any
) -> None:
    server = serving(dialect)
    server.sent.clear()
    found = default_set(server, route_of, RIGHT)
    assert found.plain()["faults"] == []
    assert found.right
    assert found.too_long == 2  # of the long prompts
    sent = str(server.sent)
    assert "image_url" in sent
    assert ("'name': 'weather'" in sent) is (dialect == "vllm")
    assert any(body.get("n") for body in server.sent)


@pytest.mark.parametrize("name", ["without system", "images left out"])
def test_faults_are_found_by_what_is_asked_without_a_file(
    name: str, serving: Any, route_of: Any
) -> None:
    fault = next(one for one in FAULTS if one.name == name)
    found = default_set(serving("vllm"), route_of, fault)
    assert [one.kind for one in found.faults] == [*fault.kinds]


def test_lengths_that_no_answer_reaches_are_not_judged(
    serving: Any, route_of: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "windowed"
    shutil.copytree(embedded.path(), folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= {"other_window": [300, 900], "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))
    found = pg.verify(
        serving("vllm").url,
        str(folder),
        [one for one in asked() if "image" not in one["id"]][-3:],
        reference=route_of("right"),
        precision="float32",
    )
    assert found.right
    assert [words.partition(":")[0] for words in found.plain()["not_judged"]] == [
        "beyond 900 tokens (other_window)"
    ]


def test_a_server_that_refuses_several_choices_is_right_and_they_are_not_judged(
    serving: Any, route_of: Any
) -> None:
    found = verified(serving("plain"), route_of, Fault("refused", (), choices=refused))
    assert found.right
    assert found.not_judged == ("several samples: the server refuses n=4: one at a time",)


def refused(rows: list[Any]) -> list[Any]:
    raise ValueError("one at a time")


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
