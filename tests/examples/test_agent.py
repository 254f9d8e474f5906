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
    """Looks up the order that the question names, counts its days, and says what it was told."""
    told = [one.content for one in row.request.messages if one.role == "tool"]
    number = int(row.request.messages[1].content.split()[-1])
    if not told:
        return call("order_state", number=number)
    if len(told) == 1 and told[0].startswith("{"):
        order = json.loads(told[0])
        return call("days_between", start=order["ordered"], end=order["sent"] or "never")
    return f"{told[-1]}<|im_end|>"


def question(number: int, expected: str = "") -> dict[str, Any]:
    return {"id": f"Q-{number}", "question": f"Order {number}", "expected": expected}


def test_it_calls_its_tools_and_is_told_what_they_raise(agent: Any) -> None:
    lines = [question(17, "3"), question(18, "3"), question(99, "no order 99")]
    made = list(agent.answers(agent.agent(pg.route(FakeEngine(script))), lines))
    records = [agent.record_of(*one) for one in made]
    assert records[0]["text"] == "3" and records[0]["end"] == "done"
    assert [one.partition("(")[0] for one in records[0]["calls"]] == ["order_state", "days_between"]
    assert "ValueError: Invalid isoformat string: 'never'" in records[1]["text"]
    assert records[2]["text"] == "error: LookupError: there is no order 99"
    assert [agent.reward_of(*one) for one in made] == [1.0, 0.0, 1.0]
    failed = ({"id": "Q-1"}, pg.Failure(pg.Timeout("slow")))
    assert agent.record_of(*failed)["error"]["type"] == "Timeout" and not agent.reward_of(*failed)


def test_200_conversations_killed_twice_ask_nothing_that_was_answered_again(
    agent: Any, tmp_path: Path
) -> None:
    lines = [question((17, 18, 99)[row % 3]) for row in range(ROWS)]

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
    questions = Path(agent.__file__).parent / "orders.jsonl"
    out = tmp_path / "rollouts.parquet"
    done = shell(
        *("agent", "--model", "embedded", "--max-new-tokens", 12),
        *("--rollouts", out, "--job", tmp_path / "job", questions),
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["id"], line["ok"]) for line in lines] == [(f"Q-{n}", True) for n in (1, 2, 3)]
    assert "3 questions, 3 answered" in done.stderr
    rows = list(pg.read_table(out))
    assert [row["id"] for row in rows] == ["Q-1", "Q-2", "Q-3"]
    assert all(len(row["mask"]) == len(row["logprobs"]) == len(row["token_ids"]) for row in rows)
