"""Limits of time, of many waits by one timer."""

from __future__ import annotations

import asyncio

import pytest
from support.clock import Clock, on_clock

from pipegen.backends.http.gate import Deadlines, Late


async def wait(deadlines: Deadlines, ends: float, turn: asyncio.Event) -> str:
    try:
        with deadlines.by(ends):
            await turn.wait()
    except Late:
        return "late"
    return "done"


@on_clock
async def test_what_is_late_ends_and_the_others_go_on(loop: Clock) -> None:
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


@on_clock
async def test_a_thousand_waits_take_one_timer(loop: Clock) -> None:
    deadlines, turn = Deadlines(), asyncio.Event()
    waiting = [asyncio.create_task(wait(deadlines, 600 + number, turn)) for number in range(1_000)]
    await loop.go_on(1)
    assert len(loop.timers) == 1
    turn.set()
    await asyncio.gather(*waiting)
    deadlines.close()
    assert len(loop.timers) == 1 and loop.timers[0].cancelled()


@on_clock
async def test_another_cancellation_is_no_lateness(loop: Clock) -> None:
    deadlines = Deadlines()
    waiting = asyncio.create_task(wait(deadlines, 5, asyncio.Event()))
    await loop.go_on(1)
    waiting.cancel()
    await loop.go_on(2)
    assert waiting.cancelled()


@on_clock
async def test_both_at_once_are_a_cancellation(loop: Clock) -> None:
    deadlines = Deadlines()
    waiting = asyncio.create_task(wait(deadlines, 5, asyncio.Event()))
    await loop.go_on(1)
    loop.now = 5
    waiting.cancel()
    await loop.go_on(5)
    assert waiting.cancelled()


@on_clock
async def test_a_deadline_that_has_passed_ends_the_first_wait(loop: Clock) -> None:
    loop.now = 9
    waiting = asyncio.create_task(wait(Deadlines(), 5, asyncio.Event()))
    await loop.go_on(9)
    assert waiting.result() == "late"


@on_clock
async def test_it_is_kept_within_a_task(loop: Clock) -> None:
    refused = list[str]()

    def outside() -> None:
        with pytest.raises(RuntimeError) as raised, Deadlines().by(1):
            pass
        refused.append(str(raised.value))

    loop.call_soon(outside)
    await loop.go_on(0)
    assert refused == ["a deadline is kept within a task"]
