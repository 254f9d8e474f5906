"""Limits of time, of many waits by one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pipegen.backends.http.gate import Deadlines, Late


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time goes on when it is told to; it counts its timers."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.timers = 0.0, list[asyncio.TimerHandle]()

    def time(self) -> float:
        return self.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        self.timers.append(super().call_at(when, callback, *args, context=context))
        return self.timers[-1]

    async def go_on(self, to: float) -> None:
        self.now = to
        for _ in range(5):
            await asyncio.sleep(0)


def run(work: Callable[[Clock], Coroutine[Any, Any, None]]) -> None:
    loop = Clock()
    try:
        loop.run_until_complete(work(loop))
    finally:
        loop.close()


async def wait(deadlines: Deadlines, ends: float, turn: asyncio.Event) -> str:
    try:
        with deadlines.by(ends):
            await turn.wait()
    except Late:
        return "late"
    return "done"


def test_what_is_late_ends_and_the_others_go_on() -> None:
    async def work(loop: Clock) -> None:
        deadlines, turn = Deadlines(), asyncio.Event()
        waiting = [asyncio.create_task(wait(deadlines, ends, turn)) for ends in (5, 2, 9, 2, 7)]
        await loop.go_on(1)
        assert not any(task.done() for task in waiting)
        await loop.go_on(2)
        assert [task.done() for task in waiting] == [False, True, False, True, False]
        await loop.go_on(6)
        assert [task.done() for task in waiting] == [True, True, False, True, False]
        turn.set()
        await loop.go_on(100)
        assert [task.result() for task in waiting] == ["late", "late", "done", "late", "done"]

    run(work)


def test_a_thousand_waits_take_one_timer() -> None:
    async def work(loop: Clock) -> None:
        deadlines, turn = Deadlines(), asyncio.Event()
        waiting = [
            asyncio.create_task(wait(deadlines, 600 + number, turn)) for number in range(1_000)
        ]
        await loop.go_on(1)
        assert len(loop.timers) == 1
        turn.set()
        await asyncio.gather(*waiting)
        deadlines.close()
        assert len(loop.timers) == 1 and loop.timers[0].cancelled()

    run(work)


def test_another_cancellation_is_no_lateness() -> None:
    async def work(loop: Clock) -> None:
        deadlines = Deadlines()
        waiting = asyncio.create_task(wait(deadlines, 5, asyncio.Event()))
        await loop.go_on(1)
        waiting.cancel()
        await loop.go_on(2)
        assert waiting.cancelled()

    run(work)


def test_both_at_once_are_a_cancellation() -> None:
    async def work(loop: Clock) -> None:
        deadlines = Deadlines()
        waiting = asyncio.create_task(wait(deadlines, 5, asyncio.Event()))
        await loop.go_on(1)
        loop.now = 5
        waiting.cancel()
        await loop.go_on(5)
        assert waiting.cancelled()

    run(work)


def test_a_deadline_that_has_passed_ends_the_first_wait() -> None:
    async def work(loop: Clock) -> None:
        loop.now = 9
        waiting = asyncio.create_task(wait(Deadlines(), 5, asyncio.Event()))
        await loop.go_on(9)
        assert waiting.result() == "late"

    run(work)


def test_it_is_kept_within_a_task() -> None:
    async def work(loop: Clock) -> None:
        refused = list[str]()

        def outside() -> None:
            with pytest.raises(RuntimeError) as raised, Deadlines().by(1):
                pass
            refused.append(str(raised.value))

        loop.call_soon(outside)
        await loop.go_on(0)
        assert refused == ["a deadline is kept within a task"]

    run(work)
