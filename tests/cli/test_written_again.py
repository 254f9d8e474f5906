"""Finished rows are written again with the same bytes, whether they are parsed or copied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.io.jsonl import Written
from pipegen.jobs.journal import Journal
from pipegen.jobs.key_map import KEY_MAP
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
LINES = [
    {"id": "a", "prompt": "one"},
    {"id": 7, "prompt": "two é\u2028", "label": "x\u2029y", "metadata": {"page": [1, 2.5, None]}},
    {"prompt": "three"},
    '  {"id": "spaces" , "prompt": "four"}\t',
    {"id": "a", "prompt": "one"},
    {"id": "messages", "messages": [{"role": "user", "content": "five"}]},
    {"id": "options", "prompt": "six", "options": {"max_new_tokens": 3}},
    {"id": "samples", "prompt": "seven", "options": {"samples": 2, "temperature": 1.0}},
    {"id": "logprobs", "prompt": "eight", "options": {"logprobs": True}},
    {"id": "bad", "prompt": 8},
    "{not json",
    {"id": "fails", "prompt": "nine"},
    "",
]


@pytest.fixture
def engine() -> FakeEngine:
    def answer(encoded: Encoded) -> Any:
        prompt = str(encoded.request.prompt)
        return pg.BadImage(0) if prompt == "nine" else f"re: {prompt}\u2028 é<|im_end|>"

    return FakeEngine(answer)


@pytest.mark.parametrize("flags", [(), ("--brief",), ("--map", "prompt=prompt")])
def test_a_finished_job_is_written_again_with_the_same_bytes(
    flags: tuple[str, ...],
    command: Command,
    engine: FakeEngine,
    jsonl: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied: list[Any] = []
    line = Written.line

    def noted(self: Written, *of: Any, **more: Any) -> bytes:
        copied.append(of)
        return line(self, *of, **more)

    monkeypatch.setattr(Written, "line", noted)
    source, out, other = jsonl(*LINES), tmp_path / "out.jsonl", tmp_path / "other.jsonl"
    generate = ("generate", source, "-o", out, "--model", "fake", *flags)
    assert command(*generate).code == 1
    first, asked = out.read_bytes(), len(engine.calls)
    seen = [json.loads(line)["id"] for line in first.splitlines() if b'"id"' in line][:3]
    assert seen == ["a", 7, "3"]
    assert copied == []
    for known in (True, False):
        if not known:
            (tmp_path / "out.jsonl.job" / KEY_MAP).unlink()
        assert command(*generate).code == 1
        assert out.read_bytes() == first
        assert command("export", tmp_path / "out.jsonl.job", "-o", other).code == 0
        assert other.read_bytes() == first
    assert len(copied) >= 16
    assert len(engine.calls) == asked


def test_results_that_lack_a_field_are_written_as_this_version_writes_them(
    command: Command, jsonl: Any, tmp_path: Path
) -> None:
    source, out = jsonl({"id": "a", "prompt": "one"}), tmp_path / "out.jsonl"
    generate = ("generate", source, "-o", out, "--model", "fake")
    assert command(*generate).code == 0
    first = out.read_bytes()
    journal = tmp_path / "out.jsonl.job" / "results-0001.jsonl"
    values = json.loads(journal.read_bytes())
    key = values.pop("key")
    del values["crc"], values["thinking"]
    journal.unlink()
    with Journal(journal.parent) as written:
        written.append(key, values)
    assert command(*generate).code == 0
    assert out.read_bytes() == first


def test_another_map_of_columns_reads_the_lines_again(
    command: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path, written: Any
) -> None:
    source, out = jsonl({"prompt": "one", "question": "two"}), tmp_path / "out.jsonl"
    generate = ("generate", source, "-o", out, "--model", "fake")
    for flags, text in (
        ((), "one"),
        (("--map", "prompt=question"), "two"),
        ((), "one"),
        (("--map", "prompt=question"), "two"),
    ):
        assert command(*generate, *flags).code == 0
        assert [line["text"] for line in written(out)] == [f"re: {text}\u2028 é"]
    assert sum(map(len, engine.calls)) == 2


def test_a_missing_row_behind_finished_ones_is_asked_at_once(
    command: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path, written: Any
) -> None:
    rows = [{"id": f"row {number}", "prompt": f"prompt {number}"} for number in range(20)]
    out = tmp_path / "out.jsonl"
    assert command("generate", jsonl(*rows[:-1]), "-o", out, "--model", "fake").code == 0
    ran = command("generate", jsonl(*rows), "-o", out, "--model", "fake")
    assert "19 finished before" in ran.err
    assert [line["id"] for line in written(out)] == [row["id"] for row in rows]
    assert len(engine.calls[-1]) == 1
