"""What performs a call, as protocols: the one that every backend satisfies, and three that say what more it can do.

A driver asks `isinstance(backend, StreamBackend)` and takes the plain way where it is not: a backend without `agenerate` works in a thread, one without
`stream` answers all at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from pipegen.core.slots import Slot

__all__ = ["AsyncBackend", "AsyncStreamBackend", "Backend", "StreamBackend"]

Asked_contra = TypeVar("Asked_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


@runtime_checkable
class Backend(Protocol[Asked_contra, Answer_co]):
    """Performs calls: encoded prompts in, one slot of generated ids for each out."""

    @property
    def name(self) -> str: ...

    def generate(self, inputs: Sequence[Asked_contra]) -> Sequence[Slot[Answer_co]]:
        """One slot for each input, in order. Raises `CallFailed` when the whole call failed; any other exception is a bug and comes through."""
        ...


@runtime_checkable
class StreamBackend(Protocol[Asked_contra]):
    """Also tells of what it makes as it comes."""

    def stream(self, inputs: Sequence[Asked_contra]) -> Iterator[Any]:
        """The events of `pipegen.engines.protocol`: those of each row in order, and one `RowDone` for each row. Raises as `generate` does."""
        ...


@runtime_checkable
class AsyncBackend(Protocol[Asked_contra, Answer_co]):
    """Also awaits its answers, on the caller's own loop."""

    async def agenerate(self, inputs: Sequence[Asked_contra]) -> Sequence[Slot[Answer_co]]:
        """As `generate`."""
        ...


@runtime_checkable
class AsyncStreamBackend(Protocol[Asked_contra]):
    """Also streams on the caller's own loop."""

    def astream(self, inputs: Sequence[Asked_contra]) -> AsyncIterator[Any]:
        """As `stream`."""
        ...
