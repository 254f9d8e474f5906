"""Conversations on the command line: `turns` in a line of `pipegen generate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rowwise import Fuse, Rowwise

import pipegen as pg
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
MODEL = ("--model", "fake")


def counted(row: Any) -> str:
    return f"{len(row.request.messages or ())}<|im_end|>"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(counted)


def test_a_line_of_turns_becomes_a_line_with_all_of_them(
    command: Command, jsonl: Any, tmp_path: Path, written: Any
) -> None:
    source = jsonl(
        {"id": "a", "turns": ["Hi", "And?", "So?"], "label": 1},
        {"id": "b", "messages": [{"role": "system", "content": "Be brief."}], "turns": ["Hi"]},
        {"id": "c", "prompt": "plain"},
        {"id": "d", "prompt": "plain", "turns": ["And?"]},
        {"id": "e", "turns": "And?"},
        {"id": "f", "turns": []},
    )
    out = tmp_path / "out.jsonl"
    ran = command("generate", source, "-o", out, *MODEL)
    lines = written(out)
    assert [line.get("text") for line in lines] == ["5", "2", "0", None, None, None]
    first = lines[0]
    assert [one["text"] for one in first["rounds"]] == ["1", "3", "5"]
    assert (first["rounds_end"], first["exact"], first["metadata"]) == ("done", True, {"label": 1})
    assert [line["rounds"] for line in lines[1:3]] == [[], []]
    messages = [line["error"]["message"] for line in lines[3:]]
    assert "turns go on with messages, or stand alone" in messages[0]
    assert "turns, where it is text, takes JSON" in messages[1]
    assert "takes exactly one of messages, prompt and prompt_token_ids" in messages[2]
    assert "10 generated" in ran.err  # 3 turns and 2 more answers, of 2 ids each
    read = pg.from_plain({k: v for k, v in first.items() if k != "metadata"}).unwrap()
    assert sum(read.rollout.mask) == 6


def test_tables_have_turns_too(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"prompt": [["Hi", "And?"], ["Hi"]], "category": ["a", "b"]}), source)
    command("generate", source, "-o", out, *MODEL, "--map", "turns=prompt", "--brief")
    rows = pq.read_table(out).to_pylist()
    assert [row["text"] for row in rows] == ["3", "1"]
    assert [one["text"] for one in rows[0]["rounds"]] == ["1", "3"]
    assert rows[1]["rounds"] is None and rows[0]["prompt"] == ["Hi", "And?"]
    table = tmp_path / "in.csv"
    table.write_text('turns\n"[""Hi"", ""And?""]"\n')
    command("generate", table, "-o", tmp_path / "out.csv", *MODEL)
    assert ",true,3,eos," in (tmp_path / "out.csv").read_text()


def test_a_killed_command_asks_no_turn_again(
    command: Command,
    jsonl: Any,
    tmp_path: Path,
    written: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = jsonl(*({"id": name, "turns": [name, "And?", "So?"]} for name in "ab"))

    def run(out: Path, fuse: Fuse) -> int:
        route = pg.route(Rowwise(counted, fuse))
        monkeypatch.setattr("pipegen.cli.generate.open_routes", lambda load: route)
        code: int = command("generate", source, "-o", out, *MODEL, "--grace", "0", "--quiet").code
        return code

    whole = Fuse()
    assert run(tmp_path / "whole.jsonl", whole) == 0
    wanted = written(tmp_path / "whole.jsonl")
    for at in (1, 4):
        out, first, second = tmp_path / f"{at}.jsonl", Fuse(at), Fuse()
        assert run(out, first) == 130
        assert run(out, second) == 0
        assert written(out) == wanted
        assert sorted(first.answered + second.answered) == sorted(whole.answered)
    assert [len(line["rounds"]) for line in wanted] == [3, 3]
    assert json.dumps(wanted) == json.dumps(written(out))


def test_a_page_shows_all_turns_and_what_tools_were_called_with(
    command: Command, tmp_path: Path
) -> None:
    def look(city: str) -> str:
        """Looks."""
        return f"{city}: sunny <b>"

    call = [
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"city": "A"}}}
    ]
    script = FakeEngine(
        lambda row: "Fine.<|im_end|>" if row.request.continues else json.dumps(call) + "<|im_end|>"
    )
    agent = pg.turns(pg.route(script), pg.tools([look]))
    slot = pg.run(agent, [{"id": "a", "messages": [{"role": "user", "content": "Hi"}]}])[0]
    source = tmp_path / "r.jsonl"
    source.write_text(json.dumps(pg.to_plain(slot)) + "\n")
    assert command("view", source).code == 0
    page = (tmp_path / "r.html").read_text()
    assert "look({&quot;city&quot;:" in page.replace("&#x27;", "&quot;")
    assert "A: sunny &lt;b&gt;" in page and "Fine." in page
    assert page.index("look(") < page.index("A: sunny") < page.index("Fine.")


def test_a_page_of_a_table_takes_the_turns_from_its_rows(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"turns": [["First?", "Second?"]]}), source)
    command("generate", source, "-o", out, *MODEL)
    assert command("view", out).code == 0
    page = (tmp_path / "out.html").read_text()
    assert page.index("user: First?") < page.index('"text">1<') < page.index("user: Second?")
    assert command("view", out, out, "-o", tmp_path / "both.html").code == 0
    assert "0 differ" in (tmp_path / "both.html").read_text()


def test_a_damaged_turn_is_shown_as_it_is(command: Command, tmp_path: Path) -> None:
    rounds = [{"text": None, "tool_calls": [7, {"function": 3}]}, 5, {"text": "b"}]
    line = {"id": "a", "ok": True, "text": "b", "finish": "eos", "options": {}, "rounds": rounds}
    source = tmp_path / "r.jsonl"
    source.write_text(json.dumps(line) + "\n")
    assert command("view", source).code == 0
    assert "{&#x27;function&#x27;: 3}" in (tmp_path / "r.html").read_text()
