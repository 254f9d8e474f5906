"""What CI runs: the README's command, the newest versions of all packages, and the sessions on real
engines where their wheels can be had. Here with a nox and a pip that only say what they do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent
FROZEN = ("tests/engines/vllm-cpu-requirements.txt", "tests/servers/sglang-cpu-requirements.txt")
NOX = """#!/bin/sh
case "$*" in "") sessions=tests ;; *) sessions="${*%% --*}"; sessions="${sessions#*-s }" ;; esac
case "$*" in -R*) echo "installs nothing: $sessions" ;; esac
for session in $sessions; do
    echo "nox > Running session $session"
    if [ "$session" = "$SLOW" ]; then exec sleep 60; fi
    if [ "$session" = "$FAILING" ]; then
        echo "ERROR: why"; echo "ERROR: more"; echo "== 1 failed in 0.1s =="
        echo "nox > Session $session failed with exit code 1."; exit 1
    fi
    echo "$session on the examples of ${HYPOTHESIS_PROFILE:-each day}"
    echo "== 3 passed in 0.1s =="
done
"""
LAWS = "property_tests"
MADE = ("vllm_cpu", "vllm_cpu_lowest", "sglang_cpu")
PIP = """#!/bin/sh
for word in "$@"; do case "$word" in $ABSENT) exit 1 ;; esac; done
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="CI runs on Linux")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in (".ci/run", *FROZEN):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / name, tmp_path / name)
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name, text in (("nox", NOX), ("python", PIP)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "README.md").write_text("<!-- tests -->\n\n    true && .venv/bin/nox\n")
    return tmp_path


def ran(clone: Path, **settings: str) -> tuple[int, list[str], str]:
    """The exit status, the closing lines, and all that was printed."""
    environment = {**os.environ, "SLOW": "", "FAILING": "", "ABSENT": "nothing", **settings}
    environment.pop("HYPOTHESIS_PROFILE", None)  # CI sets it
    done = subprocess.run(
        ["bash", ".ci/run"], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.rpartition("\n\n")[2].splitlines(), done.stdout


def closing(*sessions: str) -> list[str]:
    return [
        line
        for session in sessions
        for line in (f"nox > Running session {session}", "== 3 passed in 0.1s ==")
    ]


def test_the_readme_s_command_is_followed_by_the_newest_versions_and_the_real_engines(
    clone: Path,
) -> None:
    status, last, shown = ran(clone)
    sessions = ("tests", "newest", "slow", "faults", *MADE, "servers", "engines", LAWS)
    assert (status, last) == (0, closing(*sessions))
    assert "not run" not in shown


def test_each_law_is_tried_on_more_examples_once(clone: Path) -> None:
    _, _, shown = ran(clone)
    assert "tests on the examples of ci" in shown
    assert "newest on the examples of each day" in shown
    assert "+ .venv/bin/nox -R -s property_tests -- -m slow --hypothesis-profile=ci" in shown


def test_what_was_installed_is_not_installed_again(clone: Path) -> None:
    _, _, shown = ran(clone)
    again = [line.split()[-1] for line in shown.splitlines() if "installs nothing" in line]
    assert again == ["slow", "faults", "servers", "engines", LAWS]


def test_what_could_not_be_installed_beside_the_others_is_tried_again_by_those_that_need_it(
    clone: Path,
) -> None:
    status, last, shown = ran(clone, FAILING="sglang_cpu")
    assert (status, last[-6:]) == (0, closing("servers", "engines", LAWS))
    assert "ERROR: why" in last
    again = [line.split()[-1] for line in shown.splitlines() if "installs nothing" in line]
    assert again == ["slow", "faults", LAWS]


@pytest.mark.parametrize(
    ("absent", "sessions", "words"),
    [
        (
            "vllm-cpu==*",
            (),
            (
                "+ not run: engines and servers. pip finds no wheels for"
                " tests/engines/vllm-cpu-requirements.txt here"
            ),
        ),
        (
            "torch==*",
            (),
            (
                "+ not run: engines and servers. pip finds no wheels for"
                " tests/engines/vllm-cpu-requirements.txt here"
            ),
        ),
        (
            "sglang==*",
            (*MADE[:2], "engines"),
            (
                "+ not run: servers. pip finds no wheels for"
                " tests/servers/sglang-cpu-requirements.txt here"
            ),
        ),
    ],
)
def test_what_cannot_be_had_is_said_and_left_out(
    clone: Path, absent: str, sessions: tuple[str, ...], words: str
) -> None:
    status, last, shown = ran(clone, ABSENT=absent)
    assert (status, last) == (0, closing("tests", "newest", "slow", "faults", *sessions, LAWS))
    assert words in shown


@pytest.mark.parametrize("failing", ["tests", "newest", "faults", "servers"])
def test_any_session_that_fails_fails_the_whole_and_the_others_are_run(
    clone: Path, failing: str
) -> None:
    status, last, _ = ran(clone, FAILING=failing)
    assert status == 1
    failed = last.index(f"nox > Session {failing} failed with exit code 1.")
    assert "ERROR: why" in last[:failed]  # the first line that says so
    assert "ERROR: more" not in last
    assert "nox > Running session faults" in last


def test_a_session_is_not_begun_when_little_time_is_left(clone: Path) -> None:
    status, last, shown = ran(clone, PIPEGEN_CI_SECONDS="500")
    assert (status, last) == (0, closing("tests"))
    assert "+ not run: engines. Of the 500 seconds for all, less than 600 are left" in shown


def test_what_takes_too_long_is_stopped_and_fails_the_whole(clone: Path) -> None:
    status, _, shown = ran(clone, SLOW="tests", PIPEGEN_CI_SECONDS="2")
    assert status == 124
    assert "+ stopped: all of it takes at most 2 seconds" in shown


def test_contributing_says_how_long_all_may_take_and_a_session_needs() -> None:
    script = (HERE / ".ci" / "run").read_text(encoding="utf-8")
    seconds, enough = (
        int(re.findall(rf"{name}:-(\d+)", script)[0])
        for name in ("PIPEGEN_CI_SECONDS", "PIPEGEN_CI_ENOUGH")
    )
    page = (HERE / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"less than {enough // 60} of its {seconds // 60} minutes are left" in page
