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


ANSWERED: dict[str, dict[str, Any]] = {
    "messages": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
        ],
    },
    "conversations": {
        "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
    },
    "trl": {
        "prompt": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
        ]
    },
}


def is_refused(line: dict[str, Any]) -> bool:
    error = line["error"]
    words = error["message"] + error["hint"]
    return (
        error["type"] == "InvalidRequest"
        and "messages[1]" in error["message"]
        and "continue_final_message" in words
        and "--drop-final-answer" in words
    )


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("form", list(ANSWERED))
def test_a_row_that_ends_with_an_answer_is_refused_or_continued_or_asked_without_it(
    generate: Command, engine: FakeEngine, tmp_path: Path, form: str, suffix: str
) -> None:
    source = written(tmp_path / f"in.{suffix}", {**ANSWERED[form], "label": "good"})
    out = tmp_path / "out.jsonl"
    ran = generate(source, "-o", out)
    assert (ran.code, engine.calls) == (1, [])
    assert is_refused(json.loads(out.read_text()))

    ran = generate(source, "-o", tmp_path / "more.jsonl", "--continue-final-message")
    assert ran.code == 0, ran.err
    (row,) = engine.calls[-1]
    assert (row.prompt.text or "").endswith("assistant\nHello.")

    ran = generate(source, "-o", tmp_path / "asked.jsonl", "--drop-final-answer")
    assert ran.code == 0, ran.err
    (row,) = engine.calls[-1]
    assert (row.prompt.text or "").startswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "Hello." not in (row.prompt.text or "")
    line = json.loads((tmp_path / "asked.jsonl").read_text())
    assert line["metadata"] == {"label": "good", "references": ["Hello."]}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("out_suffix", ["jsonl", "parquet", "csv"])
def test_every_output_keeps_the_answers_that_were_left_out(
    command: Command,
    generate: Command,
    engine: FakeEngine,
    tmp_path: Path,
    suffix: str,
    out_suffix: str,
) -> None:
    row = {"id": "a", **ANSWERED["messages"], "references": "its own"}
    source, out = written(tmp_path / f"in.{suffix}", row), tmp_path / f"out.{out_suffix}"
    ran = generate(source, "-o", out, "--drop-final-answer")
    assert ran.code == 0, ran.err

    def kept(path: Path) -> Any:
        if out_suffix == "parquet":
            (one,) = pq.read_table(path).to_pylist()
            return one["references"], one["input_references"]
        if out_suffix == "csv":
            (one,) = csv.DictReader(path.read_text().splitlines())
            return json.loads(one["references"]), one["input_references"]
        metadata = json.loads(path.read_text())["metadata"]
        return metadata["references"], metadata["input_references"]

    assert kept(out) == (["Hello."], "its own")
    exported = tmp_path / f"again.{out_suffix}"
    assert command("export", f"{out}.job", "-o", exported).code == 0
    assert kept(exported) == kept(out)
    # the same command goes on with what is finished
    calls = len(engine.calls)
    assert generate(source, "-o", out, "--drop-final-answer").code == 0
    assert len(engine.calls) == calls


def test_a_line_of_a_batch_file_is_asked_without_its_answer(
    generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    batch = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": ANSWERED["messages"],
    }
    source, out = written(tmp_path / "in.jsonl", batch), tmp_path / "out.jsonl"
    assert generate(source, "-o", out).code == 1
    assert engine.calls == []
    ran = generate(source, "-o", tmp_path / "asked.jsonl", "--drop-final-answer")
    assert ran.code == 0, ran.err
    assert "Hello." not in (engine.calls[-1][0].prompt.text or "")


def test_a_row_without_an_answer_is_as_it_is(
    generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    source = written(tmp_path / "in.jsonl", ROWS["messages"])
    ran = generate(source, "-o", tmp_path / "out.jsonl", "--drop-final-answer")
    assert ran.code == 0, ran.err
    assert "metadata" not in json.loads((tmp_path / "out.jsonl").read_text())


@pytest.mark.parametrize("maps", [(), ("--map", "user=prompt"), ("--map", "prompt=prompt")])
@pytest.mark.parametrize("template", ["toy", None])
def test_a_text_file_of_questions_for_a_chat_model_names_the_flag_once(
    generate: Command,
    engine: FakeEngine,
    tmp_path: Path,
    template: str | None,
    maps: tuple[str, ...],
) -> None:
    engine.renderer.template = template
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("What is 2 + 2?\nAnd 3 + 3?\n")
    ran = generate(source, "-o", out, *maps)
    count = ran.err.count("--map user=prompt")
    assert count == (1 if template is not None and not maps else 0)
    if template is not None:
        assert ran.code == 0, ran.err
        prompts = [row.prompt.text or "" for call in engine.calls for row in call]
        assert all(("<|im_start|>user" in one) == (maps[1:] == ("user=prompt",)) for one in prompts)
    lines = written(tmp_path / "in.jsonl", {"prompt": "Is it so?"})
    assert "--map" not in generate(lines, "-o", tmp_path / "lines.jsonl").err
