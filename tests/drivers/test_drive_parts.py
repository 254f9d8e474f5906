"""The parts of a drive, each alone: input, sessions, output order, drain and alarm."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from returns.result import Success

import pipegen as pg
from pipegen.core.interpreter import Advanced, Row
from pipegen.core.slots import Slot, is_ok
from pipegen.core.steps import EngineRequest
from pipegen.drivers.arguments import Admission
from pipegen.drivers.drive_parts import (
    PATIENCE,
    SLOW_INPUT,
    Alarm,
    Drain,
    NoRequest,
    OpenSession,
    OutputOrder,
    Prepared,
    ReadInput,
    Sessions,
    TakenRequest,
    WholeBatch,
)
from pipegen.engines.protocol import RowDone
from pipegen.engines.session import BatchSession
from pipegen.records.options import resolve
from pipegen.records.results import Encoded, PreparedImage, Prompt


def source(items: Iterable[Any]) -> Callable[[], Any]:
    """Gives the items one by one, raises those that are exceptions, and then has no more."""
    left = iter(items)

    def take() -> Any:
        item = next(left, NoRequest.MORE)
        if isinstance(item, Exception):
            raise item
        return item

    return take


ASKED = Success(pg.TextGenerationRequest(prompt="Hi"))


def always(is_slow: bool) -> bool:
    return True


class Engine:
    """An engine that counts: each session keeps what it was given."""

    name, in_flight = "counting", 5

    def __init__(self, side_by_side: int = 2) -> None:
        self.side_by_side, self.opened = side_by_side, list[Engine.Session]()
        self.how: list[Mapping[str, Any]] = []

    class Session:
        def __init__(self, side_by_side: int) -> None:
            self.side_by_side, self.added, self.closed = side_by_side, list[Any](), False

        def add(self, inputs: Mapping[int, Any]) -> None:
            self.added += inputs.items()

        def step(self) -> Sequence[RowDone]:
            return [RowDone(row=number, slot=Success("done")) for number, _ in self.added]

        def close(self) -> None:
            self.closed = True

    def open(self, wake: Callable[[], object], **how: Any) -> Session:
        self.how.append(how)
        self.opened.append(Engine.Session(self.side_by_side))
        return self.opened[-1]

    def generate(self, inputs: Sequence[Any]) -> Sequence[Slot[Any]]:
        raise NotImplementedError


class TestInput:
    def test_requests_are_admitted_while_they_are_wanted(self) -> None:
        requests: ReadInput[str] = ReadInput(
            source([("a", {"prompt": "Hi"}), ("b", {"messages": []}), ("c", {"prompt": "Yo"})]),
            Admission(pg.GenerationOptions(max_new_tokens=3)),
        )
        answers = iter([True, True, False])
        taken = list(requests.taken(lambda is_slow: next(answers)))
        assert [(key, is_ok(slot)) for key, slot in taken] == [("a", True), ("b", False)]
        assert taken[0][1].unwrap().options.max_new_tokens == 3
        assert requests.is_open
        assert [key for key, _ in requests.taken(always)] == ["c"]
        assert not requests.is_open
        assert requests.error is None

    def test_those_of_a_job_come_admitted(self) -> None:
        requests: ReadInput[str] = ReadInput(
            source([("a", ASKED)]), Admission(pg.GenerationOptions(max_new_tokens=3)), admits=False
        )
        ((_, slot),) = requests.taken(always)
        assert slot is ASKED

    def test_one_that_has_none_now_stays_open(self) -> None:
        requests: ReadInput[str] = ReadInput(source([NoRequest.NOW, ("a", {"prompt": "Hi"})]))
        assert list(requests.taken(always)) == []
        assert (requests.is_open, requests.nothing_now) == (True, True)
        assert [key for key, _ in requests.taken(always)] == ["a"]
        assert (requests.is_open, requests.nothing_now) == (False, False)

    def test_what_it_raises_ends_it(self) -> None:
        broken = OSError("gone")
        requests: ReadInput[str] = ReadInput(source([("a", {"prompt": "Hi"}), broken]))
        assert [key for key, _ in requests.taken(always)] == ["a"]
        assert (requests.is_open, requests.error) == (False, broken)

    @pytest.mark.parametrize(("seconds", "slow_from"), [(SLOW_INPUT / 2, None), (PATIENCE, 1)])
    def test_one_that_takes_long_is_slow(self, seconds: float, slow_from: int | None) -> None:
        now, slow = 0.0, list[bool]()

        def take() -> tuple[int, Any]:
            nonlocal now
            now += seconds
            return len(slow), {"prompt": "Hi"}

        def wants(is_slow: bool) -> bool:
            slow.append(is_slow)
            return len(slow) < 100

        for _ in ReadInput(take, clock=lambda: now).taken(wants):
            pass
        assert slow == [slow_from is not None and count >= slow_from for count in range(100)]

    def test_another_thread_prepares_a_request(self) -> None:
        woken, threads = threading.Event(), list[str]()

        def work() -> Prepared:
            threads.append(threading.current_thread().name)
            return Advanced([Row(7, ASKED)], [], []), {}

        requests: ReadInput[str] = ReadInput(source([]))
        request = TakenRequest("a", ASKED, 7)
        requests.prepare(request, work, woken.set)
        assert woken.wait(60)
        assert list(requests.preparing.values()) == [request]
        ((prepared, result),) = requests.prepared()
        assert (prepared, result.unwrap()[0].ended) == (request, [Row(7, ASKED)])
        assert threads[0].startswith("pipegen-drive")
        assert not requests.preparing
        requests.close()
        assert not requests.is_open

    def test_a_bug_in_another_thread_is_its_result(self) -> None:
        def work() -> Prepared:
            raise bug

        bug, woken = ZeroDivisionError(), threading.Event()
        requests: ReadInput[str] = ReadInput(source([]))
        requests.prepare(TakenRequest("a", ASKED, 0), work, woken.set)
        assert woken.wait(60)
        ((_, result),) = requests.prepared()
        assert result.failure() is bug
        requests.close()

    def test_a_whole_batch_is_taken_once_whatever_is_wanted(self) -> None:
        pairs = [(0, Success(1)), (1, Success(2))]
        batch = WholeBatch(pairs)
        assert (batch.is_batch, batch.is_open) == (True, True)
        assert list(batch.taken(lambda is_slow: False)) == pairs
        assert not batch.is_open
        assert list(batch.taken(always)) == []


class TestOutputOrder:
    def test_slots_come_in_the_order_of_the_input(self) -> None:
        order: OutputOrder[str] = OutputOrder()
        first, second, third = (order.take(key, ASKED) for key in "abc")
        assert [request.number for request in (first, second, third)] == [0, 1, 2]
        order.end(second, Success(2))
        assert (order.waiting, order.give()) == (1, [])
        order.end(first, Success(1))
        assert order.waiting == 2
        assert order.give() == [("a", Success(1)), ("b", Success(2))]
        assert (order.waiting, order.give()) == (0, [])

    def test_or_as_they_end(self) -> None:
        order: OutputOrder[str] = OutputOrder(ordered=False)
        first, second = (order.take(key, ASKED) for key in "ab")
        order.end(second, Success(2))
        assert order.give() == [("b", Success(2))]
        order.end(first, Success(1))
        assert order.give() == [("a", Success(1))]

    def test_a_bug_raises_once_all_before_it_were_given_out(self) -> None:
        order: OutputOrder[str] = OutputOrder()
        first, second = (order.take(key, ASKED) for key in "ab")
        order.end(second, ZeroDivisionError())
        order.end(first, Success(1))
        assert order.give() == [("a", Success(1))]
        with pytest.raises(ZeroDivisionError):
            order.give()


def want(engine: Engine, same: str | None = None, input: Any = "x") -> EngineRequest:
    return EngineRequest(engine, input, same=same)


class TestSessions:
    def test_rows_that_want_the_same_are_asked_once_while_that_runs(self) -> None:
        engine = Engine()
        opened = OpenSession("plain", BatchSession(engine), engine, True)
        rows = [Row(key, Success("x")) for key in range(4)]
        wanted = want(engine, same="x")
        assert opened.want(1, rows[0], wanted)
        assert not opened.want(2, rows[1], wanted)
        assert opened.want(3, rows[2], want(engine))
        assert opened.new == [1, 3]
        assert opened.all_rows == [rows[0], rows[2], rows[1]]
        assert opened.end(1) == ("x", rows[:2])
        assert opened.end(3) == ("x", [rows[2]])
        assert opened.want(4, rows[3], wanted)  # the other one has ended
        assert opened.end(4) == ("x", [rows[3]])
        assert opened.all_rows == []

    def test_one_for_each_engine_and_all_are_due(self) -> None:
        one, other, rows = Engine(2), Engine(7), [Row(key, Success("x")) for key in range(3)]
        other.in_flight = 9
        sessions = Sessions(lambda: None)
        assert (sessions.are_known, sessions.side_by_side) == (False, 0)
        for row, engine in zip(rows, (one, other, one), strict=True):
            sessions.want(row, want(engine))
        assert one.how == other.how == [{"tokens": False, "loop": None, "fed": True}]
        assert [len(opened.rows) for opened in sessions.due] == [2, 1]
        assert (sessions.are_known, sessions.in_flight, sessions.side_by_side) == (True, 9, 7)
        opened = sessions.due[0]
        opened.add_new()
        assert one.opened[0].added == [(1, "x"), (3, "x")]
        assert sessions.end(opened, 3) == ("x", [rows[2]])
        assert list(sessions.live) == rows[:2]
        sessions.leave(opened)
        assert one.opened[0].closed
        assert [opened.backend for opened in sessions.due] == [other]

    def test_those_of_a_batch_are_its_calls_and_the_first_is_due(self) -> None:
        engine = Engine()
        rows = [Row(key, Success("x"), at=at) for key, at in ((1, 4), (2, 2), (0, 2))]
        sessions = Sessions(lambda: None, is_batch=True, tokens=True)
        assert sessions.are_known
        for row in rows:
            sessions.want(row, want(engine))
        assert engine.how == [{"tokens": True, "loop": None, "fed": False}] * 2
        (opened,) = sessions.due
        opened.add_new(sort=True)
        assert engine.opened[1].added == [(3, "x"), (2, "x")]
        sessions.leave(opened)
        assert [list(opened.rows.values()) for opened in sessions.due] == [rows[:1]]

    def test_a_number_of_requests_in_flight_that_is_given_holds(self) -> None:
        sessions = Sessions(lambda: None, in_flight=3)
        sessions.want(Row(0, Success("x")), want(Engine()))
        assert (sessions.are_known, sessions.in_flight) == (True, 3)

    @pytest.mark.parametrize("is_batch", [False, True])
    def test_images_are_counted_but_of_a_batch(self, is_batch: bool) -> None:
        image = PreparedImage(width=1, height=1, rgb=b"abc", digest="")
        encoded = Encoded(
            request=ASKED.unwrap(),
            options=resolve(pg.GenerationOptions()),
            prompt=Prompt(token_ids=(1,), compact_token_ids=(1,), images=(image, image)),
        )
        sessions, engine = Sessions(lambda: None, is_batch=is_batch), Engine()
        sessions.want(Row(0, Success("x")), want(engine, same="a", input=encoded))
        sessions.want(Row(1, Success("x")), want(engine, same="a", input=encoded))
        assert sessions.image_bytes == (0 if is_batch else 6)
        sessions.end(sessions.due[0], 1)
        assert sessions.image_bytes == 0


class TestDrain:
    def test_its_time_only_shrinks(self) -> None:
        now = 10.0
        drain = Drain(lambda: now)
        assert drain.seconds_left is None
        drain.begin(5)
        now = 12.0
        assert drain.seconds_left == 3
        drain.begin(60)
        assert drain.seconds_left == 3
        drain.begin(1)
        assert drain.seconds_left == 1
        now = 20.0
        assert drain.seconds_left == 0


class TestAlarm:
    def test_woken_before_or_twice_it_wakes_once(self) -> None:
        alarm = Alarm()
        alarm.wake()
        alarm.wake()
        alarm.wait()
        waited = threading.Thread(target=alarm.wait)
        waited.start()
        alarm.wake()
        waited.join(60)
        assert not waited.is_alive()

    def test_it_waits_no_longer_than_it_may(self) -> None:
        alarm = Alarm()
        alarm.wait(0)
        alarm.wake()
        alarm.wait(threading.TIMEOUT_MAX * 2)

    def test_an_event_loop_is_woken_from_any_thread_until_it_is_closed(self) -> None:
        alarm = Alarm()

        async def woken() -> None:
            event = alarm.event_in(asyncio.get_running_loop())
            alarm.wake()
            assert event.is_set()
            event.clear()
            await asyncio.to_thread(alarm.wake)
            await asyncio.wait_for(event.wait(), 60)

        asyncio.run(woken())
        other = threading.Thread(target=alarm.wake)  # the loop is closed
        other.start()
        other.join(60)
        assert not other.is_alive()
