"""Settings of a model that vLLM reads in another way than transformers, and what vLLM is told so
that both give the same text.

transformers is the reference: it is the code that a checkpoint names. vLLM takes other values by
`hf_overrides`.

>>> from types import SimpleNamespace
>>> corrections(SimpleNamespace(model_type="cohere2", sliding_window=4096), (0, 32))
{'sliding_window': 4095}
>>> corrections(SimpleNamespace(model_type="cohere2", sliding_window=4096), (0, 27))
{}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pipegen.backends.checkpoint.families import family_of

_LONGER_SINCE = (0, 29)
"""From this version on vLLM makes the windows of some families one token longer."""
_SCALE_SINCE = (0, 30)
"""From this version on vLLM computes the scale of attention of YaRN as transformers does."""


def corrections(config: Any, version: tuple[int, int]) -> dict[str, object]:
    """The settings that vLLM of that version has to be given other values of, nested as in the
    configuration.

    - The sliding window of Cohere 2 is one token longer in vLLM, from 0.29 on.
    - The growing scale of attention in Ministral 3 stands among the settings of the positions,
      where vLLM does not look for it.
    - vLLM before 0.30 takes the scale of attention that YaRN's settings give (`attention_factor`,
      `mscale`) under another name.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    changed: dict[str, Any] = {}
    window = getattr(text, "sliding_window", None)
    if window and family_of(text.model_type).longer_in_vllm and version >= _LONGER_SINCE:
        changed["sliding_window"] = window - 1
    rope: Mapping[str, Any] = getattr(text, "rope_parameters", None) or {}
    # such models (DeepSeek) have a YaRN of their own in vLLM
    if version < _SCALE_SINCE and not hasattr(text, "qk_rope_head_dim"):
        scaled = (
            {name: _scaled(settings) for name, settings in rope.items()}
            if any(isinstance(settings, Mapping) for settings in rope.values())
            else _scaled(rope)
        )
        changed |= {} if scaled == rope else {"rope_parameters": scaled}
    if rope.get("llama_4_scaling_beta") is not None:
        length = rope.get("original_max_position_embeddings")
        changed["llama_4_scaling"] = {
            "beta": rope["llama_4_scaling_beta"],
            "original_max_position_embeddings": length,
        }
    name = next((name for name, value in vars(config).items() if value is text), None)
    return {name: changed} if changed and name is not None else changed


def _scaled(rope: object) -> object:
    """YaRN's settings with the factor that makes of vLLM's own scale of attention the one that
    transformers computes; others as they are.
    """
    if not isinstance(rope, Mapping) or rope.get("rope_type", rope.get("type")) != "yarn":
        return rope
    factor, mscale, mscale_all = rope["factor"], rope.get("mscale"), rope.get("mscale_all_dim")
    attention_factor = rope.get("attention_factor")
    if attention_factor is None and mscale and mscale_all:
        attention_factor = _scale(factor, mscale) / _scale(factor, mscale_all)
    return (
        rope
        if attention_factor is None
        else {**rope, "attn_factor": attention_factor / _scale(factor, 1.0)}
    )


def _scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def with_corrections(changed: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, object]:
    """The corrections together with a user's own `hf_overrides`, whose values win.

    >>> with_corrections(
    ...     {"text_config": {"sliding_window": 15}}, {"text_config": {"rope_theta": 1e4}}
    ... )
    {'text_config': {'sliding_window': 15, 'rope_theta': 10000.0}}
    """
    together = {**changed, **overrides}
    for name in changed.keys() & overrides.keys():
        if isinstance(changed[name], Mapping) and isinstance(overrides[name], Mapping):
            together[name] = {**changed[name], **overrides[name]}
    return together
