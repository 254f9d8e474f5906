"""Calls that share the steps of one engine: who calls while another call runs takes part in the
same steps.

**Who steps.** Each call has a mailbox. A step puts what it brings into the mailboxes of the calls
that it is for. A call steps whenever its mailbox is empty, in its own thread.

**Invariants.**

- The engine is used only under `lock`. Who adds something (`entered`) gets it before the next step
  of others.
- What a step raises is put into the mailboxes of all calls that it was for: each of them raises it.
- What a call leaves is dropped before the next step, or at once where no step is running; the call
  does not wait for it.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Mailbox", "SharedSteps"]

E = TypeVar("E")


class Mailbox(Generic[E]):
    """What has come for one call, and was not taken yet."""

    def __init__(self) -> None:
        self._events: deque[E] = deque()
        self._failure: BaseException | None = None

    @property
    def filled(self) -> bool:
        return bool(self._events) or self._failure is not None

    def put(self, event: E) -> None:
        self._events.append(event)

    def fail(self, error: BaseException) -> None:
        self._failure = error

    def take(self) -> list[E]:
        """What is there. Raises what has ended the call, once all that came before is taken."""
        taken: list[E] = []
        while self._events:
            taken.append(self._events.popleft())
        if not taken and self._failure is not None:
            raise self._failure
        return taken


class SharedSteps(ABC, Generic[E]):
    """The steps of an engine for all its calls."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while the engine is used."""
        self._left = False
        """Whether a call has left something behind."""
        self._entering = 0
        self._guard = threading.Condition()
        """Held while the number of those who enter is used."""

    @abstractmethod
    def _advance(self) -> None:
        """One step for every call; what it brings, or raises, is put into the mailboxes. Nothing is
        done where there is nothing to do.
        """

    @abstractmethod
    def _drop(self) -> None:
        """Drop what calls have left."""

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Hold the lock; threads that step again and again let others have it first."""
        with self._guard:
            self._entering += 1
        try:
            with self.lock:
                yield
        finally:
            with self._guard:
                self._entering -= 1
                self._guard.notify_all()

    def step(self, mailbox: Mailbox[E]) -> list[E]:
        """What is in the mailbox. Where there is nothing, after a step (and perhaps nothing then
        either). Raises as the step does.
        """
        with self._guard:
            self._guard.wait_for(lambda: not self._entering or mailbox.filled)
        if not mailbox.filled:
            with self.lock:
                if not mailbox.filled:
                    self._drop_left()
                    self._advance()
            if self._left:
                self.leave()
        return mailbox.take()

    def leave(self) -> None:
        """A call has left something: it is dropped before the next step, or now where no step is
        running.
        """
        self._left = True
        if self.lock.acquire(blocking=False):
            try:
                self._drop_left()
            finally:
                self.lock.release()

    def _drop_left(self) -> None:
        if self._left:
            self._left = False
            self._drop()
