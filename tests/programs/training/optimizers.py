"""Muon in fp32 for the matrices, AdamW for the rest, one schedule for both."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised by five Newton-Schulz steps.

    `torch.optim.Muon` does those steps in bf16, which CPUs without bf16 units emulate a hundred
    times slower; here they are in fp32, and matrices of one shape are stacked into one batched
    product.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        decay: float = 0.01,
    ):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Apply one update from the gradients that are there."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                by_shape[tuple(parameter.shape)].append(parameter)
            for (rows, columns), parameters in by_shape.items():
                gradient = torch.stack([p.grad for p in parameters if p.grad is not None])
                state = self.state[parameters[0]]
                mean = state.setdefault("mean", torch.zeros_like(gradient))
                mean.lerp_(gradient, 1 - group["momentum"])
                update = _orthogonalised(gradient.lerp(mean, group["momentum"]))
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                for parameter, change in zip(parameters, update, strict=True):
                    parameter.mul_(1 - group["lr"] * group["decay"]).add_(change, alpha=-scale)


def _orthogonalised(matrices: Tensor) -> Tensor:
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


class Schedule:
    """Both optimizers under one rate: a short warm-up, a flat part, then linear decay to zero over
    the last `decay_steps`.
    """

    def __init__(
        self, modules: Iterable[nn.Module], steps: int, decay_steps: int, muon: float = 0.02
    ):
        named = {
            id(p): (n, p)
            for module in modules
            for n, p in module.named_parameters()
            if p.requires_grad
        }
        matrices = [p for n, p in named.values() if p.ndim == 2 and "embed" not in n]
        inside = {id(p) for p in matrices}
        others = [p for _, p in named.values() if id(p) not in inside]
        self.parameters: list[nn.Parameter] = [p for _, p in named.values()]
        self.steps, self.decay_steps = steps, decay_steps
        adam = torch.optim.AdamW(others, lr=0.15 * muon, betas=(0.9, 0.95), weight_decay=0.0)
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (Muon(matrices, muon), muon),
            (adam, 0.15 * muon),
        ]

    def factor(self, step: int) -> float:
        """The share of the full rate at this step."""
        left = (self.steps - step) / self.decay_steps if self.decay_steps else 1.0
        return min(1.0, (step + 1) / 50, left)

    def step(self, step: int) -> None:
        """Update every parameter from its gradient, and drop the gradients."""
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer, rate in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * self.factor(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
