"""The network's shape, and how it is written to a folder."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch
from training.tokenizer import save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import Qwen2Tokenizer, Qwen3VLForConditionalGeneration

HIDDEN = 128
PATCH = 16
MERGE = 2
CELL = PATCH * MERGE
"""Pixels per side of the square that becomes one feature of the language model."""

MIN_PIXELS = 96 * 96
MAX_PIXELS = 128 * 128
CHECKSUMS = "SHA256SUMS"


def build_model(tokenizer: Qwen2Tokenizer, seed: int = 0) -> Qwen3VLForConditionalGeneration:
    """The untrained model, in fp32."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    torch.manual_seed(seed)
    ids: dict[str, int] = tokenizer.get_vocab()
    end, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN,
        "intermediate_size": 320,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": tokenizer.model_max_length,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
        },
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
    }
    vision: dict[str, Any] = {
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [1],
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    make: Any = Qwen3VLForConditionalGeneration
    model: Qwen3VLForConditionalGeneration = make(config)
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id, settings.do_sample = [end, pad], pad, False
    return model


def _save_processor(directory: Path) -> None:
    common: dict[str, Any] = {
        "do_resize": True,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_convert_rgb": True,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "processor_class": "Qwen3VLProcessor",
    }
    image = {**common, "image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {
        **common,
        "video_processor_type": "Qwen3VLVideoProcessor",
        "fps": 2,
        "min_frames": 2,
        "max_frames": 8,
        "do_sample_frames": True,
    }
    for name, settings in (("preprocessor_config", image), ("video_preprocessor_config", video)):
        (directory / f"{name}.json").write_text(json.dumps(settings, indent=2) + "\n")


def digest(file: Path) -> str:
    """The file's SHA-256, in hex."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def save_model(
    model: Qwen3VLForConditionalGeneration, tokenizer: Qwen2Tokenizer, directory: Path
) -> None:
    """Write everything `from_pretrained` needs, the weights as bf16, and the checksum of the
    weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rounded: Any = copy.deepcopy(model)
    rounded.to(torch.bfloat16)
    rounded.config.dtype = torch.bfloat16
    rounded.save_pretrained(directory)
    save_tokenizer(tokenizer, directory)
    _save_processor(directory)
    weights = directory / "model.safetensors"
    weights.chmod(0o644)
    (directory / CHECKSUMS).write_text(f"{digest(weights)}  {weights.name}\n")


def load_weights(model: Qwen3VLForConditionalGeneration, directory: Path) -> None:
    """Take the weights of a saved folder, as fp32."""
    from safetensors.torch import load_file

    missing, unexpected = model.load_state_dict(
        load_file(directory / "model.safetensors"), strict=False
    )
    if unexpected or set(missing) - {"lm_head.weight"}:  # tied to the embedding
        raise ValueError(
            f"{directory} is not a folder of this model: missing {missing}, unexpected {unexpected}"
        )


@torch.no_grad()
def round_weights(model: Qwen3VLForConditionalGeneration) -> None:
    """Round every weight to a value that bf16 can hold: what saving and loading does."""
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16().float())


def export_text_only(source: Path, directory: Path) -> Path:
    """The language half of `source` as a `Qwen3ForCausalLM` folder with the same weights, in the
    same dtype.
    """
    from transformers import (
        AutoTokenizer,
        GenerationConfig,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3VLForConditionalGeneration as VisionLanguageModel,
    )

    whole: Any = VisionLanguageModel.from_pretrained(source, dtype="auto")
    text = whole.config.text_config
    config = Qwen3Config(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_hidden_layers=text.num_hidden_layers,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=text.num_key_value_heads,
        head_dim=text.head_dim,
        max_position_embeddings=text.max_position_embeddings,
        tie_word_embeddings=True,
        rms_norm_eps=text.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": text.rope_parameters["rope_theta"]},
        bos_token_id=None,
        eos_token_id=text.eos_token_id,
        pad_token_id=text.pad_token_id,
    )
    make_model: Any = Qwen3ForCausalLM
    make_settings: Any = GenerationConfig
    half = make_model(config).to(whole.dtype)
    state = {
        name.replace("model.language_model.", "model."): value
        for name, value in whole.state_dict().items()
        if "visual" not in name
    }
    half.load_state_dict(state)
    half.config.dtype = whole.dtype
    settings = whole.generation_config
    half.generation_config = make_settings(
        eos_token_id=settings.eos_token_id, pad_token_id=settings.pad_token_id, do_sample=False
    )
    half.save_pretrained(directory)
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    save_tokenizer(tokenizer, directory)
    return directory
