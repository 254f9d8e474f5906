"""Work that leaves the interpreter (reading, decoding and resizing images), on a few threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

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
