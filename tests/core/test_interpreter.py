"""Rows through a pipe: what a function of a stage raises, and what is asked once."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from returns.result import Success

import pipegen as pg
from pipegen.core.interpreter import Row, advance, guarded
from pipegen.core.pipe import call, pipe_of
from pipegen.core.slots import Slot
from pipegen.core.steps import EngineRequest
from pipegen.drivers.drive import drive


class Echo:
    """It answers with what is asked, and keeps it."""

    name = "echo"

    def __init__(self) -> None:
        self.inputs: list[int] = []

    def generate(self, inputs: Sequence[int]) -> Sequence[Slot[int]]:
        self.inputs += inputs
        return [Success(value) for value in inputs]


def test_a_stage_that_is_out_of_memory_fails_its_row() -> None:
    def too_large(value: int) -> Slot[int]:
        raise MemoryError("too large")

    slot = guarded("resolve", too_large, 1)
    assert isinstance(slot.failure(), pg.StageFailed)
    assert "too large" in slot.failure().message


def test_rows_that_want_the_same_are_asked_once() -> None:
    engine = Echo()

    def ask(value: int, answers: tuple[Slot[Any], ...]) -> EngineRequest | Slot[Any]:
        return answers[0] if answers else EngineRequest(engine, value, same=value)

    once = pipe_of(replace(call(engine).steps[0], ask=ask))
    assert drive(once, [Success(1), Success(2), Success(1)]) == (Success(1), Success(2), Success(1))
    assert engine.inputs == [1, 2]


def test_a_row_that_waits_for_an_answer_within_a_nest_is_plain_data() -> None:
    engine = Echo()
    pipe = pg.pure("double", lambda n: 2 * n) >> pg.fallback(
        call(engine), pg.pure("other", lambda n: n), when=pg.Timeout
    )
    ((row, wanted),) = advance(pipe, [Row(0, Success(2))]).calls
    there = pickle.loads(pickle.dumps(row))
    assert (there, wanted.input, len(there.place)) == (row, 4, 2)
    assert [one.value for one in advance(pipe, [there.answered(Success(5))]).ended] == [Success(5)]
