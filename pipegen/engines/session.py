"""How engines are called: each call is a session, to which rows are added, and whose steps return
events.

An engine that takes rows while it works has a session of its own:

- `open(wake, tokens=..., loop=..., fed=...)` gives a session without rows. `wake` may be called
  from any thread. With `tokens`, there are events of the tokens of each row too. With `loop`, the
  event loop of an asynchronous caller, no step waits: `wake` is called when something has come.
  With `fed`, rows are added at any time, and each is a call of its own; otherwise all are added
  before the first step.
- `in_flight` says how many requests keep it full.

Any other engine has the session `BatchSession`.

>>> from pipegen.testing.fake import FakeEngine
>>> answers(FakeEngine("a"), [])
[]
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from pipegen.core.backend import Session
from pipegen.core.error_notes import blamed_on
from pipegen.core.errors import CallFailed, ContractError
from pipegen.core.slots import Slot
from pipegen.engines.protocol import Event, RowDone
from pipegen.records.fields import unchecked_replace
from pipegen.records.scores import ScoreInput

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


ALL = sys.maxsize
"""`side_by_side` of a session each step of which is a call of its own, with all rows that wait."""


def open_session(
    backend: Any,
    wake: Callable[[], object],
    *,
    tokens: bool = False,
    loop: AbstractEventLoop | None = None,
    fed: bool = False,
) -> Session:
    """A session of the backend; see the module."""
    opens: Callable[..., Session] = getattr(backend, "open", None) or partial(BatchSession, backend)
    return opens(wake, tokens=tokens, loop=loop, fed=fed)


def answers(backend: Any, inputs: Sequence[Any]) -> list[Slot[Any]]:
    """The answers of one session: one slot for each input, in order."""
    woken = threading.Semaphore(0)
    slots: dict[int, Slot[Any]] = {}
    with closing(open_session(backend, woken.release)) as session:
        session.add(dict(enumerate(inputs)))
        while len(slots) < len(inputs):
            events = session.step()
            slots.update((event.row, event.slot) for event in events if isinstance(event, RowDone))
            if not events and not session.side_by_side:
                woken.acquire()
    return [slots[index] for index in range(len(inputs))]


class BatchSession:
    """A session of a backend that takes no rows while it works. A step is a call of it, with all
    rows that wait; those that are to be scored are one of `score`. Where tokens are wanted, its
    `stream` is read, if it has one.

    Where it is awaited, a thread of its own works.
    """

    def __init__(
        self,
        backend: Any,
        wake: Callable[[], object] = lambda: None,
        *,
        tokens: bool = False,
        loop: AbstractEventLoop | None = None,
        fed: bool = False,
    ) -> None:
        self.backend, self._wake = backend, wake
        self._streams = tokens and hasattr(backend, "stream")
        self._waiting: dict[int, Any] = {}
        self._events: Generator[Sequence[Event], None, None] | None = None
        """What the call that runs tells."""
        self.side_by_side = ALL if loop is None else 0
        """All rows of a call, where the call is made in the thread that steps."""
        self._pool = (
            None if loop is None else ThreadPoolExecutor(1, thread_name_prefix="pipegen-call")
        )
        self._working: Future[Sequence[Event]] | None = None

    def add(self, inputs: Mapping[int, Any]) -> None:
        """Rows for the next call."""
        self._waiting.update(inputs)

    def step(self) -> Sequence[Event]:
        """What the call tells. Raises `ContractError` where the backend gives another number of
        answers than it has rows.
        """
        if self._pool is None:
            return self._blamed_work()
        if self._working is None:
            self._working = self._pool.submit(self._blamed_work)
            self._working.add_done_callback(lambda _: self._wake())
        if not self._working.done():
            return ()
        done, self._working = self._working, None
        return done.result()

    def _blamed_work(self) -> Sequence[Event]:
        try:
            return self._work()
        except CallFailed:
            raise
        except Exception as bug:
            blamed_on(bug, self.backend.name)
            raise

    def _work(self) -> Sequence[Event]:
        while self._events is not None or self._waiting:
            if self._events is None:
                scores = isinstance(next(iter(self._waiting.values())), ScoreInput)
                numbers = [
                    number
                    for number, asked in self._waiting.items()
                    if isinstance(asked, ScoreInput) == scores
                ]
                inputs = [self._waiting.pop(number) for number in numbers]
                if scores or not self._streams:
                    return self._answers(numbers, inputs, scores=scores)
                self._events = self._streamed(numbers, inputs)
            events = next(self._events, None)
            if events is not None:
                return events
            self._events = None
        return ()

    def _answers(
        self, numbers: Sequence[int], inputs: Sequence[Any], *, scores: bool
    ) -> Sequence[Event]:
        slots = (self.backend.score if scores else self.backend.generate)(inputs)
        if len(slots) != len(inputs):
            raise ContractError(
                f"engine {self.backend.name} returned {len(slots)} outputs for {len(inputs)} inputs"
            )
        return [RowDone(row=number, slot=slot) for number, slot in zip(numbers, slots, strict=True)]

    def _streamed(
        self, numbers: Sequence[int], inputs: Sequence[Any]
    ) -> Generator[Sequence[Event], None, None]:
        left = {*numbers}
        for event in self.backend.stream(inputs):
            number = numbers[event.row]
            if isinstance(event, RowDone):
                left.discard(number)
            yield (unchecked_replace(event, row=number),)
        if left:
            raise ContractError(
                f"engine {self.backend.name} ended its stream without an answer for every row"
            )

    def close(self) -> None:
        """Leave the call; where it is awaited, once its step has ended."""
        if self._pool is not None:
            self._pool.shutdown()
        if self._events is not None:
            self._events.close()
        self._waiting.clear()
