"""Drivers over a whole route: batches, windows, admission, and what never happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from returns.result import Failure, Success

import pipegen as pg
from pipegen.drivers.arguments import Admission
from pipegen.testing.fake import FakeEngine


def chat(text: str, **options: Any) -> pg.TextGenerationRequest:
    return pg.TextGenerationRequest(
        messages=[{"role": "user", "content": text}], options=pg.GenerationOptions(**options)
    )


def test_an_empty_batch_calls_no_engine() -> None:  # B3
    engine = FakeEngine("a")
    assert pg.run(pg.route(engine), []) == ()
    assert engine.calls == []


def test_plain_data_records_and_slots_may_be_mixed_and_bad_ones_fail_in_their_slot() -> None:
    engine = FakeEngine("ok")
    gone = Failure(pg.InvalidRequest("line 3 is not JSON"))
    slots = pg.run(
        pg.route(engine), [chat("a"), {"prompt": "b"}, gone, Success(chat("c")), {"messages": []}]
    )
    assert [pg.is_ok(slot) for slot in slots] == [True, True, False, True, False]
    assert slots[2] is gone
    assert len(engine.calls) == 1
    assert len(engine.calls[0]) == 3


def test_the_requests_own_options_win_over_those_of_the_run() -> None:  # B8
    engine = FakeEngine("one two three")
    slots = pg.run(
        pg.route(engine),
        [chat("a"), chat("a", max_new_tokens=2)],
        pg.GenerationOptions(max_new_tokens=5, seed=1),
    )
    assert [slot.unwrap().completion_tokens for slot in slots] == [5, 2]
    assert [slot.unwrap().options.seed for slot in slots] == [1, 1]


def test_options_that_contradict_each_other_only_when_merged_fail_that_slot() -> None:
    engine = FakeEngine("a")
    slots = pg.run(
        pg.route(engine),
        [chat("a", min_new_tokens=9), chat("a")],
        pg.GenerationOptions(max_new_tokens=5),
    )
    assert isinstance(slots[0].failure(), pg.InvalidRequest)
    assert pg.is_ok(slots[1])
    alone = pg.run(pg.route(engine), [chat("a", min_new_tokens=600)])[0].failure()
    assert isinstance(alone, pg.InvalidRequest)


def test_imap_holds_no_more_than_it_may() -> None:
    engine, taken = FakeEngine("a"), []

    def endless() -> Iterator[dict[str, str]]:
        for n in range(10**9):
            taken.append(n)
            yield {"id": str(n), "prompt": "x"}

    slots = pg.imap(pg.route(engine), endless(), in_flight=4)
    assert [next(slots).unwrap().id for _ in range(6)] == ["0", "1", "2", "3", "4", "5"]
    assert len(taken) == 8
    with pytest.raises(ValueError, match="in_flight"):
        next(pg.imap(pg.route(engine), [], in_flight=0))


def test_keys_come_back_with_their_slots_failed_ones_too() -> None:
    asked: list[tuple[Any, Any]] = [
        (("a", 1), chat("a")),
        (("a", 1), {"messages": []}),
        (None, chat("b")),
    ]

    async def collect() -> list[Any]:
        return [
            pair async for pair in pg.aimap_keyed(pg.route(FakeEngine("x")), asked, in_flight=2)
        ]

    pairs = list(pg.imap_keyed(pg.route(FakeEngine("x")), asked, in_flight=2))
    assert [key for key, _ in pairs] == [("a", 1), ("a", 1), None]
    assert [slot for _, slot in pairs] == list(
        pg.run(pg.route(FakeEngine("x")), [request for _, request in asked])
    )
    assert [pg.is_ok(slot) for _, slot in pairs] == [True, False, True]
    assert asyncio.run(collect()) == pairs


def test_imap_and_aimap_give_what_run_gives() -> None:
    requests = [chat(f"{n}") for n in range(7)]

    async def asynchronous() -> AsyncIterator[pg.GenerationRequest]:
        for request in requests:
            yield request

    async def collect(source: Any) -> list[Any]:
        return [slot async for slot in pg.aimap(pg.route(FakeEngine("a")), source, in_flight=3)]

    whole = list(pg.run(pg.route(FakeEngine("a")), requests))
    assert list(pg.imap(pg.route(FakeEngine("a")), requests, in_flight=3)) == whole
    assert asyncio.run(collect(requests)) == whole
    assert asyncio.run(collect(asynchronous())) == whole


def test_a_call_that_failed_as_a_whole_is_one_incident_in_every_slot_sync_and_async() -> None:
    fault = pg.CallFailed(
        pg.BackendFailed("engine died", backend="fake", scope="batch", incident="i-1")
    )
    route = pg.route(FakeEngine("a", fault=fault))
    for slots in (
        pg.run(route, [chat("a"), chat("b")]),
        asyncio.run(pg.arun(route, [chat("a"), chat("b")])),
    ):
        assert [slot.failure().incident for slot in slots] == ["i-1", "i-1"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("given_back", [0, 1, 3])
def test_a_miscounting_engine_raises(given_back: int) -> None:
    with pytest.raises(pg.ContractError, match="outputs for 2 inputs"):
        pg.run(pg.route(FakeEngine("a", answers=given_back)), [chat("a"), chat("b")])


@pytest.mark.parametrize("fault", [KeyError("bug"), KeyboardInterrupt(), SystemExit(3)])
def test_bugs_and_interrupts_raise(fault: BaseException) -> None:
    with pytest.raises(type(fault)):
        pg.run(pg.route(FakeEngine("a", fault=fault)), [chat("a")])


def test_images_are_read_at_the_edge_and_a_missing_one_fails_its_slot(tmp_path: Any) -> None:
    (tmp_path / "a.png").write_bytes(b"image")
    good = pg.VlmGenerationRequest(prompt="x", images=[tmp_path / "a.png"])
    bad = pg.VlmGenerationRequest(prompt="x", images=[tmp_path / "b.png"])
    batch = Admission().batch([good, bad])
    assert batch[0].unwrap().sources == (
        pg.ImageSource(data=b"image", max_pixels=pg.ImagePolicy().max_source_pixels),
    )
    assert isinstance(batch[1].failure(), pg.BadImage)


def test_the_facade_runs_the_route_and_releases_it() -> None:
    engine = FakeEngine("a")
    with pg.GenerationEngine(pg.route(engine)) as facade:
        assert facade.generate_text_batch([chat("x")])[0].unwrap().text == "a"
        assert (
            facade.generate_vlm_batch([pg.VlmGenerationRequest(prompt="x", images=[b"i"])])[0]
            .unwrap()
            .text
            == "a"
        )
        mixed = [
            chat("x"),
            {"prompt": "x"},
            pg.VlmGenerationRequest(prompt="x", images=[b"i"]),
            pg.VlmGenerationRequest(prompt="x", images=[]),
        ]
        for generate in (facade.generate_text_batch, facade.generate_vlm_batch):
            assert [slot.unwrap().text for slot in generate(mixed)] == ["a"] * 4
    assert engine.closed == 1
