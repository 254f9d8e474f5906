"""Calls that are cancelled compute no further step, and a process that was forked off after use
refuses, or works, and never waits for ever.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import pipegen as pg
from pipegen.drivers import mapping
from pipegen.drivers.progress import watched

pytestmark = pytest.mark.slow

LONG = pg.GenerationOptions(max_new_tokens=400, stop=pg.StopOptions(ignore_eos=True))


class Held:
    """Lets the model's passes through one at a time: the test sees each come, and lets it go on."""

    def __init__(self) -> None:
        self.passes = 0
        self.came, self.may_go = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, rows: int) -> None:
        self.passes += 1
        self.came.release()
        assert self.may_go.acquire(timeout=60)


@pytest.mark.parametrize("kind", ["arun", "aimap", "watched", "astream"])
def test_a_cancelled_call_computes_no_further_step(
    kind: str, engine: Any, forwards: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, shared, left = Held(), engine.computing.shared, threading.Event()
    sizes, leave, flow_of = forwards(held), shared.leave, mapping.flow_of

    def leaving(mailbox: Any) -> None:
        leave(mailbox)
        left.set()

    def watched_flow(*args: Any, **how: Any) -> Any:
        """aimap works in a thread, which leaves the engine after the pass."""
        flow = flow_of(*args, **how)
        wake = flow.wake

        def woken() -> None:
            wake()
            if flow.closed:
                left.set()

        flow.wake = woken
        return flow

    monkeypatch.setattr(shared, "leave", leaving)
    monkeypatch.setattr(mapping, "flow_of", watched_flow)
    route: Any = pg.route(engine)

    async def call() -> None:
        requests = [{"prompt": "Hi"}, {"prompt": "Hello"}]
        if kind == "aimap":
            async for _ in pg.aimap(route, requests, LONG):
                pass
        elif kind == "astream":
            async for _ in pg.astream(route, requests, LONG):
                pass
        else:
            await pg.arun(
                watched(route, lambda progress: None) if kind == "watched" else route,
                requests,
                LONG,
            )

    async def cancelled() -> int:
        task = asyncio.create_task(call())
        for _ in range(3):
            assert await asyncio.to_thread(held.came.acquire, timeout=60)
            held.may_go.release()
        assert await asyncio.to_thread(held.came.acquire, timeout=60)  # the fourth pass is running
        task.cancel()
        assert await asyncio.to_thread(left.wait, timeout=60)
        held.may_go.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        return held.passes

    def let_all_go() -> None:
        held.may_go = threading.Semaphore(10_000)

    passes = asyncio.run(cancelled())
    let_all_go()
    # the engine's next pass is that of the next call
    assert pg.is_ok(pg.run(route, [{"prompt": "Hi"}], {"max_new_tokens": 1})[0])
    assert passes == 4 and sizes == [2, 2, 2, 2, 1]


def test_an_awaited_call_gives_what_a_plain_one_gives(engine: Any) -> None:
    route = pg.route(engine)
    requests: list[Any] = [{"prompt": "Hi"}, {"messages": []}, {"prompt": "Hello there"}]
    options = pg.GenerationOptions(max_new_tokens=5)
    assert asyncio.run(pg.arun(route, requests, options)) == pg.run(route, requests, options)


FORKED = """
import os, select, sys
import torch
import pipegen as pg

torch.set_num_threads({threads})
options = pg.GenerationOptions(max_new_tokens=3)
route = pg.backends.hf("embedded", variant="text")
if {used}:
    assert pg.is_ok(pg.run(route, [{{"prompt": "Hi"}}], options)[0])
reader, writer = os.pipe()
child = os.fork()
if not child:
    if {fresh}:
        route = pg.backends.hf("embedded", variant="text")
    slot = pg.run(route, [{{"prompt": "Hi"}}], options)[0]
    os.write(writer, ("ok" if pg.is_ok(slot) else f"{{type(slot.failure()).__name__}}: {{slot.failure().message}} {{slot.failure().hint}}").encode())
    os._exit(0)
ready, _, _ = select.select([reader], [], [], 120)
print(os.read(reader, 10_000).decode() if ready else "it hangs")
os.kill(child, 9)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize(
    ("threads", "used", "fresh", "works"),
    [
        (2, True, False, False),
        (2, True, True, False),
        (1, True, False, True),
        (2, False, False, True),
    ],
)
def test_a_fork_after_use_refuses_or_works(
    threads: int, used: bool, fresh: bool, works: bool
) -> None:
    script = FORKED.format(threads=threads, used=used, fresh=fresh)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )
    output = done.stdout.strip()
    if works:
        assert output == "ok", done.stderr
    else:
        assert output.startswith("BackendFailed: process "), done.stderr
        assert "start processes with 'spawn' or 'forkserver'" in output
