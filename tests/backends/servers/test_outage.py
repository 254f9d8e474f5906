"""A server that is away for a while: rows wait together, one of them asks at a time, and none is lost
while there is time. By a clock that is told to go on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.attempts import Row, sender_to
from support.clock import Clock, on_clock

from pipegen.backends.http.client import Broken
from pipegen.backends.http.gate import DOWN, Gate
from pipegen.core.errors import BackendFailed, RateLimited, Timeout
from pipegen.core.slots import is_ok

pytest.importorskip("aiohttp")

ROWS = 40
GOOD = json.dumps(
    {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "Hi"}}]}
).encode()


class Answered:
    """An answer that has come."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.status, self.headers = status, headers or {}

    async def body(self, most: int) -> bytes:
        return GOOD if self.status == 200 else b"{}"

    def came(self) -> bytes:
        return b""

    def close(self) -> None:
        """It has ended."""


class Away:
    """A server that is away between two moments; `wrong` is what it says then. `asked` are the
    moments of the requests.
    """

    def __init__(
        self, loop: Clock, wrong: Callable[[], Any], gone: float = 0.0, back: float = 30.0
    ) -> None:
        self.loop, self.wrong, self.gone, self.back = loop, wrong, gone, back
        self.asked = list[float]()

    async def open(self, method: str, url: str, body: Any) -> Any:
        self.asked.append(self.loop.time())
        return self.wrong() if self.gone <= self.loop.time() < self.back else Answered(200)

    async def close(self) -> None:
        """Nothing is open."""


def refused() -> Any:
    raise Broken("connection refused")


WAYS: list[Callable[[], Any]] = [
    lambda: Answered(503),
    lambda: Answered(429),
    lambda: Answered(502),
    refused,
]


async def answers(
    loop: Clock,
    monkeypatch: pytest.MonkeyPatch,
    server: Away,
    until: float,
    count: int = ROWS,
    **settings: Any,
) -> list[Any]:
    sender = await sender_to(server, monkeypatch, **settings)
    known = asyncio.create_task(sender.whole(Row(), sender.transport.row()))
    await loop.go_on(loop.time())
    assert server.gone == 0.0 or is_ok(await known)
    begun = loop.time() + 1.0 if server.gone else 0.0
    await loop.go_on(begun)
    rows = [asyncio.create_task(sender.whole(Row(), sender.transport.row())) for _ in range(count)]
    while not all(row.done() for row in [known, *rows]) and loop.time() < until:
        await loop.go_on(loop.time() + 0.05)
    assert all(row.done() for row in [known, *rows])
    return [await row for row in rows]


@pytest.mark.parametrize("wrong", WAYS)
@on_clock
async def test_half_a_minute_away_loses_no_row_and_is_asked_seldom(
    loop: Clock, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[], Any]
) -> None:
    server = Away(loop, wrong, gone=0.5, back=30.0)
    slots = await answers(loop, monkeypatch, server, 60.0)
    assert all(map(is_ok, slots))
    while_away = [moment for moment in server.asked if 0.5 < moment < 30.0]
    assert DOWN <= len(while_away) <= ROWS + DOWN
    seldom = [moment for moment in while_away if moment > 3.0]
    assert 2 <= len(seldom) <= 5
    assert len(set(seldom)) == len(seldom)  # one at a time


@on_clock
async def test_a_server_that_stays_away_fails_all_rows_after_the_outage(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Away(loop, lambda: Answered(503), back=10_000.0)
    slots = await answers(loop, monkeypatch, server, 40.0, outage=20.0)
    assert all(isinstance(slot.failure(), RateLimited) for slot in slots)
    assert 20.0 < loop.time() < 30.0
    assert len([moment for moment in server.asked if 3.0 < moment < 20.0]) <= 5


@on_clock
async def test_a_row_has_no_more_time_than_its_own(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Away(loop, lambda: Answered(503), back=10_000.0)
    slots = await answers(loop, monkeypatch, server, 12.0, timeout=10.0)
    assert all(isinstance(slot.failure(), (RateLimited, Timeout)) for slot in slots)
    late = [slot.failure().message for slot in slots if isinstance(slot.failure(), Timeout)]
    assert sum("before that: the server answered 503" in words for words in late) >= 3
    assert 9.0 < loop.time() < 11.0


@on_clock
async def test_an_address_where_nothing_ever_answered_is_not_waited_for(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Away(loop, refused, back=10_000.0)
    slots = await answers(loop, monkeypatch, server, 10.0)
    assert all(isinstance(slot.failure(), BackendFailed) for slot in slots)
    assert loop.time() < 3.0


@on_clock
async def test_without_an_outage_only_the_retries_count(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Away(loop, lambda: Answered(503), back=10_000.0)
    slots = await answers(loop, monkeypatch, server, 30.0, count=1, outage=0, retries=2)
    assert isinstance(slots[0].failure(), RateLimited)
    assert len(server.asked) == 2 * 3  # the first one besides


@on_clock
async def test_one_row_that_breaks_its_connection_is_not_asked_for_ever(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Away(loop, refused, gone=0.5, back=10_000.0)
    slots = await answers(loop, monkeypatch, server, 10.0, count=1)
    assert isinstance(slots[0].failure(), BackendFailed)
    assert len(server.asked) == 1 + 4


@on_clock
async def test_a_request_that_is_answered_slowly_does_not_hold_up_the_others(loop: Clock) -> None:
    gate = Gate(8, outage=60.0)
    for _ in range(DOWN):
        gate.later(loop.time(), answered=True)
    entered = [asyncio.create_task(gate.enter(None)) for _ in range(3)]
    for moment, count in ((0.0, 0), (0.2, 1), (5.0, 1), (5.3, 2), (10.4, 3)):
        await loop.go_on(moment)
        assert sum(task.done() for task in entered) == count


@on_clock
async def test_the_first_good_answer_opens_the_gate(loop: Clock) -> None:
    gate = Gate(8, outage=60.0)
    for _ in range(DOWN):
        gate.later(loop.time(), answered=True)
    entered = [asyncio.create_task(gate.enter(None)) for _ in range(5)]
    await loop.go_on(0.2)
    assert sum(task.done() for task in entered) == 1
    gate.widen()
    await loop.go_on(0.2)
    assert all(task.done() for task in entered)
    assert not gate.down
