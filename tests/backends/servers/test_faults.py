"""Against a server that fails on a fifth of its calls: every request keeps its slot, and what is
lost is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.served import route_to

import pipegen as pg
from pipegen.testing.faulty import FAULTS, SAFE, FaultyServer

pytest.importorskip("aiohttp")

COUNT = int(os.environ.get("PIPEGEN_FAULTY_REQUESTS", "300"))
TYPED = (pg.BackendFailed, pg.MalformedResponse, pg.RateLimited, pg.Timeout)
OPTIONS = pg.GenerationOptions(max_new_tokens=64)


def prompts(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"request {number:05}"} for number in range(count)]


def mine(number: int) -> str:
    """What the server answers to that request."""
    return f"request {number:05}"[::-1]


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until it holds: what it waits for happens in the server's thread."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


ANSWERING = tuple(kind for kind in FAULTS if kind != "stall")
"""The faults in which a call ends by itself, and not with the row's time."""


@pytest.fixture
def faulty() -> Iterator[FaultyServer]:
    with FaultyServer(share=0.2, seed=7) as server:
        yield server


def check(slots: Any, server: FaultyServer, count: int) -> int:
    """Each slot holds its own answer or a typed error; how many hold one."""
    assert len(slots) == count
    good = 0
    for number, slot in enumerate(slots):
        if pg.is_ok(slot):
            assert slot.unwrap().text == mine(number)
            assert slot.unwrap().finish is pg.Finish.EOS
            good += 1
        else:
            assert isinstance(slot.failure(), TYPED)
    return good


@pytest.mark.parametrize("wire", ["vllm", "sglang"])
def test_every_request_keeps_its_slot(wire: str) -> None:
    with (
        FaultyServer(share=0.2, seed=7, kinds=ANSWERING) as server,
        route_to(server, wire, timeout=120.0, retries=8, max_in_flight=64) as route,
    ):
        slots = pg.run(route, prompts(COUNT), OPTIONS)
    assert check(slots, server, COUNT) == COUNT - server.failed["500"]  # which is not asked again
    assert set(server.failed) == set(ANSWERING)


def test_a_request_that_is_never_answered_ends_with_its_time_and_costs_the_others_nothing() -> None:
    with (
        FaultyServer(share=0.2, seed=7, kinds=("stall",)) as server,
        route_to(server, timeout=2.0, max_in_flight=50) as route,
    ):
        slots = pg.run(route, prompts(50), OPTIONS)
    assert check(slots, server, 50) == 50 - server.failed["stall"]
    late = [slot.failure() for slot in slots if not pg.is_ok(slot)]
    assert all(
        isinstance(error, pg.Timeout) and "2 s for a request" in error.message for error in late
    )


def test_nobody_is_answered_twice() -> None:
    """But after a timeout, which could come while the answer is on its way: so none of the kinds
    here takes one.
    """
    with (
        FaultyServer(share=0.2, seed=11, kinds=SAFE) as server,
        route_to(server, timeout=60.0, retries=8, max_in_flight=64) as route,
    ):
        slots = pg.run(route, prompts(COUNT), OPTIONS)
    assert check(slots, server, COUNT) == COUNT
    assert set(server.answered.values()) == {1}
    assert len(server.answered) == COUNT


def test_streams_of_a_faulty_server_give_the_batch_or_a_typed_error() -> None:
    with (
        FaultyServer(share=0.2, seed=5, kinds=SAFE) as server,
        route_to(server, timeout=60.0, retries=8, max_in_flight=16) as route,
    ):
        joined, done = dict[int, str](), dict[int, Any]()
        for event in pg.stream(route, prompts(60), OPTIONS):
            if isinstance(event, pg.Delta):
                joined[event.index] = joined.get(event.index, "") + event.text
            else:
                done[event.index] = event.slot
    good = check([done[number] for number in range(60)], server, 60)
    assert good >= 40  # a stream that broke after its first token is not asked again
    assert all(joined[number] == mine(number) for number in range(60) if pg.is_ok(done[number]))


def test_a_spent_budget_is_a_timeout_in_every_slot_that_is_left() -> None:
    with (
        FaultyServer(share=1.0, kinds=("stall",)) as server,
        route_to(server, timeout=60.0, batch_budget=0.5, max_in_flight=4) as route,
    ):
        slots = pg.run(route, prompts(20), OPTIONS)
    assert [type(slot.failure()) for slot in slots] == [pg.Timeout] * 20


