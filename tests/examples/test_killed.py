"""The example programs as jobs: killed in the middle, the same command goes on and asks only for
what is missing.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training.scenes import Scene

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
KILLED = """
import os, runpy, signal, sys
from pipegen.jobs.journal import Journal

append, left = Journal.append, int(sys.argv[1])

def counted(journal, key, values):
    global left
    append(journal, key, values)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

Journal.append = counted
sys.argv = sys.argv[2:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program that is killed when it has kept so many rows."""


@pytest.fixture
def folder(tmp_path: Path, draw_scene: Callable[..., Scene]) -> Path:
    """Images, their truth, and tickets."""
    (tmp_path / "images").mkdir()
    for number in range(6):
        draw_scene(tmp_path / "images" / f"{number}.png", number)
    (tmp_path / "truth.jsonl").write_text(
        "".join(
            json.dumps({"image": f"images/{number}.png", "objects": []}) + "\n"
            for number in range(6)
        )
    )
    (tmp_path / "tickets.jsonl").write_text(
        "".join(json.dumps({"id": f"T-{n}", "text": f"What is {n} + 4?"}) + "\n" for n in (1, 2))
    )
    return tmp_path


def rows_in(job: Path) -> list[bytes]:
    return [
        line[8:40]
        for path in sorted(job.rglob("results-*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]


CASES = {
    "stage_a": ["--job", "OUT.job", "IN/images"],
    "stage_b": ["--job", "OUT.job", "--samples", "1", "IN/tickets.jsonl"],
    "vis_tools": ["--balanced-json", "IN/truth.jsonl", "OUT"],
}


def kill(name: str, rows: int, *arguments: object) -> None:
    """Run a program that is killed when it has kept so many rows."""
    program = str(EXAMPLES / f"{name}.py")
    command = [sys.executable, "-c", KILLED, str(rows), program, *map(str, arguments)]
    killed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


@pytest.mark.parametrize("name", CASES)
def test_a_killed_program_goes_on(
    name: str, folder: Path, shell: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    pytest.importorskip("torch")

    def arguments(out: Path) -> list[str]:
        given = [
            argument.replace("IN", str(folder)).replace("OUT", str(out)) for argument in CASES[name]
        ]
        return ["--model", "embedded", "--batch", "1", *given]

    def files(out: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(out.glob("*")) if path.is_file()}

    whole, out = folder / "whole", folder / "out"
    wanted: Any = shell(name, *arguments(whole))
    kill(name, 3, *arguments(out))
    before = rows_in(folder / "out.job") or rows_in(out)
    assert len(before) == 3
    again: Any = shell(name, *arguments(out))
    seen = (again.stdout, again.returncode, again.stderr)
    assert seen == (wanted.stdout, wanted.returncode, wanted.stderr)
    after = rows_in(folder / "out.job") or rows_in(out)
    assert len(after) == len(set(after)) == (7 if name == "stage_b" else 6)
    assert set(before) < set(after)
    assert files(out) == files(whole)


def test_an_agent_killed_twice_in_200_conversations_goes_on(
    tmp_path: Path, shell: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    pytest.importorskip("torch")
    rng, questions = random.Random(3), tmp_path / "prices.jsonl"
    asked = [rng.sample(("apple", "book", "chair", "lamp", "moon", "pen"), 2) for _ in range(200)]
    questions.write_text(
        "".join(
            json.dumps({"id": n, "question": f"What do the {one} and the {other} cost?"}) + "\n"
            for n, (one, other) in enumerate(asked)
        )
    )

    def arguments(job: Path) -> list[object]:
        return ["--model", "embedded", "--job", job, questions]

    wanted = shell("agent", *arguments(tmp_path / "whole"))
    for _ in range(2):
        kill("agent", 150, *arguments(tmp_path / "killed"))
    again = shell("agent", *arguments(tmp_path / "killed"))
    assert (again.stdout, again.returncode) == (wanted.stdout, 0)
    kept = rows_in(tmp_path / "killed")
    assert len(kept) == len(set(kept)) and set(kept) == set(rows_in(tmp_path / "whole"))
    lines = [json.loads(line) for line in again.stdout.splitlines()]
    assert len(lines) == 200
    failed = [line for line, pair in zip(lines, asked, strict=True) if "moon" in pair]
    # the small model says that a price is not known; it names the other thing at times
    said = [line["text"].removeprefix("I do not know what the ") for line in failed]
    assert all(text.endswith(" costs.") for text in said)
    unknown = sum(text == "moon costs." for text in said)
    added = sum(line["calls"][-1].startswith("add(") for line in lines)
    assert unknown >= 0.7 * len(failed) > 0
    assert added >= 0.95 * (200 - len(failed))
