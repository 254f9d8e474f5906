"""Small LoRA adapters, made by peft, with random weights that are large enough to change the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LANGUAGE = r".*language_model.*\.(q_proj|v_proj|down_proj)"
"""Modules that see the rows of a pass."""
IMAGES = r".*(q_proj|v_proj|qkv)"
"""Those of the image's layers, too, which see pieces of all images."""


def write_adapter(
    folder: Path,
    seed: int,
    targets: str | list[str] = LANGUAGE,
    rank: int = 4,
    *,
    model: str = "",
    **config: Any,
) -> str:
    """An adapter in that folder, of the embedded model or of a text model in a folder."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    from pipegen import embedded

    auto: Any = AutoModelForCausalLM if model else AutoModelForImageTextToText
    base = auto.from_pretrained(model or embedded.path(), dtype=torch.float32)
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, **config)
    adapted: Any = get_peft_model(base, settings)
    draw = torch.Generator().manual_seed(seed)
    for name, weight in adapted.named_parameters():
        if "lora_A" in name or "lora_B" in name:
            size = 0.06 if "lora_A" in name else 0.3
            weight.data = torch.randn(weight.shape, generator=draw) * size
        elif "modules_to_save" in name or "trainable_tokens_delta" in name:
            weight.data = weight.data + torch.randn(weight.shape, generator=draw) * 0.5
    adapted.save_pretrained(folder)
    return str(folder)
