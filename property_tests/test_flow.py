"""For any number in flight and any order of ends, continuous feeding gives the slots of one run;
an engine that dies fails what is in flight once, and the rest is answered.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

import pipegen as pg
from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.drivers.drive import REORDER
from pipegen.engines.protocol import RowDone
from pipegen.testing.fake import FakeEngine


class Opened:
    """An open call whose rows end in an order of its own: as it steps, or in a thread."""

    def __init__(self, engine: Fed, wake: Callable[[], object]) -> None:
        self.engine, self.wake, self.computes = engine, wake, engine.computes
        self.side_by_side = 3 if self.computes else 0
        self.rows: dict[int, Any] = {}
        self.ended: list[RowDone] = []
        self.thread: threading.Thread | None = None

    def add(self, inputs: Mapping[int, Any]) -> None:
        assert not self.engine.closed_calls.get(id(self))
        self.rows.update(inputs)
        self.engine.most = max(self.engine.most, len(self.rows) + len(self.ended))
        if not self.computes:
            self._end_later()

    def _end(self) -> list[RowDone]:
        if self.engine.random.random() < self.engine.dies:
            raise CallFailed(
                BackendFailed(
                    "it died",
                    backend="fed",
                    scope="batch",
                    incident=f"{self.engine.random.random()}",
                )
            )
        going = self.engine.random.sample(
            sorted(self.rows), self.engine.random.randint(0, len(self.rows))
        )
        return [
            RowDone(row=row, slot=self.engine.generate([self.rows.pop(row)])[0]) for row in going
        ]

    def _end_later(self) -> None:
        def end() -> None:
            while self.rows:
                self.ended += self._end()
            self.wake()

        if self.thread is not None:
            self.thread.join()
        self.thread = threading.Thread(target=end)
        self.thread.start()

    def step(self) -> list[RowDone]:
        if self.computes:
            return self._end()
        ended: list[RowDone] = []
        while self.ended:
            ended.append(self.ended.pop())
        return ended

    def close(self) -> None:
        if self.thread is not None:
            self.thread.join()
        self.engine.closed_calls[id(self)] = True


class Fed(FakeEngine):
    """A fake engine that is fed while it works."""

    def __init__(
        self,
        script: Any,
        seed: int = 0,
        *,
        computes: bool = True,
        dies: float = 0.0,
        in_flight: int = 5,
        name: str = "fed",
    ) -> None:
        super().__init__(script, name=name)
        self.random, self.computes, self.dies, self.in_flight = (
            random.Random(seed),
            computes,
            dies,
            in_flight,
        )
        self.opened: list[Opened] = []
        self.closed_calls: dict[int, bool] = {}
        self.most = 0

    def open(self, wake: Callable[[], object], **how: Any) -> Opened:
        self.opened.append(Opened(self, wake))
        return self.opened[-1]


def script(encoded: Any) -> Any:
    prompt = str(encoded.request.prompt)
    if prompt.endswith("3"):
        return pg.Timeout("slow")
    return f"re: {prompt} {encoded.options.seed}<|im_end|>"


def request_of(position: int, number: int) -> dict[str, Any]:
    if number == 6:
        return {"id": str(position), "messages": []}
    return {
        "id": str(position),
        "prompt": f"prompt {number}",
        "options": {"samples": 1 + number % 3, "temperature": 1.0, "seed": position},
    }


ROUTES: dict[str, Callable[[Any], Any]] = {
    "alone": pg.route,
    "fallback": lambda engine: pg.fallback(
        pg.route(engine), pg.route(FakeEngine("second<|im_end|>", name="second")), when=pg.Timeout
    ),
    "judged": (
        lambda engine: (
            pg.route(engine)
            >> pg.pure("ask", lambda result: pg.TextGenerationRequest(prompt=result.text))
            >> pg.route(engine, name="judge")
        )
    ),
}


async def collected(slots: AsyncIterator[Any]) -> list[Any]:
    return [slot async for slot in slots]


async def arriving(items: Sequence[Any], seed: int) -> AsyncIterator[Any]:
    shuffled = random.Random(seed)
    for item in items:
        for _ in range(shuffled.randint(0, 2)):
            await asyncio.sleep(0)
        yield item


@given(
    numbers=st.lists(st.integers(0, 6), max_size=14),
    in_flight=st.one_of(st.none(), st.integers(1, 6)),
    seed=st.integers(0, 99),
    computes=st.booleans(),
    kind=st.sampled_from(sorted(ROUTES)),
)
def test_the_slots_are_those_of_one_run(
    numbers: list[int], in_flight: int | None, seed: int, computes: bool, kind: str
) -> None:
    requests = [request_of(position, number) for position, number in enumerate(numbers)]
    whole = list(pg.run(ROUTES[kind](FakeEngine(script, name="fed")), requests))
    engine = Fed(script, seed, computes=computes)
    route = ROUTES[kind](engine)
    assert list(pg.imap(route, iter(requests), in_flight=in_flight)) == whole
    keyed = [(number, request) for number, request in enumerate(requests)]
    assert sorted(
        pg.imap_keyed(route, keyed, in_flight=in_flight, ordered=False), key=lambda pair: pair[0]
    ) == [*enumerate(whole)]
    assert (
        asyncio.run(collected(pg.aimap(route, arriving(requests, seed), in_flight=in_flight)))
        == whole
    )
    assert all(engine.closed_calls.get(id(call)) for call in engine.opened)


@given(
    count=st.integers(0, 60),
    in_flight=st.integers(1, 6),
    seed=st.integers(0, 99),
    given_out=st.integers(0, 60),
    computes=st.booleans(),
)
def test_no_more_is_held_than_said_and_nothing_is_left_behind(
    count: int, in_flight: int, seed: int, given_out: int, computes: bool
) -> None:
    before, taken = set(threading.enumerate()), 0

    def asked() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for number in range(count):
            taken += 1
            yield {"prompt": f"prompt {number % 3}"}

    engine = Fed(script, seed, computes=computes)
    slots: Any = pg.imap(pg.route(engine), asked(), in_flight=in_flight)
    for number in range(min(given_out, count)):
        assert pg.is_ok(next(slots))
        assert taken <= number + in_flight * (REORDER + 2)
    slots.close()
    assert engine.most <= in_flight
    assert all(engine.closed_calls.get(id(call)) for call in engine.opened)
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
@given(
    numbers=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    in_flight=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_an_engine_that_dies_fails_the_rows_in_flight_once_and_the_rest_goes_on(
    numbers: list[int], in_flight: int, seed: int
) -> None:
    requests = [request_of(position, number) for position, number in enumerate(numbers)]
    engine = Fed(script, seed, dies=0.2)
    slots = list(pg.imap(pg.route(engine), requests, in_flight=in_flight))
    whole = pg.run(pg.route(FakeEngine(script, name="fed")), requests)
    lost: dict[str, int] = {}
    for slot, wanted in zip(slots, whole, strict=True):
        if pg.is_ok(slot) and not slot.unwrap().failed_samples:
            assert slot == wanted
        elif not pg.is_ok(slot):
            assert isinstance(slot.failure(), pg.BackendFailed)
            lost[slot.failure().incident] = lost.get(slot.failure().incident, 0) + 1
    assert all(count <= in_flight for count in lost.values())
    assert sum(bool(engine.closed_calls.get(id(call))) for call in engine.opened) == len(
        engine.opened
    )


@pytest.mark.parametrize("isolate", [False, True])
def test_an_engine_with_a_bug_fails_its_own_request_where_bugs_are_isolated(isolate: bool) -> None:
    def broken(encoded: Any) -> Any:
        return script(encoded) if encoded.request.prompt != "bug" else 1 // 0

    requests = [{"prompt": "bug" if number == 4 else f"prompt {number % 3}"} for number in range(9)]
    slots = pg.imap(pg.route(Fed(broken, 1)), requests, isolate_bugs=isolate)
    if not isolate:
        with pytest.raises(ZeroDivisionError):
            list(slots)
        return
    assert [pg.is_ok(slot) for slot in slots] == [number != 4 for number in range(9)]


@pytest.mark.slow
@given(
    count=st.integers(1, 40),
    before=st.integers(1, 6),
    after=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_an_engine_that_knows_only_later_what_keeps_it_full_has_as_many_in_flight_from_then_on(
    count: int, before: int, after: int, seed: int
) -> None:
    def opened(wake: Callable[[], object], **how: Any) -> Opened:
        engine.in_flight = after
        return Fed.open(engine, wake, **how)

    engine = Fed(lambda encoded: "fine<|im_end|>", seed, in_flight=before)
    engine.open = opened  # type: ignore[method-assign]
    assert all(map(pg.is_ok, pg.imap(pg.route(engine), [{"prompt": "a"}] * count)))
    assert engine.most == min(after, count)
