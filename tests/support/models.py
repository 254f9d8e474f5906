"""Tiny random models of real architectures, made on the spot: a folder that `from_pretrained`
reads, in less than a second.

The weights are drawn wide (`initializer_range=0.2`), so that greedy decoding has no near ties, and
the vocabulary is exactly the tokenizer's. They say nothing sensible; they say it reproducibly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.small_tokenizers import chatml_tokenizer, instruct_tokenizer, video_tokenizer
from support.vision_models import IMAGE_FAMILIES

from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Encoded, PreparedImage, Prompt

__all__ = ["FAMILIES", "HYBRIDS", "VARIANTS", "encoded", "video_settings", "write_model"]


def _hf() -> Any:
    """transformers; its own annotations are partial."""
    import transformers

    return transformers


_SIZES: Mapping[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


def _text_sizes(tokenizer: Any, head_dim: int) -> dict[str, Any]:
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
    }
    return {**_SIZES, "head_dim": head_dim, "vocab_size": len(tokenizer), **ids}


def _qwen3(head_dim: int) -> tuple[Any, Any]:
    tokenizer = chatml_tokenizer()
    return tokenizer, _hf().Qwen3ForCausalLM(_hf().Qwen3Config(**_text_sizes(tokenizer, head_dim)))


def _llama(head_dim: int) -> tuple[Any, Any]:
    tokenizer = instruct_tokenizer()
    return tokenizer, _hf().LlamaForCausalLM(_hf().LlamaConfig(**_text_sizes(tokenizer, head_dim)))


def _mistral(head_dim: int) -> tuple[Any, Any]:
    tokenizer = instruct_tokenizer()
    return tokenizer, _hf().MistralForCausalLM(
        _hf().MistralConfig(**_text_sizes(tokenizer, head_dim), sliding_window=8)
    )


def _gemma3(head_dim: int) -> tuple[Any, Any]:
    tokenizer = instruct_tokenizer()
    config = _hf().Gemma3TextConfig(
        **_text_sizes(tokenizer, head_dim),
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    )
    return tokenizer, _hf().Gemma3ForCausalLM(config)


def _lfm2(head_dim: int) -> tuple[Any, Any]:
    tokenizer = instruct_tokenizer()
    sizes = {
        name: size for name, size in _text_sizes(tokenizer, head_dim).items() if name != "head_dim"
    }
    config = _hf().Lfm2Config(
        **sizes,
        layer_types=["conv", "full_attention"],
        block_auto_adjust_ff_dim=False,
        conv_bias=True,
    )
    return tokenizer, _hf().Lfm2ForCausalLM(config)


def _qwen3_next(head_dim: int) -> tuple[Any, Any]:
    tokenizer = chatml_tokenizer()
    linear = {
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    }
    experts = {"num_experts": 0, "mlp_only_layers": [0, 1]}
    config = _hf().Qwen3NextConfig(
        **_text_sizes(tokenizer, head_dim),
        **linear,
        **experts,
        layer_types=["linear_attention", "full_attention"],
    )
    return tokenizer, _hf().Qwen3NextForCausalLM(config)


def _falcon_h1(head_dim: int) -> tuple[Any, Any]:
    tokenizer = instruct_tokenizer()
    mamba = {
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 16,
        "mamba_chunk_size": 8,
    }
    return tokenizer, _hf().FalconH1ForCausalLM(
        _hf().FalconH1Config(**_text_sizes(tokenizer, head_dim), **mamba)
    )


def _phi3_longrope(head_dim: int) -> tuple[Any, Any]:
    tokenizer = instruct_tokenizer()
    sizes = {
        **_text_sizes(tokenizer, head_dim),
        "hidden_size": 4 * head_dim,
        "pad_token_id": tokenizer.eos_token_id,
    }
    factors = [1.0 + number / 4 for number in range(head_dim // 2)]
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": factors,
        "long_factor": [3 * factor for factor in factors],
    }
    return tokenizer, _hf().Phi3ForCausalLM(
        _hf().Phi3Config(**sizes, rope_parameters=rope, original_max_position_embeddings=64)
    )


def _gemma2(head_dim: int) -> tuple[Any, Any]:
    tokenizer = instruct_tokenizer()
    config = _hf().Gemma2Config(
        **_text_sizes(tokenizer, head_dim),
        sliding_window=8,
        attn_logit_softcapping=1.0,
        query_pre_attn_scalar=1,
    )
    return tokenizer, _hf().Gemma2ForCausalLM(config)


def _cohere2(head_dim: int) -> tuple[Any, Any]:
    tokenizer = instruct_tokenizer()
    # in vLLM a head has no size of its own
    sizes = {**_text_sizes(tokenizer, head_dim), "hidden_size": 4 * head_dim}
    config = _hf().Cohere2Config(
        **sizes, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
    )
    return tokenizer, _hf().Cohere2ForCausalLM(config)


def _ministral3(head_dim: int) -> tuple[Any, Any]:
    tokenizer = instruct_tokenizer()
    lengths = {
        "original_max_position_embeddings": 64,
        "max_position_embeddings": 512,
        "factor": 8.0,
    }
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
    return tokenizer, _hf().Ministral3ForCausalLM(
        _hf().Ministral3Config(
            **_text_sizes(tokenizer, head_dim), rope_parameters={**rope, **lengths}
        )
    )


def _llama_scaled(rope: Mapping[str, Any]) -> Callable[[int], tuple[Any, Any]]:
    def made(head_dim: int) -> tuple[Any, Any]:
        tokenizer = instruct_tokenizer()
        sizes = {**_text_sizes(tokenizer, head_dim), "max_position_embeddings": 128}
        return tokenizer, _hf().LlamaForCausalLM(
            _hf().LlamaConfig(**sizes, rope_parameters={"rope_theta": 10000.0, **rope})
        )

    return made


def _qwen3_vl(head_dim: int) -> tuple[Any, Any]:
    tokenizer = video_tokenizer()
    ids = tokenizer.get_vocab()
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [head_dim // 4, head_dim // 8, head_dim // 8],
        "mrope_interleaved": True,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": _SIZES["hidden_size"],
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
        "initializer_range": 0.2,
    }
    config = _hf().Qwen3VLConfig(
        text_config={**_text_sizes(tokenizer, head_dim), "rope_parameters": rope},
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    return tokenizer, _hf().Qwen3VLForConditionalGeneration(config)


_IMAGE_PROCESSOR: Mapping[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"shortest_edge": 32 * 32, "longest_edge": 128 * 128},
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_convert_rgb": True,
    "resample": 3,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
}


def video_settings(images: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The settings of a processor of videos whose processor of images has these; `kind` is
    `Qwen2VL` or `Qwen3VL`, of which the second has one budget of pixels for all frames.
    """
    low, high = images["size"]["shortest_edge"], images["size"]["longest_edge"]
    shared = {"shortest_edge": 2 * low, "longest_edge": 4 * high}
    videos = {
        **images,
        "video_processor_type": f"{kind}VideoProcessor",
        "size": shared if kind == "Qwen3VL" else images["size"],
        "fps": 2,
        "min_frames": 4,
        "max_frames": 8,
        "do_sample_frames": False,
    }
    del videos["image_processor_type"]
    return videos


