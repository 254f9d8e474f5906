"""In which order vLLM gets requests, and how many at a time: prompts that begin alike one after
another.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.models import encoded

import pipegen as pg
from pipegen.backends.vllm.running import Running
from pipegen.core.errors import CallFailed

ROWS = 8


def interleaved(count: int, groups: int) -> list[dict[str, Any]]:
    """Prompts of some groups in turn; those of one group begin alike."""
    lengths = random.Random(0)
    return [
        {
            "prompt_token_ids": [300 + number % groups, 20 + number // 200, 20 + number % 200],
            "options": {"max_new_tokens": lengths.randint(1, 9), "ignore_eos": True},
        }
        for number in range(count)
    ]


async def collected(slots: Any) -> list[Any]:
    return [slot async for slot in slots]


def changes(prompts: list[tuple[int, ...]]) -> int:
    """How often a prompt does not begin as the one before it."""
    return sum(one[0] != other[0] for one, other in itertools.pairwise(prompts))


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "imap": lambda route, requests: list(pg.imap(route, requests)),
    "aimap": lambda route, requests: asyncio.run(collected(pg.aimap(route, requests))),
    "unordered": lambda route, requests: [
        slot
        for _, slot in sorted(
            pg.imap_keyed(route, [*enumerate(requests)], ordered=False), key=lambda given: given[0]
        )
    ],
}


@pytest.mark.parametrize("way", sorted(WAYS))
def test_prompts_that_begin_alike_are_handed_over_one_after_another(
    way: str, started: list[Any]
) -> None:
    requests = interleaved(96, 4)
    with pg.backends.vllm("embedded", max_num_seqs=ROWS) as route:
        slots = WAYS[way](route, requests)
        plain = [pg.run(route, [request])[0] for request in requests]
    assert slots == plain
    (engine,) = started
    assert sorted(engine.prompts[:96]) == sorted(
        tuple(request["prompt_token_ids"]) for request in requests
    )
    assert changes([tuple(request["prompt_token_ids"]) for request in requests]) == 95
    # few of them are in flight at a time, and a round has at most as many as wait
    assert changes(engine.prompts[:96]) < 60
    assert engine.most == ROWS * 5 // 4


def test_one_run_is_put_in_order_as_a_whole(started: list[Any]) -> None:
    requests = interleaved(96, 4)
    with pg.backends.vllm("embedded", max_num_seqs=ROWS) as route:
        slots = pg.run(route, requests)
        asyncio.run(pg.arun(route, requests))
    assert [slot.unwrap().prompt_token_ids for slot in slots] == [
        tuple(request["prompt_token_ids"]) for request in requests
    ]
    (engine,) = started
    assert changes(engine.prompts[:96]) == changes(engine.prompts[96:]) == 3
    assert engine.prompts[:96] == sorted(engine.prompts[:96])


def test_a_lone_request_is_handed_over_at_once(started: list[Any]) -> None:
    asked = interleaved(3, 3)

    def arriving() -> Any:
        for number, request in enumerate(asked):
            # the one before it was answered
            assert number == 0 or len(started[0].prompts) == number
            yield request

    with pg.backends.vllm("embedded", max_num_seqs=ROWS) as route:
        assert all(map(pg.is_ok, pg.imap(route, arriving(), in_flight=1)))
        began = started[0].steps
        events = pg.stream(route, [asked[0]])
        next(iter(events))
        assert started[0].steps == began + 1


def test_a_call_that_is_left_hands_over_no_row_that_waits(started: list[Any]) -> None:
    with pg.backends.vllm("embedded", max_num_seqs=ROWS) as route:
        slots: Any = pg.imap(route, interleaved(96, 4))
        next(slots)
        slots.close()
        assert started[0].live == {}
        count = len(started[0].prompts)
        assert pg.is_ok(pg.run(route, interleaved(1, 1))[0])
    assert len(started[0].prompts) == count + 1


def test_vllm_starts_with_the_limits_of_its_own_class_for_batches_and_is_kept_full(
    started: list[Any],
) -> None:
    """Without a usage, vLLM gives an engine fewer rows and tokens for a step than `vllm.LLM`
    has.
    """
    with pg.backends.vllm("embedded") as route:
        assert route.engine.in_flight == 2 * 256  # as far as is known before it has started
        pg.run(route, interleaved(1, 1))
        assert started[0].usage is sys.modules["vllm.usage.usage_lib"].UsageContext.LLM_CLASS  # type: ignore[attr-defined]
        assert route.engine.in_flight == 2 * 16  # as vLLM says


def test_the_number_in_flight_follows_what_vllm_says_once_it_has_started(
    started: list[Any],
) -> None:
    taken = 0

    def asked() -> Any:
        nonlocal taken
        for request in interleaved(3000, 7):
            taken += 1
            yield request

    with pg.backends.vllm("embedded") as route:
        # it runs 16 side by side, so 32 requests are in flight, and 8 times as many may wait for
        # their turn
        pg.run(route, interleaved(1, 1))
        slots: Any = pg.imap(route, asked())
        for number in range(1000):
            next(slots)
            assert taken <= number + 10 * 32
        slots.close()


def test_rows_that_wait_fail_with_the_engine_that_died_and_start_no_other(
    started: list[Any],
) -> None:
    with pg.backends.vllm("embedded", max_num_seqs=ROWS) as route:
        pg.run(route, interleaved(1, 1))
        call = route.engine.open(lambda: None)
        call.add({n: encoded((300, 20 + n), max_new_tokens=9) for n in range(30)})
        started[0].dies = True
        for _ in range(2):
            with pytest.raises(CallFailed):
                call.step()
        call.close()
        assert len(started) == 1
        slots = list(pg.imap(route, interleaved(30, 4)))
    assert all(map(pg.is_ok, slots))
    assert len(started) == 2


@pytest.mark.parametrize("way", sorted(WAYS))
def test_rows_that_end_by_stop_strings_make_room_for_those_that_wait(
    way: str, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM does not know of their end, and brings no last output of them."""
    plain, steps = Running._advance, itertools.count()

    def bounded(running: Running) -> None:
        assert next(steps) < 1000, "nothing goes on"
        plain(running)

    monkeypatch.setattr(Running, "_advance", bounded)
    with pg.backends.vllm("embedded", max_num_seqs=ROWS) as route:
        stop = route.engine.tokenizer.decode((23,))  # type: ignore[attr-defined]
        slots = WAYS[way](
            route,
            [{"prompt_token_ids": [20], "options": {"max_new_tokens": 9, "stop": [stop]}}] * 60,
        )
    assert [slot.unwrap().token_ids for slot in slots] == [(21, 22, 23)] * 60
    assert len(started[0].aborted) == 60
    assert started[0].most == ROWS * 5 // 4
