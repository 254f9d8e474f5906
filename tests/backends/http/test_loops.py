"""One value for each event loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

from pipegen.backends.http.loops import PerLoop


async def nothing(_: object) -> None:
    """Puts nothing away."""


def test_the_last_value_is_given_on_its_own_loop_alone() -> None:
    kept: PerLoop[list[int]] = PerLoop(list, nothing)

    async def work() -> list[int]:
        assert kept.last() is None
        value = await kept.get()
        assert kept.last() is value and await kept.get() is value
        return value

    assert asyncio.run(work()) is not asyncio.run(work())


def test_a_value_that_was_put_away_is_not_given_again() -> None:
    async def work() -> None:
        away: list[object] = []

        async def put_away(value: object) -> None:
            away.append(value)

        kept: PerLoop[object] = PerLoop(object, put_away)
        first = await kept.get()
        kept.close()
        assert kept.last() is None
        assert await kept.get() is not first
        for _ in range(10):
            await asyncio.sleep(0)
        assert away == [first]

    asyncio.run(work())


def test_two_loops_at_once_have_a_value_each() -> None:
    kept: PerLoop[object] = PerLoop(object, nothing)

    async def outer() -> None:
        mine = await kept.get()

        async def inner() -> object:
            assert kept.last() is None
            return await kept.get()

        other = await asyncio.to_thread(lambda: asyncio.run(inner()))
        assert other is not mine
        assert kept.last() is None and await kept.get() is mine

    asyncio.run(outer())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_route_works_in_a_process_that_was_forked_and_goes_on_working_in_the_other() -> None:
    pytest.importorskip("aiohttp")
    program = """
        import os, signal
        import pipegen as pg
        from pipegen.testing.faulty import FaultyServer

        def answers(count):
            return [slot.unwrap().text for slot in pg.run(route, [{"prompt": f"request {number}"} for number in range(count)])]

        with FaultyServer(share=0.0) as server, pg.backends.openai_server("toy", base_url=server.url, timeout=20.0) as route:
            before = answers(8)
            child = os.fork()
            if not child:
                signal.alarm(60)  # it must not be left behind
                same = answers(8) == before
                route.engine.close()
                os._exit(0 if same else 1)
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), answers(8) == before)
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["0", "True"], done.stderr
