"""Layers of a cache that write a step's keys and values behind those before them, where transformers' own copy everything at every step.

What a layer holds are the columns in sight of larger tensors. Columns go on the left when long rows leave, new ones come on the right, and only where no
room is left there is all that is in sight copied once, into tensors with more.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

__all__ = ["GrowingLayer", "GrowingSlidingWindowLayer", "growing"]

SPARE = 64
"""Columns of room that new tensors have at least; they have a quarter of their columns where that is more."""


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """Full attention."""

    _whole: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized or self.keys is None or self.values is None:
            return super().update(key_states, value_states, *args, **kwargs)
        keys, values = self._whole or (self.keys, self.values)
        keys, self.keys = _behind(self.keys, keys, key_states)
        values, self.values = _behind(self.values, values, value_states)
        self._whole = keys, values
        return self.keys, self.values


class GrowingSlidingWindowLayer(DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]
    """A sliding window: it holds one column less than it sees, since the next token is a column of its own."""

    _whole: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized or self.keys is None or self.values is None or self.record_past:
            return super().update(key_states, value_states, *args, **kwargs)
        self.cumulative_length += key_states.shape[-2]
        whole = self._whole or (self.keys, self.values)
        whole_keys, keys = _behind(self.keys, whole[0], key_states)
        whole_values, values = _behind(self.values, whole[1], value_states)
        self._whole = whole_keys, whole_values
        self.keys, self.values = keys[..., -self.sliding_window + 1 :, :], values[..., -self.sliding_window + 1 :, :]
        return keys, values


def growing(layer: Any) -> Any:
    """The same layer so that it grows in place; a layer of another kind is given back as it is."""
    kinds: dict[type, Any] = {DynamicLayer: GrowingLayer, DynamicSlidingWindowLayer: GrowingSlidingWindowLayer}
    kind = kinds.get(type(layer))
    if kind is None:
        return layer
    grown = kind.__new__(kind)
    vars(grown).update(vars(layer))
    return grown


def _behind(held: torch.Tensor, whole: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`held`, with the new columns behind it: the tensor that has them all, `whole` where `held` lies in it and there is room; and the columns in sight."""
    columns, size = held.shape[-2], held.shape[-1]
    end = columns + new.shape[-2]
    first = int(held.storage_offset()) // size
    if held.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr() or first + end > whole.shape[-2]:
        first, whole = 0, held.new_empty(*held.shape[:-2], end + max(SPARE, columns // 4), size)
        whole[..., :columns, :] = held
    whole[..., first + columns : first + end, :] = new
    return whole, whole[..., first : first + end, :]
