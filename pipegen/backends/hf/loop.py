"""The decode loop: one batch of rows, each halted at the very token that ends it.

transformers prepares the inputs, the masks, the positions and the cache; it hands over through the `custom_generate` hook of `generate`. Which token
comes next, and when a row ends, is decided here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from pipegen.backends.hf.inputs import PICTURE_MARKS
from pipegen.backends.hf.rows import Row
from pipegen.backends.hf.sampling import Sampler

__all__ = ["begin"]


def begin(model: Any, rows: Sequence[Row], inputs: dict[str, Any], pad_token_id: int) -> Iterator[list[Row]]:
    """Prepare a batch and give back its steps: each step makes one token for every live row, and yields the rows that made one or failed.

    The checkpoint's own generation settings play no part. Steps must be run without gradients.
    """
    config: Any = GenerationConfig  # not annotated
    settings = config(do_sample=False, num_beams=1, use_cache=True, max_new_tokens=max(row.left for row in rows), pad_token_id=pad_token_id)
    pictures = tuple(name for name in inputs if name not in ("input_ids", "attention_mask", *PICTURE_MARKS))
    steps: Iterator[list[Row]] = model.generate(**inputs, generation_config=settings, custom_generate=_steps, rows=tuple(rows), pictures=pictures)
    return steps


def _steps(model: Any, input_ids: torch.Tensor, rows: Sequence[Row], pictures: Sequence[str], **state: Any) -> Iterator[list[Row]]:
    """The hook: `generate` calls it with everything prepared."""
    for name in ("logits_processor", "stopping_criteria", "generation_config"):
        state.pop(name)
    padding = [input_ids.shape[1] - len(row.sequence) for row in rows]
    batch, rope = list(rows), _rope_deltas(model)
    sampler: Sampler | None = None

    def ids_of(at: int) -> torch.Tensor:
        return input_ids[at : at + 1, padding[at] :]

    while True:
        _set_rope_deltas(model, rope)
        outputs = model(**_prepared(model, input_ids, state, first=sampler is None), return_dict=True)
        state = model._update_model_kwargs_for_generation(outputs, state)
        logits = outputs.logits[:, -1].to(dtype=torch.float32, device=input_ids.device, copy=True)
        del outputs  # the logits of a whole prompt can be large
        if sampler is None:
            sampler = Sampler(batch, logits.shape[-1], logits.device)
            state = {name: value for name, value in state.items() if name not in pictures}
        live = [at for at, row in enumerate(batch) if not row.done]
        tokens, choices = sampler.choose(logits, ids_of)
        input_ids = torch.cat([input_ids, tokens], dim=-1)
        for at in live:
            if not batch[at].done:  # a plugin may have failed
                batch[at].accept(*choices[at], functools.partial(ids_of, at))
        yield [batch[at] for at in live]
        kept = [at for at in live if not batch[at].done]
        if not kept:
            return
        if len(kept) < len(batch) and _can_drop_rows(state):
            index = torch.tensor(kept, device=input_ids.device)
            batch, padding, input_ids = [batch[at] for at in kept], [padding[at] for at in kept], input_ids[index]
            rope = rope[index] if rope is not None and len(rope) > 1 else rope
            _select(state, index)
            sampler.select(kept, index)


def _prepared(model: Any, input_ids: torch.Tensor, state: dict[str, Any], *, first: bool) -> dict[str, Any]:
    cached = any(state.get(name) is not None for name in ("past_key_values", "cache_params"))
    which = {"is_first_iteration": True} if first else {"next_sequence_length": 1 if cached else None}
    prepared: dict[str, Any] = model.prepare_inputs_for_generation(input_ids, **which, **state)
    return prepared


def _can_drop_rows(state: dict[str, Any]) -> bool:
    """Whether finished rows can leave the batch: with the caches whose every layer is known to be cut exactly. In others they ride on unheeded."""
    cache = state.get("past_key_values")
    layers = cache.layers if type(cache) is DynamicCache else None
    return layers is not None and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def _select(state: dict[str, Any], index: torch.Tensor) -> None:
    """Keep these rows of the cache, the mask, the positions (rows are their last but one axis) and the marks."""
    state["past_key_values"].batch_select_indices(index)
    for name in ("attention_mask", *PICTURE_MARKS):
        if state.get(name) is not None:
            state[name] = state[name][index]
    if state.get("position_ids") is not None:
        state["position_ids"] = state["position_ids"].index_select(-2, index)


def _rope_deltas(model: Any) -> torch.Tensor | None:
    """The rotary offsets of the batch, which some models keep on the module: another batch may have run between two steps of this one."""
    return getattr(model.base_model, "rope_deltas", None)


def _set_rope_deltas(model: Any, deltas: torch.Tensor | None) -> None:
    if deltas is not None:
        model.base_model.rope_deltas = deltas
