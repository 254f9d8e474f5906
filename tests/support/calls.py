"""One call of an engine, by its session: what it tells as it comes, and awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

from pipegen.core.slots import Slot
from pipegen.engines.protocol import Event, RowDone
from pipegen.engines.session import open_session

__all__ = ["aanswers", "aevents", "events"]


def events(engine: Any, inputs: Sequence[Any]) -> Generator[Event, None, None]:
    """What a call with these rows tells, of an engine that works when its session steps."""
    left = len(inputs)
    with contextlib.closing(open_session(engine, lambda: None, tokens=True)) as session:
        session.add(dict(enumerate(inputs)))
        while left:
            for event in session.step():
                left -= isinstance(event, RowDone)
                yield event


async def aevents(
    engine: Any, inputs: Sequence[Any], *, tokens: bool = True
) -> AsyncGenerator[Event, None]:
    """The same, awaited."""
    left, loop, woken = len(inputs), asyncio.get_running_loop(), asyncio.Event()
    session = open_session(
        engine, lambda: loop.call_soon_threadsafe(woken.set), tokens=tokens, loop=loop
    )
    try:
        await asyncio.to_thread(session.add, dict(enumerate(inputs)))
        while left:
            woken.clear()
            told = session.step()
            for event in told:
                left -= isinstance(event, RowDone)
                yield event
            if not told:
                await woken.wait()
    finally:
        await asyncio.to_thread(session.close)


async def aanswers(engine: Any, inputs: Sequence[Any]) -> list[Slot[Any]]:
    """The answers of an awaited call."""
    async with contextlib.aclosing(aevents(engine, inputs, tokens=False)) as told:
        slots = {event.row: event.slot async for event in told if isinstance(event, RowDone)}
    return [slots[number] for number in range(len(inputs))]
