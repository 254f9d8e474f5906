"""Run work that would block the event loop in one thread for each loop, since renderers and tokenizers are not thread-safe."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["off_loop"]

P = ParamSpec("P")
R = TypeVar("R")
_WORKERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = weakref.WeakKeyDictionary()


async def off_loop(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `work` in the thread of the running loop.

    >>> asyncio.run(off_loop(sum, [1, 2]))
    3
    """
    loop = asyncio.get_running_loop()
    worker = _WORKERS.get(loop)
    if worker is None:
        worker = _WORKERS[loop] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pipegen-renderer")
    return await loop.run_in_executor(worker, functools.partial(contextvars.copy_context().run, functools.partial(work, *args, **kwargs)))
