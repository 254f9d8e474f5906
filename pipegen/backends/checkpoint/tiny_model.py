"""A small model of a configuration's family, made and run in a second. Weights are random; the
kinds of layers and the scalings of positions are the same.

It answers whether two engines read a configuration in the same way, which does not depend on
weights. Windows and other lengths are divided by one number, so that rows beyond them are short.
There a single token more or less in a window shows at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipegen.backends.checkpoint.positions import named_lengths

VOCABULARY = 256
BEYOND = 16
"""How many tokens a row goes on behind a boundary."""
_LONGEST, _SHORTEST, _BLOCK = 32, 8, 128
"""Between the first two are the lengths of a small model, if its family's are longer; vLLM takes
chunks of attention of whole blocks only.
"""
_WEIGHTS = 1 << 25
"""How many a small model has at most: what takes a second."""
_HEADS = 2
_SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings")
_FEW = {
    "num_experts_per_tok": 2,
    "experts_per_token": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "top_k_experts": 2,
    "n_group": 1,
    "topk_group": 1,
}
"""Numbers that are smaller than the numbers of which they choose."""
_MOST = {
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 16,
    "laurel_rank": 8,
}


class CannotShrink(Exception):
    """No small model can be made of this configuration; the message says why."""


def shrunken(text: Any) -> object:
    """The configuration of a small model of the same family. Raises `CannotShrink`."""
    names: Mapping[str, str] = getattr(text, "attribute_map", None) or {}
    settings: dict[str, Any] = {
        name: value
        for name, value in text.to_dict().items()
        if name not in ("quantization_config", "dtype", "auto_map")
    }
    try:
        layers, heads, hidden, positions = (int(settings[names.get(name, name)]) for name in _SIZES)
    except (KeyError, TypeError) as missing:
        raise CannotShrink(
            f"its configuration does not say how large it is: {type(missing).__name__}: {missing}"
        ) from missing
    head_size = settings.get("head_dim") or hidden // heads
    chosen = _layers(settings, layers)
    for name, value in settings.items():
        settings[name] = _smaller(name, value, layers, chosen)
    keys = settings.get(names.get("num_key_value_heads", "num_key_value_heads"))
    sizes = {
        "num_hidden_layers": len(chosen),
        "num_attention_heads": _HEADS,
        "num_key_value_heads": None if keys is None else _HEADS if keys == heads else 1,
        "hidden_size": _HEADS * head_size,
        "vocab_size": VOCABULARY,
    }
    settings |= {names.get(name, name): size for name, size in sizes.items() if size is not None}
    longest = max((length.tokens for length in named_lengths(text)), default=0)
    limit = _BLOCK if settings.get("attention_chunk_size") else _LONGEST
    divisor = max(1, -(-longest // limit))
    if divisor > 1:
        for length in named_lengths(text):
            _divide(settings, length.name.split("."), divisor)
        positions //= divisor
    settings[names.get("max_position_embeddings", "max_position_embeddings")] = max(
        positions, min(longest, limit) + 2 * BEYOND
    )
    try:
        return type(text).from_dict(settings)
    except Exception as refused:
        raise CannotShrink(
            f"its configuration does not take other sizes: {type(refused).__name__}: {refused}"
        ) from refused


def _layers(settings: Mapping[str, object], layers: int) -> list[int]:
    """One layer of each kind, in their order; two where all are alike."""
    lists = [
        value
        for value in settings.values()
        if isinstance(value, (list, tuple))
        and len(value) == layers
        and not _are_numbers(value, layers)
    ]
    kinds = {
        tuple(repr(value[layer]) for value in lists): layer for layer in reversed(range(layers))
    }
    return sorted(kinds.values()) if len(kinds) > 1 else [*range(min(2, layers))]


def _are_numbers(value: Any, layers: int) -> bool:
    """Whether a list holds the numbers of layers, and not a value for each layer."""
    return (
        len(value) > 2
        and all(type(entry) is int and entry < layers for entry in value)
        and all(earlier < later for earlier, later in itertools.pairwise(value))
    )


def _smaller(name: str, value: object, layers: int, chosen: list[int]) -> object:
    if isinstance(value, Mapping) and value and all(str(layer).isdigit() for layer in value):
        return {
            chosen.index(int(layer)): setting
            for layer, setting in value.items()
            if int(layer) in chosen
        }
    if isinstance(value, (list, tuple)) and _are_numbers(value, layers):
        return [chosen.index(layer) for layer in value if layer in chosen]
    if isinstance(value, (list, tuple)) and len(value) == layers and layers > 1:
        return [_smaller(name, value[layer], layers, chosen) for layer in chosen]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if "intermediate_size" in name or name in ("ffn_dim", "n_inner", "ffn_hidden_size"):
        return min(value, 96)
    if name in _FEW:
        return min(value, _FEW[name])
    if name in _MOST:
        return min(value, _MOST[name])
    if "experts" in name and value > 4:
        return 4
    if name == "max_window_layers":
        return min(value, len(chosen))
    if name == "vocab_size_per_layer_input":
        return VOCABULARY
    if name.endswith("_token_id"):
        return min(value, 2)
    return value


def _divide(settings: dict[str, Any], path: list[str], divisor: int) -> None:
    """Divide the length at that path, or each in a list of them."""
    *parents, name = path
    for parent in parents:
        settings[parent] = settings = (
            {**settings[parent]} if isinstance(settings.get(parent), Mapping) else {}
        )
    value = settings.get(name)
    if isinstance(value, int):
        settings[name] = max(_SHORTEST, value // divisor)
    elif isinstance(value, (list, tuple)):
        settings[name] = [max(_SHORTEST, length // divisor) for length in value]


def write_shrunken(text: object, folder: Path) -> object:
    """Write the small model of a text model's configuration into a folder, in float32 and with a
    tokenizer; its configuration. Raises `CannotShrink`.
    """
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    config = shrunken(text)
    causal: Any = AutoModelForCausalLM  # its own annotations are partial
    random = torch.Generator().manual_seed(0)
    state = torch.random.get_rng_state()
    try:
        with torch.device("meta"):
            size = sum(weights.numel() for weights in causal.from_config(config).parameters())
        if size > _WEIGHTS:
            raise CannotShrink(f"it would still have {size:,} weights")
        model: Any = causal.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, weights in model.named_parameters():
                # so narrow that attention looks at all tokens of a window, and the oldest one
                # counts
                if weights.dim() > 1:
                    weights.normal_(0, weights.shape[-1] ** -0.5, generator=random)
                elif "norm" in name:
                    weights.uniform_(0.8, 1.2, generator=random)
        model.save_pretrained(folder)
    except CannotShrink:
        raise
    except Exception as failed:  # code of each family in transformers
        raise CannotShrink(
            f"transformers makes no small model of it: {type(failed).__name__}: {failed}"
        ) from failed
    finally:
        torch.random.set_rng_state(state)
    tokens = Tokenizer(
        models.WordLevel({f"t{index}": index for index in range(VOCABULARY)}, unk_token="t0")
    )
    auto: Any = PreTrainedTokenizerFast
    auto(tokenizer_object=tokens, unk_token="t0", eos_token="t2").save_pretrained(folder)
    return config
