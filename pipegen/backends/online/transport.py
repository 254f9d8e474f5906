"""The transport that all online backends share: pooled connections, bounded and adaptive concurrency, deadlines, and sending again what is safe.

Sent again are requests that a server had no room for (429, 503), that a gateway lost (502, 504), and those whose connection broke, whose time ran out or
whose answer was cut off: a generation changes nothing on the server, so asking twice is safe as long as nobody has seen a part of the first answer.
A status of 500 is not sent again: it may be the request that brings the server down.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from pipegen.backends.online.access import Access
from pipegen.backends.online.client import Broken, Client
from pipegen.backends.online.deadlines import Deadlines, Late
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
        super().__init__(error, again)
        self.error, self.again = error, again

    def __str__(self) -> str:
        return self.error.message

    def __reduce__(self) -> Any:
        return functools.partial(type(self), again=self.again), (self.error,)


class Refused(Exception):
    """The server answered with another status than 200."""

    def __init__(self, reply: WireReply) -> None:
        super().__init__(reply)
        self.reply = reply

    def __str__(self) -> str:
        return str(self.reply.status)


class _OnLoop(NamedTuple):
    """What belongs to one event loop."""

    client: Client
    gate: Gate
    deadlines: Deadlines


class Transport:
    """The way to one server. `timeout` is in seconds, for one attempt at one request, and in a stream for the wait for its next piece."""

    def __init__(self, access: Access, *, timeout: float, max_in_flight: int, retries: int) -> None:
        self.access, self.timeout, self.retries = access, timeout, retries
        self.max_in_flight = max_in_flight
        self._held = PerLoop(lambda: _OnLoop(Client(max_in_flight + 8, access.headers()), Gate(max_in_flight), Deadlines()), _put_away)

    async def once(self, request: WireRequest, deadline: float | None = None) -> WireReply:
        """One attempt. Raises `Refused` for another status than 200, and `Trouble`."""
        body = _encoded(request)
        client, gate, deadlines = self._held.last() or await self._held.get()
        sent_at = gate.try_enter()
        if sent_at is None:
            sent_at = await self._entered(gate, deadline)
        ends = self._ends(sent_at, deadline)
        try:
            with deadlines.by(ends):
                reply = await client.ask(request.method, self.access.url(request.path), body)
        except (Broken, Late) as ended:
            raise self._trouble(ended, spent=ends == deadline) from ended
        finally:
            gate.leave()
        self._note(gate, reply, sent_at)
        if reply.status != 200:
            raise Refused(reply)
        return reply

    async def events(self, request: WireRequest, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        """One attempt at a stream: the data of its events. Leaving early closes the connection. Raises as `once` does."""
        events, body = Events(), _encoded(request)
        client, gate, deadlines = self._held.last() or await self._held.get()
        sent_at = await self._entered(gate, deadline)
        ends, now = self._ends(sent_at, deadline), asyncio.get_running_loop().time
        try:
            async with contextlib.AsyncExitStack() as stack:
                with deadlines.by(ends):
                    opened = await stack.enter_async_context(client.open(request.method, self.access.url(request.path), body))
                    refusal = await opened.body() if opened.status != 200 else b""
                reply = WireReply(status=opened.status, headers=opened.headers, body=refusal)
                self._note(gate, reply, sent_at)
                if opened.status != 200:
                    raise Refused(reply)
                pieces = opened.pieces()
                async with contextlib.aclosing(pieces):
                    while not events.done:
                        ends = self._ends(now(), deadline)
                        with deadlines.by(ends):
                            piece = await anext(pieces, None)
                        if piece is None:
                            break
                        for data in events.feed(piece):
                            yield data
        except (Broken, Late) as ended:
            raise self._trouble(ended, spent=ends == deadline) from ended
        except ValueError as refusal:
            raise Trouble(MalformedResponse(f"{self.access.root} streams {refusal}"), again=False) from refusal
        finally:
            gate.leave()
        if not events.done:
            raise Trouble(MalformedResponse(f"{self.access.root} ended its stream before [DONE]"), again=True)

    async def again(self, attempt: Callable[[int], Awaitable[T]], deadline: float | None = None) -> T:
        """Call `attempt` (with its number, counted from 0) until it raises no `Trouble`, or none that allows another attempt; then that is raised."""
        try:
            return await attempt(0)
        except Trouble as trouble:
            return await self.once_more(trouble, attempt, deadline)

    async def once_more(self, trouble: Trouble, attempt: Callable[[int], Awaitable[T]], deadline: float | None = None) -> T:
        """As `again`, for a first attempt that has ended in `trouble`; so one that works costs nothing more than itself."""
        if not trouble.again or not self.retries:
            raise trouble
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
        client = (await self._held.get()).client
        with contextlib.suppress(Broken, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await client.ask(request.method, self.access.url(request.path), _encoded(request))

    async def _entered(self, gate: Gate, deadline: float | None) -> float:
        """Wait for room at the gate, within the batch's time; gives the loop's time at which there was some."""
        try:
            async with asyncio.timeout_at(deadline):
                return await gate.enter()
        except TimeoutError as late:
            raise Trouble(self._spent(), again=False) from late

    def _ends(self, now: float, deadline: float | None) -> float:
        """The time for one attempt, or for what is left of the batch's."""
        ends = now + self.timeout
        return ends if deadline is None or ends < deadline else deadline

    def _trouble(self, ended: Broken | Late, *, spent: bool) -> Trouble:
        """What ended an attempt; where its time was all that was left of the batch's, it was the last."""
        if isinstance(ended, Broken):
            return Trouble(unreachable(self.access.root, self.access.scrub(str(ended))), again=True)
        return Trouble(self._spent() if spent else Timeout(f"{self.access.root}: no answer within {self.timeout:g} s"), again=not spent)

    def _spent(self) -> Timeout:
        return Timeout(f"{self.access.root}: the time for the batch was spent")

    def close(self) -> None:
        """Close all connections; they are opened again when they are needed again."""
        self._held.close()

    @staticmethod
    def _note(gate: Gate, reply: WireReply, sent_at: float) -> None:
        if reply.status in (429, 503):
            gate.narrow(sent_at, retry_after(reply.headers))
        elif reply.status not in AGAIN:
            gate.widen()


async def _put_away(held: _OnLoop) -> None:
    held.deadlines.close()
    await held.client.close()


def _encoded(request: WireRequest) -> bytes | None:
    return None if request.body is None else encoded(request.body)
