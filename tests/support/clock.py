"""An event loop whose time goes on when it is told to."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Clock", "on_clock"]


class Clock(asyncio.SelectorEventLoop):
    """It counts its timers."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.timers = 0.0, list[asyncio.TimerHandle]()

    def time(self) -> float:
        return self.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        self.timers.append(super().call_at(when, callback, *args, context=context))
        return self.timers[-1]

    async def go_on(self, to: float) -> None:
        self.now = to
        for _ in range(20):
            await asyncio.sleep(0)


def on_clock(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, run on a clock of its own, which is its first argument."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        loop = Clock()
        try:
            loop.run_until_complete(test(loop, **fixtures))
        finally:
            loop.close()

    signature = inspect.signature(test)
    own = signature.replace(parameters=list(signature.parameters.values())[1:])
    run.__signature__ = own  # type: ignore[attr-defined]
    return run
