"""The transport that all online backends share: pooled connections, bounded and adaptive concurrency, deadlines, and sending again what is safe.

Sent again are requests that a server had no room for (429, 503), that a gateway lost (502, 504), and those whose connection broke, whose time ran out or
whose answer was cut off: a generation changes nothing on the server, so asking twice is safe as long as nobody has seen a part of the first answer.
A status of 500 is not sent again: it may be the request that brings the server down.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import TypeVar

from pipegen.backends.online.access import Access
from pipegen.backends.online.client import Broken, Client
from pipegen.backends.online.errors import AGAIN, retry_after, unreachable
from pipegen.backends.online.gate import Gate
from pipegen.backends.online.loops import PerLoop
from pipegen.backends.online.plain_json import encoded
from pipegen.backends.online.sse import Events
from pipegen.backends.online.wire import WireReply, WireRequest
from pipegen.errors import GenerationError, MalformedResponse, RateLimited, Timeout

__all__ = ["Refused", "Transport", "Trouble"]

T = TypeVar("T")
FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0
"""Seconds between two attempts where the server does not say how long to wait: doubled each time, with jitter."""
ABORT_SECONDS = 2.0


class Trouble(Exception):
    """An attempt failed. `again` says that it is safe and sensible to try once more."""

    def __init__(self, error: GenerationError, *, again: bool) -> None:
        super().__init__(error.message)
        self.error, self.again = error, again


class Refused(Exception):
    """The server answered with another status than 200."""

    def __init__(self, reply: WireReply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Transport:
    """The way to one server. `timeout` is in seconds, for one attempt at one request, and in a stream for the wait for its next piece."""

    def __init__(self, access: Access, *, timeout: float, max_in_flight: int, retries: int) -> None:
        self.access, self.timeout, self.retries = access, timeout, retries
        self.max_in_flight = max_in_flight
        self._held = PerLoop(lambda: (Client(max_in_flight + 8, access.headers()), Gate(max_in_flight)), _put_away)

    async def once(self, request: WireRequest, deadline: float | None = None) -> WireReply:
        """One attempt. Raises `Refused` for another status than 200, and `Trouble`."""
        body = _encoded(request)
        client, gate, sent_at = await self._entered(deadline)
        try:
            async with self._limited(deadline):
                reply = await client.ask(request.method, self.access.url(request.path), body)
        except Broken as broken:
            raise Trouble(unreachable(self.access.root, self.access.scrub(str(broken))), again=True) from broken
        finally:
            gate.leave()
        self._note(gate, reply, sent_at)
        if reply.status != 200:
            raise Refused(reply)
        return reply

    async def events(self, request: WireRequest, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        """One attempt at a stream: the data of its events. Leaving early closes the connection. Raises as `once` does."""
        events, body = Events(), _encoded(request)
        client, gate, sent_at = await self._entered(deadline)
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with self._limited(deadline):
                    opened = await stack.enter_async_context(client.open(request.method, self.access.url(request.path), body))
                    refusal = await opened.body() if opened.status != 200 else b""
                reply = WireReply(status=opened.status, headers=opened.headers, body=refusal)
                self._note(gate, reply, sent_at)
                if opened.status != 200:
                    raise Refused(reply)
                pieces = opened.pieces()
                async with contextlib.aclosing(pieces):
                    while not events.done:
                        async with self._limited(deadline):
                            piece = await anext(pieces, None)
                        if piece is None:
                            break
                        for data in events.feed(piece):
                            yield data
        except Broken as broken:
            raise Trouble(unreachable(self.access.root, self.access.scrub(str(broken))), again=True) from broken
        except ValueError as refusal:
            raise Trouble(MalformedResponse(f"{self.access.root} streams {refusal}"), again=False) from refusal
        finally:
            gate.leave()
        if not events.done:
            raise Trouble(MalformedResponse(f"{self.access.root} ended its stream before [DONE]"), again=True)

    async def again(self, attempt: Callable[[int], Awaitable[T]], deadline: float | None = None) -> T:
        """Call `attempt` (with its number, counted from 0) until it raises no `Trouble`, or none that allows another attempt; then that is raised.

        A first attempt that works costs nothing more than itself.
        """
        try:
            return await attempt(0)
        except Trouble as trouble:
            if not trouble.again or not self.retries:
                raise
            first: Trouble | None = trouble
        import tenacity

        def wait(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome is not None else None
            said = error.error.retry_after if isinstance(error, Trouble) and isinstance(error.error, RateLimited) else None
            return max(said or 0.0, jitter(state))

        def stop(state: tenacity.RetryCallState) -> bool:
            pause = wait(state) if state.attempt_number <= self.retries else 0.0
            ends = asyncio.get_running_loop().time() + pause
            return state.attempt_number > self.retries or pause > self.timeout or (deadline is not None and ends >= deadline)

        jitter = tenacity.wait_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT) + tenacity.wait_random(0, FIRST_WAIT)
        allowed = tenacity.retry_if_exception(lambda error: isinstance(error, Trouble) and error.again)
        async for trial in tenacity.AsyncRetrying(retry=allowed, stop=stop, wait=wait, reraise=True):
            with trial:
                if first is not None:
                    replayed, first = first, None
                    raise replayed
                return await attempt(trial.retry_state.attempt_number - 1)
        raise AssertionError("tenacity ends with an answer or an error")

    async def abort(self, request: WireRequest) -> None:
        """Tell the server to end a request; what it answers makes no difference, since the request is given up anyway."""
        client, _ = await self._held.get()
        with contextlib.suppress(Broken, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await client.ask(request.method, self.access.url(request.path), _encoded(request))

    async def _entered(self, deadline: float | None) -> tuple[Client, Gate, float]:
        """Wait for room at the gate, within the batch's time."""
        client, gate = self._held.last() or await self._held.get()
        entered = gate.try_enter()
        if entered is not None:
            return client, gate, entered
        try:
            async with asyncio.timeout_at(deadline):
                return client, gate, await gate.enter()
        except TimeoutError as late:
            raise Trouble(self._spent(), again=False) from late

    def _spent(self) -> Timeout:
        return Timeout(f"{self.access.root}: the time for the batch was spent")

    def close(self) -> None:
        """Close all connections; they are opened again when they are needed again."""
        self._held.close()

    def _limited(self, deadline: float | None) -> _Limited:
        """The time for one attempt, or for what is left of the batch's; running out of it is `Trouble`."""
        return _Limited(self, deadline)

    @staticmethod
    def _note(gate: Gate, reply: WireReply, sent_at: float) -> None:
        if reply.status in (429, 503):
            gate.narrow(sent_at, retry_after(reply.headers))
        elif reply.status not in AGAIN:
            gate.widen()


class _Limited:
    """See `Transport._limited`."""

    __slots__ = ("_spends_all", "_timeout", "_transport")

    def __init__(self, transport: Transport, deadline: float | None) -> None:
        ends = asyncio.get_running_loop().time() + transport.timeout
        self._spends_all = deadline is not None and ends >= deadline
        self._transport, self._timeout = transport, asyncio.timeout_at(deadline if self._spends_all else ends)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            transport = self._transport
            spent = transport._spent() if self._spends_all else Timeout(f"{transport.access.root}: no answer within {transport.timeout:g} s")
            raise Trouble(spent, again=not self._spends_all) from late


async def _put_away(held: tuple[Client, Gate]) -> None:
    await held[0].close()


def _encoded(request: WireRequest) -> bytes | None:
    return None if request.body is None else encoded(request.body)
