"""Layers of a cache that write a step's keys and values behind those before them, where transformers' own copy everything at every step.

What a layer holds are the columns in sight of larger tensors. Columns go on the left when long rows leave, new ones come on the right, and only where no
room is left there is all that is in sight copied once, into tensors with more.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

__all__ = ["GrowingLayer", "growing"]

SPARE = 64
"""Columns of room that new tensors have at least; they have a quarter of their columns where that is more."""


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """Full attention."""

    _whole: tuple[torch.Tensor, torch.Tensor] | None = None
    _zeros: int | None = None
    """So many of the columns left of those in sight are known to be zeros, as all to their right are; None where that is not known."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized or self.keys is None or self.values is None:
            return super().update(key_states, value_states, *args, **kwargs)
        keys, values = self._whole or (self.keys, self.values)
        keys, self.keys = _behind(self.keys, keys, key_states)
        values, self.values = _behind(self.values, values, value_states)
        self._whole, self._zeros = (keys, values), None
        return self.keys, self.values

    def room(self) -> tuple[torch.Tensor, torch.Tensor, int]:
        """The keys and values with room for one more column, zeros wherever nothing is in sight, and the first column in sight."""
        if self.keys is None or self.values is None:
            raise ValueError("a layer that holds nothing has no room yet")
        columns = self.keys.shape[-2]
        first = None if self._whole is None or self._zeros is None else _first(self.keys, self._whole[0], 1)
        if first is None or self._whole is None or self._zeros is None:
            spare = 1 + max(SPARE, columns // 4)
            keys, values = (torch.nn.functional.pad(held, (0, 0, 0, spare)) for held in (self.keys, self.values))
            self._whole, self._zeros, first = (keys, values), 0, 0
            self._see(0, columns)
        for whole in self._whole if first > self._zeros else ():
            whole[..., self._zeros : first, :] = 0  # what is left of a row that has gone may be no numbers, and would spoil its successor's sums
        self._zeros = first
        return *self._whole, first

    def grow(self) -> None:
        """Take the column behind those in sight, which has been written, into sight."""
        if self.keys is None or self._whole is None:
            raise ValueError("a layer without room cannot grow")
        first = int(self.keys.storage_offset()) // self.keys.shape[-1]
        self._see(first, first + self.keys.shape[-2] + 1)

    def _see(self, first: int, end: int) -> None:
        if self._whole is not None:
            self.keys, self.values = (whole[..., first:end, :] for whole in self._whole)


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
    first = _first(held, whole, new.shape[-2])
    if first is None:
        first, whole = 0, held.new_empty(*held.shape[:-2], end + max(SPARE, columns // 4), size)
        whole[..., :columns, :] = held
    whole[..., first + columns : first + end, :] = new
    return whole, whole[..., first : first + end, :]


def _first(held: torch.Tensor, whole: torch.Tensor, more: int) -> int | None:
    """Which column of `whole` is the first of `held`; None where `held` does not lie in it, or it has no room for so many more columns."""
    first = int(held.storage_offset()) // held.shape[-1]
    lies_there = held.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    return first if lies_there and first + held.shape[-2] + more <= whole.shape[-2] else None
