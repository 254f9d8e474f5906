"""The gate: how many requests are at a server at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pipegen.backends.http.gate import Gate


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def test_no_more_than_its_width_are_in_and_first_come_first_served() -> None:
    async def work() -> None:
        gate, entered = Gate(2), list[int]()

        async def one(number: int) -> None:
            await gate.enter(None)
            entered.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert entered == [0, 1]
        for count in (3, 4, 5):
            gate.leave()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert entered == list(range(count))
        await asyncio.gather(*tasks)
        assert gate.held == 2

    run(work())


def test_refusals_narrow_it_once_for_all_that_were_sent_before() -> None:
    async def work() -> None:
        gate = Gate(100)
        sent_at = asyncio.get_running_loop().time() - 1
        for _ in range(10):
            gate.narrow(sent_at, None)
        assert gate.width == 70
        gate.narrow(asyncio.get_running_loop().time(), None)
        assert gate.width == 49
        for _ in range(200):
            gate.narrow(asyncio.get_running_loop().time(), None)
        assert gate.width == 1

    run(work())


def test_answers_widen_it_again_and_no_further_than_it_may() -> None:
    async def work() -> None:
        gate = Gate(32)
        gate.narrow(asyncio.get_running_loop().time(), None)
        before = gate.width
        for _ in range(int(before)):
            gate.widen()
        assert before + 1.5 < gate.width <= before + 2.5
        for _ in range(10_000):
            gate.widen()
        assert gate.width == 32

    run(work())


def test_it_is_closed_for_as_long_as_the_server_says() -> None:
    async def work() -> None:
        gate, loop = Gate(4), asyncio.get_running_loop()
        gate.narrow(loop.time(), 0.05)
        opens = loop.time() + 0.04
        entering = asyncio.create_task(gate.enter(None))
        await asyncio.sleep(0)
        assert not entering.done()
        await entering
        assert loop.time() >= opens

    run(work())


def test_one_who_is_cancelled_while_waiting_takes_no_room() -> None:
    async def work() -> None:
        gate = Gate(1)
        await gate.enter(None)
        waiting = [asyncio.create_task(gate.enter(None)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        gate.leave()
        await waiting[1]
        assert gate.held == 1
        granted = asyncio.create_task(gate.enter(None))
        await asyncio.sleep(0)
        gate.leave()  # gives the room to the one who waits ...
        granted.cancel()  # ... who goes away in the same moment
        await asyncio.gather(granted, return_exceptions=True)
        assert gate.held == 0

    run(work())
