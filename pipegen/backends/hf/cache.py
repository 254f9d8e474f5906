"""Rows of a cache: kept, dropped, put into the place of others, joined. The cache is transformers'
own; here is only how its layers hold rows.

All rows of a cache have one width, and each row ends at its last column. What stands to the left of
a shorter row is padding, which the mask hides. An attention layer holds keys and values of shape
(rows, heads, columns, size), one with a sliding window only its last columns. A layer of linear
attention holds states without columns, and takes no padding.

What rows share is not among their columns: the cache says which runs of parts come before those of
each row (see `pipegen.backends.hf.shared_columns`). Lengths and widths count a row's own columns.
"""

from __future__ import annotations

import copy
import functools
import math
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

from pipegen.backends.hf.shared_columns import Chain, ColumnSpan, KeyValues, SharedKeys, length_of

_KNOWN = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)


def is_known(cache: object) -> bool:
    """Whether every layer of the cache is of a kind whose rows can be cut and joined exactly."""
    return type(cache) is DynamicCache and all(type(layer) in _KNOWN for layer in cache.layers)


def has_states(cache: object) -> bool:
    """Whether some layer holds states without columns: its rows must be read without padding."""
    return any(isinstance(layer, LinearAttentionLayer) for layer in getattr(cache, "layers", ()))


def sees_all(cache: Any) -> bool:
    """Whether every layer sees all columns that the mask shows, wherever they lie; a sliding window
    counts columns.
    """
    return all(type(layer) in (DynamicLayer, GrowingLayer) for layer in cache.layers)


def growing(cache: Any) -> Any:
    """The same rows in a cache whose layers write new columns in place, where such layers are
    known.
    """
    kinds: dict[type, Any] = {
        DynamicLayer: GrowingLayer,
        DynamicSlidingWindowLayer: GrowingSlidingWindowLayer,
    }
    for index, layer in enumerate(cache.layers):
        kind = kinds.get(type(layer))
        if kind is not None:
            cache.layers[index] = kind.__new__(kind)
            vars(cache.layers[index]).update(vars(layer))
    return cache


def _copied(cache: Any) -> Any:
    """A cache of copied layers, which share their tensors."""
    other = copy.copy(cache)
    other.layers = [copy.copy(layer) for layer in cache.layers]
    return other


def selected(cache: object, row_indices: Sequence[int], width: int) -> Any:
    """A new cache with copies of these rows, in this order, cut to `width`; a row may be named more
    than once.
    """
    other = _copied(cache)
    for layer in other.layers:
        if isinstance(layer, LinearAttentionLayer):
            layer.conv_states, layer.recurrent_states = (
                dict(layer.conv_states),
                dict(layer.recurrent_states),
            )
    index = _index(row_indices)
    _each(other, lambda tensor, columns: _fit(tensor, columns)[index(tensor.device)], width)
    chains = chains_of(cache)
    if chains:
        _link(other, [chains[row] for row in row_indices])
    return other


def narrowed(cache: object, width: int) -> None:
    """Leave out the columns on the left of so many."""
    _each(cache, _fit, width)


def put(cache: object, places: Sequence[int], other: object, width: int) -> None:
    """Put the rows of another cache of the same model into these places, or after the last row
    where the places are new; all are brought to `width`.
    """
    rest, index = _tensors(other), _index(places)
    chains, more = chains_of(cache), chains_of(other)
    if chains or more:
        before = len(next(_tensors(cache)))
        all_chains = dict(enumerate(chains or [()] * before))
        all_chains |= zip(places, more or [()] * len(places), strict=True)
        _link(cache, [all_chains[row] for row in range(len(all_chains))])

    def replaced(tensor: torch.Tensor, columns: int | None) -> torch.Tensor:
        tensor, new = _fit(tensor, columns), _fit(next(rest), columns)
        if places[0] == len(tensor):
            return torch.cat([tensor, new])
        tensor[index(tensor.device)] = new
        return tensor

    _each(cache, replaced, width)


def holds_columns(cache: object) -> bool:
    """Whether each layer of the cache holds columns, and nothing else."""
    return all(
        isinstance(layer, DynamicLayer) and not isinstance(layer, LinearAttentionLayer)
        for layer in getattr(cache, "layers", ())
    )


def window_of(cache: object) -> float:
    """The shortest sliding window of its layers; infinite where none has one."""
    return min(
        (
            layer.sliding_window
            for layer in getattr(cache, "layers", ())
            if isinstance(layer, DynamicSlidingWindowLayer)
        ),
        default=math.inf,
    )


