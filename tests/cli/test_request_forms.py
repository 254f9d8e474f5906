"""`pipegen generate` with files in other people's forms: each way in asks the model the same."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipegen.testing.fake import FakeEngine

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Command = Callable[..., Any]
ROWS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "system": "Be brief."},
    "ms-swift": {"query": "Hi", "system": "Be brief.", "response": "Hello."},
    "sharegpt": {
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "Hi"},
        ]
    },
}


def written(path: Path, row: dict[str, Any]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(row)
            writer.writerow(
                [value if isinstance(value, str) else json.dumps(value) for value in row.values()]
            )
    else:
        path.write_text(json.dumps(row) + "\n")
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("form", list(ROWS))
def test_every_file_of_every_form_shows_the_model_its_words(
    generate: Command, engine: FakeEngine, tmp_path: Path, form: str, suffix: str
) -> None:
    ran = generate(written(tmp_path / f"in.{suffix}", ROWS[form]), "-o", tmp_path / "out.jsonl")
    assert ran.code == 0, ran.err
    (request,) = [row.request for call in engine.calls for row in call]
    assert [(one.role, one.content) for one in request.messages or ()] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    line = json.loads((tmp_path / "out.jsonl").read_text())
    assert line.get("metadata", {}).keys() <= {"response"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("name", ["instructions", "temp", "image_path"])
def test_a_column_that_is_not_read_is_refused_in_every_file(
    generate: Command, engine: FakeEngine, tmp_path: Path, name: str, suffix: str
) -> None:
    source = written(tmp_path / f"in.{suffix}", {"question": "Hi", name: "0.5"})
    out = tmp_path / "out.jsonl"
    ran = generate(source, "-o", out, "--map", "user=question")
    assert (ran.code, engine.calls) == (1, [])
    assert f"there is no field '{name}'" in json.loads(out.read_text())["error"]["message"]
    ran = generate(source, "-o", out, "--overwrite", "--map", f"user=question,metadata={name}")
    assert ran.code == 0, ran.err
    assert json.loads(out.read_text())["metadata"] == {name: "0.5"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_a_mapped_column_is_the_system_message(
    generate: Command, engine: FakeEngine, tmp_path: Path, suffix: str
) -> None:
    row = {"question": "Hi", "instructions": "Be brief.", "system": "of the caller's own"}
    source = written(tmp_path / f"in.{suffix}", row)
    out = tmp_path / "out.jsonl"
    ran = generate(source, "-o", out, "--map", "user=question,system=instructions")
    assert ran.code == 0, ran.err
    (request,) = [row.request for call in engine.calls for row in call]
    assert [one.content for one in request.messages or ()] == ["Be brief.", "Hi"]
    assert json.loads(out.read_text())["metadata"] == {"system": "of the caller's own"}
