"""Stage B: every ticket under every setting with every seed, strict verdicts, and a reflection that
keeps to its tokens.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, strategies as st

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

Shell = Callable[..., subprocess.CompletedProcess[str]]
GOOD = "Verdict: pass\nReason: The lamp is on."


@pytest.fixture(scope="module")
def stage_b(program: Callable[[str], ModuleType]) -> Any:
    return program("stage_b")


def verdict(stage_b: Any, answer: str) -> Any:
    (slot,) = pg.run(stage_b.judging(pg.route(FakeEngine(answer))), [{"prompt": "?"}])
    return slot.bind(stage_b.verdict_of)


@pytest.mark.parametrize("before", ["", "assistant\n", "Assistant: ", "\n"])
def test_a_verdict_is_read_with_or_without_a_marker_before_it(stage_b: Any, before: str) -> None:
    assert verdict(stage_b, before + GOOD).unwrap() == stage_b.Verdict("pass", "The lamp is on.")


BAD = [
    *("", "pass", "Verdict: maybe\nReason: So.", "Verdict: pass", "Verdict: pass\nReason: "),
    f"Well. {GOOD}",
    f"{GOOD}\nMore.",
    GOOD.replace("\n", "\n\n"),
    GOOD.lower(),
]


@pytest.mark.parametrize("answer", BAD)
def test_anything_else_fails_and_is_shown(stage_b: Any, answer: str) -> None:
    error = verdict(stage_b, answer).failure()
    assert isinstance(error, pg.StageFailed)
    assert error.stage == "verdict"
    assert repr(answer.strip())[1:-1] in error.message


def test_every_ticket_runs_under_every_setting_with_every_seed_and_one_bad_answer_fails_alone(
    stage_b: Any,
) -> None:
    def script(encoded: Encoded) -> str:
        return "no verdict" if encoded.options.seed == 6 and encoded.request.id == "T-2" else GOOD

    engine = FakeEngine(script)
    made = list(
        stage_b.rollouts(
            stage_b.judging(pg.route(engine)),
            {"T-1": "a", "T-2": "b"},
            stage_b.cells_of(samples=2, seed=5),
            batch=4,
        )
    )
    cells = [
        (ticket, setting, seed)
        for ticket in ("T-1", "T-2")
        for setting in ("cool", "warm", "hot")
        for seed in (5, 6)
    ]
    assert [(one.ticket, one.setting, one.seed) for one in made] == cells
    assert [len(call) for call in engine.calls] == [12]
    asked = [
        (e.request.id, e.options.temperature, e.options.seed) for call in engine.calls for e in call
    ]
    assert asked == [
        (ticket, stage_b.SETTINGS[setting].temperature, seed) for ticket, setting, seed in cells
    ]
    assert [(one.ticket, one.seed) for one in made if not pg.is_ok(one.slot)] == [("T-2", 6)] * 3


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(0, 60))
def test_what_is_packed_fits_and_nothing_left_out_would_have(
    stage_b: Any, costs: list[int], budget: int
) -> None:
    pieces = list(range(len(costs)))
    kept, left = stage_b.pack(pieces, costs, budget)
    assert sorted(kept + left) == pieces
    assert kept == sorted(kept)
    assert sum(costs[piece] for piece in kept) <= budget
    for piece in left:
        assert costs[piece] > budget - sum(costs[other] for other in kept if other < piece)


def test_the_reflection_keeps_to_its_tokens_and_counts_each_case_once(
    stage_b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(lambda row: "A rule." if row.request.continues else "A review.<|im_end|>")
    cases = {str(n): f"Ticket {n}: " + "x" * (50 * n) + "\n\n" for n in range(1, 9)}
    counted: list[str] = []
    count = pg.count_tokens

    def counting(route: pg.Route, request: Any) -> Any:
        counted.append(request["prompt"] if isinstance(request, dict) else "")
        return count(route, request)

    monkeypatch.setattr(pg, "count_tokens", counting)
    frame = count(pg.route(engine), stage_b.frame_of("")).unwrap() + stage_b.REFLECTION_TOKENS
    told = stage_b.reflection(pg.route(engine), cases, budget=frame + 600)
    assert told["ok"]
    assert (told["review"], told["text"]) == ("A review.", "A rule.")
    assert told["prompt_tokens"] <= frame + 600
    assert told["left_out"]
    assert told["packed"] + told["left_out"] == list(cases)
    assert engine.calls[0][0].options.max_prompt_tokens == frame + 600
    assert [case for case in counted if case] == list(cases.values())
    first, second = (call[0].prompt.token_ids for call in engine.calls)
    assert second[: len(first)] == first


def test_tickets_that_split_the_rollouts_come_first(stage_b: Any) -> None:
    def rollout(ticket: str, word: str) -> Any:
        return stage_b.Rollout(ticket, "cool", 1, pg.Success(stage_b.Verdict(word, "So.")))

    made = [rollout("a", "pass"), rollout("a", "pass"), rollout("b", "pass"), rollout("b", "fail")]
    assert list(stage_b.cases_of({"a": "A", "b": "B"}, made)) == ["b", "a"]


def test_the_program_runs_and_names_what_it_drops(tmp_path: Path, shell: Shell) -> None:
    pytest.importorskip("torch")
    tickets = [
        {"id": "short", "text": "What is 3 + 4?"},
        {"id": "long", "text": "dog " * 400},
        {"id": "T-3", "text": "Name three colors."},
    ]
    (tmp_path / "tickets.jsonl").write_text(
        "".join(json.dumps(ticket) + "\n" for ticket in tickets)
    )
    done = shell(
        "stage_b",
        "--model",
        "embedded",
        "--samples",
        2,
        "--max-prompt-tokens",
        300,
        tmp_path / "tickets.jsonl",
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    seen = [line["kind"] for line in lines]
    assert seen == [*["rollout"] * 6, "dropped", *["rollout"] * 6, "reflection"]
    seen = (lines[6]["ticket"], lines[6]["error"]["type"], lines[6]["error"]["limit"])
    assert seen == ("long", "PromptTooLong", 300)
    assert done.stderr.count("dropped long: the prompt has") == 1
    assert [line["ticket"] for line in lines if line["kind"] == "rollout"] == ["short"] * 6 + [
        "T-3"
    ] * 6
    assert "3 tickets, 2 judged: 12 rollouts" in done.stderr
    assert sorted(lines[-1]["packed"]) == ["T-3", "short"]
