"""Calls that share the steps of one engine: who calls while another call runs takes part in the
same steps.

**Who steps.** Each call has a box; a step puts what it brings into the boxes of the calls that it
is for. A synchronous call steps whenever its box is empty. Asynchronous calls wait for their boxes
while a thread steps for all of them; it ends when none of them waits.

**Invariants.**

- The engine is used only under `lock`. Who adds something (`entered`) gets it before the thread's
  next step.
- What a step raises is put into the boxes of all calls that it was for: each of them raises it.
- What a call leaves is dropped before the next step, or at once where no step is running; the call
  does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from pipegen.core.border import attempt
from pipegen.core.slots import is_ok

__all__ = ["Box", "SharedSteps"]

E = TypeVar("E")


class Box(Generic[E]):
    """What has come for one call, and was not taken yet. With `least`, an asynchronous call is
    woken only once so much has come.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._events: deque[E] = deque()
        self._failure: BaseException | None = None
        self._wake: Callable[[], object] | None = None

    @property
    def filled(self) -> bool:
        return bool(self._events) or self._failure is not None

    @property
    def ready(self) -> bool:
        """Whether an asynchronous call has what it waits for."""
        return len(self._events) >= self._least or self._failure is not None

    def put(self, event: E) -> None:
        self._events.append(event)
        self._woken()

    def fail(self, error: BaseException) -> None:
        self._failure = error
        self._woken()

    def _woken(self) -> None:
        wake = self._wake
        if wake is not None and self.ready:
            self._wake = None
            # the loop was closed: nobody waits there any more
            with contextlib.suppress(RuntimeError):
                wake()

    def take(self) -> list[E]:
        """What is there. Raises what has ended the call, once all that came before is taken."""
        taken: list[E] = []
        while self._events:
            taken.append(self._events.popleft())
        if not taken and self._failure is not None:
            raise self._failure
        return taken

    async def wait(self) -> None:
        """Wait until it is ready."""
        loop = asyncio.get_running_loop()
        came: asyncio.Future[None] = loop.create_future()

        def ended() -> None:
            if not came.done():
                came.set_result(None)

        self._wake = lambda: loop.call_soon_threadsafe(ended)
        try:
            if not self.ready:
                await came
        finally:
            self._wake = None


class SharedSteps(ABC, Generic[E]):
    """The steps of an engine for all its calls."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while the engine is used."""
        self._left = False
        """Whether a call has left something behind."""
        self._stepping, self._entering = False, 0
        self._waiting: set[Box[E]] = set()
        self._guard = threading.Condition()
        """Held while these three are used."""

    @abstractmethod
    def _advance(self) -> None:
        """One step for every call, and what it brings, or raises, put into the boxes; nothing where
        there is nothing to do.
        """

    @abstractmethod
    def _drop(self) -> None:
        """Drop what calls have left."""

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Hold the lock; a thread that steps again and again lets others have it first."""
        with self._guard:
            self._entering += 1
        try:
            with self.lock:
                yield
        finally:
            with self._guard:
                self._entering -= 1
                self._guard.notify_all()

    def step(self, box: Box[E]) -> list[E]:
        """What is there for the box, after a step where there is nothing (and perhaps nothing then
        either). Raises as the step does.
        """
        with self.lock:
            if not box.filled:
                self._step_for_all()
        if self._left:
            self.leave()
        return box.take()

    async def astep(self, box: Box[E]) -> list[E]:
        """What is there for the box once it is ready; a thread steps while asynchronous calls
        wait.
        """
        if not box.ready:
            with self._guard:
                self._waiting.add(box)
                start, self._stepping = not self._stepping, True
            if start:
                asyncio.get_running_loop().run_in_executor(None, self._keep_stepping)
            try:
                await box.wait()
            finally:
                self._waiting.discard(box)
        return box.take()

    def leave(self) -> None:
        """Something was left: it is dropped before the next step, or now where no step is
        running.
        """
        self._left = True
        if self.lock.acquire(blocking=False):
            try:
                self._drop_left()
            finally:
                self.lock.release()

    def _keep_stepping(self) -> None:
        while True:
            with self._guard:
                self._guard.wait_for(lambda: not self._entering)
                if all(box.ready for box in [*self._waiting]):
                    self._stepping = False
                    break
            with self.lock:
                stepped = attempt(self._step_for_all)
            if not is_ok(stepped):  # a bug
                for box in [*self._waiting]:
                    box.fail(stepped.failure())
        if self._left:
            self.leave()  # what was left during the last step

    def _step_for_all(self) -> None:
        self._drop_left()
        self._advance()

    def _drop_left(self) -> None:
        if self._left:
            self._left = False
            self._drop()