def columns_of(
    cache: object, row_index: int, length: int, first: int, end: int
) -> list[torch.Tensor]:
    """Copies of the columns between two places of a row that is so long, of each of its tensors;
    what it shares included.
    """
    chain = chains_of(cache)[row_index] if chains_of(cache) else ()
    shared = length_of(chain)
    places = [
        (run.first + max(first - before, 0), min(run.end, run.first + end - before))
        for place, run in enumerate(chain)
        for before in [length_of(chain[:place])]
    ]
    own_first, own_end = max(first - shared, 0), max(end - shared, 0)

    def of(index: int, tensor: torch.Tensor) -> torch.Tensor:
        begin = tensor.shape[-2] - (length - shared)
        pieces = [
            run.part.columns[index][:, at:to]
            for run, (at, to) in zip(chain, places, strict=True)
            if at < to
        ]
        return torch.cat(
            [*pieces, tensor[row_index, :, begin + own_first : begin + own_end]], dim=1
        )

    return [of(index, tensor) for index, tensor in enumerate(_tensors(cache))]


def emptied(cache: object) -> object:
    """A cache of the same layers without rows."""
    other = _copied(cache)
    _each(other, lambda tensor, columns: tensor[:0, :, :0].clone(), 0)
    for layer in other.layers:
        layer._whole = None
    _link(other, [])
    return other


def joined(
    cache: object,
    parts_of_rows: Sequence[Sequence[tuple[Sequence[torch.Tensor], int]]],
    width: int,
    room: int,
    chains: Sequence[Chain],
) -> Any:
    """A new cache of the layers of one that is `emptied`, with room for so many columns more.

    parts_of_rows: for each row its own parts, as `columns_of` gives them, each with how many of its
    first columns are meant. chains: what comes before them.
    """
    other = _copied(cache)
    index = 0
    for layer in other.layers:
        if not layer.is_initialized:
            continue
        columns, wholes = _widened(layer, width), []
        for tensor in (layer.keys, layer.values):
            parts = [[(part[index], count) for part, count in row] for row in parts_of_rows]
            wholes.append(_written(tensor, parts, columns, room))
            index += 1
        layer.keys, layer.values = (buffer[..., :columns, :] for buffer in wholes)
        layer._whole = tuple(wholes)
    _link(other, chains)
    return other


def unshared(cache: object, lengths: Sequence[int]) -> object:
    """The rows of these lengths in a new cache in which each holds all of its columns."""
    tensors, chains = [*_tensors(cache)], chains_of(cache)
    rows: list[list[tuple[list[torch.Tensor], int]]] = []
    for row, (chain, length) in enumerate(zip(chains, lengths, strict=True)):
        own = length - length_of(chain)
        rows.append(
            [([t[:, a:b] for t in part.columns], b - a) for part, a, b in chain]
            + [([_fit(t[row], own) for t in tensors], own)]  # a window may hold fewer
        )
    return joined(cache, rows, max(lengths), 0, ())


def forked(cache: object, lengths: Sequence[int], row_indices: Sequence[int]) -> object:
    """A new cache in which the own columns of these rows, but for the last, are parts that copies
    of the row share. lengths: of the own columns of all rows.
    """
    chains = [*(chains_of(cache) or [()] * len(lengths))]
    own = [*lengths]
    for row in row_indices:
        count = own[row] - 1
        part = KeyValues(
            [
                tensor[row, :, tensor.shape[-2] - own[row] : -1].clone()
                for tensor in _tensors(cache)
            ],
            several=True,
        )
        chains[row], own[row] = (*chains[row], ColumnSpan(part, 0, count)), 1
    other = selected(cache, range(len(lengths)), max(own))
    _link(other, chains)
    return other


def chains_of(cache: object) -> list[Chain]:
    """What comes before the own columns of each row; empty where no row shares anything."""
    chains: list[Chain] = getattr(cache, "chains", [])
    return chains


def tokens_shared(cache: object) -> int:
    """How many columns the parts have that rows share, each counted once."""
    return sum(run.end - run.first for run in {run for chain in chains_of(cache) for run in chain})


def check_read(cache: Any) -> None:
    """Raise `RuntimeError` where a layer's attention has not read what its rows share."""
    if chains_of(cache) and any(layer.shared and not layer.shared.read for layer in cache.layers):
        raise RuntimeError(
            "the model's attention has not read the keys and values that rows share: load it with"
            " self_check, or with attn_implementation='eager'"
        )


