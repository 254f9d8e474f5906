"""The comparison of vLLM with transformers before the first call: when it is made, what it refuses,
and what stays unknown.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models import encoded, write_model

import pipegen as pg
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.engine_parity import Differs
from pipegen.backends.checkpoint.positions import Boundary
from pipegen.backends.checkpoint.verdicts import CannotCheck
from pipegen.backends.vllm import self_check
from pipegen.backends.vllm.vllm_engine import VLLMEngine
from pipegen.engines.settings import ModelLoadConfig


@pytest.fixture
def asked(started: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The stand-in finds that windows differ, and nothing was found before; the models that it was
    asked of.
    """
    seen: list[str] = []

    def differs(text: Any, *_: Any) -> Differs:
        seen.append(text.model_type)
        return Differs(Boundary("sliding_window", 8), 0.05)

    monkeypatch.setattr(self_check, "differs_beyond", differs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return seen


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "mistral", "mistral"))


def in_this_process(monkeypatch: pytest.MonkeyPatch, *, computes: bool = False) -> None:
    monkeypatch.setattr(sys.modules["vllm"].envs, "VLLM_ENABLE_V1_MULTIPROCESSING", False)
    monkeypatch.setattr(self_check, "_computes", lambda: computes)


def outcomes(model: str, **settings: Any) -> list[Any]:
    engine = VLLMEngine(ModelLoadConfig(model=model, backend="vllm", engine_kwargs=settings))
    slots = engine.generate([encoded([10] * length, max_new_tokens=2) for length in (5, 6, 7)])
    return [None if pg.is_ok(slot) else type(slot.failure()) for slot in slots]


def test_in_this_process_rows_beyond_a_difference_are_refused_and_shorter_ones_run(
    asked: list[str], windowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    assert outcomes(windowed) == [None, None, pg.UnsupportedOption]
    assert outcomes(windowed) == [None, None, pg.UnsupportedOption]
    assert asked == ["mistral"]  # one answer is enough, also for later processes


def test_what_was_found_to_be_the_same_is_kept_too(
    asked: list[str], windowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setattr(self_check, "differs_beyond", lambda *_: asked.append("same"))
    assert [self_check.check_lengths(checkpoint(windowed)) for _ in range(2)] == [None, None]
    assert asked == ["same"]


def test_a_difference_from_the_first_tokens_on_is_kept_as_such(
    asked: list[str], windowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setattr(self_check, "differs_beyond", lambda *_: Differs(None, 0.5))
    found = [self_check.check_lengths(checkpoint(windowed)) for _ in range(2)]
    assert found == [Differs(None, 0.5)] * 2


def test_in_a_process_of_its_own_it_is_made_where_it_is_asked_for(
    asked: list[str], windowed: str
) -> None:
    assert outcomes(windowed) == [None, None, None]
    assert asked == []
    assert outcomes(windowed, check_lengths=True) == [None, None, pg.UnsupportedOption]


def test_a_setting_turns_it_off_and_vllm_does_not_hear_of_it(
    asked: list[str], started: list[Any], windowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    assert outcomes(windowed, check_lengths=False) == [None, None, None]
    assert asked == []
    assert not hasattr(started[0].arguments, "check_lengths")


def test_a_model_without_lengths_is_not_compared(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    assert outcomes("embedded") == [None, None, None]
    assert asked == []


def test_lengths_that_no_row_reaches_are_not_compared(
    asked: list[str], windowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    assert self_check.checked_lengths(checkpoint(windowed), 8) is None
    assert self_check.checked_lengths(checkpoint(windowed), 9) is not None
    assert self_check.checked_lengths(checkpoint(windowed), None) is not None


def checkpoint(model: str) -> Checkpoint:
    return Checkpoint(ModelLoadConfig(model=model, backend="vllm"))


def test_beside_another_vllm_in_this_process_it_stays_unknown(
    asked: list[str], windowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch, computes=True)
    assert outcomes(windowed) == [None, None, None]
    with pytest.raises(CannotCheck, match="another vLLM computes in this process"):
        self_check.check_lengths(checkpoint(windowed))


def test_what_the_comparison_raises_fails_no_row_and_no_incident_is_logged(
    asked: list[str],
    windowed: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: Any) -> None:
        logging.getLogger("pipegen").error("incident 1: no")
        raise ZeroDivisionError("of the family's own code")

    in_this_process(monkeypatch)
    monkeypatch.setattr(self_check, "differs_beyond", fails)
    caplog.set_level(logging.INFO)
    assert outcomes(windowed) == [None, None, None]
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert (
        "beyond sliding_window is not checked: ZeroDivisionError: of the family's own code"
        in record.getMessage()
    )


def test_both_engines_score_the_small_model(
    started: list[Any], windowed: str, tmp_path: Path
) -> None:
    from pipegen.backends.checkpoint.engine_parity import _trial_rows

    rows = [row for _, row in _trial_rows(SimpleNamespace(sliding_window=8))]
    assert [pg.is_ok(slot) for slot in self_check._by_transformers(Path(windowed), rows)] == [
        True,
        True,
    ]
