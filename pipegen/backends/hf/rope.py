"""Rotary positions whose factors depend on how long a row is (LongRoPE: Phi-3 128k, Phi-3.5, Phi-4-mini).

transformers looks at the longest row of a pass, and takes its factors for all rows. Here each row gets the factors of its own length: the model's own module is
called once for the short rows of a pass and once for the long ones. A row that becomes long while it is generated must be read anew, since its cache holds keys
with the other factors: see `Checkpoint.long_rope_after`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["use_own_factors"]


def use_own_factors(model: Any, limit: int) -> None:
    """Let every row of a pass have the rotary factors of its own length: the long ones where it has more than `limit` tokens.

    Raises `ValueError` where the model has no rotary module that can be asked for some rows alone.
    """
    rotary = [module for module in model.modules() if "rotary" in type(module).__name__.lower()]
    modules = [module for module in rotary if "longrope" in str(getattr(module, "rope_type", ""))] or rotary  # images may have others
    if not modules or not all("position_ids" in inspect.signature(module.forward).parameters for module in modules):
        raise ValueError(f"{type(model).__name__} has other rotary factors (LongRoPE) after {limit} tokens, and pipegen cannot ask its module row by row")
    for module in modules:
        module.forward = _by_row(module.forward, limit)


def _by_row(forward: Callable[..., Any], limit: int) -> Callable[..., Any]:
    """The module's forward, called for short and long rows apart; `position_ids` have the shape (rows, columns), counted from 0."""

    def by_row(x: torch.Tensor, position_ids: torch.Tensor, *more: Any, **others: Any) -> Any:
        long = [last >= limit for last in position_ids.amax(dim=-1).tolist()]
        if len(set(long)) == 1:
            return forward(x, position_ids, *more, **others)
        order = sorted(range(len(long)), key=long.__getitem__)
        places, short = torch.tensor(order, device=position_ids.device), long.count(False)
        parts = [forward(x, position_ids[rows], *more, **others) for rows in (places[:short], places[short:])]
        back = places.argsort()
        return tuple(torch.cat(both)[back] for both in zip(*parts, strict=True))

    return by_row
