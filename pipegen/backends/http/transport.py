"""The way to one server: pooled connections, bounded and adaptive concurrency, deadlines, and
sending again what is safe.

**States.** An attempt (`once` for a whole answer, `events` for a stream) is *waiting* for its turn
at the gate, *sent*, *answered* (its head has come), or *ended*. A row is one or more attempts, one
after the other.

- waiting to sent: the gate lets it through. First come, first served; fewer at a time while the
  server asks for patience (see `Gate`).
- sent to answered: the head of the answer comes. Its status tells the gate whether the server has
  room.
- answered to ended: the whole body has come, or a stream's `[DONE]`. A body that is complete
  counts, however its connection ends.
- any state to ended: the connection breaks (`Broken`), the deadline passes (`Late`), or the answer
  is too large (`TooLong`). Or the caller is cancelled or leaves the stream. The connection is then
  closed, and the place at the gate given back.

**Attempts.** `retry` starts another attempt after one that failed with `AttemptFailed(again=True)`.
The server had no room (429, 503, 529), a gateway lost the request (502, 504, 520 to 524), the
connection broke, or the answer was cut off. A generation changes nothing on the server, so asking twice is safe as long
as nobody has seen a part of the first answer. A status of 500 is not sent again: the request itself
may bring the server down.

**Invariants.**

- A server that answers "later" to everything is asked by one request at a time, until it is back.
- A row has one deadline for everything: the gate, the connection, the answer, pauses, further
  attempts. Nothing that a server sends moves it. With limits of requests or tokens a minute,
  waiting at the gate is no part of it. There the time of the whole call counts.
- Every attempt that entered the gate leaves it exactly once, and closes what it opened.
- No answer takes more memory than was allowed for what was asked (see `bounds`).
- What belongs to an event loop (connections, gate, deadlines) is used on that loop alone, and is
  put away when the loop ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar

from pipegen.backends.http.access import Access
from pipegen.backends.http.client import (
    ANSWERED,
    BASE,
    Broken,
    Client,
    Events,
    Opened,
    TooLong,
    Upload,
)
from pipegen.backends.http.gate import Deadlines, Exhausted, Gate, Late, Room
from pipegen.backends.http.loops import PerLoop
from pipegen.backends.http.plain_json import encoded
from pipegen.backends.http.rates import CountedRequest, RateLimits, Wait, rates_of
from pipegen.backends.servers.reading import json_of
from pipegen.backends.servers.server_errors import AGAIN, BUSY, retry_after, unreachable
from pipegen.backends.servers.wire import WireReply, WireRequest
from pipegen.core.errors import GenerationError, MalformedResponse, RateLimited, Timeout
from pipegen.core.slots import is_ok
from pipegen.engines.settings import ServerSettings

T = TypeVar("T")
FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0
"""Seconds between two attempts where the server does not say how long to wait: doubled each time,
with jitter.
"""
ABORT_SECONDS = 2.0
CLOSED_SHARE = 0.1
"""The most of a row's time for which one answer (`Retry-After`) may keep all other rows from the
server.
"""
UPLOAD_BYTES = 2**27
"""Bytes of bodies with images that are held at a time, ready to be sent."""
PREPARED = 2
"""Rows with images whose bodies are made at a time."""


class AttemptFailed(Exception):
    """An attempt failed. `again` says that it is safe and sensible to try once more, `later` that the
    server is away, or asks for patience: that is no fault of the request.
    """

    def __init__(self, error: GenerationError, *, again: bool, later: bool = False) -> None:
        super().__init__(error, again, later)
        self.error, self.again, self.later = error, again, later

    def __str__(self) -> str:
        return self.error.message

    def __reduce__(self) -> Any:
        return functools.partial(type(self), again=self.again, later=self.later), (self.error,)


class HttpStatusError(Exception):
    """The server answered with a status that is not in `ANSWERED`."""

    def __init__(self, reply: WireReply) -> None:
        super().__init__(reply)
        self.reply = reply

    def __str__(self) -> str:
        return str(self.reply.status)


@dataclass(slots=True)
class RowCall:
    """One row while it is asked for."""

    ends: float
    """Its deadline, by the loop's clock."""
    call_ends: float | None = None
    """That of the whole call, which nothing moves."""
    tokens: int | None = None
    """Those that its next attempt may take; None for what is no row, and counts for no limit."""
    turn: CountedRequest | None = None
    """Its last attempt, where it counts."""
    retries: int = 0
    """How often it was sent again."""


