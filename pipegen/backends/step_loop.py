"""Calls that share the steps of one engine: who calls while another call runs takes part in the
same steps.

**Who steps.** Each call has a mailbox. A step puts what it brings into the mailboxes of the calls
that it is for. A synchronous call steps whenever its mailbox is empty. For asynchronous calls with
empty mailboxes, a thread steps; it ends when there are none.

**Invariants.**

- The engine is used only under `lock`. Who adds something (`entered`) gets it before the thread's
  next step.
- What a step raises is put into the mailboxes of all calls that it was for: each of them raises it.
- What a call leaves is dropped before the next step, or at once where no step is running; the call
  does not wait for it.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from pipegen.core.foreign_calls import attempt
from pipegen.core.slots import is_ok

E = TypeVar("E")


class Mailbox(Generic[E]):
    """What has come for one call, and was not taken yet. `wake` is called with each event of an
    asynchronous one.
    """

    def __init__(self, wake: Callable[[], object] | None = None) -> None:
        self.wake = wake
        self._events: deque[E] = deque()
        self._failure: BaseException | None = None

    @property
    def filled(self) -> bool:
        return bool(self._events) or self._failure is not None

    def put(self, event: E) -> None:
        self._events.append(event)
        if self.wake is not None:
            self.wake()

    def fail(self, error: BaseException) -> None:
        self._failure = error
        if self.wake is not None:
            self.wake()

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
        self._stepping: threading.Thread | None = None
        self._entering = 0
        self._waiting: set[Mailbox[E]] = set()
        """The empty mailboxes of asynchronous calls."""
        self._guard = threading.Condition()
        """Held while these three are used."""

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

    def step(self, mailbox: Mailbox[E]) -> list[E]:
        """What is in the mailbox. Where there is nothing, after a step (and perhaps nothing then
        either); an asynchronous call is woken once there is something. Raises as the step does.
        """
        if mailbox.wake is None:
            with self.lock:
                if not mailbox.filled:
                    self._drop_left()
                    self._advance()
            if self._left:
                self.leave(mailbox)
            return mailbox.take()
        with self._guard:
            if mailbox.filled:
                self._waiting.discard(mailbox)
                return mailbox.take()
            self._waiting.add(mailbox)
            # a process that was forked has no such thread
            if self._stepping is None or not self._stepping.is_alive():
                self._stepping = threading.Thread(target=self._keep_stepping, name="pipegen-steps")
                self._stepping.start()
            return []

    def leave(self, mailbox: Mailbox[E]) -> None:
        """The call of this mailbox has left something: it is dropped before the next step, or now
        where no step is running.
        """
        with self._guard:
            self._waiting.discard(mailbox)
        self._drop_now()

    def _drop_now(self) -> None:
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
                self._waiting = {mailbox for mailbox in self._waiting if not mailbox.filled}
                if not self._waiting:
                    self._stepping = None
                    break
            with self.lock:
                stepped = attempt(self._step_for_all)
            if not is_ok(stepped):  # a bug
                for mailbox in [*self._waiting]:
                    mailbox.fail(stepped.failure())
        if self._left:
            self._drop_now()  # what was left during the last step

    def _step_for_all(self) -> None:
        self._drop_left()
        self._advance()

    def _drop_left(self) -> None:
        if self._left:
            self._left = False
            self._drop()
