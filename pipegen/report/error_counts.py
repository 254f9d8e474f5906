"""Failed requests, counted by the type of their error."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pipegen.core.errors import GenerationError


@dataclass
class ErrorCounts:
    """How many requests failed, and with what.

    >>> from pipegen.core.errors import Timeout
    >>> counts = ErrorCounts()
    >>> counts.count_error("r1", Timeout("slow"))
    >>> counts
    ErrorCounts(errors=Counter({'Timeout': 1}), first={'Timeout': 'r1: slow'})
    """

    errors: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """The first request that failed with each type of error, and its message."""

    def count_error(self, name: object, error: GenerationError) -> None:
        """Count a request of this name."""
        kind = type(error).__name__
        self.errors[kind] += 1
        self.first.setdefault(kind, f"{name}: {error.message}"[:300])