class _OnLoop(NamedTuple):
    """What belongs to one event loop."""

    client: Client
    gate: Gate
    deadlines: Deadlines
    uploads: Room
    preparing: asyncio.Semaphore
    looking_up: asyncio.Lock


class Transport:
    """The way to one server."""

    def __init__(self, access: Access, settings: ServerSettings) -> None:
        self.access, self.timeout, self.retries, self.budget = (
            access,
            settings.timeout,
            settings.retries,
            settings.batch_budget,
        )
        self.max_in_flight, self.outage = settings.max_in_flight, settings.outage
        self.limits = RateLimits(settings.requests_per_minute, settings.tokens_per_minute)
        self.rates = rates_of(access.who)
        self.rates.limited |= any(self.limits)
        self._held = PerLoop(self._on_loop, _put_away)

    def _on_loop(self) -> _OnLoop:
        client = Client(self.max_in_flight + 8, self.access.headers())
        return _OnLoop(
            client,
            Gate(self.max_in_flight, self.outage, self.rates, self.limits),
            Deadlines(),
            Room(UPLOAD_BYTES),
            asyncio.Semaphore(PREPARED),
            asyncio.Lock(),
        )

    async def here(self) -> _OnLoop:
        """What belongs to the running loop."""
        return self._held.last() or await self._held.get()

    def call_ends(self) -> float | None:
        """The running loop's time at which a call that begins now has spent its budget."""
        return None if self.budget is None else asyncio.get_running_loop().time() + self.budget

    def row(self, call_ends: float | None = None) -> RowCall:
        """A row that begins now: its deadline is its own, or that of the whole call."""
        ends = asyncio.get_running_loop().time() + self.timeout
        return RowCall(ends if call_ends is None else min(ends, call_ends), call_ends)

    async def once(
        self,
        wire_request: WireRequest,
        call: RowCall,
        *,
        body: bytes | Upload | None = None,
        most: int = BASE,
    ) -> WireReply:
        """One attempt, whose answer may have `most` bytes. Raises `HttpStatusError` for a
        status that is not in `ANSWERED`, and `AttemptFailed`.
        """
        body = body or body_of(wire_request)
        here = self._held.last() or await self._held.get()
        await self._enter(here, call)
        sent_at = asyncio.get_running_loop().time()
        opened: Opened | None = None
        reply: WireReply | None = None
        try:
            with here.deadlines.by(call.ends):
                opened = await here.client.open(
                    wire_request.method, self.access.url(wire_request.path), body
                )
                reply = WireReply(
                    status=opened.status, headers=opened.headers, body=await opened.body(most)
                )
        except TooLong as refusal:
            self._malformed(refusal)
        except (Broken, Late) as ended:
            if opened is None or opened.status not in ANSWERED or not is_ok(json_of(opened.came())):
                waited = "for the answer" if opened is None else "for the rest of the answer"
                raise self._trouble(ended, waited, here.gate, sent_at) from ended
            # whole, though its connection was not
            reply = WireReply(status=200, headers=opened.headers, body=opened.came())
        finally:
            if reply is not None:  # before it leaves: what it says decides who comes next
                self._note(here.gate, reply, sent_at, call.turn)
            here.gate.leave(sent_at=sent_at)
            if opened is not None:
                opened.close()
        if reply is None:
            raise AssertionError("an attempt gives a reply, or raises")
        if reply.status not in ANSWERED:
            raise HttpStatusError(reply)
        return reply

    async def events(
        self,
        wire_request: WireRequest,
        call: RowCall,
        deadline: Callable[[], float],
        *,
        body: bytes | Upload | None = None,
        most: int = BASE,
        total: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """One attempt at a stream: the data of its events, each of `most` bytes, and `total` in
        all. Leaving early closes the connection.

        `deadline` may come nearer while it goes on. Raises as `once` does.
        """
        events, body, left = Events(most), body or body_of(wire_request), total
        here = await self.here()
        await self._enter(here, call)
        sent_at = asyncio.get_running_loop().time()
        opened: Opened | None = None
        try:
            with here.deadlines.by(deadline()):
                opened = await here.client.open(
                    wire_request.method, self.access.url(wire_request.path), body
                )
                refusal = await opened.body(most) if opened.status not in ANSWERED else b""
            reply = WireReply(status=opened.status, headers=opened.headers, body=refusal)
            self._note(here.gate, reply, sent_at, call.turn)
            if opened.status not in ANSWERED:
                raise HttpStatusError(reply)
            kind = opened.headers.get("Content-Type", "").lower()
            if kind.startswith(
                "application/json"
            ):  # the whole answer, or an error, in place of a stream
                with here.deadlines.by(deadline()):
                    answer = await opened.body(most)
                yield answer
                return
            pieces = opened.pieces()
            async with contextlib.aclosing(pieces):
                while not events.done:
                    with here.deadlines.by(deadline()):
                        piece = await anext(pieces, None)
                    if piece is None:
                        break
                    for data in events.feed(piece):
                        left = None if left is None else left - len(data)
                        if left is not None and left < 0:
                            raise TooLong(f"more than {total} bytes")
                        yield data
        except (Broken, Late) as ended:
            waited = "for the answer" if opened is None else "for the rest of its stream"
            raise self._trouble(ended, waited, here.gate, sent_at) from ended
        except TooLong as refusal:
            self._malformed(refusal)
        finally:
            here.gate.leave(sent_at=sent_at)
            if opened is not None:
                opened.close()
        if not events.done:
            raise AttemptFailed(
                MalformedResponse(f"{self.access.root} ended its stream before [DONE]"), again=True
            )

    async def retry(
        self, trouble: AttemptFailed, attempt: Callable[[], Awaitable[T]], call: RowCall
    ) -> T:
        """Call `attempt` until it raises no `AttemptFailed`, or none that allows another attempt;
        then that is raised. What failed because the server is away, or asks for patience, counts
        for none of the `retries`, for up to `outage` seconds.

        `trouble` is what the first attempt has ended in, so one that works costs nothing more than
        itself.
        """
        gate, loop = (await self.here()).gate, asyncio.get_running_loop()
        patient_until, counted, pause = loop.time() + self.outage, 0, FIRST_WAIT
        while trouble.again and self.retries:
            asked = trouble.error.retry_after if isinstance(trouble.error, RateLimited) else None
            # while the server is down the gate lets rows through one by one
            jitter = 0.0 if gate.down else pause + FIRST_WAIT * random.random()  # noqa: S311
            wait, pause = max(asked or 0.0, jitter), min(2 * pause, LONGEST_WAIT)
            if not (trouble.later and gate.patient and loop.time() < patient_until):
                counted += 1
            if counted > self.retries or loop.time() + wait >= call.ends:
                break
            await asyncio.sleep(wait)
            call.retries += 1
            try:
                return await attempt()
            except AttemptFailed as ended:
                if isinstance(ended.error, Timeout) and not ended.again:
                    words = f"{ended.error.message}; before that: {trouble.error.message}"[:1000]
                    error = ended.error.with_fields(message=words)
                    raise AttemptFailed(error, again=False) from ended
                trouble = ended
        raise trouble

    async def is_later(self, status: int) -> bool:
        """Whether this status asks for patience. A failed gateway does where the server is down."""
        return status in BUSY or (status in AGAIN and (await self.here()).gate.down)

    async def abort(self, wire_request: WireRequest) -> None:
        """Tell the server to end a request; what it answers makes no difference, since the request
        is given up anyway.
        """
        here = await self.here()
        with (
            contextlib.suppress(Broken, Late, TooLong),
            here.deadlines.by(asyncio.get_running_loop().time() + ABORT_SECONDS),
        ):
            opened = await here.client.open(
                wire_request.method, self.access.url(wire_request.path), body_of(wire_request)
            )
            try:
                await opened.body(BASE)
            finally:
                opened.close()

    async def _enter(self, here: _OnLoop, call: RowCall) -> None:
        """Wait for room at the gate."""
        counts = call.tokens is not None and self.rates.limited
        call.turn = CountedRequest(call.tokens or 0) if counts else None
        try:
            if here.gate.try_enter(call.turn):
                return
            loop, limited = asyncio.get_running_loop(), any(self.limits)
            began = loop.time()
            with here.deadlines.by(
                call.ends if not limited or call.turn is None else call.call_ends or math.inf
            ):
                await here.gate.enter(call.turn, ahead=limited and call.turn is None)
        except Late as late:
            raise AttemptFailed(self.late("for its turn"), again=False) from late
        except Exhausted as exhausted:
            raise AttemptFailed(self._exhausted(exhausted.wait), again=False) from exhausted
        if limited and call.turn is not None:
            ends = call.ends + loop.time() - began
            call.ends = ends if call.call_ends is None else min(ends, call.call_ends)

    def _exhausted(self, wait: Wait) -> RateLimited:
        words = (
            f"{self.access.root}: {wait.why} for {wait.seconds:.0f} s, longer than outage"
            f" ({self.outage:g} s); the request was not sent"
        )
        return RateLimited(words, retry_after=wait.seconds)

    @property
    def waits(self) -> str:
        """Why requests wait, where it is for their limits."""
        return self.rates.words(time.monotonic())

    def _trouble(
        self, ended: Broken | Late, waited: str, gate: Gate, sent_at: float
    ) -> AttemptFailed:
        """What ended an attempt; where its time was over, it was the last. A connection that breaks
        may be the request's own fault, unless the server is away for others too.
        """
        if isinstance(ended, Broken):
            gate.later(sent_at, answered=False)
            error = unreachable(
                self.access.root, self.access.scrub(str(ended)), ended.hint, lasting=ended.lasting
            )
            return AttemptFailed(error, again=not ended.lasting, later=gate.down)
        return AttemptFailed(self.late(waited), again=False)

    def late(self, waited: str) -> Timeout:
        """The error of a row whose time is over."""
        allowed = f"{self.timeout:g} s for a request (timeout)" + (
            ""
            if self.budget is None
            else f" and {self.budget:g} s for the whole call (batch_budget)"
        )
        return Timeout(
            f"{self.access.root}: the time is over, {allowed}, with all its waits and attempts; it"
            f" waited {waited}"
        )

    def _malformed(self, refusal: TooLong) -> NoReturn:
        raise AttemptFailed(
            MalformedResponse(f"{self.access.root} sends {refusal}", hint=_TOO_LONG), again=False
        ) from refusal

    def close(self) -> None:
        """Close all connections; they are opened again when they are needed again."""
        self._held.close()

    def _note(
        self, gate: Gate, reply: WireReply, sent_at: float, turn: CountedRequest | None = None
    ) -> None:
        """Tell the gate how a request fared. What no row could wait for closes it for none: one
        answer is not the server's word for all of them.
        """
        full = reply.status in BUSY
        asked = (retry_after(reply.headers) if full else None) or 0.0
        if turn is not None:
            self.rates.note(reply.headers, turn, asyncio.get_running_loop().time(), asked)
        if full:
            gate.narrow(
                sent_at, min(asked, self.timeout * CLOSED_SHARE) if asked < self.timeout else None
            )
        if reply.status in AGAIN:
            gate.later(sent_at, answered=True)
        else:
            gate.widen()


async def _put_away(held: _OnLoop) -> None:
    held.deadlines.close()
    await held.client.close()


_TOO_LONG = (
    "ask for fewer tokens, or see what the server does with max_tokens; the answer was not used"
)


def body_of(wire_request: WireRequest) -> bytes | None:
    """The body of a request as JSON."""
    return None if wire_request.body is None else encoded(wire_request.body)
