"""What a request holds while it waits for its answer: thousands wait at once, and the garbage
collector looks at all of it.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from support.served import route_to

import pipegen as pg

pytest.importorskip("aiohttp")

COUNT = 200


def by_ids(url: str) -> pg.Route:
    return route_to(url, max_in_flight=COUNT, served_model_name="toy")


def by_chat(url: str) -> pg.Route:
    backends: Any = pg.backends
    route: pg.Route = backends.openai_server(
        "toy", base_url=url, dialect="plain", max_in_flight=COUNT
    )
    return route


@pytest.mark.parametrize(("make", "most"), [(by_ids, 42), (by_chat, 42)])
def test_a_waiting_request_holds_few_objects_one_task_and_no_timer(
    make: Callable[[str], pg.Route], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records, its body, four coroutines, a task; three of them are of this test."""
    from pipegen.backends.http.client import Client

    async def work() -> None:
        loop = asyncio.get_running_loop()
        waiting, timers, call_at = list[asyncio.Future[None]](), list[float](), loop.call_at

        async def opened(self: Client, method: str, url: str, body: Any) -> Any:
            if body is not None:
                waiting.append(loop.create_future())
                await waiting[-1]
            raise AssertionError("no answer is made here")

        async def facts_known(self: object) -> None:
            """Nothing is looked up."""

        monkeypatch.setattr(Client, "open", opened)
        monkeypatch.setattr("pipegen.backends.servers.facts.Directory._look_up", facts_known)

        def counted(when: float, *more: Any, **named: Any) -> asyncio.TimerHandle:
            timers.append(when)
            return call_at(when, *more, **named)

        monkeypatch.setattr(loop, "call_at", counted)

        async def held(count: int) -> tuple[int, int]:
            """The objects and the tasks while so many wait."""
            asked = asyncio.create_task(
                pg.arun(route, [{"prompt": f"request {number}"} for number in range(count)])
            )
            while len(waiting) < count:  # noqa: ASYNC110  # the requests are made in a thread
                await asyncio.sleep(0)
            gc.collect()
            found = len(gc.get_objects()), len(asyncio.all_tasks())
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            waiting.clear()
            return found

        route = make("http://localhost:9")
        await held(1)
        few, many = await held(1), await held(COUNT)
        assert (many[0] - few[0]) / (COUNT - 1) <= most
        assert abs(many[1] - few[1] - (COUNT - 1)) <= 1  # a round of the driver may be at work
        assert len(timers) == 1

    asyncio.run(work())
