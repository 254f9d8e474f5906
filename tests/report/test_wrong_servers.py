"""`pg.verify` against servers that are wrong in one way each: a real model on loopback, with a
fault put in, and what is asked where no file is given. Each fault that changes an answer is found, and is named rightly or "unknown"; a right
server has no fault."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiohttp")

from support.faults import FAULTS, MODELS, write_other
from support.wrong_server import RIGHT, Fault, ModelServer, Row

import pipegen as pg
from pipegen import embedded
from pipegen.report.questions import long_prompt, prompts


@pytest.fixture(scope="module", autouse=True)
def _kept_scores() -> Iterator[None]:
    """What one case has scored is not computed for the next: most answers are those of a right
    server.
    """
    from pipegen.backends.hf.hf_scoring import Scoring

    kept: dict[Any, Any] = {}
    run = Scoring.run

    def run_what_is_new(self: Scoring, rows: Any) -> Iterator[Any]:
        keys = {
            place: None
            if row.encoded.prompt.images
            else (self._weights, row.token_ids, row.continuation, row.top)
            for place, row in rows
        }
        fresh = [(place, row) for place, row in rows if keys[place] not in kept]
        for place, row in rows:
            if keys[place] in kept:
                scores = kept[keys[place]].unwrap()
                yield place, pg.Success(dataclasses.replace(scores, continued=row))
        for place, slot in run(self, fresh) if fresh else ():
            if keys[place] is not None and pg.is_ok(slot):
                kept[keys[place]] = slot
            yield place, slot

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scoring, "run", run_what_is_new)
        yield


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
    """The verdict on what is asked where no file is given."""
    server.fault, server.route = fault, route_of(fault.model or "right")
    try:
        return pg.verify(
            server.url,
            "embedded",
            reference=route_of("right"),
            precision=fault.precision,  # type: ignore[arg-type]  # a Precision
        )
    finally:
        server.fault = RIGHT


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
@pytest.mark.parametrize("dialect", ["vllm", "plain"])
def test_a_right_server_has_no_fault(
    dialect: str, precision: str, serving: Any, route_of: Any
) -> None:
    server = serving(dialect)
    server.sent.clear()
    found = verified(server, route_of, Fault("right", (), precision=precision))
    assert found.plain()["faults"] == []
    assert found.right
    assert found.too_long == 2  # of the long prompts
    sent = server.sent
    assert "image_url" in str(sent)
    assert ("'name': 'weather'" in str(sent)) is (dialect == "vllm")
    # to a plain server no stop strings go: pipegen ends its answers at them
    for name in ("seed", "n", "stream", *(("stop",) if dialect == "vllm" else ())):
        assert any(body.get(name) for body in sent), name


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
        [*itertools.islice(prompts(), 3), long_prompt("long-40", 40)],
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
QUICK = [
    *(("without system", "vllm"), ("ids cut on the left", "vllm"), ("images left out", "plain")),
    *(("answers of two swapped by ids", "vllm"), ("cut at 8 tokens", "plain")),
    *(("n is ignored", "vllm"), ("all choices are equal", "plain"), ("upper case", "vllm")),
    *(("ends at commas", "vllm"), ("repetition penalty", "plain"), ("fp8", "plain")),
]
"""What is tried each time: a case for most names of faults."""


def slow_unless_quick(fault: Fault, dialect: str) -> Any:
    marks = () if (fault.name, dialect) in QUICK else (pytest.mark.slow,)
    return pytest.param(fault, dialect, marks=marks, id=f"{fault.name} ({dialect})")


@pytest.mark.parametrize(("fault", "dialect"), [slow_unless_quick(*case) for case in CASES])
def test_each_fault_is_found_and_named_rightly_or_not_known(
    fault: Fault, dialect: str, serving: Any, route_of: Any
) -> None:
    found = verified(serving(dialect), route_of, fault)
    refused = {"failed"} if found.failed else set()
    kinds = {one.kind for one in found.faults} or refused
    assert kinds <= {*fault.kinds, *(("unknown",) if fault.kinds else ())}, [
        (one.kind, one.evidence, one.example) for one in found.faults
    ]
    assert bool(kinds) == bool(fault.kinds)
    assert found.right != bool(fault.kinds)
    assert all(one.evidence and one.example for one in found.faults)


def test_each_quick_case_is_one_of_the_faults() -> None:
    assert {*QUICK} <= {(fault.name, dialect) for fault, dialect in CASES}


class OtherAlone:
    """Another first token for a row that is alone in its batch, where the same was asked before:
    on a busy machine any row may come alone. Only the check of batches asks twice for a greedy row
    with all its options.
    """

    def __init__(self) -> None:
        self.alone, self._asked = False, frozenset[str]()

    def batch(self, rows: list[Row]) -> list[Row]:
        self.alone = len(rows) == 1
        return rows

    def row(self, row: Row, asked: Any, tokenizer: Any) -> Row:
        before, self._asked = self._asked, self._asked | {repr(asked)}
        all_options = asked.options["temperature"] == 0 and "top_p" in asked.options
        is_again = all_options and repr(asked) in before
        if not (self.alone and is_again) or len(row.ids) < 2:
            return row
        ids = [row.ids[1], *row.ids[1:]]
        (_, value, tops), *rest = row.logprobs
        return dataclasses.replace(
            row, ids=ids, text=tokenizer.decode(ids), logprobs=[(ids[0], value, tops), *rest]
        )


@pytest.mark.parametrize("deterministic", [True, False])
def test_answers_that_depend_on_their_batch_are_counted_where_that_is_asked(
    deterministic: bool, serving: Any, route_of: Any
) -> None:
    server, other = serving("vllm"), OtherAlone()
    server.route = route_of("right")
    server.fault = Fault("alone", (), batch=other.batch, row=other.row, ways=("chat",))
    few = [*itertools.islice(prompts(), 24)]
    try:
        found = pg.verify(
            server.url,
            "embedded",
            few,
            reference=route_of("right"),
            precision="float32",
            deterministic=deterministic,
        )
    finally:
        server.fault = RIGHT
    kinds = [(fault.kind, fault.answers > 1) for fault in found.faults]
    assert kinds == ([("batch", True)] if deterministic else [])


def test_a_right_server_gives_the_same_answers_alone(serving: Any, route_of: Any) -> None:
    server = serving("vllm")
    server.route = route_of("right")
    few = [*itertools.islice(prompts(), 12)]
    found = pg.verify(server.url, "embedded", few, reference=route_of("right"), deterministic=True)
    assert found.right
    assert found.plain()["faults"] == []
