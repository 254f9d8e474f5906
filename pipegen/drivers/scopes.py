"""What a backend keeps for a row from its first call in a loop until the row has left the loop, such
as the tools of one conversation.

>>> scope, closed = Scope(), []
>>> scope.hold(lambda: closed.append("first"))
>>> scope.close()
>>> scope.hold(lambda: closed.append("late"))
>>> closed
['first', 'late']
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from pipegen.core.interpreter import Row
from pipegen.core.slots import Slot

Name: TypeAlias = tuple[Any, ...]


class Scope:
    """What is kept for a row of a loop. It is closed once, however the row ends."""

    def __init__(self) -> None:
        self.value: Any = None
        """What the backend keeps here."""
        self._held: list[Callable[[], object]] = []
        self._closed = False
        self._lock = threading.Lock()

    def hold(self, close: Callable[[], object]) -> None:
        """Call `close` when the scope is closed; now, where it is."""
        with self._lock:
            if not self._closed:
                self._held.append(close)
                return
        close()

    def close(self) -> None:
        """Close what is held."""
        with self._lock:
            held, self._held, self._closed = self._held, [], True
        for close in held:
            close()


class Scoped(NamedTuple):
    """The input of a call whose backend keeps something for its row."""

    scope: Scope
    input: Any
    known: Slot[Any] | None = None
    """The answer, where it was given before: the call is there for what the backend keeps."""


class Scopes:
    """The open scopes of a drive. They are closed in threads, since that may take a while."""

    def __init__(self) -> None:
        self._open: dict[Name, Scope] = {}
        self._closing: list[threading.Thread] = []

    def __bool__(self) -> bool:
        """Whether there are some that are not closed."""
        return bool(self._open or self._closing)

    def of(self, row: Row) -> Scope:
        """The scope of a row in its innermost loop."""
        return self._open.setdefault(_names(row)[0], Scope())

    def leave(self, before: Iterable[Row], after: Iterable[Row]) -> None:
        """Close those that rows have left; `before` has the rows as they were."""
        within = {name for row in after for name in _names(row)}
        self._close([name for row in before for name in _names(row) if name not in within])

    def end(self, key: object) -> None:
        """Close those of a request."""
        if self._open:
            self._close([name for name in self._open if name[0] == key])

    def close(self) -> None:
        """Close all, and wait until they are closed."""
        self._close([*self._open])
        for thread in self._closing:
            thread.join()
        self._closing.clear()

    def _close(self, names: Iterable[Name]) -> None:
        self._closing = [thread for thread in self._closing if thread.is_alive()]
        for scope in [self._open.pop(name) for name in {*names} & {*self._open}]:
            self._closing.append(threading.Thread(target=scope.close, daemon=True))
            self._closing[-1].start()


def _names(row: Row) -> list[Name]:
    """The loops that a row is in, from the innermost."""
    names: list[Name] = []
    outer = row.outer
    while outer is not None:
        names.append((row.key, outer.place, outer.sample))
        outer = outer.outer
    return names
