"""Tiny random models of real architectures, made on the spot: a folder that `from_pretrained` reads, in less than a second.

The weights are drawn wide (`initializer_range=0.2`), so that greedy decoding has no near ties, and the vocabulary is exactly the tokenizer's. They say
nothing sensible; they say it reproducibly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["FAMILIES", "write_model"]

_WORDS = "the a quick brown fox jumps over lazy dog red blue green circle square left right of and is one two three four five stop end what how many"
_CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{ message.content }}{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{ '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)
_LLAMA = (
    "{{ bos_token }}{%- for message in messages %}{{ '<|start|>' + message.role + '<|sep|>' + message.content + '<|eot|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start|>assistant<|sep|>' }}{%- endif %}"
)
_CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<think>", "</think>")
_LLAMA_TOKENS = ("<|bos|>", "<|start|>", "<|sep|>", "<|eot|>")


@cache
def _trained(special_tokens: tuple[str, ...]) -> str:
    """A byte-level BPE tokenizer, as JSON; its special tokens have the first ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=list(special_tokens), initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator([f"{_WORDS}. {_WORDS}\n\nEND STOP"] * 20, trainer)
    return str(trained.to_str())


def _tokenizer(special_tokens: tuple[str, ...], template: str, **named: Any) -> Any:
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    trained = Tokenizer.from_str(_trained(special_tokens))
    if named.get("bos_token"):
        bos = named["bos_token"]
        trained.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, trained.token_to_id(bos))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, clean_up_tokenization_spaces=False, **named)
    tokenizer.chat_template = template
    return tokenizer


def _chatml() -> Any:
    return _tokenizer(_CHATML_TOKENS, _CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def _with_bos() -> Any:
    return _tokenizer(_LLAMA_TOKENS, _LLAMA, bos_token="<|bos|>", eos_token="<|eot|>")


_SIZES: Mapping[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


def _text_sizes(tokenizer: Any) -> dict[str, Any]:
    return {**_SIZES, "vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}


def _qwen3() -> tuple[Any, Any]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _chatml()
    return tokenizer, Qwen3ForCausalLM(Qwen3Config(**_text_sizes(tokenizer)))


def _llama() -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _with_bos()
    return tokenizer, LlamaForCausalLM(LlamaConfig(**_text_sizes(tokenizer)))


def _mistral() -> tuple[Any, Any]:
    from transformers import MistralConfig, MistralForCausalLM

    tokenizer = _with_bos()
    return tokenizer, MistralForCausalLM(MistralConfig(**_text_sizes(tokenizer), sliding_window=8))


def _gemma3() -> tuple[Any, Any]:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    tokenizer = _with_bos()
    config = Gemma3TextConfig(**_text_sizes(tokenizer), sliding_window=8, layer_types=["sliding_attention", "full_attention"])
    return tokenizer, Gemma3ForCausalLM(config)


def _qwen3_vl() -> tuple[Any, Any]:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tokenizer = _chatml()
    ids = tokenizer.get_vocab()
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
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
    config = Qwen3VLConfig(
        text_config={**_text_sizes(tokenizer), "rope_parameters": rope},
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    return tokenizer, Qwen3VLForConditionalGeneration(config)


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

_MAKERS: Mapping[str, Callable[[], tuple[Any, Any]]] = {"qwen3": _qwen3, "llama": _llama, "mistral": _mistral, "gemma3": _gemma3, "qwen3_vl": _qwen3_vl}
FAMILIES = tuple(_MAKERS)
"""`llama`, `mistral` and `gemma3` have a BOS and no pad token; `mistral` and `gemma3` a sliding window of 8; `qwen3_vl` takes pictures."""


def write_model(directory: Path, family: str = "qwen3", *, seed: int = 0, **generation: Any) -> Path:
    """Write a model of that family with its tokenizer into a new folder, and give the folder back.

    `generation` are entries of its generation_config.json, such as `eos_token_id=[1, 2]`.
    """
    import torch
    from transformers import GenerationConfig

    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    tokenizer, model = _MAKERS[family]()
    torch.random.set_rng_state(state)
    model.generation_config = GenerationConfig(**{"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, **generation})
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    if family == "qwen3_vl":
        (directory / "preprocessor_config.json").write_text(json.dumps(dict(_IMAGE_PROCESSOR)))
    return directory
