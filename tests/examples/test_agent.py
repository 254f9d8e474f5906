"""The agent: two tools, one of which fails at times, and rollouts for a trainer."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.rowwise import Fuse, Rowwise

import pipegen as pg
from pipegen.testing.fake import FakeEngine

Shell = Callable[..., subprocess.CompletedProcess[str]]
ROWS = 200


@pytest.fixture(scope="module")
def agent(program: Callable[[str], ModuleType]) -> Any:
    return program("agent")


def call(name: str, **arguments: Any) -> str:
    function = {"name": name, "arguments": arguments}
    return (
        json.dumps([{"id": "call00000", "type": "function", "function": function}]) + "<|im_end|>"
    )


def script(row: Any) -> str:
    """Looks up the items that the question names, adds what they cost, and says what it was
    told.
    """
    told = [one.content for one in row.request.messages if one.role == "tool"]
    items = row.request.messages[1].content.split()
    if len(told) < len(items):
        return call("price", item=items[len(told)])
    if len(told) == 2 and all(map(str.isdigit, told)):
        return call("add", a=int(told[0]), b=int(told[1]))
    return f"{told[-1]}<|im_end|>"


def question(items: str, expected: str = "") -> dict[str, Any]:
    return {"id": f"Q-{items}", "question": items, "expected": expected}


def test_it_calls_its_tools_and_is_told_what_they_raise(agent: Any) -> None:
    lines = [question("lamp chair", "42"), question("lamp moon", "42"), question("moon", "no moon")]
    made = list(agent.answers(agent.agent(pg.route(FakeEngine(script))), lines))
    records = [agent.record_of(*one) for one in made]
    assert records[0]["text"] == "42" and records[0]["end"] == "done"
    assert [one.partition("(")[0] for one in records[0]["calls"]] == ["price", "price", "add"]
    assert records[1]["text"] == "error: LookupError: there is no moon"
    assert records[2]["text"] == "error: LookupError: there is no moon"
    assert [agent.reward_of(*one) for one in made] == [1.0, 0.0, 1.0]
    failed = ({"id": "Q-1"}, pg.Failure(pg.Timeout("slow")))
    assert agent.record_of(*failed)["error"]["type"] == "Timeout" and not agent.reward_of(*failed)


@pytest.mark.slow
def test_200_conversations_killed_twice_ask_nothing_that_was_answered_again(
    agent: Any, tmp_path: Path
) -> None:
    lines = [question(("lamp chair", "lamp moon", "moon")[row % 3]) for row in range(ROWS)]

    def run(folder: Path, fuse: Fuse) -> list[Any]:
        made: list[Any] = []
        try:
            pipe = agent.agent(pg.route(Rowwise(script, fuse)))
            with pg.job(pipe, map(agent.request_of, lines), folder, grace=0) as job:
                made.extend(job)
        except KeyboardInterrupt:
            pass
        return made

    whole = Fuse()
    wanted = run(tmp_path / "whole", whole)
    assert len(wanted) == ROWS and all(map(pg.is_ok, wanted))
    first, second, third = Fuse(100), Fuse(250), Fuse()
    for fuse in (first, second):
        assert len(run(tmp_path / "killed", fuse)) < ROWS
    assert run(tmp_path / "killed", third) == wanted
    answered = Counter(first.answered + second.answered + third.answered)
    assert answered == Counter(whole.answered)
    assert [slot.unwrap().rollout for slot in wanted[:3]] == [
        slot.unwrap().rounds[-1].rollout for slot in wanted[:3]
    ]


def test_the_program_runs_and_writes_rollouts(agent: Any, tmp_path: Path, shell: Shell) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    questions = Path(agent.__file__).parent / "prices.jsonl"
    out = tmp_path / "rollouts.parquet"
    done = shell(
        *("agent", "--model", "embedded", "--rollouts", out, "--job", tmp_path / "job", questions),
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["text"], line["end"]) for line in lines] == [
        ("The lamp costs 12.", "done"),
        ("The lamp and the chair cost 42.", "done"),
        ("I do not know what the moon costs.", "done"),
    ]
    assert lines[1]["calls"] == [
        'price({"item": "lamp"})',
        'price({"item": "chair"})',
        'add({"a": 12, "b": 30})',
    ]
    assert lines[2]["calls"] == ['price({"item": "moon"})']
    assert "3 questions, 3 answered" in done.stderr
    rows = list(pg.read_table(out))
    assert [(row["id"], row["reward"]) for row in rows] == [(f"Q-{n}", 1.0) for n in (1, 2, 3)]
    assert all(len(row["mask"]) == len(row["logprobs"]) == len(row["token_ids"]) for row in rows)
