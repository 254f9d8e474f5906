"""One deadline for a row, by a clock that is told to go on: the gate, the connection, the stream
and further attempts all take of the same time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from support.attempts import Row, sender_to
from support.clock import Clock, on_clock

from pipegen.backends.servers.wire import Completion, WireRequest
from pipegen.core.errors import BackendFailed, RateLimited, Timeout

pytest.importorskip("aiohttp")

SECONDS = 600.0


class ChatOutput:
    """An answer of 200 whose pieces come when somebody puts them there."""

    status, headers = 200, dict[str, str]()

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = False

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        while piece := await self.queue.get():
            yield piece

    def came(self) -> bytes:
        return b""

    def close(self) -> None:
        self.closed = True


class Server:
    """What stands in for the client: `answer` is what the next attempts get."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.attempts, self.answer = 0, answer

    async def open(self, method: str, url: str, body: Any) -> Any:
        self.attempts += 1
        made = self.answer(self.attempts)
        return await made if isinstance(made, asyncio.Future) else made

    async def close(self) -> None:
        """Nothing is open."""


@on_clock
async def test_comments_do_not_move_the_deadline_of_a_stream(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ChatOutput()
    sender = await sender_to(Server(lambda _: said), monkeypatch)
    going = asyncio.create_task(
        sender.pieces(Row().ask, lambda piece: False, sender.transport.row())
    )
    for second in range(0, 600, 50):
        await loop.go_on(second)
        said.queue.put_nowait(b": here I am\n\n")
    assert not going.done()
    await loop.go_on(SECONDS)
    error = await going
    assert isinstance(error, Timeout)
    assert "600 s for a request (timeout)" in error.message
    assert "for the rest of its stream" in error.message
    assert said.closed


@on_clock
async def test_the_wait_at_the_gate_counts(loop: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(lambda _: loop.create_future())
    sender = await sender_to(server, monkeypatch, max_in_flight=1)
    first = asyncio.create_task(sender.whole(Row(), sender.transport.row()))
    await loop.go_on(1)
    second = asyncio.create_task(sender.whole(Row(), sender.transport.row(500.0)))
    await loop.go_on(500)
    assert "for its turn" in (await second).failure().message
    await loop.go_on(SECONDS)
    assert "for the answer" in (await first).failure().message
    assert server.attempts == 1


@on_clock
async def test_further_attempts_have_what_is_left(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.http.client import Broken

    waiting = list[asyncio.Future[Any]]()

    def answer(_: int) -> Any:
        waiting.append(loop.create_future())
        return waiting[-1]

    server = Server(answer)
    sender = await sender_to(server, monkeypatch)
    going = asyncio.create_task(sender.whole(Row(), sender.transport.row()))
    await loop.go_on(590)
    waiting[0].set_exception(Broken("reset"))
    await loop.go_on(590)
    await loop.go_on(591)
    assert server.attempts == 2
    await loop.go_on(SECONDS)
    assert isinstance((await going).failure(), Timeout)


@on_clock
async def test_what_cannot_wait_any_more_fails_with_what_it_failed_with(
    loop: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pipegen.backends.http.client import Broken

    waiting: asyncio.Future[Any] = loop.create_future()
    sender = await sender_to(Server(lambda _: waiting), monkeypatch)
    going = asyncio.create_task(sender.whole(Row(), sender.transport.row()))
    await loop.go_on(599.95)
    waiting.set_exception(Broken("reset"))
    await loop.go_on(599.95)
    assert isinstance((await going).failure(), BackendFailed)


@on_clock
async def test_the_pause_that_is_made_is_the_one_that_must_fit(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jitter is drawn once: a pause that would pass the deadline is not begun, whatever another
    draw gives.
    """
    from pipegen.backends.http.client import Broken

    drawn = itertools.chain([1.0], itertools.repeat(0.0))
    monkeypatch.setattr("random.random", lambda: next(drawn))

    waiting: asyncio.Future[Any] = loop.create_future()
    server = Server(lambda _: waiting)
    sender = await sender_to(server, monkeypatch)
    going = asyncio.create_task(sender.whole(Row(), sender.transport.row()))
    await loop.go_on(599.85)
    waiting.set_exception(Broken("reset"))
    await loop.go_on(599.85)
    await loop.go_on(600.1)
    assert isinstance((await going).failure(), BackendFailed)
    assert server.attempts == 1


@on_clock
async def test_a_row_waits_as_long_as_it_was_asked_to_where_it_has_the_time(
    loop: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Later:
        status = 429

        def __init__(self, seconds: int) -> None:
            self.headers = {"retry-after": str(seconds)}

        async def body(self, most: int) -> bytes:
            return b"{}"

        def close(self) -> None:
            """It has ended."""

    server = Server(lambda attempt: Later(300))
    sender = await sender_to(server, monkeypatch)
    going = asyncio.create_task(sender.whole(Row(), sender.transport.row()))
    await loop.go_on(0)
    await loop.go_on(299)
    assert server.attempts == 1
    await loop.go_on(302)  # the second answer asks for more than is left
    error = (await going).failure()
    assert isinstance(error, RateLimited)
    assert (server.attempts, error.retry_after) == (2, 300)


@pytest.mark.parametrize("ends", [b"", b": here I am\n\n"])
@on_clock
async def test_a_row_that_has_ended_does_not_wait_for_the_end_of_its_stream(
    loop: Clock, ends: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, finished = ChatOutput(), list[str]()

    def take(piece: Completion) -> bool:
        finished.extend([piece.finish] if piece.finish else [])
        return False

    sender = await sender_to(Server(lambda _: said), monkeypatch)
    going = asyncio.create_task(
        sender.pieces(Row().ask, take, sender.transport.row(), ended=lambda: bool(finished))
    )
    said.queue.put_nowait(
        b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason":'
        b' "stop"}]}\n\n'
    )
    await loop.go_on(1)
    said.queue.put_nowait(ends)
    await loop.go_on(5)
    assert going.done() == (not ends)
    said.queue.put_nowait(b": still here\n\n")
    await loop.go_on(7)
    assert await going is None
    assert finished == ["stop"]


@on_clock
async def test_looking_up_what_a_server_offers_counts(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = await sender_to(Server(lambda _: None), monkeypatch)

    async def never() -> Any:
        await loop.create_future()

    monkeypatch.setattr(sender.directory, "facts", never)
    going = asyncio.create_task(sender.whole(Row(), sender.transport.row()))
    await loop.go_on(1)
    await loop.go_on(SECONDS)
    assert "for what the server offers" in (await going).failure().message


@on_clock
async def test_a_request_that_is_sent_by_hand_has_a_deadline_too(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.http.transport import AttemptFailed

    sender = await sender_to(Server(lambda _: loop.create_future()), monkeypatch)
    going = asyncio.create_task(
        sender.transport.once(
            WireRequest(path="/v1/models", method="GET"), sender.transport.row(9.0)
        )
    )
    await loop.go_on(1)
    await loop.go_on(9)
    with pytest.raises(AttemptFailed) as raised:
        await going
    assert isinstance(raised.value.error, Timeout)
