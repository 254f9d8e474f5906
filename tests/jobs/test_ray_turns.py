"""`pg.ray.Generate` of a model's configuration asks the turns of a row, outside Ray too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.fake import FakeEngine

pytest.importorskip("torch")
pa: Any = pytest.importorskip("pyarrow")
ASK = "The capital of Japan?"


def test_a_configuration_asks_conversations(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": ["plain", "talk"],
            "messages": [[{"role": "user", "content": ASK}], None],
            "turns": [None, [ASK, "The capital of France?"]],
        }
    )
    config, options = pg.ModelLoadConfig(model="embedded"), {"max_new_tokens": 12}
    requests = [
        {"id": "plain", "messages": [{"role": "user", "content": ASK}]},
        {"id": "talk", "turns": [ASK, "The capital of France?"]},
    ]
    with pg.backends.load(config) as route:
        plain, talk = (slot.unwrap() for slot in pg.run(pg.turns(route), requests, options))
    for job in (None, tmp_path / "job", tmp_path / "job"):
        generate = pg.ray.Generate(config, options, job=job)
        try:
            rows = asyncio.run(generate(table)).to_pylist()
        finally:
            generate.close()
        assert [row["text"] for row in rows] == [plain.text, talk.text]
        assert (rows[0]["rounds"], len(rows[1]["rounds"])) == (None, 2)
        assert rows[1]["token_ids"] == [*talk.token_ids]


def test_equal_requests_of_a_job_share_one_answer(tmp_path: Path) -> None:
    engine = FakeEngine("answer")
    for rows in (3, 1, 4):
        generate = pg.ray.Generate(lambda: pg.route(engine), job=tmp_path / "job")
        try:
            answers = asyncio.run(generate(pa.table({"prompt": ["same"] * rows}))).to_pylist()
        finally:
            generate.close()
        assert [row["ok"] for row in answers] == [True] * rows
    assert sum(map(len, engine.calls)) == 1
