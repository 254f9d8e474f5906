"""Under which name a model takes its cache, and gives it back. transformers changes that name: it was
`past_key_values` or `cache_params` before 5.24, and is `cache` from then on.

It is read from the model's own `forward`. A model that gives its cache back under another name is
refused. A loop that does not find the cache would read the whole prompt behind a full one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import Cache

_CACHES = ("cache", "past_key_values", "cache_params")
KEPT = (*_CACHES, "state", "mems", "past_buckets_states")
"""The arguments in which models keep what they have read: the caches of transformers, and what some
old families have in their place.
"""


class UnknownCache(ValueError):
    """A model gives its cache back in a way that pipegen does not know."""

    hint = "install a version of transformers that `pipegen doctor` calls tested"


def cache_argument(model: Any) -> str | None:
    """The argument of the `forward` of a model's class that takes a cache; None where there is none.

    >>> class Model:
    ...     def forward(self, input_ids, past_key_values=None): ...
    >>> cache_argument(Model)
    'past_key_values'
    """
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in _CACHES if name in parameters), None)


def cache_of(model: object, outputs: Any, state: Mapping[str, Any]) -> str | None:
    """The argument in which the cache of a pass is, as `state` holds it for the next one; None where
    the model has kept nothing.

    outputs: what the pass gave. Raises `UnknownCache` where a cache is in them and nothing says how
    the model takes it.
    """
    name = cache_argument(type(model))
    if name is not None and _is_filled(state.get(name)):
        return name
    found = {
        key for values in (outputs, state) for key, value in values.items() if _is_filled(value)
    }
    if not found:
        return None
    takes = "takes none" if name is None else f"takes it as {name!r}"
    raise UnknownCache(
        f"{type(model).__name__} gives its cache back as {', '.join(map(repr, sorted(found)))}, and"
        f" its forward {takes}: pipegen does not know how to hand it over on transformers"
        f" {transformers.__version__}"
    )


def _is_filled(value: object) -> bool:
    """Whether it is a cache that holds anything: `generate` prepares one for every model."""
    return isinstance(value, Cache) and any(
        isinstance(part, torch.Tensor)
        for layer in value.layers
        for entry in vars(layer).values()
        for part in (entry.values() if isinstance(entry, dict) else (entry,))
    )


def without_cache(state: Mapping[str, object]) -> dict[str, object]:
    """The inputs of a pass that reads whole rows, and keeps nothing."""
    return {name: value for name, value in state.items() if name not in KEPT} | {"use_cache": False}
