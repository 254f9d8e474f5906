"""`result.transcript`: the whole conversation as messages, in code, lines and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.io.jsonl import from_plain, to_plain
from pipegen.io.results_in import results_in
from pipegen.testing.fake import FakeEngine

USER = {"role": "user", "content": "How is the weather in Rome?"}
PIXEL = "docs/examples/shapes.png"


def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: sunny"


def script(row: Any) -> str:
    """Asks once, then answers."""
    if any(message.role == "tool" for message in row.request.messages):
        return "It is sunny.<|im_end|>"
    call = {"name": "weather", "arguments": {"city": "Rome"}}
    return json.dumps([{"id": "call00000", "type": "function", "function": call}]) + "<|im_end|>"


def told(**more: Any) -> pg.GenerationResult:
    route = pg.route(FakeEngine(script))
    agent = pg.turns(route, pg.tools([weather]))
    return pg.run(agent, [{"id": "a", "messages": [USER], **more}])[0].unwrap()


def test_a_transcript_has_the_calls_and_what_the_tools_answered() -> None:
    result = told()
    transcript = result.transcript
    assert [message["role"] for message in transcript] == ["user", "assistant", "tool", "assistant"]
    assert transcript[0] == USER
    assert transcript[1]["tool_calls"][0]["function"]["name"] == "weather"
    assert transcript[2]["content"] == "Rome: sunny"
    assert transcript[3] == {"role": "assistant", "content": "It is sunny."}
    json.dumps(transcript)


def test_a_transcript_can_be_sent_again() -> None:
    transcript = told().transcript
    route = pg.route(FakeEngine("Bye.<|im_end|>"))
    (slot,) = pg.run(route, [{"messages": [*transcript, {"role": "user", "content": "Thanks"}]}])
    assert slot.unwrap().transcript[:4] == transcript


def test_lines_and_tables_have_the_transcript_and_it_is_read_back(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    result = told()
    for brief in (False, True):
        line = to_plain(pg.Success(result), brief=brief)
        assert line["transcript"] == result.transcript
        assert "transcript" not in line["rounds"][0]
    again = from_plain(json.loads(json.dumps(to_plain(pg.Success(result))))).unwrap()
    assert again.transcript == result.transcript
    assert to_plain(pg.Success(again)) == to_plain(pg.Success(result))
    row = ({"id": "a", "messages": [USER]}, pg.Success(result))
    pg.write_table(tmp_path / "out.parquet", [row])
    (read,) = results_in(tmp_path / "out.parquet")
    assert read["transcript"] == result.transcript


def test_each_of_several_samples_has_its_own() -> None:
    result = told(options={"samples": 2, "temperature": 1.0, "seed": 1})
    line = to_plain(pg.Success(result))
    assert [len(sample["transcript"]) for sample in line["samples"]] == [4, 4]


def test_a_single_turn_has_a_transcript_in_code_and_its_line_is_as_before() -> None:
    (slot,) = pg.run(pg.route(FakeEngine("Hi.<|im_end|>")), [{"messages": [USER]}])
    assert slot.unwrap().transcript == [USER, {"role": "assistant", "content": "Hi."}]
    assert "transcript" not in to_plain(slot)


def test_images_of_a_transcript_have_their_paths() -> None:
    content = [{"type": "image", "image": PIXEL}, {"type": "text", "text": "What is it?"}]
    blob = [{"type": "image", "image": Path(PIXEL).read_bytes()}]
    messages = [{"role": "user", "content": content}, {"role": "user", "content": blob}]
    (slot,) = pg.run(pg.route(FakeEngine("A square.<|im_end|>")), [{"messages": messages}])
    first, second, _ = slot.unwrap().transcript
    assert first["content"] == content
    assert second["content"] == [{"type": "image"}]


def test_where_there_is_no_transcript_it_says_why() -> None:
    (slot,) = pg.run(pg.route(FakeEngine("Hi.<|im_end|>")), [{"prompt": "Hi"}])
    with pytest.raises(pg.InvalidField, match="a transcript is of messages"):
        _ = slot.unwrap().transcript
    with pytest.raises(pg.InvalidField, match="read from a file"):
        _ = from_plain(to_plain(slot)).unwrap().transcript


def test_a_job_keeps_the_transcript(tmp_path: Path) -> None:
    agent = pg.turns(pg.route(FakeEngine(script)), pg.tools([weather]))
    for _ in range(2):
        with pg.job(agent, [{"id": "a", "messages": [USER]}], tmp_path / "job") as slots:
            (slot,) = slots
        assert slot.unwrap().transcript == told().transcript
