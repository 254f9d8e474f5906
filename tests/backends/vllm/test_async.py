"""The vLLM engine awaited: calls share its steps, and one that is cancelled ends its rows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.calls import aanswers, aevents, events
from support.models import encoded

import pipegen as pg
from pipegen.backends.step_loop import Mailbox
from pipegen.backends.vllm.vllm_engine import VLLMEngine
from pipegen.core.errors import CallFailed
from pipegen.engines.protocol import RowDone, TokensMade


def engine() -> VLLMEngine:
    return VLLMEngine(pg.ModelLoadConfig(model="embedded", backend="vllm"))


def made(slots: Any) -> list[tuple[int, ...]]:
    return [slot.unwrap().token_ids for slot in slots]


def test_awaited_rows_are_those_of_generate_and_stream(started: list[Any]) -> None:
    running = engine()
    inputs = [
        encoded([10], max_new_tokens=3),
        encoded([7], max_new_tokens=3),
        encoded([20], max_new_tokens=1),
    ]

    async def told() -> list[Any]:
        return [event async for event in aevents(running, inputs)]

    assert asyncio.run(aanswers(running, inputs)) == running.generate(inputs)
    assert asyncio.run(told()) == list(events(running, inputs))
    assert asyncio.run(aanswers(running, [])) == []


def test_a_call_steps_for_those_that_run_beside_it(started: list[Any]) -> None:
    running = engine()

    async def beside() -> None:
        first = aevents(running, [encoded([10], max_new_tokens=9)])
        assert await anext(first) == TokensMade(row=0, token_ids=(11,), text=",")
        assert made(await aanswers(running, [encoded([20], max_new_tokens=4)])) == [
            (21, 22, 23, 24)
        ]
        rest = [event async for event in first]
        assert [event.token_ids[0] for event in rest if isinstance(event, TokensMade)] == list(
            range(12, 20)
        )
        assert isinstance(rest[-1], RowDone)

    asyncio.run(beside())
    assert started[0].steps == 9  # not 9 + 4


def test_more_calls_than_threads_wait_for_none_of_each_other(started: list[Any]) -> None:
    running = engine()

    async def together() -> Any:
        return await asyncio.gather(
            *(aanswers(running, [encoded([10 + call], max_new_tokens=30)]) for call in range(50))
        )

    assert [made(slots) for slots in asyncio.run(together())] == [
        [tuple(range(11 + call, 41 + call))] for call in range(50)
    ]
    assert started[0].live == {}


def test_a_cancelled_call_ends_its_rows_and_no_other(started: list[Any]) -> None:
    running = engine()

    async def watched(seen: asyncio.Event) -> None:
        async for _ in aevents(
            running, [encoded([10], max_new_tokens=50), encoded([11], max_new_tokens=50)]
        ):
            seen.set()

    async def cancelled() -> None:
        first, seen = aevents(running, [encoded([20], max_new_tokens=40)]), asyncio.Event()
        await anext(first)
        task = asyncio.create_task(watched(seen))
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len([event async for event in first if isinstance(event, TokensMade)]) == 39

    asyncio.run(cancelled())
    assert len(started[0].aborted) == 2
    assert started[0].live == {}


def test_a_call_that_was_left_queues_nothing_more(started: list[Any]) -> None:
    session = engine().open(lambda: None)
    session.add({row: encoded([20], max_new_tokens=40) for row in range(40)})
    assert 0 < len(started[0].live) < 40
    session.close()
    assert session.step() == []
    assert started[0].live == {}
    assert len(started[0].prompts) < 40


def test_an_engine_that_died_is_one_incident_for_all_who_wait(started: list[Any]) -> None:
    running = engine()

    async def together() -> list[Any]:
        calls = [aevents(running, [encoded([10 + call], max_new_tokens=3)]) for call in range(2)]
        for call in calls:
            await anext(call)
        started[0].dies = True
        return await asyncio.gather(*(_last(call) for call in calls), return_exceptions=True)

    errors = asyncio.run(together())
    assert all(isinstance(error, CallFailed) for error in errors)
    assert errors[0].error == errors[1].error
    assert errors[0].error.scope == "batch"
    assert made(asyncio.run(aanswers(running, [encoded([10], max_new_tokens=1)]))) == [(11,)]


@pytest.mark.parametrize("raised", [None, ZeroDivisionError("a bug")])
def test_who_waits_hears_of_an_engine_that_dies_or_fails_as_a_row_is_dropped(
    raised: Any, started: list[Any]
) -> None:
    """In a process of its own vLLM notices there, too, that it is dead; it happens on the thread
    that steps for all.
    """
    from vllm.v1.engine.exceptions import EngineDeadError  # the stand-in's

    running = engine()
    core = running._core.running()

    def fails(request_ids: list[str]) -> None:
        raise raised or EngineDeadError

    async def together() -> None:
        first, second = (
            aevents(running, [encoded([10 + call], max_new_tokens=9)]) for call in range(2)
        )
        await anext(first)
        await anext(second)
        started[0].abort_request = fails
        with core.lock:
            await asyncio.to_thread(core.drop, [next(iter(core._mailboxes))], Mailbox[Any]())
        with pytest.raises(CallFailed):
            await _last(second)

    asyncio.run(together())


async def _last(events: Any) -> Any:
    return [event async for event in events][-1]
