"""A batch of which a bug raised: the requests are run again in halves, so that the bug fails one of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returns.result import Failure

from pipegen.core.border import Raised, attempt, guard
from pipegen.core.drive import drive
from pipegen.core.errors import InternalError
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.engines.extras import MissingExtra

__all__ = ["isolated"]


def isolated(pipe: Pipe[Any, Any], batch: Sequence[Slot[Any]], bug: Exception) -> Batch[Any]:
    """The slots of requests of which a bug raised in the run of all: run again in halves, down to the one that raises, which fails with `InternalError`.

    A package that is missing is no bug of a request: that comes through.
    """
    if len(batch) == 1:
        made = guard(lambda: _raise(bug), _internal)
        return (Failure(made.failure()),)
    half = len(batch) // 2
    return tuple(slot for part in (batch[:half], batch[half:]) for slot in _again(pipe, part))


def _again(pipe: Pipe[Any, Any], batch: Sequence[Slot[Any]]) -> Batch[Any]:
    done = attempt(lambda: drive(pipe, tuple(batch)))
    if is_ok(done):
        return done.unwrap()
    if isinstance(done.failure(), MissingExtra):
        raise done.failure()
    return isolated(pipe, batch, done.failure())


def _internal(raised: Raised) -> InternalError:
    return InternalError(f"pipegen has a bug: {raised.words}", incident=raised.incident)


def _raise(bug: Exception) -> None:
    raise bug
