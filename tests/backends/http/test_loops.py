"""The event loop of the engines that are servers, and what belongs to it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

from pipegen.backends.http.access import access_to
from pipegen.backends.http.transport import Transport
from pipegen.engines.settings import ServerSettings


def transport() -> Transport:
    access = access_to("http://h", default="", variable="NO_SUCH_KEY")
    return Transport(access, ServerSettings())


def test_each_loop_has_connections_of_its_own_which_are_closed_with_it() -> None:
    pytest.importorskip("aiohttp")
    way = transport()

    async def opened() -> object:
        here = await way.here()
        assert await way.here() is here
        here.deadlines.by(asyncio.get_running_loop().time() + 60).__enter__()
        assert here.deadlines._timer is not None
        return here

    first = asyncio.run(opened())
    assert first.deadlines._timer is None  # type: ignore[attr-defined]
    assert asyncio.run(opened()) is not first


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
