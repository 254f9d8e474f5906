"""In which order the rows of an open call are asked for."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from returns.result import Success
from support.models import encoded

from pipegen.backends.http.loops import LoopThread
from pipegen.backends.http.transport import RowCall
from pipegen.backends.servers.http_engine import ServerSession
from pipegen.engines.protocol import RowDone


class Server:
    """What an open call needs of an engine: each row is answered with its ids; `asked` is the
    order.
    """

    def __init__(self, most: int) -> None:
        transport = SimpleNamespace(call_ends=lambda: None, row=lambda _: RowCall(0.0))
        self.sender = SimpleNamespace(
            settings=SimpleNamespace(max_in_flight=most),
            transport=transport,
            access=SimpleNamespace(scrubbed=None),
        )
        self.loop = LoopThread()
        self.asked: list[tuple[int, ...]] = []

    async def row(self, asked: Any, deadline: float) -> Any:
        self.asked.append(asked.prompt.token_ids)
        await asyncio.sleep(0)
        return Success(asked.prompt.token_ids)


def answers(
    call: ServerSession[Any, Any], awake: threading.Semaphore, count: int
) -> dict[int, Any]:
    """That many answers, by the numbers of their rows."""
    got: dict[int, Any] = {}
    while len(got) < count:
        assert awake.acquire(timeout=30)
        got |= {event.row: event.slot.unwrap() for event in call.step()}
    return got


@pytest.mark.parametrize("most", [1, 3])
def test_prompts_that_begin_alike_are_asked_for_one_after_another(most: int) -> None:
    server, awake = Server(most), threading.Semaphore(0)
    prompts = [(group, number) for number in range(10) for group in range(4)]
    random.Random(0).shuffle(prompts)
    needed: Any = server
    call: ServerSession[Any, Any] = ServerSession(
        needed, awake.release, None, tokens=False, fed=True
    )
    try:
        call.add({number: encoded(ids) for number, ids in enumerate(prompts)})
        assert answers(call, awake, 40) == dict(enumerate(prompts))
        assert server.asked == sorted(prompts)
        call.add({40: encoded((9, 9))})  # alone, it is asked for at once
        assert answers(call, awake, 1) == {40: (9, 9)}
        call.add({41: encoded((2, 1)), 42: encoded((1, 1))})
        assert answers(call, awake, 2) == {41: (2, 1), 42: (1, 1)}
        assert server.asked[40:] == [(9, 9), (1, 1), (2, 1)]
    finally:
        call.close()
        server.loop.close()


def test_what_is_told_of_a_row_comes_before_its_end() -> None:
    """The loop tells of a row and ends it, while the caller takes what has come."""
    server = Server(1)
    needed: Any = server

    class Meanwhile(deque[Any]):
        def __len__(self) -> int:
            count = super().__len__()
            if not count and not call._done:
                self.append("text")
                call._slots.append(Success("answer"))
                call._retries.append(0)
                call._done.append(0)
            return count

    call: ServerSession[Any, Any] = ServerSession(
        needed, lambda: None, None, tokens=True, fed=False
    )
    call._events = Meanwhile()
    assert call.step() == []
    assert call.step() == ["text", RowDone(row=0, slot=Success("answer"))]
    server.loop.close()
