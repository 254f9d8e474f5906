"""An adapter for each row: rows of several adapters, and rows without one, in one pass.

The pairs of a module are stacked, A and B of each adapter, padded to the largest rank. A pass takes
each row's pair out of the stack, so its products are those of one adapter, whatever their number.
Each adapter is loaded and checked by peft first. What peft does in another way than by a pair (DoRA,
embeddings, whole modules), and modules that do not see rows (experts, an image's layers), have no
such product: then all rows of a pass have one adapter, and peft switches between passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from pipegen.core.foreign_calls import attempt
from pipegen.core.slots import is_ok

_NAME = "pipegen_adapters"
"""The attribute of a model that says which adapters its rows have."""
_PROBE = 2, 3
"""Rows and tokens of the pass that finds out which modules see rows."""


def inner_name(place: int) -> str:
    """What peft calls the adapter at this place: its own names become attributes of modules."""
    return f"adapter{place}"


def use_adapters(model: Any, names: Iterable[str]) -> None:
    """The rows of the next pass have these adapters, in this order; an empty name is none."""
    adapters: _Adapters | None = getattr(model, _NAME, None)
    if adapters is not None:
        adapters.use([adapters.places[name] for name in names])


def adapters_together(model: Any) -> bool:
    """Whether rows of several adapters may be in one pass."""
    adapters: _Adapters | None = getattr(model, _NAME, None)
    return adapters is None or adapters.together


class _Adapters:
    """The adapters of a model, by their places; 0 is none.

    `index` has the place of each row of the pass under way; `one` is the place of all of them, and
    None where they differ.
    """

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(("", *names))}
        self.together = False
        self.one: int | None = 0
        self.index = torch.zeros(0, dtype=torch.long)
        self.layers = _layers(model)
        self._model, self._rows = model, [0]

    def use(self, rows: list[int]) -> None:
        if rows == self._rows:
            return
        before, self._rows = self.one, rows
        self.one = rows[0] if rows.count(rows[0]) == len(rows) else None
        if self.together:
            self.index = torch.tensor(rows, device=self._model.device)
        elif self.one != before:
            self.switch(self.one or 0)

    def switch(self, place: int) -> None:
        """Let those of peft's modules that have this adapter take it, and the others none.

        The model's own methods leave copied modules off, and give an adapter to modules that lack it.
        """
        name = inner_name(place)
        for layer in self.layers.values():
            has = any(name in attrgetter(parts)(layer) for parts in layer.adapter_layer_names)
            if has:
                layer.set_adapter(name)
            layer.enable_adapters(has)


class _LinearPairs(nn.Module):
    """A linear module, and the pairs of all adapters: stacks of shape (adapters, rank, features)."""

    downs: torch.Tensor
    ups: torch.Tensor
    _scale: torch.Tensor

    def __init__(self, layer: Any, adapters: _Adapters) -> None:
        super().__init__()
        names = [inner_name(place) for place in range(len(adapters.places))]
        self.base_layer, self._adapters = layer.base_layer, adapters
        first = next(iter(layer.lora_A.values())).weight
        rank = max(pair.weight.shape[0] for pair in layer.lora_A.values())
        outputs = next(iter(layer.lora_B.values())).weight.shape[0]
        downs = first.new_zeros(len(names), rank, first.shape[1])
        ups = first.new_zeros(len(names), rank, outputs)
        for place, name in enumerate(names):
            if name in layer.lora_A:
                down, up = layer.lora_A[name].weight, layer.lora_B[name].weight
                downs[place, : len(down)], ups[place, : len(down)] = down, up.T
        self.scales = [float(layer.scaling.get(name, 0.0)) for name in names]
        self.register_buffer("downs", downs, persistent=False)
        self.register_buffer("ups", ups, persistent=False)
        self.register_buffer("_scale", first.new_tensor(self.scales), persistent=False)

    @property
    def weight(self) -> Any:
        return self.base_layer.weight

    @property
    def bias(self) -> Any:
        return self.base_layer.bias

    def forward(self, inputs: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        outputs: torch.Tensor = self.base_layer(inputs, *args, **kwargs)
        one, downs, ups = self._adapters.one, self.downs, self.ups
        if one is not None:
            if not self.scales[one]:
                return outputs
            added = inputs.to(downs.dtype) @ downs[one].T @ ups[one] * self.scales[one]
        else:
            index = self._adapters.index.to(downs.device)
            low = torch.bmm(inputs.to(downs.dtype), downs[index].transpose(1, 2))
            added = torch.bmm(low, ups[index]) * self._scale[index][:, None, None]
        return (outputs + added).to(outputs.dtype)


def join_adapters(model: Any, names: Sequence[str], pad: int) -> None:
    """Let each row of a pass have its own of these adapters, which peft has loaded."""
    adapters = _Adapters(model, names)
    setattr(model, _NAME, adapters)
    adapters.switch(0)
    layers = [*adapters.layers.values()]
    if all(map(_is_plain, layers)) and _see_rows(model, layers, pad):
        adapters.together = True
        for path, layer in adapters.layers.items():
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, _LinearPairs(layer, adapters))


def _layers(model: Any) -> dict[str, Any]:
    """The modules with adapters, by their paths."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    kinds = BaseTunerLayer, AuxiliaryTrainingWrapper
    return {path: module for path, module in model.named_modules() if isinstance(module, kinds)}


def _is_plain(layer: Any) -> bool:
    """Whether what adapters add to a module is the product of a pair, and nothing else."""
    from peft.tuners.lora import Linear

    return (
        type(layer) is Linear
        and not (any(layer.lora_bias.values()) or getattr(layer, "lora_variant", None))
        and not any(layer.use_dora.values())
    )


def _see_rows(model: Any, layers: Sequence[Any], pad: int) -> bool:
    """Whether each of these modules sees the rows of a pass: its input has one entry for each."""
    seen: dict[int, bool] = {}

    def note(layer: Any, inputs: Any) -> None:
        fits = bool(inputs) and inputs[0].dim() == 3 and tuple(inputs[0].shape[:2]) == _PROBE
        seen[id(layer)] = fits and seen.get(id(layer), True)

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    ids = torch.full(_PROBE, pad, device=model.device)
    done = attempt(lambda: model(input_ids=ids, use_cache=False))
    for hook in hooks:
        hook.remove()
    return is_ok(done) and len(seen) == len(layers) and all(seen.values())
