"""The command `lm-eval`, as far as it goes without lm-eval; `tests/evals` runs it."""

from __future__ import annotations

import importlib.util

import pytest

from pipegen.cli import main
from pipegen.cli.lm_eval_command import arguments


def test_a_run_is_by_pipegen_unless_it_says_otherwise() -> None:
    seen = arguments(["--tasks", "a"])
    assert seen == ["run", "--tasks", "a", "--model", "pipegen", "--batch_size", "auto"]
    assert arguments(["run", "--model=hf", "-b", "4"]) == ["run", "--model=hf", "-b", "4"]
    assert arguments(["run", "-M", "hf"]) == ["run", "-M", "hf", "--batch_size", "auto"]
    assert arguments(["--config", "a.yaml"]) == ["run", "--config", "a.yaml"]


@pytest.mark.parametrize(
    "given", [["ls", "tasks"], ["--help"], ["run", "-h"], ["validate", "--tasks", "a"]]
)
def test_other_commands_and_help_are_lm_evals_own(given: list[str]) -> None:
    assert arguments(given) == given


@pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is not None, reason="lm-eval is installed here"
)
def test_without_lm_eval_the_message_says_what_to_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["lm-eval", "--tasks", "a"])
    assert left.value.code == 2
    assert "[evals]" in capsys.readouterr().err
