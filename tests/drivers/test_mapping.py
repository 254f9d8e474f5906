"""Any number of requests: the same slots as of one batch, in order or as they end, and no more
requests held than stated.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stepwise import Stepwise

import pipegen as pg
from pipegen.core.distribution import MissingExtra
from pipegen.drivers.drive import Drive
from pipegen.drivers.drive_parts import NoRequest, ReadInput
from pipegen.engines.session import BatchSession
from pipegen.records.results import Encoded, PreparedImage
from pipegen.testing.fake import FakeEngine

IN_FLIGHT = pytest.mark.parametrize("in_flight", [1, 2, 7, None])


def asked(count: int, taken: list[int] | None = None) -> Iterator[dict[str, Any]]:
    for n in range(count):
        if taken is not None:
            taken.append(n)
        yield {"id": str(n), "prompt": f"{n}"} if n % 3 else {"id": str(n), "messages": []}


async def collected(route: Any, requests: Any, **how: Any) -> list[Any]:
    return [slot async for slot in pg.aimap(route, requests, **how)]


@IN_FLIGHT
@pytest.mark.parametrize("count", [0, 1, 4, 11])
def test_the_slots_are_the_same_however_many_are_in_flight(
    in_flight: int | None, count: int
) -> None:
    whole = list(pg.run(pg.route(FakeEngine("a b")), asked(count)))
    assert list(pg.imap(pg.route(FakeEngine("a b")), asked(count), in_flight=in_flight)) == whole
    assert (
        asyncio.run(collected(pg.route(FakeEngine("a b")), asked(count), in_flight=in_flight))
        == whole
    )


@IN_FLIGHT
def test_without_order_slots_come_once_each_with_their_keys(in_flight: int | None) -> None:
    pairs = [(request["id"], request) for request in asked(11)]
    whole = dict(pg.imap_keyed(pg.route(FakeEngine("a b")), pairs))
    assert sorted(
        pg.imap_keyed(pg.route(FakeEngine("a b")), pairs, in_flight=in_flight, ordered=False),
        key=lambda pair: int(pair[0]),
    ) == [*whole.items()]


@pytest.mark.parametrize("in_flight", [1, 4])
def test_no_more_requests_are_taken_than_stated(in_flight: int) -> None:
    taken: list[int] = []
    requests = ({"prompt": str(number)} for number in range(100) if taken.append(number) is None)  # type: ignore[func-returns-value]
    slots = pg.imap(pg.route(FakeEngine("a")), requests, in_flight=in_flight)
    for done in (1, 2):
        for _ in range(in_flight):
            next(slots)
        assert len(taken) == in_flight * done
    slots.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("most_bytes", "taken_by_then"), [(1, 4), (2**20, 7)])
def test_no_more_requests_are_taken_while_the_images_in_flight_are_large(
    most_bytes: int, taken_by_then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = PreparedImage(rgb=bytes(12), width=2, height=2, digest="")

    def with_an_image(encoded: Encoded) -> Encoded:
        return dataclasses.replace(
            encoded, prompt=dataclasses.replace(encoded.prompt, images=(image,))
        )

    taken: list[int] = []
    requests = ({"prompt": f"{n}"} for n in range(1, 100) if taken.append(n) is None)  # type: ignore[func-returns-value]
    monkeypatch.setattr("pipegen.drivers.drive.HELD_BYTES", most_bytes)
    route = pg.route(Stepwise()).insert(pg.pure("with an image", with_an_image), after="fit")
    slots = pg.imap(route, requests, in_flight=4)
    assert all(pg.is_ok(next(slots)) for _ in range(4))
    assert len(taken) == taken_by_then
    assert pg.is_ok(next(slots))  # once none is in flight, more are taken
    slots.close()  # type: ignore[attr-defined]


IMAGES = [
    pg.VlmGenerationRequest(prompt="x", images=[data])
    for data in (b"first", b"second", b"third", b"fourth")
]


def test_images_are_prepared_in_other_threads() -> None:
    class Watched(FakeEngine):
        threads: set[int]

        def prepare_image(self, source: Any, options: Any, index: int) -> Any:
            self.threads.add(threading.get_ident())
            return super().prepare_image(source, options, index)

    engine = Watched("a")
    engine.threads = set()
    assert all(map(pg.is_ok, pg.imap(pg.route(engine), IMAGES)))
    assert all(map(pg.is_ok, asyncio.run(collected(pg.route(engine), IMAGES))))
    assert engine.threads
    assert threading.get_ident() not in engine.threads


@pytest.mark.parametrize("broken", ["stage", "input"])
def test_a_bug_raises_when_its_turn_comes(broken: str) -> None:
    def requests() -> Iterator[dict[str, Any]]:
        yield from ({"prompt": str(number)} for number in range(2))
        if broken == "input":
            raise KeyError("bug")
        yield {"prompt": "bug"}

    def words(result: Any) -> Any:
        return result if result.prompt_text != "bug" else {}["bug"]

    route = pg.route(FakeEngine("a")) >> pg.pure("words", words)
    slots = pg.imap(route, requests())
    assert [pg.is_ok(next(slots)) for _ in range(2)] == [True, True]
    with pytest.raises(KeyError, match="bug"):
        next(slots)


def test_whoever_stops_early_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    for requests in (asked(100), iter(IMAGES)):
        slots: Any = pg.imap(pg.route(FakeEngine("a")), requests, in_flight=2)
        next(slots)
        slots.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("number", [True, 2.5, "2", 0, -1])
def test_in_flight_takes_whole_numbers_only(number: Any) -> None:
    with pytest.raises(
        ValueError, match=f"in_flight takes a whole number of at least 1, not {number!r}"
    ):
        next(pg.imap(pg.route(FakeEngine("a")), asked(2), in_flight=number))
    with pytest.raises(
        ValueError, match=f"in_flight takes a whole number of at least 1, not {number!r}"
    ):
        asyncio.run(collected(pg.route(FakeEngine("a")), asked(2), in_flight=number))


def buggy(requests: list[str], **how: Any) -> list[str]:
    """The texts of an `imap` over an engine that has a bug for the word `bug`, and the types of its
    errors.
    """

    def script(encoded: Any) -> str:
        if "bug" in encoded.request.prompt:
            raise KeyError("a bug")
        return "fine"

    slots = pg.imap(
        pg.route(FakeEngine(script)), ({"prompt": request} for request in requests), **how
    )
    return [
        slot.unwrap().text if pg.is_ok(slot) else type(slot.failure()).__name__ for slot in slots
    ]


def test_a_bug_raises_unless_it_is_isolated() -> None:
    with pytest.raises(KeyError):
        buggy(["a", "bug", "c"])


@IN_FLIGHT
def test_an_isolated_bug_fails_its_own_request(
    in_flight: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert buggy(["a", "bug", "c", "d", "bug"], isolate_bugs=True, in_flight=in_flight) == [
        "fine",
        "BackendFailed",
        "fine",
        "fine",
        "BackendFailed",
    ]
    assert len(caplog.records) == 2  # one traceback for each, not one for each half


def test_isolated_requests_have_their_images_read_again(tmp_path: Path) -> None:
    def script(encoded: Any) -> str:
        if "bug" in encoded.prompt.text:
            raise KeyError("a bug")
        return "fine"

    for name, data in [("whole", b"image"), ("broken", b"broken")]:
        (tmp_path / name).write_bytes(data)
    requests = [
        {"prompt": prompt, "images": [str(tmp_path / name)]}
        for prompt, name in [("a", "whole"), ("bug", "whole"), ("c", "broken"), ("d", "whole")]
    ]
    fine, bug, broken, last = pg.imap(
        pg.route(FakeEngine(script)), requests, isolate_bugs=True, in_flight=4
    )
    assert [slot.unwrap().text for slot in (fine, last)] == ["fine", "fine"]
    assert isinstance(bug.failure(), pg.BackendFailed)
    assert isinstance(broken.failure(), pg.BadImage)


def test_a_missing_package_is_no_bug_of_a_request() -> None:
    def missing(encoded: Any) -> str:
        raise MissingExtra("pip install it")

    slots = pg.imap(pg.route(FakeEngine(missing)), [{"prompt": "a"}], isolate_bugs=True)
    with pytest.raises(MissingExtra):
        list(slots)


@pytest.mark.parametrize("isolate", [False, True])
def test_an_engine_that_answers_another_number_of_rows_breaks_the_contract(isolate: bool) -> None:
    slots = pg.imap(
        pg.route(FakeEngine("a", answers=1)),
        [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}],
        isolate_bugs=isolate,
    )
    if not isolate:
        with pytest.raises(pg.ContractError, match="returned 1 outputs for 3 inputs"):
            list(slots)
        return
    # alone each gets its one answer
    assert [pg.is_ok(slot) for slot in slots] == [True, True, True]


def test_a_bug_of_a_stage_is_isolated_too() -> None:
    route: Any = pg.pure(
        "ask", lambda request: request if request.prompt != "bug" else {}["bug"]
    ) >> pg.route(FakeEngine("a"))
    slots = list(
        pg.imap(route, [{"prompt": "a"}, {"prompt": "bug"}, {"prompt": "c"}], isolate_bugs=True)
    )
    assert [pg.is_ok(slot) for slot in slots] == [True, False, True]
    assert isinstance(slots[1].failure(), pg.StageFailed)


def test_a_package_that_goes_missing_when_rows_are_run_again_comes_through() -> None:
    asked: list[int] = []

    def script(encoded: Any) -> str:
        asked.append(1)
        if len(asked) == 1:
            raise KeyError("a bug")
        raise MissingExtra("pip install it")

    with pytest.raises(MissingExtra):
        list(
            pg.imap(
                pg.route(FakeEngine(script)), [{"prompt": "a"}, {"prompt": "b"}], isolate_bugs=True
            )
        )


def test_who_ends_it_while_calls_are_open_closes_them() -> None:
    closed: list[bool] = []

    class Never(FakeEngine):
        in_flight = 4

        def open(self, wake: Any, **how: Any) -> Any:
            class Silent(BatchSession):
                def step(self) -> Any:
                    raise KeyboardInterrupt

                def close(self) -> None:
                    closed.append(True)

            return Silent(self)

    with pytest.raises(KeyboardInterrupt):
        list(pg.imap(pg.route(Never("a")), [{"prompt": "a"}, {"prompt": "b"}]))
    assert closed == [True]


def test_what_an_asynchronous_input_raises_comes_once_all_before_is_given_out() -> None:
    async def requests() -> Any:
        yield {"prompt": "a"}
        raise KeyError("the input broke")

    async def collect() -> list[Any]:
        slots = pg.aimap(pg.route(FakeEngine("a")), requests())
        first = await anext(slots)
        with pytest.raises(KeyError, match="the input broke"):
            await anext(slots)
        return [first]

    assert [pg.is_ok(slot) for slot in asyncio.run(collect())] == [True]


@pytest.mark.parametrize("kind", ["route", "fallback"])
def test_a_stage_before_the_call_sees_each_request_once_whoever_asks_for_samples(kind: str) -> None:
    """Requests are prepared together, and go on alone: none is prepared twice."""
    seen: list[str | None] = []

    def note(request: pg.GenerationRequest) -> pg.GenerationRequest:
        seen.append(request.id)
        return request

    engine = FakeEngine("a b")
    own: Any = pg.pure("note", note) >> pg.route(engine)
    if kind == "fallback":
        own = pg.fallback(own, pg.route(FakeEngine("c")), when=(pg.BackendFailed,))
    requests = [
        {
            "id": str(n),
            "prompt": "Hi",
            "options": {"samples": 2 if n % 5 == 4 else 1, "temperature": 1.0},
        }
        for n in range(20)
    ]
    slots = list(pg.imap(own, requests))
    assert [len(slot.unwrap().samples) > 1 for slot in slots] == [n % 5 == 4 for n in range(20)]
    assert seen == [str(n) for n in range(20)]


def test_a_pipe_that_calls_no_engine_goes_through_its_stages() -> None:
    pipe: Any = pg.pure("id", lambda request: request.id) >> pg.pure("twice", lambda name: name * 2)
    assert [
        slot.unwrap() for slot in pg.imap(pipe, [{"id": str(n), "prompt": "Hi"} for n in range(3)])
    ] == ["00", "11", "22"]


@pytest.mark.parametrize(("side_by_side", "least"), [(0, 1), (1, 1), (10, 10)])
def test_a_slow_input_keeps_an_engine_full_and_no_answer_back(
    side_by_side: int, least: int
) -> None:
    engine, taken, running = (
        Stepwise(side_by_side=side_by_side, before_step=lambda: running.append(taken - given)),
        0,
        list[int](),
    )
    engine.in_flight, given = 1000, 0

    def take() -> tuple[int, Any] | NoRequest:
        nonlocal taken
        taken, engine.now = taken + 1, engine.now + 0.02
        return (taken, {"prompt": "1 a"}) if taken <= 500 else NoRequest.MORE

    for key, _ in Drive(pg.route(engine), ReadInput(take, clock=lambda: engine.now)).slots():
        given += 1
        assert key == given
        assert taken <= given + least + 2
    assert given == 500
    assert all(rows >= least for rows in running[1:-1])
