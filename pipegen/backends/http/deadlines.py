"""Limits of time for many waits of one event loop, with one timer for all of them: thousands of requests wait at once, and hardly any is late."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

__all__ = ["Block", "Deadlines", "Late"]


class Late(Exception):
    """What was to be done by a deadline was not."""


class Deadlines:
    """The deadlines of one event loop. `by` limits a block, as `asyncio.timeout_at` does, and raises `Late` where it takes longer.

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
    pipegen.backends.http.deadlines.Late
    """

    def __init__(self) -> None:
        self._blocks: set[Block] = set()
        self._timer: asyncio.TimerHandle | None = None

    def by(self, ends: float) -> Block:
        """A block that has until `ends`, by the loop's clock."""
        return Block(self, ends)

    def enter(self, block: Block) -> None:
        self._blocks.add(block)
        if self._timer is None or block.ends < self._timer.when():
            self._set(block.ends)

    def leave(self, block: Block) -> None:
        self._blocks.discard(block)

    def _set(self, when: float) -> None:
        """The timer stays when its block is left, and looks for the next one then."""
        self.close()
        self._timer = asyncio.get_running_loop().call_at(when, self._sweep)

    def _sweep(self) -> None:
        now = max(asyncio.get_running_loop().time(), self._timer.when() if self._timer is not None else 0.0)  # a clock may call a little early
        self._timer = None
        for block in [block for block in self._blocks if block.ends <= now]:
            self._blocks.discard(block)
            block.end()
        if self._blocks:
            self._set(min(block.ends for block in self._blocks))

    def close(self) -> None:
        """Put the timer away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Block:
    """See `Deadlines.by`. It tells its own cancellation from others as `asyncio.Timeout` does, by counting them."""

    __slots__ = ("_asked", "_deadlines", "_late", "_task", "ends")

    def __init__(self, deadlines: Deadlines, ends: float) -> None:
        self._deadlines, self.ends, self._late = deadlines, ends, False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline is kept within a task")
        self._task: asyncio.Task[Any] = task
        self._asked = task.cancelling()
        self._deadlines.enter(self)

    def end(self) -> None:
        self._late = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._deadlines.leave(self)
        if self._late and self._task.uncancel() <= self._asked and kind is asyncio.CancelledError:
            raise Late from error
