"""Calls at one time share the model's passes: each gets what it would get alone, and leaves nothing
behind.
"""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.calls import events as events_of
from support.models import encoded

import pipegen as pg
from pipegen.backends.hf.scheduler import Schedule

ON = {"ignore_eos": True}


def asked(count: int) -> list[dict[str, Any]]:
    lengths = random.Random(0)
    return [
        {
            "prompt": f"Write {number}",
            "options": {
                "stop": ON,
                "max_new_tokens": (
                    lengths.randint(20, 30) if number % 10 == 4 else lengths.randint(2, 6)
                ),
            },
        }
        for number in range(count)
    ]


def passes(engine: Any) -> int:
    return int(engine.work.passes + engine.work.steps)


def spent(engine: Any, run: Any) -> tuple[Any, int]:
    before = passes(engine)
    return run(), passes(engine) - before


def test_awaited_calls_share_passes(engine: Any) -> None:
    route, requests = pg.route(engine), asked(64)

    async def awaited() -> list[Any]:
        batches = await asyncio.gather(*(pg.arun(route, [request]) for request in requests))
        return [batch[0] for batch in batches]

    whole, alone = spent(engine, lambda: list(pg.run(route, requests)))
    slots, together = spent(engine, lambda: asyncio.run(awaited()))
    assert slots == whole
    # those that come while a pass is made wait for the next; without sharing it were over ten times
    assert together <= 3 * alone
    assert engine.computing.shared._schedule is None


def test_streams_share_passes(engine: Any) -> None:
    route, requests = pg.route(engine), asked(12)

    async def streamed(request: Any) -> Any:
        texts, done = "", None
        async for event in pg.astream(route, [request]):
            texts, done = (
                (texts + event.text, done) if isinstance(event, pg.Delta) else (texts, event.slot)
            )
        assert done is not None
        assert texts == done.unwrap().text
        return done

    async def together() -> list[Any]:
        return list(await asyncio.gather(*map(streamed, requests)))

    whole, alone = spent(engine, lambda: list(pg.run(route, requests)))
    slots, shared = spent(engine, lambda: asyncio.run(together()))
    assert slots == whole
    assert shared <= 2 * alone


def test_threads_share_a_schedule_and_each_gets_its_own_rows(engine: Any) -> None:
    route, requests = pg.route(engine), asked(40)
    whole = list(pg.run(route, requests))
    with ThreadPoolExecutor(8) as pool:
        slots = list(pool.map(lambda request: pg.run(route, [request])[0], requests))
    assert slots == whole
    assert engine.computing.shared._schedule is None


@pytest.mark.parametrize("in_flight", [1, 3, None])
def test_what_is_fed_gives_what_one_call_gives_in_about_as_many_passes(
    in_flight: int | None, engine: Any
) -> None:
    route, requests = pg.route(engine), asked(90)
    whole, alone = spent(engine, lambda: list(pg.run(route, requests)))
    slots, fed = spent(engine, lambda: list(pg.imap(route, requests, in_flight=in_flight)))
    assert slots == whole
    if in_flight is None:
        assert fed <= 1.1 * alone


def test_who_leaves_early_takes_its_rows_along(engine: Any) -> None:
    route, requests = pg.route(engine), asked(20)
    slots: Any = pg.imap(route, requests)
    next(slots)
    assert engine.computing.shared._schedule is not None
    slots.close()
    assert engine.computing.shared._schedule is None
    stream = events_of(engine, [])
    assert list(stream) == []
    assert pg.run(route, requests[:3]) == pg.run(route, requests[:3])


def test_calls_that_are_left_while_a_step_begins_or_lets_rows_in_do_not_break_it(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may leave a call at any moment; here it does so where the step has just looked
    whether rows are left.
    """
    inputs = {0: encoded([5, 6, 7], max_new_tokens=9), 1: encoded([8, 9], max_new_tokens=9)}
    whole = engine.generate([encoded([4, 4], max_new_tokens=3)])[0].unwrap().token_ids
    for another in (False, True):
        first, second = engine.open(lambda: None), engine.open(lambda: None)
        first.add(inputs)
        assert first.step() == []
        if another:
            second.add({0: encoded([4, 4], max_new_tokens=3)})
        schedule = engine.computing.shared._schedule
        plain, left = schedule._evict_finished, list(schedule._running)

        def leaves(*slots: Any, plain: Any = plain, left: Any = left) -> None:
            for row in left:
                row.dropped = True
            plain(*slots)

        monkeypatch.setattr(schedule, "_evict_finished", leaves)
        if another:
            ended: list[Any] = []
            while not ended:
                ended = second.step()
            assert ended[0].slot.unwrap().token_ids == whole
        else:
            assert first.step() == []
        first.close()
    assert engine.computing.shared._schedule is None


def test_a_cancelled_call_leaves_those_beside_it_alone(engine: Any) -> None:
    route, requests = pg.route(engine), asked(12)
    whole = list(pg.run(route, requests))

    async def one_of_them_cancelled() -> list[Any]:
        tasks = [asyncio.create_task(pg.arun(route, [request])) for request in requests]
        tasks[4].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        return [slot if isinstance(slot, BaseException) else slot[0] for slot in done]

    slots: list[Any] = asyncio.run(one_of_them_cancelled())
    assert isinstance(slots.pop(4), asyncio.CancelledError)
    assert slots == [slot for number, slot in enumerate(whole) if number != 4]
    for thread in threading.enumerate():
        if thread.name == "pipegen-steps":  # it drops what was left during its last step
            thread.join()
    assert engine.computing.shared._schedule is None


def test_a_step_that_raises_ends_every_call_with_rows_in_it(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = pg.route(engine)
    assert pg.is_ok(pg.run(route, asked(1))[0])
    both = threading.Barrier(2)
    plain = Schedule.step

    def broken(schedule: Any) -> Any:
        if len(schedule.rows) == 2:
            raise ZeroDivisionError("a bug")
        return plain(schedule)

    monkeypatch.setattr(Schedule, "step", broken)

    def called(number: int) -> Any:
        both.wait(60)
        return pg.run(
            route, [{"prompt": f"Hi {number}", "options": {"stop": ON, "max_new_tokens": 60}}]
        )

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(called, number) for number in range(2)]
        assert all(
            isinstance(call.exception(), ZeroDivisionError) or pg.is_ok(call.result()[0])
            for call in calls
        )
    monkeypatch.undo()
    assert pg.is_ok(pg.run(route, asked(1))[0])


def test_an_interruption_ends_the_call_that_it_hits_and_no_other(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    route, requests = pg.route(engine), asked(6)
    whole = list(pg.run(route, requests))
    plain, steps = Schedule.step, 0
    stream = pg.stream(route, requests)
    first = next(stream)

    def interrupted(schedule: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise KeyboardInterrupt
        return plain(schedule)

    monkeypatch.setattr(Schedule, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pg.run(route, requests)
    slots = [event.slot for event in (first, *stream) if isinstance(event, pg.Done)]
    assert slots == whole
