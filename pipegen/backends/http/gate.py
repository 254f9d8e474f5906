"""How many requests may be at a server at once: fewer when it asks for patience, more with each
round of answers that comes well. And how many in a minute, and how many bytes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import Generic, TypeVar

from pipegen.backends.http.rates import CountedRequest, RateLimits, Rates, Wait

S = TypeVar("S")

DOWN = 8
"""After so many answers in a row that say "later", a server is away."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds until it is asked whether it is back: doubled each time."""
PROBE_SECONDS = 5.0
"""Seconds after which another request is let through though the last one has no answer yet: one that
comes slowly is no sign that the server is away.
"""


class Exhausted(Exception):
    """The server takes nothing more for longer than it is waited for."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait)
        self.wait = wait


class Queue(ABC, Generic[S]):
    """Who waits to be let in, all of one event loop, first come first served."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[S, asyncio.Future[None]]] = deque()

    @abstractmethod
    def _take(self, size: S) -> bool:
        """Let one in where there is room for it; whether there was."""

    @abstractmethod
    def _undo(self, size: S) -> None:
        """Give back what was taken for one that has left before it came in."""

    def try_enter(self, size: S) -> bool:
        """Take room where there is some without waiting; whether there was."""
        return not self._waiting and self._take(size)

    async def enter(self, size: S, *, ahead: bool = False) -> None:
        """Wait for room, and take it; `ahead` is before all who wait."""
        if self.try_enter(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if ahead else self._waiting.append)((size, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._undo(size)
            else:
                self._admit()  # another that waits may fit
            raise

    def _admit(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                try:
                    if not self._take(size):
                        return
                    turn.set_result(None)
                except Exhausted as exhausted:
                    turn.set_exception(exhausted)
            self._waiting.popleft()


class Room(Queue[int]):
    """Room for `most` at a time (requests, bytes), all of one event loop, first come first served.
    What is larger than that is held alone.

    >>> async def work() -> list[str]:
    ...     room, done = Room(10), list[str]()
    ...
    ...     async def hold(name: str, size: int) -> None:
    ...         await room.enter(size)
    ...         done.append(name)
    ...         await asyncio.sleep(0)
    ...         room.leave(size)
    ...
    ...     await asyncio.gather(hold("a", 6), hold("b", 20), hold("c", 4))
    ...     return done
    >>> asyncio.run(work())
    ['a', 'b', 'c']
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.held = most, 0

    def leave(self, size: int) -> None:
        """Give the room back."""
        self.held -= size
        self._admit()

    _undo = leave

    def _take(self, size: int) -> bool:
        fits = not self.held or self.held + size <= self.most
        if fits:
            self.held += size
        return fits


class Gate(Queue[CountedRequest | None]):
    """Room for requests, `most` at a time at best. Each enters with its turn, which counts among
    the `rates` of its server; what is no request of a row has none.

    A refusal for want of room takes three tenths of the width away, once for all requests that were
    sent before it took effect. It closes the gate for as long as the server says. A full round of
    answers gives a sixteenth of `most` back (additive increase, multiplicative decrease: Chiu and
    Jain 1989). So a refusal now and then leaves most of the width, and a server that is full is
    soon asked no more than it takes.

    A server that answers nothing but "later" (`later`) several times in a row is `down`. Then one
    request at a time is let through, to see whether it is back, after waits that grow. The first
    good answer opens the gate. After `outage` seconds nobody waits for it any more.

    With `limits`, none is let through that a minute has no room for. The server itself may report
    that nothing is left for longer than a minute, and than `outage`. Then it raises `Exhausted`,
    once no request is out whose answer may report more.
    """

    def __init__(
        self,
        most: int,
        outage: float = 0.0,
        rates: Rates | None = None,
        limits: RateLimits = RateLimits(),  # noqa: B008  # it is a tuple
    ) -> None:
        super().__init__()
        self.most, self.held = most, 0
        self._outage, self._rates, self._limits = outage, rates, limits
        self._wait: Wait | None = None
        """Why the first that waits may not be sent yet, though there is room for it."""
        self._known = False
        """Whether the server has ever answered anything."""
        self._began: float | None = None
        """When the first of the answers came that said "later", with none between."""
        self._later = 0
        """How many of those came."""
        self._pause, self._next_probe = 0.0, 0.0
        self._probe: float | None = None
        """When the request was let through that tries whether the server is back."""
        self._step = max(1.0, most / 16)
        self.width = float(most)
        self._closed_until = 0.0
        self._narrowed_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def widen(self) -> None:
        """An answer came well."""
        if self.width < self.most:
            self.width = min(float(self.most), self.width + self._step / self.width)
        self._known = True
        if self._began is not None:
            self._began, self._later, self._probe = None, 0, None
            self._pause = self._next_probe = 0.0
            self._admit()

    def later(self, sent_at: float, *, answered: bool) -> None:
        """The server said "later" to a request that was sent at `sent_at`, or its connection broke
        before it `answered`. One that never answered is no server that will come back.
        """
        self._known = self._known or answered
        if not self._known:
            return
        now = asyncio.get_running_loop().time()
        self._began = now if self._began is None else self._began
        self._later += 1
        if self._later == DOWN or (self._probe is not None and sent_at >= self._probe):
            self._probe = None
            self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
            self._next_probe = now + self._pause

    @property
    def patient(self) -> bool:
        """Whether it is worth waiting for a server that says "later"."""
        if not self._outage or self._began is None:
            return bool(self._outage)
        return asyncio.get_running_loop().time() < self._began + self._outage

    @property
    def down(self) -> bool:
        """Whether the server is away for all requests alike, and may come back."""
        return self._later >= DOWN and self.patient

    def leave(self, sent_at: float | None = None) -> None:
        """Give the room back; `sent_at` is when its request was sent."""
        if self._probe is not None and sent_at is not None and sent_at >= self._probe:
            self._probe = None
        self.held -= 1
        if self._waiting:
            self._admit()

    def _undo(self, size: CountedRequest | None) -> None:
        self.leave()

    def _take(self, size: CountedRequest | None) -> bool:
        now, self._wait = asyncio.get_running_loop().time(), None
        if self.held >= int(self.width) or now < self._opens():
            return False
        if size is not None and self._rates is not None:
            wait = self._wait = self._rates.enter(size, now, self._limits)
            hopeless = wait is not None and wait.of_server and not self.held
            if wait is not None and hopeless and wait.seconds > max(60.0, self._outage):
                raise Exhausted(wait)
        if self._wait is not None:
            return False
        self.held += 1
        if self.down:
            self._probe = now
        return True

    def narrow(self, sent_at: float, seconds: float | None) -> None:
        """The server had no room for a request that was sent at `sent_at`, and asks to wait
        `seconds`.
        """
        now = asyncio.get_running_loop().time()
        if sent_at >= self._narrowed_at:
            self.width, self._narrowed_at = max(1.0, self.width * 0.7), now
        self._closed_until = max(self._closed_until, now + (seconds or 0.0))

    def _opens(self) -> float:
        """When the next request may be let through, as far as the time decides it."""
        if not self.down:
            return self._closed_until
        probes = self._next_probe if self._probe is None else self._probe + PROBE_SECONDS
        ends = (self._began or 0.0) + self._outage
        return max(self._closed_until, min(probes, ends))

    def _admit(self) -> None:
        super()._admit()
        loop, opens = asyncio.get_running_loop(), self._opens()
        if self._rates is not None and any(self._limits):
            wait = self._wait if self._waiting else None
            opens = opens if wait is None else max(opens, loop.time() + wait.seconds)
            self._rates.waits(self, wait, opens)
        if self._waiting and loop.time() < opens:
            if self._timer is not None and self._timer.when() > opens:
                self._timer.cancel()
                self._timer = None
            if self._timer is None:
                self._timer = loop.call_at(opens, self._reopen)

    def _reopen(self) -> None:
        self._timer = None
        self._admit()

    def look(self) -> None:
        """See whether the first that waits may go: what was counted has changed."""
        self._admit()


class Late(Exception):
    """What was to be done by a deadline was not."""


class Deadlines:
    """The deadlines of one event loop. `by` limits a block, as `asyncio.timeout_at` does, and
    raises `Late` where it takes longer.

    >>> async def work(seconds: float) -> str:
    ...     deadlines = Deadlines()
    ...     with deadlines.by(asyncio.get_running_loop().time() + 0.01):
    ...         await asyncio.sleep(seconds)
    ...     return "done"
    >>> asyncio.run(work(0))
    'done'
    >>> asyncio.run(work(60))
    Traceback (most recent call last):
    ...
    pipegen.backends.http.gate.Late
    """

    def __init__(self) -> None:
        self.blocks: set[DeadlineScope] = set()
        self._timer: asyncio.TimerHandle | None = None

    def by(self, ends: float) -> DeadlineScope:
        """A block that has until `ends`, by the loop's clock."""
        return DeadlineScope(self, ends)

    def enter(self, block: DeadlineScope) -> None:
        self.blocks.add(block)
        if self._timer is None or block.ends < self._timer.when():
            self._set(block.ends)

    def _set(self, when: float) -> None:
        """The timer stays when its block is left, and looks for the next one then."""
        self.close()
        self._timer = asyncio.get_running_loop().call_at(when, self._sweep)

    def _sweep(self) -> None:
        # a clock may call a little early
        now = max(
            asyncio.get_running_loop().time(),
            self._timer.when() if self._timer is not None else 0.0,
        )
        self._timer = None
        for block in [block for block in self.blocks if block.ends <= now]:
            self.blocks.discard(block)
            block.end()
        if self.blocks:
            self._set(min(block.ends for block in self.blocks))

    def close(self) -> None:
        """Put the timer away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class DeadlineScope:
    """See `Deadlines.by`. It tells its own cancellation from others as `asyncio.Timeout` does, by
    counting them.
    """

    __slots__ = ("_asked", "_deadlines", "_late", "_task", "ends")

    def __init__(self, deadlines: Deadlines, ends: float) -> None:
        self._deadlines, self.ends, self._late = deadlines, ends, False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline is kept within a task")
        self._task: asyncio.Task[object] = task
        self._asked = task.cancelling()
        self._deadlines.enter(self)

    def end(self) -> None:
        self._late = True
        self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._deadlines.blocks.discard(self)
        if self._late and self._task.uncancel() <= self._asked and kind is asyncio.CancelledError:
            raise Late from error
