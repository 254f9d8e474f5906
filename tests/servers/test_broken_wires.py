"""A running server behind a wire that breaks: connections end in the middle of answers, and every
slot holds its own answer all the same.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import pipegen as pg
from pipegen.testing.ask import PROMPTS, answers, chat, greedy

both = pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)


class BreakingWire:
    """Hands bytes on to a server; each of its connections breaks after some hundreds to thousands
    of bytes of answers, drawn by a seed.
    """

    def __init__(self, url: str, seed: int) -> None:
        self.target, self.draw, self.broken, self.url = urlsplit(url), random.Random(seed), 0, ""

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.draw.randrange(200, 6000)
        back, there = await asyncio.open_connection(self.target.hostname, self.target.port)

        async def ask() -> None:
            while data := await reader.read(65536):
                there.write(data)

        asking = asyncio.ensure_future(ask())
        try:
            while left > 0 and (data := await back.read(min(left, 65536))):
                left -= len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.broken += left <= 0
            asking.cancel()
            for end in (writer, there):
                end.transport.abort()
            await asyncio.gather(asking, return_exceptions=True)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        tasks = set[asyncio.Task[None]]()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.create_task(self._connection(reader, writer)))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await self._ended.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __enter__(self) -> BreakingWire:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()


@pytest.fixture
def wire(served: Any) -> Iterator[BreakingWire]:
    with BreakingWire(served.url, 7) as wire:
        yield wire


@both
@pytest.mark.parametrize("by", ["ids", "chat"])
# H6
def test_what_a_broken_connection_lost_is_asked_again(
    by: str, served: Any, wire: BreakingWire
) -> None:
    lengths = list(itertools.islice(itertools.cycle((1, 2, 3, 5, 4)), 100))
    requests = [
        chat(PROMPTS[row % 4], greedy(max_new_tokens=length)) for row, length in enumerate(lengths)
    ]
    make = served.opened if by == "ids" else served.chat
    with make() as route:
        wanted = [result.text for result in answers(pg.run(route, requests[:20]))]
    with make(base_url=wire.url, retries=20, max_in_flight=16) as route:
        found = answers(pg.run(route, requests))
    assert [result.text for result in found] == wanted * 5
    assert wire.broken > 3


@both
# H6
def test_where_asking_again_is_not_allowed_a_broken_connection_is_a_typed_error(
    served: Any, wire: BreakingWire
) -> None:
    with served.opened(base_url=wire.url, retries=0, max_in_flight=4) as route:
        slots = pg.run(
            route,
            [chat("Count.", greedy(max_new_tokens=600, stop=pg.StopOptions(ignore_eos=True)))] * 8,
        )
    errors = [slot.failure() for slot in slots if not pg.is_ok(slot)]
    assert errors
    assert {type(error) for error in errors} <= {pg.BackendFailed, pg.MalformedResponse}
    served.wait_until(busy=False)
