"""Running out of memory, devices that fail, and giving memory back."""

from __future__ import annotations

import gc
from typing import Any

import torch

from pipegen.backends.hf.cache import size_of

__all__ = ["is_device_failure", "is_out_of_memory", "release", "max_cached_tokens"]

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


def max_cached_tokens(cache: Any, tokens: int, device: torch.device) -> int | None:
    """How many tokens the caches of a model may hold together, from one that holds `tokens`: half of the free memory is left for the passes themselves.

    None where the device does not tell what is free.
    """
    free, each = _free(device), size_of(cache) / tokens
    return None if free is None or not each else tokens + int(free / 2 / each)


def _free(device: torch.device) -> int | None:
    if device.type == "cuda":
        held_back = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held_back
    if device.type == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    return None
