"""Running out of memory, and giving memory back."""

from __future__ import annotations

import gc

import torch

__all__ = ["is_out_of_memory", "release"]

_WORDS = ("out of memory", "not enough memory", "can't allocate memory")
"""How torch says it where it raises a plain `RuntimeError`: the CPU allocator, and some accelerators."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device or the machine had no memory left.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"))
    True
    >>> is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    False
    """
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error).lower() for words in _WORDS)


def release() -> None:
    """Give what nobody holds any more back to the devices."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
