"""Event loops: one of pipegen's own in a thread, for synchronous callers, and what belongs to each
loop that a caller runs.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Generic, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, started when it is first needed. So synchronous calls
    work where a loop is running already.

    A process that was forked has the loop and not the thread; it starts its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: (
            weakref.finalize[[asyncio.AbstractEventLoop, threading.Thread], LoopThread] | None
        ) = None
        _threads.add(self)

    def forked(self) -> None:
        """Leave the loop to the process that was forked. It is kept: its connections, were they
        closed here, would go deaf there.
        """
        if self._stop is not None and self._loop is not None:
            self._stop.detach()
            _left.append(self._loop)
        self._lock, self._loop, self._stop = threading.Lock(), None, None

    def running(self) -> asyncio.AbstractEventLoop:
        """The loop, which is started where that is needed."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="pipegen-servers", daemon=True
                )
                thread.start()
                self._stop = weakref.finalize(self, _end, self._loop, thread)
            return self._loop

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Await it on that loop; where the caller is interrupted, it is cancelled."""
        awaited = asyncio.run_coroutine_threadsafe(work, self.running())
        try:
            return awaited.result()
        finally:
            awaited.cancel()

    def close(self) -> None:
        """End the loop and its thread; it starts again when it is needed again."""
        with self._lock:
            self._loop, stop, self._stop = None, self._stop, None
        if stop is not None:
            stop()


_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_left: list[asyncio.AbstractEventLoop] = []
"""The loops of the processes that this one was forked from."""


def _forked() -> None:
    for thread in list(_threads):
        thread.forked()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_forked)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    async def ended() -> None:
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await loop.shutdown_asyncgens()

    if thread.is_alive():
        asyncio.run_coroutine_threadsafe(ended(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class PerLoop(Generic[T]):
    """One value for each event loop, made when it is first asked for there, and put away when the
    loop ends its asynchronous generators.

    `asyncio.run` does that at its end; so connections are closed on the loop that they belong to,
    without anybody keeping count.
    """

    def __init__(self, make: Callable[[], T], put_away: Callable[[T], Awaitable[None]]) -> None:
        self._make, self._put_away = make, put_away
        self._held: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[None, None]]
        ] = weakref.WeakKeyDictionary()
        self._last: tuple[weakref.ref[asyncio.AbstractEventLoop], T] | None = None

    def last(self) -> T | None:
        """The running loop's value, where it was the last to be asked for: every request asks, and
        mostly on one loop.
        """
        last = self._last
        return last[1] if last is not None and last[0]() is asyncio.get_running_loop() else None

    async def get(self) -> T:
        """The running loop's value."""
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        if held is None:
            value = self._make()
            self._held[loop] = held = value, self._hold(value)
            await anext(held[1])
        self._last = weakref.ref(loop), held[0]
        return held[0]

    async def _hold(self, value: T) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self._put_away(value)

    def close(self) -> None:
        """Put all values away, each on its own loop."""
        held, self._held, self._last = list(self._held.items()), weakref.WeakKeyDictionary(), None
        for loop, (_, holder) in held:
            if loop.is_running():
                loop.call_soon_threadsafe(_close, loop, holder)


_closing: set[asyncio.Task[None]] = set()


def _close(loop: asyncio.AbstractEventLoop, holder: AsyncGenerator[None, None]) -> None:
    task = loop.create_task(_closed(holder))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _closed(holder: AsyncGenerator[None, None]) -> None:
    await holder.aclose()
