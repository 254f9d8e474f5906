"""The only code that performs calls: it takes a pipe from call to call, and knows nothing of what
travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from returns.result import Failure

from pipegen.core.backend import AsyncBackend, Backend
from pipegen.core.calls import Call, Steps
from pipegen.core.errors import CallFailed, ContractError
from pipegen.core.joining import Joined, counted
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch, Slot

__all__ = [
    "Returned",
    "Started",
    "adrive",
    "advance",
    "afinish",
    "answers_of",
    "await_answers",
    "begin",
    "begin_each",
    "drive",
    "failed",
    "finish",
]

B = TypeVar("B")


def answers_of(wanted: Call, answers: Sequence[Slot[Any]]) -> Sequence[Slot[Any]]:
    """The engine's answers, checked: one for each input. Raises `ContractError` otherwise."""
    if len(answers) != len(wanted.inputs):
        raise ContractError(
            f"engine {wanted.backend.name} returned {len(answers)} outputs for {len(wanted.inputs)}"
            " inputs"
        )
    return answers


def failed(wanted: Call, failure: CallFailed) -> Sequence[Slot[Any]]:
    """The answers of a call that failed as a whole: the same error in every slot."""
    return [Failure(failure.error)] * len(wanted.inputs)


class Returned(NamedTuple):
    """A running pipe has returned its batch."""

    batch: Batch[Any]


def advance(running: Steps[Any], answers: Sequence[Slot[Any]] | None = None) -> Call | Returned:
    """Let a running pipe go on to its next call, or to its end."""
    try:
        return next(running) if answers is None else running.send(answers)
    except StopIteration as done:
        return Returned(done.value)


class Started(NamedTuple):
    """A running pipe that has come to its first call, or is done."""

    running: Steps[Any]
    step: Call | Returned


def begin(pipe: Pipe[Any, Any], batch: Batch[Any]) -> Started:
    """Let a pipe work until it wants its first call; nothing is called yet, so this may be done
    ahead of time and in another thread.
    """
    running = counted(pipe, batch)
    return Started(running, advance(running))


def begin_each(pipe: Pipe[Any, Any], batch: Batch[Any]) -> list[Started]:
    """As `begin` for each slot alone. What stands before the first call is done for all of them
    together, which costs less.
    """
    if not isinstance(pipe.steps, Joined):
        return [begin(pipe, (slot,)) for slot in batch]
    return [Started(running, advance(running)) for running in pipe.steps.one_by_one(batch)]


def finish(begun: Started) -> Batch[Any]:
    """Perform the calls of a running pipe, one after the other."""
    running, step = begun
    try:
        while isinstance(step, Call):
            try:
                answers = answers_of(step, step.backend.generate(step.inputs))
            except CallFailed as failure:
                answers = failed(step, failure)
            step = advance(running, answers)
        return step.batch
    finally:
        running.close()


async def await_answers(backend: Backend[Any, Any], inputs: Sequence[Any]) -> Sequence[Slot[Any]]:
    """What the backend generates; one that is not asynchronous itself works in a thread."""
    if isinstance(backend, AsyncBackend):
        return await backend.agenerate(inputs)
    import asyncio  # half of what `import pipegen` would cost

    return await asyncio.to_thread(backend.generate, inputs)


async def afinish(begun: Started) -> Batch[Any]:
    """As `finish`; a backend that is not asynchronous itself works in a thread."""
    running, step = begun
    try:
        while isinstance(step, Call):
            try:
                answers = answers_of(step, await await_answers(step.backend, step.inputs))
            except CallFailed as failure:
                answers = failed(step, failure)
            step = advance(running, answers)
        return step.batch
    finally:
        running.close()


def drive(pipe: Pipe[Any, B], batch: Batch[Any]) -> Batch[B]:
    """Run a pipe over slots, performing its calls one after the other."""
    return finish(begin(pipe, batch))


async def adrive(pipe: Pipe[Any, B], batch: Batch[Any]) -> Batch[B]:
    """As `drive`; a backend that is not asynchronous itself works in a thread."""
    return await afinish(begin(pipe, batch))
