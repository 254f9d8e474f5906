"""Calls that share the steps of one engine, on an engine that only counts."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pipegen.backends.shared_steps import Box, SharedSteps


class Counting(SharedSteps[int]):
    """Each step puts its number into every box, but for the first `silent` ones."""

    def __init__(self, silent: int = 0) -> None:
        super().__init__()
        self.boxes: list[Box[int]] = []
        self.silent, self.steps, self.drops = silent, 0, 0
        self.guest: threading.Thread | None = None
        self.entered_after: list[int] = []

    def _advance(self) -> None:
        self.steps += 1
        if self.guest is None:
            self.guest = threading.Thread(target=self._enter)
            self.guest.start()
            while not self._entering:
                pass
        for box in self.boxes if self.steps > self.silent else ():
            box.put(self.steps)

    def _drop(self) -> None:
        self.drops += 1

    def _enter(self) -> None:
        with self.entered():
            self.entered_after.append(self.steps)

    def box(self, least: int = 1) -> Box[int]:
        self.boxes.append(Box(least))
        return self.boxes[-1]


def test_who_enters_goes_before_the_next_step_of_the_thread_that_steps_for_all() -> None:
    for _ in range(20):
        shared = Counting(silent=200)
        assert asyncio.run(shared.astep(shared.box())) == [201]
        assert shared.guest is not None
        shared.guest.join()
        assert shared.entered_after == [1]


def test_a_thread_steps_until_nobody_waits_and_each_box_has_every_step() -> None:
    async def both() -> list[list[int]]:
        return list(await asyncio.gather(shared.astep(one), shared.astep(other)))

    shared = Counting()
    one, other = shared.box(), shared.box(least=4)
    first, second = asyncio.run(both())
    assert second == [*range(1, shared.steps + 1)]
    assert [*first, *one.take()] == second
    assert shared.steps == 4
    assert shared.step(one) == [5]


def test_what_was_left_is_dropped_once_before_the_next_step_or_at_once() -> None:
    shared = Counting()
    box = shared.box()
    shared.leave()
    assert (shared.drops, shared.steps) == (1, 0)
    with shared.lock:
        other = threading.Thread(target=shared.leave)
        other.start()
        other.join()  # it does not wait for the lock
        assert shared.drops == 1
    shared.step(box)
    assert (shared.drops, shared.steps) == (2, 1)


@pytest.mark.parametrize(
    "call",
    [lambda shared, box: shared.step(box), lambda shared, box: asyncio.run(shared.astep(box))],
)
def test_what_has_ended_a_call_is_raised_after_what_came_before(call: object) -> None:
    assert callable(call)
    shared = Counting()
    box = shared.box()
    box.put(7)
    box.fail(KeyError("gone"))
    assert call(shared, box) == [7]
    with pytest.raises(KeyError, match="gone"):
        call(shared, box)
    assert shared.steps == 0
