"""What is known of a family of models by its name alone, the `model_type` of its `config.json`.

What a checkpoint's own files say is read from them: its template, its processor, its settings.

>>> family_of("cohere2").longer_in_vllm, family_of("llama") == Family()
(True, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Family(NamedTuple):
    """One family. Without a row a family has the defaults."""

    video_processor: str = ""
    """The class of transformers that prepares its videos; empty where pipegen takes none."""
    text_after_last_frame: bool = False
    """Whether the text behind a video stands behind its latest position, which transformers does
    not do (`pipegen.backends.hf.video_positions`).
    """
    times_of_frames: bool = False
    """Whether its positions depend on the times of frames (`pipegen.backends.vllm.start`)."""
    longer_in_vllm: bool = False
    """Whether vLLM makes its sliding window one token longer (`pipegen.backends.vllm.corrections`).
    """


FAMILIES: Mapping[str, Family] = {
    "qwen2_vl": Family("Qwen2VLVideoProcessor", text_after_last_frame=True),
    "qwen2_5_vl": Family("Qwen2VLVideoProcessor", text_after_last_frame=True, times_of_frames=True),
    "qwen3_vl": Family("Qwen3VLVideoProcessor"),
    "qwen3_vl_moe": Family("Qwen3VLVideoProcessor"),
    "cohere2": Family(longer_in_vllm=True),
    "cohere2_moe": Family(longer_in_vllm=True),
}
"""The families of which something is known."""


def family_of(model_type: str) -> Family:
    """The family of models of this type."""
    return FAMILIES.get(model_type, Family())
