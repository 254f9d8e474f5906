"""`pg.ray.Generate` on a real Ray dataset: the rows that `pg.run` gives, whatever dies."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.on_ray import stub

import pipegen as pg
from pipegen.io.answer_columns import answer_columns
from pipegen.jobs.in_flight import DEATHS

ray = pytest.importorskip("ray", reason="Ray is not installed here")
pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("default")]
IMAGE = (Path(__file__).parents[2] / "docs" / "examples" / "shapes.png").read_bytes()


def rows_of(count: int) -> list[dict[str, Any]]:
    """Text, images and broken rows; messages as JSON text, since Arrow has no column for contents
    of several forms.
    """
    rows = []
    for number in range(count):
        content: Any = f"number {number}"
        if number % 10 == 3:
            content = [{"type": "image"}, {"type": "text", "text": f"number {number}"}]
        row: dict[str, Any] = {
            "id": f"r{number}",
            "label": number,
            "messages": json.dumps(
                [] if number % 10 == 6 else [{"role": "user", "content": content}]
            ),
        }
        row["images"] = ([b"broken"] if number % 20 == 3 else [IMAGE]) if number % 10 == 3 else None
        rows.append(row)
    return rows


def answers(
    rows: list[dict[str, Any]], make: Any, actors: int = 2, **how: Any
) -> list[dict[str, Any]]:
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("label", pa.int64()),
            ("messages", pa.string()),
            ("images", pa.list_(pa.binary())),
        ]
    )
    table = pa.Table.from_pylist(rows, schema=schema)
    dataset = ray.data.from_arrow([table.slice(start, 100) for start in range(0, len(rows), 100)])
    compute = ray.data.ActorPoolStrategy(size=actors, max_concurrent_calls_per_actor=4)
    arguments = {
        "fn_constructor_args": (make, {"max_new_tokens": 40}),
        "fn_constructor_kwargs": {"brief": True, **how},
    }
    made: list[dict[str, Any]] = dataset.map_batches(
        pg.ray.Generate,
        batch_format="pyarrow",
        batch_size=32,
        compute=compute,
        num_cpus=1,
        **arguments,
    ).take_all()
    return made


@pytest.mark.parametrize("actors", [1, 2, 4])
def test_the_rows_are_those_of_one_process(actors: int) -> None:
    rows = rows_of(5000)
    made = answers(rows, stub, actors)
    wanted = pg.run(
        stub(),
        [{key: value for key, value in row.items() if value is not None} for row in rows],
        {"max_new_tokens": 40},
    )
    assert [row["label"] for row in made] == list(range(5000))
    assert [row["text"] for row in made] == [
        slot.unwrap().text if pg.is_ok(slot) else None for slot in wanted
    ]
    assert [row["error"] and row["error"]["type"] for row in made] == [
        None if pg.is_ok(slot) else type(slot.failure()).__name__ for slot in wanted
    ]
    assert Counter(row["ok"] for row in made) == {True: 4250, False: 750}
    assert list(made[0]) == ["id", "label", "messages", "images", *answer_columns(brief=True).names]


def test_a_job_is_not_asked_again_and_equal_rows_share_an_answer(tmp_path: Path) -> None:
    asked, rows = (
        tmp_path / "asked",
        [
            {
                "id": f"r{number}",
                "messages": json.dumps([{"role": "user", "content": f"is {number % 150}"}]),
            }
            for number in range(300)
        ],
    )
    first = answers(rows, partial(stub, asked=str(asked)), 1, job=tmp_path / "job")
    again = answers(rows, partial(stub, asked=str(asked)), 2, job=tmp_path / "job")
    assert first == again
    assert [row["id"] for row in first] == [row["id"] for row in rows]
    assert len(asked.read_text().split()) == 150


@pytest.mark.parametrize("death", ["kill", "engine"])
def test_a_row_that_kills_its_actor_fails_after_three_tries_alone(
    tmp_path: Path, death: str
) -> None:
    asked, rows = tmp_path / "asked", rows_of(300)
    rows[41]["messages"] = json.dumps([{"role": "user", "content": "the poisoned row 41"}])
    make = partial(stub, asked=str(asked), poison="poisoned", death=death)
    made = answers(rows, make, 2, job=tmp_path / "job")
    assert [row["label"] for row in made] == list(range(300))
    assert made[41]["error"]["type"] == "BackendFailed"
    assert "died 3 times" in made[41]["error"]["message"]
    broken = {41, *range(6, 300, 10), *range(3, 300, 20)}
    assert {row["label"] for row in made if not row["ok"]} == broken
    assert Counter(asked.read_text().split())["41"] <= DEATHS


def test_an_engine_that_does_not_load_ends_the_dataset() -> None:
    with pytest.raises(Exception, match="no_such_model"):
        answers(rows_of(10), pg.ModelLoadConfig(model="no_such_model"), 1)
