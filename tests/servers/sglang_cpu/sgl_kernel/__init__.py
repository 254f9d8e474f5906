"""A stand-in for SGLang's compiled kernels, for these tests only: put the folder above on
PYTHONPATH.

The package of this name is built for GPUs alone, and SGLang imports names of it wherever it might
use them. With `--device cpu` and the attention of plain torch it calls none of them; should it
ever, it says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _absent(name: str) -> Callable[..., Any]:
    def kernel(*arguments: Any, **more: Any) -> Any:
        raise NotImplementedError(
            f"sgl_kernel.{name} is compiled for GPUs; this stand-in only lets SGLang be imported"
            " without one"
        )

    return kernel


def __getattr__(name: str) -> Any:
    """Any kernel can be imported. There are no submodules: SGLang knows what to do without those
    that it looks for on a CPU.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    return _absent(name)


class _Operators:
    """What `torch.ops.sgl_kernel` answers: the operators for CPUs, which the layers of vision
    models name as they are imported, and no others.

    Were all names answered, SGLang would believe that it has the quantised kernels, and register
    shapes for them.
    """

    def __getattr__(self, name: str) -> Any:
        if not name.endswith("_cpu"):
            raise AttributeError(name)
        return _absent(name)


torch.ops.sgl_kernel = _Operators()  # type: ignore[assignment]


def _unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
    """Without memory that a GPU reads, which its LoRA asks for on a CPU too, and torch refuses."""
    return lambda *arguments, pin_memory=False, **more: make(*arguments, **more)


for _name in ("tensor", "empty", "zeros"):
    setattr(torch, _name, _unpinned(getattr(torch, _name)))
torch.Tensor.pin_memory = lambda tensor, device=None: tensor  # type: ignore[method-assign]
