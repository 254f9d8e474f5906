"""Rows of a cache: kept, dropped, put into the place of others, joined. The cache is transformers' own; here is only how its layers hold rows.

All rows of a cache have one width, and each row ends at its last column: what stands to the left of a shorter row is padding, which the mask hides. An
attention layer holds keys and values of shape (rows, heads, columns, size), one with a sliding window only its last columns; a layer of linear attention
holds states that have no columns, and so takes no padding.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from pipegen.backends.hf.growing import growing as growing_layer

__all__ = ["growing", "has_states", "is_known", "put", "selected", "size_of"]

_KNOWN = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)


def is_known(cache: Any) -> bool:
    """Whether every layer of the cache is of a kind whose rows can be cut and joined exactly."""
    return type(cache) is DynamicCache and all(type(layer) in _KNOWN for layer in cache.layers)


def has_states(cache: Any) -> bool:
    """Whether some layer holds states without columns: its rows must be read without padding."""
    return any(isinstance(layer, LinearAttentionLayer) for layer in getattr(cache, "layers", ()))


def growing(cache: Any) -> Any:
    """The same rows in a cache whose layers write new columns in place, where such layers are known."""
    cache.layers = [growing_layer(layer) for layer in cache.layers]
    return cache


def selected(cache: Any, rows: Sequence[int], width: int) -> Any:
    """A new cache with copies of these rows, in this order, cut to `width`; a row may be named more than once."""
    other = copy.copy(cache)
    other.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in other.layers:
        if isinstance(layer, LinearAttentionLayer):
            layer.conv_states, layer.recurrent_states = dict(layer.conv_states), dict(layer.recurrent_states)
    index = _index(rows)
    _each(other, lambda held, columns: _fit(held, columns)[index(held.device)], width)
    return other


def put(cache: Any, places: Sequence[int], other: Any, width: int) -> None:
    """Put the rows of another cache of the same model into these places, or after the last row where the places are new; all are brought to `width`."""
    rest, index = _held(other), _index(places)

    def replaced(held: torch.Tensor, columns: int | None) -> torch.Tensor:
        held, new = _fit(held, columns), _fit(next(rest), columns)
        if places[0] == len(held):
            return torch.cat([held, new])
        held[index(held.device)] = new
        return held

    _each(cache, replaced, width)


def size_of(cache: Any) -> int:
    """How many bytes the cache holds."""
    return sum(held.numel() * held.element_size() for held in _held(cache))


def _index(rows: Sequence[int]) -> Callable[[torch.device], torch.Tensor]:
    """The rows as an index, brought to each device once: layers may lie on several."""
    return functools.cache(lambda device: torch.tensor(rows, device=device))


def _fit(held: torch.Tensor, columns: int | None) -> torch.Tensor:
    """Pad or cut on the left to so many columns; states have none."""
    if columns is None or held.shape[-2] == columns:
        return held
    if held.shape[-2] > columns:
        return held[..., held.shape[-2] - columns :, :]
    return torch.nn.functional.pad(held, (0, 0, columns - held.shape[-2], 0))


def _held(cache: Any) -> Iterator[torch.Tensor]:
    """Every tensor of the cache that holds rows."""
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer) and layer.is_initialized:
            yield from (held for held in (layer.keys, layer.values) if held is not None)
        if isinstance(layer, LinearAttentionLayer):
            for states in (layer.conv_states, layer.recurrent_states):
                yield from (held for held in states.values() if held is not None)


def _each(cache: Any, change: Callable[[torch.Tensor, int | None], torch.Tensor], width: int) -> None:
    """Replace every tensor that `_held` gives, in the same order, by what `change` makes of it and of the columns that its layer holds at `width`."""
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer) and layer.is_initialized:
            columns = width
            if isinstance(layer, DynamicSlidingWindowLayer):
                columns, layer.cumulative_length = min(width, layer.sliding_window - 1), width
            if layer.keys is not None and layer.values is not None:  # as is_initialized says
                layer.keys, layer.values = change(layer.keys, columns), change(layer.values, columns)
        if isinstance(layer, LinearAttentionLayer):
            for states in (layer.conv_states, layer.recurrent_states):
                states.update((at, change(held, None)) for at, held in list(states.items()) if held is not None)