_ATTENTION: Mapping[str, Callable[[int], tuple[Any, Any]]] = {
    "qwen3": _qwen3,
    "llama": _llama,
    "mistral": _mistral,
    "gemma3": _gemma3,
    "qwen3_vl": _qwen3_vl,
}
_HYBRID: Mapping[str, Callable[[int], tuple[Any, Any]]] = {
    "lfm2": _lfm2,
    "qwen3_next": _qwen3_next,
    "falcon_h1": _falcon_h1,
}
_VARIANT: Mapping[str, Callable[[int], tuple[Any, Any]]] = {
    "phi3_longrope": _phi3_longrope,
    "gemma2": _gemma2,
    "cohere2": _cohere2,
    "ministral3": _ministral3,
    "llama_linear": _llama_scaled({"rope_type": "linear", "factor": 4.0}),
    "llama_dynamic": _llama_scaled({"rope_type": "dynamic", "factor": 4.0}),
    "llama_yarn": _llama_scaled(
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    ),
}
_MAKERS: Mapping[str, Callable[[int], tuple[Any, Any]]] = {**_ATTENTION, **_HYBRID, **_VARIANT}
FAMILIES = tuple(_ATTENTION)
"""`llama`, `mistral` and `gemma3` have a BOS and no pad token; `mistral` and `gemma3` a sliding
window of 8; `qwen3_vl` takes images and videos.
"""
HYBRIDS = tuple(_HYBRID)
"""Models of which some layers keep states instead of keys and values: convolutions (`lfm2`), a
gated delta rule (`qwen3_next`), Mamba 2 (`falcon_h1`).
"""


