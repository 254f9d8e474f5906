"""What is kept so that it need not be made again, within a number of bytes."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

__all__ = ["ByteBoundedLRU"]

T = TypeVar("T")


class ByteBoundedLRU(Generic[T]):
    """Values by key; what was not asked for the longest goes first. For one thread at a time.

    >>> kept = ByteBoundedLRU[str](limit=10)
    >>> for key in "ab":
    ...     kept.put(key, key.upper(), size=5)
    >>> kept.get("a"), kept.make_room(5), kept.get("b"), kept.make_room(11)
    ('A', True, None, False)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        """How many are kept."""
        self._held: dict[Hashable, tuple[int, T]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def get(self, key: Hashable) -> T | None:
        """The value, which is now the newest; None where there is none."""
        if key not in self._held:
            return None
        self._held[key] = self._held.pop(key)
        return self._held[key][1]

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Keep a value of so many bytes, whether there is room or not: `make_room` comes before."""
        self.bytes += size - (self._held[key][0] if key in self._held else 0)
        self._held[key] = (size, value)

    def make_room(self, size: int, wanted: Collection[Hashable] = ()) -> bool:
        """Let go of the oldest, but for what is wanted, until so many bytes more may be kept; whether they may. Where they may not, all stays."""
        over = self.bytes + size - self.limit
        if over <= 0:
            return True
        spare = [key for key in self._held if key not in wanted]
        if sum(self._held[key][0] for key in spare) < over:
            return False
        for key in spare:
            if over <= 0:
                break
            freed, _ = self._held.pop(key)
            self.bytes, over = self.bytes - freed, over - freed
        return True

    def clear(self) -> None:
        """Let go of everything."""
        self._held.clear()
        self.bytes = 0