def _link(cache: Any, chains: Sequence[Chain]) -> None:
    """Let the layers know what comes before the own columns of each row."""
    cache.chains = [*chains] if any(chains) else []
    users: dict[ColumnSpan, list[int]] = {}
    for row, chain in enumerate(cache.chains):
        for run in chain:
            users.setdefault(run, []).append(row)
    indexes = {
        run: None if len(rows) == len(chains) else _index(rows) for run, rows in users.items()
    }
    place = 0
    for layer in cache.layers:
        if not _is_filled(layer):
            continue
        parts = [
            (
                run.part.columns[place][:, run.first : run.end],
                run.part.columns[place + 1][:, run.first : run.end],
                None if index is None else index(layer.keys.device),
            )
            for run, index in indexes.items()
        ]
        place += 2
        if isinstance(layer, GrowingLayer | GrowingSlidingWindowLayer):
            layer.shared = SharedKeys(parts) if parts else None


def _written(
    like: torch.Tensor,
    pieces_of_rows: Sequence[Sequence[tuple[torch.Tensor, int]]],
    columns: int,
    room: int,
) -> torch.Tensor:
    """The parts of each row beside each other, so that they end at the last of the columns."""
    spare = room + max(SPARE, columns // 4)
    buffer = like.new_empty(len(pieces_of_rows), like.shape[1], columns + spare, like.shape[-1])
    for index, parts in enumerate(pieces_of_rows):
        end = columns
        for part, meant in reversed(parts):
            count = min(meant, end)
            buffer[index, :, end - count : end] = part[:, meant - count : meant]
            end -= count
        buffer[index, :, :end] = 0
    return buffer


def cut(cache: Any, columns: int) -> None:
    """Keep the first so many columns of a cache that `sees_all`."""
    for layer in cache.layers:
        layer.keys, layer.values = (
            tensor[..., :columns, :] for tensor in (layer.keys, layer.values)
        )


def size_of(cache: object) -> int:
    """How many bytes the cache holds."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(cache))


def token_bytes(cache: object) -> int:
    """How many bytes a token of a row takes where every layer holds its column."""
    return sum(
        tensor.shape[1] * tensor.shape[-1] * tensor.element_size() for tensor in _tensors(cache)
    )


def _index(row_indices: Sequence[int]) -> Callable[[torch.device], torch.Tensor]:
    """The rows as an index, brought to each device once: layers may lie on several."""
    return functools.cache(lambda device: torch.tensor(row_indices, device=device))


def _fit(tensor: torch.Tensor, columns: int | None) -> torch.Tensor:
    """Pad or cut on the left to so many columns; states have none."""
    if columns is None or tensor.shape[-2] == columns:
        return tensor
    if tensor.shape[-2] > columns:
        return tensor[..., tensor.shape[-2] - columns :, :]
    return torch.nn.functional.pad(tensor, (0, 0, columns - tensor.shape[-2], 0))


def _is_filled(layer: object) -> bool:
    """Whether a layer holds keys and values."""
    return isinstance(layer, DynamicLayer) and layer.is_initialized


def _tensors(cache: Any) -> Iterator[torch.Tensor]:
    """Every tensor of the cache that holds rows."""
    for layer in cache.layers:
        if _is_filled(layer):
            yield from (layer.keys, layer.values)
        if isinstance(layer, LinearAttentionLayer):
            for states in (layer.conv_states, layer.recurrent_states):
                yield from (tensor for tensor in states.values() if tensor is not None)


def _each(
    cache: Any, change: Callable[[torch.Tensor, int | None], torch.Tensor], width: int
) -> None:
    """Replace every tensor that `_tensors` gives, in the same order, by what `change` makes of it
    and of the columns that its layer holds at `width`.
    """
    for layer in cache.layers:
        if _is_filled(layer):
            columns = _widened(layer, width)
            layer.keys, layer.values = change(layer.keys, columns), change(layer.values, columns)
        if isinstance(layer, LinearAttentionLayer):
            for states in (layer.conv_states, layer.recurrent_states):
                states.update(
                    (at, change(tensor, None))
                    for at, tensor in list(states.items())
                    if tensor is not None
                )


def _widened(layer: object, width: int) -> int:
    """How many columns the layer holds of a cache so wide, which it is from now on."""
    if not isinstance(layer, DynamicSlidingWindowLayer):
        return width
    layer.cumulative_length = width
    return min(width, layer.sliding_window - 1)


SPARE = 64
"""Columns of room that new tensors have at least; they have a quarter of their columns where that
is more.
"""


class _Growing:
    """What layers have that write new columns in place."""

    keys: Any
    values: Any
    _whole: tuple[torch.Tensor, torch.Tensor] | None = None
    shared: SharedKeys | None = None
    """What rows share before their own columns."""

    def _written(
        self, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values in sight, with the new columns behind them."""
        whole_keys, whole_values = self._whole or (self.keys, self.values)
        whole_keys, keys = _behind(self.keys, whole_keys, key_states)
        whole_values, values = _behind(self.values, whole_values, value_states)
        self._whole = whole_keys, whole_values
        return keys, values


class GrowingLayer(_Growing, DynamicLayer):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """Full attention."""

    _zeros: int | None = None
    """So many of the columns left of those in sight are known to be zeros, as all to their right
    are; None where that is not known.
    """

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            return super().update(key_states, value_states, *args, **kwargs)
        self.keys, self.values = self._written(key_states, value_states)
        self._zeros = None
        if self.shared is not None:
            self.keys = self.shared.beside(self.keys)
        return self.keys, self.values

    def room(self) -> tuple[torch.Tensor, torch.Tensor, int]:
        """The keys and values with room for one more column, zeros wherever nothing is in sight,
        and the first column in sight.
        """
        columns = self.keys.shape[-2]
        first = (
            None
            if self._whole is None or self._zeros is None
            else _first(self.keys, self._whole[0], 1)
        )
        if first is None or self._whole is None or self._zeros is None:
            spare = 1 + max(SPARE, columns // 4)
            keys, values = (
                torch.nn.functional.pad(tensor, (0, 0, 0, spare))
                for tensor in (self.keys, self.values)
            )
            self._whole, self._zeros, first = (keys, values), 0, 0
            self._see(0, columns)
        for buffer in self._whole if first > self._zeros else ():
            # what is left of a row that has gone may be no numbers, and would spoil its successor's
            # sums
            buffer[..., self._zeros : first, :] = 0
        self._zeros = first
        return *self._whole, first

    def grow(self) -> None:
        """Take the column behind those in sight, which has been written, into sight."""
        first = int(self.keys.storage_offset()) // self.keys.shape[-1]
        self._see(first, first + self.keys.shape[-2] + 1)

    def _see(self, first: int, end: int) -> None:
        if self._whole is not None:
            self.keys, self.values = (buffer[..., first:end, :] for buffer in self._whole)


class GrowingSlidingWindowLayer(_Growing, DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]
    """A sliding window: it holds one column less than it sees, since the next token is a column of
    its own.
    """

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized or self.record_past:
            return super().update(key_states, value_states, *args, **kwargs)
        self.cumulative_length += key_states.shape[-2]
        keys, values = self._written(key_states, value_states)
        self.keys, self.values = (
            keys[..., -self.sliding_window + 1 :, :],
            values[..., -self.sliding_window + 1 :, :],
        )
        return keys if self.shared is None else self.shared.beside(keys), values


def _behind(
    tensor: torch.Tensor, buffer: torch.Tensor, new: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor with the new columns behind it: the buffer that has them all, which is `buffer`
    where the tensor lies in it and there is room; and the columns in sight.
    """
    columns, size = tensor.shape[-2], tensor.shape[-1]
    end = columns + new.shape[-2]
    first = _first(tensor, buffer, new.shape[-2])
    if first is None:
        first, buffer = (
            0,
            tensor.new_empty(*tensor.shape[:-2], end + max(SPARE, columns // 4), size),
        )
        buffer[..., :columns, :] = tensor
    buffer[..., first + columns : first + end, :] = new
    return buffer, buffer[..., first : first + end, :]


def _first(tensor: torch.Tensor, buffer: torch.Tensor, more: int) -> int | None:
    """Which column of the buffer is the first of the tensor; None where the tensor does not lie in
    it, or it has no room for so many more columns.
    """
    first = int(tensor.storage_offset()) // tensor.shape[-1]
    lies_there = tensor.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    return first if lies_there and first + tensor.shape[-2] + more <= buffer.shape[-2] else None


def max_cached_tokens(cache: object, tokens: int, device: torch.device) -> int | None:
    """How many tokens the caches of a model may hold together, from one that holds `tokens`. Half
    of the free memory is left for the passes.

    None where the device does not tell what is free.
    """
    each = size_of(cache) / tokens
    if device.type == "cuda":
        free = (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    elif device.type == "cpu":
        import psutil

        free = int(psutil.virtual_memory().available)
    else:
        return None
    return tokens + int(free / 2 / each) if each else None