VARIANTS = tuple(_VARIANT)
"""Models whose texts depend on their settings: `phi3_longrope` takes other rotary factors from 65
tokens on, `gemma2` caps its attention scores, `cohere2` has a sliding window of 16, `ministral3`
scales its attention from 64 tokens on, and the positions of `llama_linear` (128 times 4),
`llama_dynamic` and `llama_yarn` (128 each) are scaled."""


def write_model(
    directory: Path,
    family: str = "qwen3",
    *,
    seed: int = 0,
    head_dim: int = 16,
    whole_text: bool = False,
    **generation: Any,
) -> Path:
    """Write a model of that family (of `FAMILIES`, `HYBRIDS`, `VARIANTS` or `IMAGE_FAMILIES`) with
    its tokenizer into a new folder, and give the folder back.

    `head_dim` is the size of an attention head: kernels of some engines take none below 32. With
    `whole_text`, the model (greedily) writes no token that is a piece of a character only, so that
    its answers are valid UTF-8, and none that stands for an image or a video. `generation` are entries of its generation_config.json, such as
    `eos_token_id=[1, 2]`.
    """
    import torch

    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    image_files = IMAGE_FAMILIES[family]() if family in IMAGE_FAMILIES else None
    tokenizer, model = (
        (image_files.tokenizer, image_files.model()) if image_files else _MAKERS[family](head_dim)
    )
    torch.random.set_rng_state(state)
    if whole_text:
        pieces = [
            token_id
            for token_id in range(len(tokenizer))
            if "\ufffd" in tokenizer.decode([token_id])
            or tokenizer.convert_ids_to_tokens(token_id) in ("<|image_pad|>", "<|video_pad|>")
        ]
        with torch.no_grad():  # a logit of 0, and of the others some are always above
            model.get_output_embeddings().weight[pieces] = 0
    model.generation_config = _hf().GenerationConfig(
        **{
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            **generation,
        }
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    if image_files:
        image_files.save(directory)
    if family == "qwen3_vl":
        (directory / "preprocessor_config.json").write_text(json.dumps(dict(_IMAGE_PROCESSOR)))
        (directory / "video_preprocessor_config.json").write_text(
            json.dumps(video_settings(_IMAGE_PROCESSOR, "Qwen3VL"))
        )
    return directory


def encoded(
    token_ids: Sequence[int], *, images: Sequence[PreparedImage] = (), **options: Any
) -> Encoded:
    """A call's input made of token ids as they stand; `options` are those of `GenerationOptions`,
    the rest takes its defaults.

    >>> encoded([1, 2], max_new_tokens=4).options.max_new_tokens
    4
    """
    ids = tuple(token_ids)
    prompt = Prompt(token_ids=ids, compact_token_ids=ids, images=tuple(images))
    return Encoded(
        request=TextGenerationRequest(prompt_token_ids=ids),
        options=resolve(GenerationOptions(**options)),
        prompt=prompt,
    )