@pytest.mark.parametrize(("wire", "seed"), [("vllm", 1), ("vllm", 2), ("sglang", 3)])
def test_cancellation_at_a_random_moment_leaves_nothing_behind(
    wire: str, seed: int, faulty: FaultyServer
) -> None:
    drawn = random.Random(seed)

    async def cancelled() -> int:
        # rows that are never answered hold a place each for this time
        with route_to(faulty, wire, timeout=1.0, max_in_flight=32) as route:
            running = asyncio.create_task(pg.arun(route, prompts(COUNT), OPTIONS))
            moment = drawn.randrange(1, COUNT // 2)
            await until(lambda: sum(faulty.asked.values()) >= moment or running.done())
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return len(asyncio.all_tasks()) - 1

    assert asyncio.run(cancelled()) <= 1  # at most the one that closes the connections


def test_the_test_server_closes_every_connection_before_it_ends() -> None:
    """Also one whose client reads nothing, so that its answer is not sent: on a loop that has
    ended, nobody would close it.
    """
    gc.disable()  # which would close it some time later
    try:
        with contextlib.ExitStack() as left:
            with FaultyServer(answers={"/large": (200, "x" * 10**7)}) as server:
                client = left.enter_context(
                    socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
                )
                client.sendall(b"GET /large HTTP/1.1\r\n\r\n")
                assert client.recv(1)
            client.settimeout(10.0)
            with contextlib.suppress(ConnectionResetError):
                while client.recv(2**20):
                    pass
    finally:
        gc.enable()


# H12
@pytest.mark.parametrize("wire", ["vllm", "sglang"])
def test_cancellation_reaches_the_server(wire: str) -> None:
    async def cancelled(server: FaultyServer) -> None:
        route = route_to(server, wire, timeout=30.0)
        running = asyncio.create_task(pg.arun(route, prompts(3), OPTIONS))
        await until(lambda: sum(server.asked.values()) == 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: server.left == 3)

    with FaultyServer(share=1.0, kinds=("stall",)) as server:
        server.keeps_bodies = True
        asyncio.run(cancelled(server))
        assert server.left == 3
        if wire == "sglang":
            assert sorted(server.aborted) == sorted(body["rid"] for body in server.bodies)


def test_memory_stays_flat_and_no_thread_is_left() -> None:
    with FaultyServer(share=0.2, seed=11, kinds=SAFE) as server:
        before, held = threading.active_count(), []
        with route_to(server, timeout=60.0, retries=8, max_in_flight=32) as route:
            for _ in range(3):
                pg.run(route, prompts(60), OPTIONS)
                server.asked.clear()
                gc.collect()
                held.append(len(gc.get_objects()))
        assert threading.active_count() == before
    assert held[2] - held[1] < 400, held


# H6
def test_a_server_that_asks_for_more_patience_than_there_is_is_rate_limited_at_once() -> None:
    with (
        FaultyServer(share=1.0, kinds=("429",), retry_after="3600") as server,
        route_to(server, timeout=5.0) as route,
    ):
        error = asyncio.run(asyncio.wait_for(pg.arun(route, prompts(1), OPTIONS), 30))[0].failure()
    assert isinstance(error, pg.RateLimited)
    assert error.retry_after == 3600
    assert sum(server.asked.values()) == 1


@pytest.mark.parametrize(
    ("kind", "calls"),
    [("500", 1), ("503", 3), ("reset", 3), ("garbage", 3), ("choices", 3), ("cut", 3)],
)
def test_what_is_safe_is_asked_again_and_no_more_often_than_allowed(kind: str, calls: int) -> None:
    with (
        FaultyServer(share=1.0, kinds=(kind,)) as server,
        route_to(server, timeout=30.0, retries=2, outage=0) as route,
    ):
        assert isinstance(pg.run(route, prompts(1), OPTIONS)[0].failure(), TYPED)
    assert sum(server.asked.values()) == calls


def test_a_server_that_is_not_there_fails_every_slot() -> None:
    with FaultyServer() as server:
        gone = server.url
    server.url = gone
    with route_to(server, retries=0) as route:
        slots = pg.run(route, prompts(3), OPTIONS)
    assert [type(slot.failure()) for slot in slots] == [pg.BackendFailed] * 3


# H4
def test_a_prompt_beyond_the_servers_limit_is_refused_and_not_sent() -> None:
    with FaultyServer(limit=4) as server, route_to(server) as route:
        slot = pg.run(route, [{"prompt": "0123456789"}], pg.GenerationOptions(max_new_tokens=1))[0]
        error = slot.failure()
        assert isinstance(error, pg.PromptTooLong)
        assert (error.prompt_tokens, error.limit) == (10, 4)
        pg.run(route, prompts(5), OPTIONS)
        assert server.paths["/v1/models"] == 1
        assert not server.asked


def test_a_failed_look_up_is_tried_again_and_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipegen.backends.servers import facts

    monkeypatch.setattr(facts, "PAUSE_SECONDS", 0.0)
    with FaultyServer(limit=4) as server, route_to(server) as route:
        server.models = False
        assert pg.is_ok(pg.run(route, prompts(1), OPTIONS)[0])
        assert route.engine.capabilities.context_length is None
        server.models = True
        assert isinstance(pg.run(route, prompts(1), OPTIONS)[0].failure(), pg.PromptTooLong)
        assert route.engine.capabilities.context_length == 4
