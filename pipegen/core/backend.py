"""What performs a call, as protocols: the one that every backend satisfies, and those that say what
more it can do.

A driver asks `isinstance(backend, StreamBackend)` and takes the plain way where it is not: a
backend without `agenerate` works in a thread, one without `stream` answers all at once, and one
without `open` is called with all the rows that wait for it (see `BatchCall`).
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from pipegen.core.errors import ContractError
from pipegen.core.slots import Slot

__all__ = [
    "AsyncBackend",
    "AsyncStreamBackend",
    "Backend",
    "BatchCall",
    "FedBackend",
    "OpenCall",
    "StreamBackend",
    "require_backend",
]

A = TypeVar("A")
B = TypeVar("B")

Asked_contra = TypeVar("Asked_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


@runtime_checkable
class Backend(Protocol[Asked_contra, Answer_co]):
    """Performs calls: encoded prompts in, one slot of generated ids for each out."""

    @property
    def name(self) -> str: ...

    def generate(self, inputs: Sequence[Asked_contra]) -> Sequence[Slot[Answer_co]]:
        """One slot for each input, in order. Raises `CallFailed` when the whole call failed; any
        other exception is a bug and comes through.
        """
        ...


@runtime_checkable
class StreamBackend(Protocol[Asked_contra]):
    """Also tells of what it makes as it comes."""

    def stream(self, inputs: Sequence[Asked_contra]) -> Iterator[Any]:
        """The events of `pipegen.engines.protocol`: those of each row in order, and one `RowDone`
        for each row. Raises as `generate` does.
        """
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


class OpenCall(Protocol[Asked_contra, Answer_co]):
    """A call to which rows may be added while it runs. Who opened it closes it; one thread at a
    time uses it.
    """

    @property
    def side_by_side(self) -> int:
        """How many rows a step advances at most; 0 where rows end by themselves, and `wake` is
        called when one has.
        """
        ...

    def add(self, inputs: Sequence[tuple[int, Asked_contra]]) -> None:
        """Add rows, each with a number of its own. Raises as `generate` does."""
        ...

    def step(self) -> Sequence[tuple[int, Slot[Answer_co]]]:
        """The rows that have ended. Where none has, some work is done first; a call whose rows end
        by themselves never waits. Raises as `generate` does.
        """
        ...

    def close(self) -> None:
        """End the rows that still run."""
        ...


@runtime_checkable
class FedBackend(Protocol[Asked_contra, Answer_co]):
    """Also takes rows while it works: `imap` feeds it."""

    @property
    def in_flight(self) -> int:
        """How many requests in flight keep it full."""
        ...

    def open(self, wake: Callable[[], object]) -> OpenCall[Asked_contra, Answer_co]:
        """A call without rows. `wake` may be called from any thread."""
        ...


class BatchCall(Generic[A, B]):
    """An open call of a backend that takes no rows while it works: each step is one call of it,
    with all rows that wait.
    """

    side_by_side = sys.maxsize

    def __init__(self, backend: Backend[A, B]) -> None:
        self.backend = backend
        self._waiting: list[tuple[int, A]] = []

    def add(self, inputs: Sequence[tuple[int, A]]) -> None:
        self._waiting.extend(inputs)

    def step(self) -> Sequence[tuple[int, Slot[B]]]:
        """The answers of all rows that wait. Raises `ContractError` where the backend gives another
        number of them.
        """
        rows, self._waiting = self._waiting, []
        answers = self.backend.generate([wanted for _, wanted in rows]) if rows else ()
        if len(answers) != len(rows):
            raise ContractError(
                f"engine {self.backend.name} returned {len(answers)} outputs for {len(rows)} inputs"
            )
        return [(number, slot) for (number, _), slot in zip(rows, answers, strict=True)]

    def close(self) -> None:
        self._waiting.clear()


def require_backend(stage: str, backend: Any) -> None:
    """Raise `TypeError` unless that is what the stage can be bound to, such as for a route in the
    place of its engine.
    """
    if not isinstance(getattr(backend, "name", None), str) or not callable(
        getattr(backend, "generate", None)
    ):
        raise TypeError(
            f"{stage} is bound to an engine, not to {type(backend).__name__}: route.engine is the"
            " engine of a route"
        )
