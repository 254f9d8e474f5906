"""What is known of a family of models by its name alone, the `model_type` of its `config.json`.

What a checkpoint's own files say is read from them: its template, its processor, its settings.

>>> family_of("cohere2").longer_in_vllm, family_of("bert") == Family()
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
    tokenizer: str | None = None
    """The class of transformers for its tokenizer, empty where none is registered. Its files are
    read without transformers (`pipegen.backends.checkpoint.tokenizer_classes`). None where they are
    not.
    """
    misnamed: bool = False
    """Whether that class may be taken in the place of one that the settings name."""


_QWEN, _WHOLE = "Qwen2Tokenizer", "TokenizersBackend"
FAMILIES: Mapping[str, Family] = {
    "qwen2_vl": Family("Qwen2VLVideoProcessor", text_after_last_frame=True, tokenizer=_QWEN),
    "qwen2_5_vl": Family(
        "Qwen2VLVideoProcessor", text_after_last_frame=True, times_of_frames=True, tokenizer=_QWEN
    ),
    "qwen3_vl": Family("Qwen3VLVideoProcessor", tokenizer=_QWEN),
    "qwen3_vl_moe": Family("Qwen3VLVideoProcessor", tokenizer=_QWEN),
    "cohere2": Family(longer_in_vllm=True, tokenizer="CohereTokenizer"),
    "cohere2_moe": Family(longer_in_vllm=True),
    "qwen2": Family(tokenizer=_QWEN, misnamed=True),
    **{
        name: Family(tokenizer=tokenizer)
        for tokenizer, names in {
            "": ("llama", "smollm3", "gpt_oss", "falcon", "exaone4", "seed_oss"),
            _QWEN: ("qwen2_moe", "qwen3", "qwen3_moe"),
            _WHOLE: (
                *("mistral", "mixtral", "phi3", "granite", "granitemoe", "granitemoehybrid"),
                *("olmo2", "glm", "glm4", "glm4_moe", "stablelm", "nemotron", "minimax_m2"),
            ),
            "CohereTokenizer": ("cohere",),
            "GemmaTokenizer": ("gemma", "gemma2", "gemma3_text"),
            "GPT2Tokenizer": ("gpt2", "starcoder2"),
            "GPTNeoXTokenizer": ("gpt_neox", "olmo", "olmoe"),
        }.items()
        for name in names
    },
}
"""The families of which something is known."""


def family_of(model_type: str) -> Family:
    """The family of models of this type."""
    return FAMILIES.get(model_type, Family())
