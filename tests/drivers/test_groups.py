"""A long batch: its rows go through the stages in groups, and are one call of the engine all the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import pytest

import pipegen as pg
from pipegen.core.pipe import batch_stage
from pipegen.drivers.drive import drive
from pipegen.drivers.drive_parts import WholeBatch
from pipegen.engines.protocol import RowDone
from pipegen.testing.fake import FakeEngine

LENGTH = 2 * WholeBatch.together + 9


def echo(encoded: Any) -> str:
    return f"{encoded.prompt.text.count('x')} {encoded.options.seed}<|im_end|>"


def asked(prompt: str, **options: Any) -> dict[str, Any]:
    return {"prompt": prompt, "options": options}


def test_a_long_batch_is_one_call_in_the_order_of_the_input() -> None:
    engine = FakeEngine(echo)
    requests = [asked("x" * (number % 7 + 1), seed=number) for number in range(LENGTH)]
    slots = pg.run(pg.route(engine), requests)
    assert [len(call) for call in engine.calls] == [LENGTH]
    wanted = [f"{number % 7 + 1} {number}" for number in range(LENGTH)]
    assert [slot.unwrap().text for slot in slots] == wanted


def test_equal_prompts_are_prepared_once_for_each_group() -> None:
    engine = FakeEngine("a<|im_end|>")
    pg.run(pg.route(engine), [{"prompt": "Hi"}] * LENGTH)
    assert len({id(encoded.prompt) for encoded in engine.calls[0]}) == 3


class Box:
    def __init__(self, number: int) -> None:
        self.number = number


def test_what_lies_between_two_stages_is_gone_before_the_next_group() -> None:
    alive, most = WeakSet[Box](), list[int]()

    def boxed(number: int) -> Box:
        alive.add(box := Box(number))
        return box

    def opened(boxes: Sequence[Box]) -> Callable[[Box], pg.Slot[int]]:
        most.append(len(alive))
        return lambda box: pg.Success(box.number)

    pipe = pg.pure("box", boxed) >> batch_stage("open", opened)
    slots = drive(pipe, map(pg.Success, range(LENGTH)))
    assert [slot.unwrap() for slot in slots] == [*range(LENGTH)]
    assert most == [WholeBatch.together, WholeBatch.together, 9]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_results_do_not_depend_on_the_groups(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of a request are in several groups here, before the second call and after it."""
    samples = {"samples": 3, "temperature": 1.0}
    requests = [asked("x" * number, seed=number, **samples) for number in range(1, 8)]

    def again(result: pg.GenerationResult) -> dict[str, Any] | None:
        return {"prompt": f"{result.text} x"} if result.text.startswith(("2", "5")) else None

    def outcome() -> list[Any]:
        first, second = FakeEngine(echo), FakeEngine(echo)

        def odd(result: pg.GenerationResult) -> pg.Slot[pg.GenerationResult]:
            if len(result.text) % 2:
                return pg.Success(result)
            return pg.Failure(pg.StageFailed("even", stage="odd"))

        route = pg.route(first) >> pg.each("odd", odd)
        both = pg.fallback(route, pg.route(second), when=(pg.StageFailed,))
        slots = pg.run(pg.repeat(both, again, limit=3), requests)
        calls = [[len(call) for call in engine.calls] for engine in (first, second)]
        parts = [part.unwrap() for slot in slots for part in slot.unwrap().completions]
        return [calls, [[turn.text for turn in part.rounds] for part in parts]]

    whole = outcome()
    monkeypatch.setattr(WholeBatch, "together", size)
    assert outcome() == whole
    assert whole[0][1]  # the second route was asked


class Backwards(FakeEngine):
    """Its rows end from the last to the first; `added` has the seeds of each call."""

    side_by_side = 1
    added: list[list[int]]

    def open(self, wake: Callable[[], object], **how: Any) -> Backwards:
        self.rows: list[tuple[int, Any]] = []
        return self

    def add(self, inputs: Mapping[int, Any]) -> None:
        self.added.append([asked.options.seed for asked in inputs.values()])
        self.rows += inputs.items()

    def step(self) -> Sequence[RowDone]:
        number, asked = self.rows.pop()
        return [RowDone(row=number, slot=self.generate([asked])[0])]

    def close(self) -> None:
        """Nothing is held."""


def test_a_later_call_has_rows_in_order_however_the_one_before_has_ended_them() -> None:
    engine = Backwards(echo)
    engine.added = []

    def again(result: pg.GenerationResult) -> Any:
        return asked("x", seed=result.options.seed) if len(result.rounds) < 2 else None

    requests = [asked("x", seed=seed, samples=3, temperature=1.0) for seed in (1, 2)]
    pg.run(pg.repeat(pg.route(engine), again, limit=3), requests)
    first, second = engine.added[:2]
    assert len(first) == len({*first}) == 6
    assert second == first
