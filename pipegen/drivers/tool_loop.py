"""The event loop of async tools.

It is that of an asynchronous caller. Others have one that lives as long as the tools do. So a
session that one call of a tool opened serves the next one.

>>> async def add(first, second):
...     return first + second
>>> with contextlib.closing(OwnLoop()) as own:
...     PendingCalls(own).wait(add(1, 2), 60.0)
3
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Awaitable
from contextvars import ContextVar
from queue import Queue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event
    from concurrent.futures import Future


CALLERS_LOOP: ContextVar[AbstractEventLoop | None] = ContextVar("CALLERS_LOOP", default=None)
"""The event loop of an asynchronous caller whose rows are worked on in threads."""


class OwnLoop:
    """An event loop in a thread of its own. It runs until `close()`."""

    def __init__(self) -> None:
        self._serving: tuple[threading.Thread, AbstractEventLoop, Event] | None = None
        self._lock = threading.Lock()

    def get(self) -> AbstractEventLoop:
        """The loop, which is running."""
        import asyncio

        with self._lock:
            if self._serving is None or not self._serving[0].is_alive():
                started: Queue[tuple[threading.Thread, AbstractEventLoop, Event]] = Queue()

                async def serve() -> None:
                    stop = asyncio.Event()
                    started.put((threading.current_thread(), asyncio.get_running_loop(), stop))
                    await stop.wait()

                threading.Thread(
                    target=lambda: asyncio.run(serve()), name="pipegen-tools", daemon=True
                ).start()
                self._serving = started.get()
            return self._serving[1]

    def close(self) -> None:
        """Cancel what is awaited, and end the loop."""
        if self._serving is not None:
            _, loop, stop = self._serving
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(stop.set)


class PendingCalls:
    """The calls of async tools that a session is waiting for. Threads share it.

    own: the loop of the tools, where the caller has none.
    loop: the event loop of the caller, by default `CALLERS_LOOP`.
    """

    def __init__(self, own: OwnLoop, loop: AbstractEventLoop | None = None) -> None:
        callers = CALLERS_LOOP.get()
        running = _running_loop()
        self._held_up = running if loop is None else None
        # a caller that holds up its loop could not be served there
        self._loop = callers if loop is None and running is None else loop
        self._own = own
        self._running: set[Future[Any]] = set()
        self._closed = False
        self._lock = threading.Lock()

    def again(self) -> PendingCalls:
        """The same, where these are closed."""
        return PendingCalls(self._own, self._loop)

    def trouble(self, loop: AbstractEventLoop) -> str:
        """Why nothing can be awaited in this loop, which a tool has of its own; empty where it
        can.
        """
        if loop is self._held_up:
            return (
                "its event loop waits for this very call: await pg.arun(...), or put the call into"
                " a thread, as asyncio.to_thread(pg.run, ...) does"
            )
        return "" if loop.is_running() else "its event loop has ended"

    def wait(self, value: object, seconds: float, loop: AbstractEventLoop | None = None) -> Any:
        """What is awaited gives, or what it raised, in the thread of the caller; a value that
        cannot be awaited itself. `TimeoutError` after so many seconds: then it is cancelled. `loop`
        is its own, where it has one.
        """
        if not inspect.isawaitable(value):
            return value
        import asyncio

        with self._lock:
            if self._closed:
                raise asyncio.CancelledError
            future = asyncio.run_coroutine_threadsafe(
                _outcome(value), loop or self._loop or self._own.get()
            )
            self._running.add(future)
        try:
            given, raised = future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise TimeoutError(f"it took more than {seconds:g} seconds") from None
        finally:
            self._running.discard(future)
        if raised is not None:
            raise raised
        return given

    def close(self) -> None:
        """Cancel what is awaited."""
        with self._lock:
            self._closed = True
            for future in tuple(self._running):
                future.cancel()


def _running_loop() -> AbstractEventLoop | None:
    """The event loop that this thread is running."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _outcome(value: Awaitable[object]) -> tuple[object, BaseException | None]:
    """What is awaited gives, and what it raised: nothing of it ends the loop, but a Ctrl-C."""
    try:
        return await value, None
    except BaseException as raised:
        is_ctrl_c = isinstance(raised, KeyboardInterrupt)
        if isinstance(raised, GeneratorExit) or (
            is_ctrl_c and threading.current_thread() is threading.main_thread()
        ):
            raise
        return None, raised
