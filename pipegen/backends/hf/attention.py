"""Attention of one new token for each row, where several query heads share a key head, without
copies of keys and values.

transformers' `sdpa` repeats keys and values for every query head as soon as there is a mask, at
every step. The query heads that share a key head stand beside each other as if they were that many
queries of one head. The sums are the same, over keys and values as they lie in the cache.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from pipegen.backends.hf.shared_columns import attend, shared_of
from pipegen.core.names import InvalidField

NAME = "pipegen_grouped_sdpa"
"""What transformers calls it in `attn_implementation`."""

_hf: Any = transformers  # its own annotations are partial


def grouped_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' `sdpa`, with its arguments and answer; a single query of each row takes the way
    without copies. What rows share is read once.

    `query` has the shape (rows, heads, queries, size), `key` and `value` have (rows, key heads,
    columns, size). Raises `ValueError` where rows share, and a head has a mask of its own.
    """
    rows, heads, queries, size = query.shape
    one_for_all_heads = attention_mask is None or (
        attention_mask.dim() == 4 and attention_mask.shape[1] == 1
    )
    plain = one_for_all_heads and position_bias is None and more.get("cache") is None
    shared = shared_of(key)
    if shared is not None:
        if not plain:
            raise ValueError("rows that share a beginning take one mask for all heads, and no bias")
        return attend(query, key, value, attention_mask, scaling, shared), None
    if queries != 1 or heads == key.shape[1] or not plain:
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            position_bias=position_bias,
            **more,
        )
        return result
    beside = query.reshape(rows, key.shape[1], heads // key.shape[1], size)
    out = torch.nn.functional.scaled_dot_product_attention(
        beside, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return out.reshape(rows, 1, heads, value.shape[-1]), None


def grouped_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> torch.Tensor | None:
    """transformers' `sdpa_mask`, with its arguments and answer; of a single query after all that is
    there, only the padding is masked, as numbers to add.

    `sdpa` adds numbers: it would turn truth values into them in every layer.
    """
    end = kv_offset + kv_length
    if (
        q_length != 1
        or mask_function is not causal_mask_function
        or attention_mask is None
        or not end == q_offset + 1 == attention_mask.shape[-1]
    ):
        seen: torch.Tensor | None = sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            dtype=dtype,
            **more,
        )
        return seen
    padding = attention_mask[:, None, None, kv_offset:]
    return torch.zeros(padding.shape, dtype=dtype, device=padding.device).masked_fill_(
        ~padding, -torch.inf
    )


_hf.AttentionInterface.register(NAME, grouped_sdpa)
_hf.AttentionMaskInterface.register(NAME, grouped_mask)


def fitting_attention(config: Any, requested: str | None) -> str | dict[str, str] | None:
    """The `attn_implementation` that transformers gets: what is asked, or `eager` where the model
    caps its attention scores (Gemma 2), which `sdpa` does not.

    Raises `InvalidField` where `sdpa` is asked of such a model: it would ignore the cap without a
    word.
    """
    text = config.get_text_config()
    if getattr(text, "attn_logit_softcapping", None) is None:
        return requested
    if requested == "sdpa":
        message = (
            "ModelLoadConfig.attn_implementation: 'sdpa' ignores the attn_logit_softcapping of"
            f" {config.model_type}"
        )
        raise InvalidField(
            f"{message}; leave it out, or take 'eager', 'flex_attention' or 'flash_attention_2'"
        )
    if requested is not None:
        return requested
    return _of_text(config, "eager")


def use_grouped(model: Any) -> None:
    """Let a model's language part work so, where it works by `sdpa` through transformers'
    interface; any other is left as it is. So is one whose code asks for the name `sdpa`: it would
    do something else under another.
    """
    text = model.config.get_text_config()
    if (
        text._attn_implementation == "sdpa"
        and getattr(model, "_supports_attention_backend", False)
        and not asks_for_sdpa(type(model))
    ):
        _set(model, NAME)


def use_own(model: object) -> None:
    """Let transformers' own attention work where `use_grouped` let pipegen's."""
    if is_grouped(model):
        _set(model, "sdpa")


def is_grouped(model: Any) -> bool:
    """Whether pipegen's attention works in a model's language part."""
    return bool(model.config.get_text_config()._attn_implementation == NAME)


def reads_shared(model: object) -> bool:
    """Whether pipegen's attention works in a model, and finds what its rows share by their keys. It
    does not where the model's code makes other keys of those in the cache (JetMoe repeats them).
    """
    kind: object = type(model)
    return is_grouped(model) and not _changes_keys(kind)


@functools.cache
def _changes_keys(model: object) -> bool:
    return any(_NEW_KEYS.search(part) for part in _FROM_CACHE.findall(_source(model)))


def _source(model: Any) -> str:
    """The code of the module of a model's class."""
    return inspect.getsource(inspect.getmodule(model) or model)


_FROM_CACHE = re.compile(r"\.update\(\s*key.*?\n(.*?)attention_interface\(\s*self", re.DOTALL)
_NEW_KEYS = re.compile(r"^\s+key\w* = ", re.MULTILINE)


def asks_for_sdpa(model: object) -> bool:
    """Whether the code of a model's class compares the name of its attention with `sdpa`. Sparse
    attention of DeepSeek V3.2 masks nothing under another name, for example.
    """
    return _ASKS.search(_source(model)) is not None


_ASKS = re.compile(r"""_attn_implementation\s*(?:==|!=|in\b|not\s+in\b)[^:\n]*["']sdpa["']""")


def _set(model: Any, name: str) -> None:
    model.set_attn_implementation(_of_text(model.config, name))


def _of_text(config: Any, name: str) -> str | dict[str, str]:
    """The name of an attention as transformers takes it for the text model of a configuration."""
    text = config.get_text_config()
    part = next((part for part in config.sub_configs if getattr(config, part, None) is text), None)
    return name if part is None else {part: name}
