"""Running out of memory, devices that fail, and giving memory back."""

from __future__ import annotations

import gc

import torch

__all__ = ["is_device_failure", "is_out_of_memory", "release"]

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


def is_device_failure(error: RuntimeError) -> bool:
    """Whether an accelerator failed; older versions of torch say it in words only.

    >>> is_device_failure(RuntimeError("CUDA error: device-side assert triggered")), is_device_failure(RuntimeError("shapes cannot be multiplied"))
    (True, False)
    """
    return isinstance(error, getattr(torch, "AcceleratorError", ())) or str(error).startswith("CUDA error")


def release() -> None:
    """Give what nobody holds any more back to the devices."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
