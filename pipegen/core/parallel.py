"""Work that leaves the interpreter (reading, decoding and resizing images), on a few threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

__all__ = ["WORKERS", "parallel", "read_in_thread"]

A = TypeVar("A")
B = TypeVar("B")

WORKERS = min(8, os.cpu_count() or 1)
"""Threads that work on images at a time."""


def parallel(work: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """`work` of each item, in order; what it raises comes through. A single item takes no thread.

    >>> parallel(len, ["a", "bcd"])
    [1, 3]
    """
    if len(items) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(WORKERS, len(items)), thread_name_prefix="pipegen") as pool:
        return list(pool.map(work, items))


async def read_in_thread(events: Generator[A, None, None], see: Callable[[A], object]) -> None:
    """Read events to their end in a thread, each given to `see` there. Where the caller is
    cancelled, they are closed when the next one comes.

    >>> import asyncio
    >>> seen: list[int] = []
    >>> asyncio.run(read_in_thread((number for number in (1, 2)), seen.append))
    >>> seen
    [1, 2]
    """
    import asyncio
    import threading

    left = threading.Event()

    def read() -> None:
        try:
            for event in events:
                if left.is_set():
                    return
                see(event)
        finally:
            events.close()

    try:
        await asyncio.to_thread(read)
    finally:
        left.set()  # a thread cannot be cancelled: it sees this
