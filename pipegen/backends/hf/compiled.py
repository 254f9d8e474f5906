"""Steps by a compiled forward: `torch.compile` of the pass that brings rows one token further.

A cache that grows has other shapes at every step, and Python finds out where its new columns go.
Compiled as it is, such a pass is slower. So the compiled pass gets the whole room of each layer,
which stays as it is for many steps. It also gets the column to write to as a tensor, and a mask
over all columns. Rows may come and go: their number is no constant of what is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from pipegen.backends.checkpoint.positions import positions_of
from pipegen.backends.hf.attention import NAME
from pipegen.backends.hf.cache import GrowingLayer
from pipegen.core.names import InvalidField


class CompileFailed(Exception):
    """torch could not compile the steps."""


def check_compilable(model: Any) -> None:
    """Raise `InvalidField` where the steps of this model cannot be compiled: its layers keep more
    than keys and values of all columns, for example.
    """
    text = model.config.get_text_config()
    layers = DynamicCache(config=model.config).layers
    kind, field = type(model).__name__, "ModelLoadConfig.compile"
    if not layers or any(type(layer) is not DynamicLayer for layer in layers):
        raise InvalidField(
            f"{field} is for models whose layers all have full attention; {kind} has others: leave"
            " it out"
        )
    if not getattr(model, "_can_compile_fullgraph", False):
        raise InvalidField(
            f"{field} is for models that transformers can compile as a whole; {kind} is none of"
            " them: leave it out"
        )
    if text._attn_implementation not in (NAME, "sdpa", "eager"):
        raise InvalidField(
            f"{field} goes with attn_implementation sdpa or eager, not"
            f" {text._attn_implementation!r}"
        )
    if positions_of(text).long_after is not None:
        raise InvalidField(
            f"{field} is for models whose rotary factors stay as they are; those of {kind} depend"
            " on the length (LongRoPE): leave it out"
        )
    if len({parameter.device for parameter in model.parameters()}) > 1:
        raise InvalidField(
            f"{field} is for a model that is on one device: leave it or device_map out"
        )


class Compiled:
    """A model's forward for passes of one new token in each row, compiled when the first of them
    comes.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._forward: Callable[..., Any] | None = None

    def step(
        self, tokens: torch.Tensor, view: StaticCacheView, cache_name: str, **inputs: Any
    ) -> Any:
        """What the model's own forward gives for these tokens, shape (rows, 1); the cache grows by
        their columns.

        Raises `CompileFailed` where torch cannot compile it, or would have to do so again and
        again: never goes on without a word as if nothing were compiled.
        """
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        if self._forward is None:
            self._forward = torch.compile(
                _of_its_own(self._model.forward), dynamic=True, fullgraph=True
            )
        if getattr(self._model.base_model, "rope_deltas", None) is not None:
            # of the rows read last: the positions hold what is needed, and each new shape would be
            # compiled for
            self._model.base_model.rope_deltas = None
        cache, mask = view.open()
        prepared = self._model.prepare_inputs_for_generation(
            tokens, next_sequence_length=1, attention_mask=mask, **inputs, **{cache_name: cache}
        )
        try:
            outputs = self._forward(**prepared, return_dict=True)
        except TorchDynamoException as error:
            raise CompileFailed(f"torch.compile: {error}") from error
        except FailOnRecompileLimitHit as error:
            raise CompileFailed(
                "torch.compile: the steps need more compilations than"
                " torch._dynamo.config.recompile_limit"
            ) from error
        view.close()
        return outputs


def _of_its_own(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same with a code object of its own, with which torch keeps what it compiled, and up to
    how often it may compile: models must not share that.
    """

    def call(**inputs: Any) -> Any:
        return forward(**inputs)

    call.__code__ = call.__code__.replace()
    return call


class StaticCacheView:
    """All the room of a cache, as the compiled pass sees it. Columns that are not in sight are
    masked, the padding of each row too.
    """

    def __init__(self, cache: Any, pads: Sequence[int]) -> None:
        self._layers: list[GrowingLayer] = list(cache.layers)
        rooms = [layer.room() for layer in self._layers]
        self._pads = list(pads)
        self._cache: Any = DynamicCache()
        keys, _, first = rooms[0]
        self._end = first + cache.get_seq_length()
        self._columns = keys.shape[-2]
        self._column = torch.tensor([self._end], device=keys.device)
        self._cache.layers = [
            _LayerColumns(keys, values, self._column) for keys, values, _ in rooms
        ]
        columns = torch.arange(self._columns, device=keys.device)
        hidden = (columns < torch.tensor([[first + pad] for pad in pads], device=keys.device)) | (
            columns >= self._end
        )
        self._mask = torch.zeros(hidden.shape, dtype=keys.dtype, device=keys.device).masked_fill_(
            hidden, -torch.inf
        )[:, None, None]
        self._seen = [layer.keys for layer in self._layers]

    def holds(self, cache: Any, pads: Sequence[int]) -> bool:
        """Whether this is all the room of that cache still, with a column to write to: no row has
        come or gone.
        """
        same = len(cache.layers) == len(self._seen) and all(
            layer.keys is keys for layer, keys in zip(cache.layers, self._seen, strict=True)
        )
        return same and self._pads == pads and self._end < self._columns

    def open(self) -> tuple[Any, torch.Tensor]:
        """The cache as the pass takes it, and its mask: numbers to add, of shape (rows, 1, 1,
        columns). The coming column is in sight.
        """
        self._mask[..., self._end] = 0.0
        self._column.fill_(self._end)
        return self._cache, self._mask

    def close(self) -> None:
        """The column has been written."""
        for layer in self._layers:
            layer.grow()
        self._end += 1
        self._seen = [layer.keys for layer in self._layers]


class _LayerColumns(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """What the compiled pass sees of a layer: all of its columns, of which it writes one."""

    is_compileable = False
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, column: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keys, self._values, self._column = keys, values, column
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._keys.index_copy_(2, self._column, key_states)
        self._values.index_copy_(2, self._column, value_states)
        return self._keys, self._values

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise AssertionError("it holds keys and values from the start")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._keys.shape[-2], 0

    def get_seq_length(self) -> int:
        return self._keys.shape[-2]

    def get_max_length(self) -> int:
        return -1
