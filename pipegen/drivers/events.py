"""One call as events, whatever the backend offers: one that does not stream tells of every row at
the end, one that is not asynchronous works in a thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, TypeAlias

from pipegen.core.backend import AsyncBackend, AsyncStreamBackend, Backend, StreamBackend
from pipegen.core.errors import ContractError
from pipegen.core.slots import Slot
from pipegen.engines.protocol import RowDone, TextMade, TokensMade

__all__ = ["Event", "aevents_of", "events_of"]

Event: TypeAlias = TokensMade | TextMade | RowDone


def events_of(backend: Backend[Any, Any], inputs: Sequence[Any]) -> Generator[Event, None, None]:
    """What the backend tells of while it answers. Raises `ContractError` where it answers another
    number of rows, and as the backend does.
    """
    if isinstance(backend, StreamBackend):
        yield from backend.stream(inputs) if inputs else ()
        return
    yield from _all_done(backend, inputs, backend.generate(inputs) if inputs else ())


def _all_done(
    backend: Backend[Any, Any], inputs: Sequence[Any], answers: Sequence[Slot[Any]]
) -> Generator[RowDone, None, None]:
    if len(answers) != len(inputs):
        raise ContractError(
            f"engine {backend.name} returned {len(answers)} outputs for {len(inputs)} inputs"
        )
    for row, slot in enumerate(answers):
        yield RowDone(row=row, slot=slot)


async def aevents_of(
    backend: Backend[Any, Any], inputs: Sequence[Any]
) -> AsyncGenerator[Event, None]:
    """As `events_of`, for asynchronous code."""
    if isinstance(backend, AsyncStreamBackend) and inputs:
        async for event in backend.astream(inputs):
            yield event
        return
    if isinstance(backend, AsyncBackend) and not isinstance(backend, StreamBackend):
        for done in _all_done(backend, inputs, await backend.agenerate(inputs) if inputs else ()):
            yield done
        return
    import asyncio

    events = events_of(backend, inputs)
    try:
        while True:
            coming = asyncio.ensure_future(asyncio.to_thread(next, events, None))
            try:
                event = await asyncio.shield(coming)
            finally:
                # a thread cannot be cancelled: a running engine is waited for, and closed only then
                await asyncio.wait([coming])
            if event is None:
                return
            yield event
    finally:
        events.close()
