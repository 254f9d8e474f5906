"""Small models of every family of transformers, with random weights and one layer of each kind.

Settings are made smaller by their names. What does not follow from a name is in `OWN`. Windows and
other lengths at which attention changes are 8 tokens, scalings of positions begin at 32. Weights are
drawn so that each part of a model counts.

`pipegen.backends.checkpoint.tiny_model` makes small text models of what users have. Here the parts for
images and sound are made small too, and a family may need settings of its own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

__all__ = ["OWN", "SPECIAL", "VOCABULARY", "family_names", "is_known", "model_of", "tokenizer_of"]

VOCABULARY = 128
SPECIAL = 16
"""Ids below are special tokens, such as those of images; rows have none of them."""
WIDTH, HEADS, HEAD = 64, 4, 16
_WEIGHTS = 30_000_000
"""How many a small model has at most."""

_SMALL: Mapping[str, int] = {
    **dict.fromkeys(
        (
            *("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "word_embed_proj_dim"),
            *("out_hidden_size", "projection_dim", "projector_hidden_size", "text_hidden_size"),
            *("attention_hidden_size", "vision_hidden_size", "hidden_dim", "lru_width"),
            *("vision_output_dim", "backbone_hidden_size", "emb_dim", "mm_hidden_size"),
            *("hidden_size_global", "encoder_hidden_size", "n_embed", "image_token_embed_dim"),
            *("moe_hidden_size", "projection_hidden_dim", "text_dim", "kv_channels_total"),
        ),
        WIDTH,
    ),
    **dict.fromkeys(
        (
            *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
            *("decoder_attention_heads", "attention_heads", "linear_num_heads"),
            *("swa_num_attention_heads", "linear_num_value_heads", "num_sliding_attention_heads"),
        ),
        HEADS,
    ),
    **dict.fromkeys(
        (
            *("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "d_kv", "d_head"),
            *("index_head_dim", "linear_key_head_dim", "linear_value_head_dim", "swa_head_dim"),
            *("dim_head", "kv_channels", "linear_head_dim", "global_head_dim", "swa_v_head_dim"),
            *("resampler_head_dim", "attention_head_dim", "mamba_headdim", "mamba_head_dim"),
        ),
        HEAD,
    ),
    **dict.fromkeys(("linear_num_key_heads", "num_kv_heads"), 2),
    **dict.fromkeys(
        (
            *("kv_lora_rank", "q_lora_rank", "o_lora_rank", "hidden_size_per_layer_input"),
            *("laurel_rank", "mamba_d_state", "state_size", "ssm_state_size", "loop_gate_rank"),
            *("gated_norm_rank", "hc_lowrank", "adapter_rank", "router_hidden_size", "d_rel"),
            *("ple_embed_dim", "mamba_d_head"),
        ),
        16,
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 256),
    **dict.fromkeys(("seq_length", "context_length", "model_max_length"), 256),
    **dict.fromkeys(("original_max_position_embeddings", "floor_scale", "log_scaling_n_floor"), 32),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    **dict.fromkeys(("image_size", "pixel_size", "max_image_size"), 32),
    **dict.fromkeys(("num_position_embeddings", "max_num_patches"), 64),
    "index_topk": 8,
    "index_n_heads": 16,
    "unpadded_vocab_size": VOCABULARY,
    "rel_extent": 32,
    "adapter_in_dim": WIDTH,
    "adapter_out_dim": WIDTH,
    "adapter_input_size": WIDTH,
    "vocab_size_per_layer_input": VOCABULARY,
    "qk_head_dim": 2 * HEAD,
    "first_k_dense_replace": 1,
    "num_kv_shared_layers": 0,
    "num_nextn_predict_layers": 0,
    "mamba_chunk_size": 8,
    "patch_size": 8,
    "depth": 2,
    "mm_tokens_per_image": 4,
    "block_size": 8,
}
"""What each of these settings becomes, where the family has it."""
_WINDOWS = re.compile(
    r"(sliding_window(_size)?|attention_window_size|attention_chunk_size|local_attention|window_size)$"
)


def shrunk(config: Any, own: Mapping[str, Any] | None = None) -> Any:
    """A small configuration of the same family, its parts included.

    own: settings of the family that take the place of those made here, as paths with dots.
    """
    made = _shrunk(config.to_dict())
    for path, value in (own or {}).items():
        *parents, name = path.split(".")
        place = made
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is ...:
            place.pop(name, None)
        else:
            place[name] = value
    return type(config).from_dict(made)


def _shrunk(settings: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """The settings of a part, smaller, and of the parts within it."""
    if "model_type" not in settings and depth:
        return {name: _scaled(name, value) for name, value in settings.items()}
    writes = "vocab_size" in settings
    names = {
        name
        for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth")
        if isinstance(settings.get(name), int)
    }
    layers = next((settings[name] for name in sorted(names)), 0)
    chosen = _layers(settings, layers) if writes else [*range(min(2, layers))]
    made: dict[str, Any] = {}
    special = 4
    for name, value in settings.items():
        if isinstance(value, Mapping):
            if value and all(str(key).isdigit() for key in value):
                made[name] = (
                    {
                        str(chosen.index(int(key))): (
                            _layer(each) if isinstance(each, Mapping) else each
                        )
                        for key, each in value.items()
                        if int(key) in chosen
                    }
                    if name not in ("id2label", "label2id")
                    else value
                )
            else:
                made[name] = _shrunk(value, depth + 1)
        elif name in names:
            made[name] = len(chosen)
        elif (
            isinstance(value, (list, tuple))
            and len(value) == layers > 1
            and not _numbers(value, layers)
        ):
            made[name] = [_small(name, value[layer], settings) for layer in chosen]
        elif isinstance(value, (list, tuple)) and value and _numbers(value, layers):
            made[name] = [chosen.index(layer) for layer in value if layer in chosen]
        elif re.search(r"_token_(id|index)$|^(im|image|video|audio)_.*_id$", name) and isinstance(
            value, (int, list)
        ):
            known = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
            made[name] = known.get(name, special)
            if name not in known:
                special += 1
        else:
            made[name] = _small(name, value, settings)
    for name in ("num_key_value_heads", "swa_num_key_value_heads", "num_kv_heads", "n_head_kv"):
        if isinstance(made.get(name), int):
            heads = settings.get("num_attention_heads")
            made[name] = HEADS if settings[name] == heads else 1 if settings[name] == 1 else 2
    made.pop("quantization_config", None)
    made.pop("dtype", None)
    made.pop("torch_dtype", None)
    if writes:
        made["tie_word_embeddings"] = False
        if "initializer_range" in made:
            made["initializer_range"] = 0.2
    return made


def _layer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one layer, smaller."""
    made = _shrunk({**settings, "model_type": ""})
    del made["model_type"]
    return made


def _numbers(value: Sequence[Any], layers: int) -> bool:
    """Whether a list holds the numbers of layers, and not a value for each."""
    return (
        all(type(each) is int and 0 <= each < layers for each in value)
        and all(first < second for first, second in itertools.pairwise(value))
        and len(value) < layers
    )


def _layers(settings: Mapping[str, Any], layers: int) -> list[int]:
    """One layer of each kind, in their order; as many as the family repeats where it says so."""
    lists = [
        value
        for name, value in settings.items()
        if isinstance(value, (list, tuple)) and len(value) == layers and not _numbers(value, layers)
    ]
    kinds: dict[Any, int] = {}
    for layer in range(layers):
        kinds.setdefault(tuple(repr(value[layer]) for value in lists), layer)
    most = [*kinds.values()][:6]
    return sorted(most) if len(most) > 1 else [*range(min(2, layers))]


def _small(name: str, value: Any, settings: Mapping[str, Any]) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        if name.endswith("image_size") or name == "image_size":
            return [32] * len(value)
        if name == "patch_size":
            return [8] * len(value)
        return list(value)
    if not isinstance(value, int):
        return value
    if name in ("vocab_size", "decoder_vocab_size", "text_vocab_size"):
        return VOCABULARY
    if name in _SMALL:
        return _SMALL[name] if name not in ("n_group", "topk_group") else min(value, 1)
    if _WINDOWS.search(name) and value > 8:
        return 8
    if re.search(
        r"intermediate_size|ffn_dim|n_inner|ffn_hidden_size|d_ff$|mlp_dim|^dff$|dim_ff$", name
    ):
        return min(value, 96)
    if re.search(
        r"experts?_per_tok|experts_per_token|moe_topk|moe_k$|top_k_experts|moe_top_k", name
    ):
        return min(value, 2)
    if "expert" in name and value > 4:
        return 4
    if name == "max_window_layers":
        return min(value, 1)
    if re.search(r"(encoder|decoder)_layers$", name):
        return min(value, 2)
    return value


def _scaled(name: str, value: Any) -> Any:
    """A setting of a scaling of positions, or of any part that is no model."""
    if isinstance(value, Mapping):
        return {key: _scaled(key, each) for key, each in value.items()}
    if name in ("original_max_position_embeddings", "chunk_size", "local_size"):
        return 32
    if name == "mrope_section":
        return [4, 2, 2]
    if name in ("short_factor", "long_factor") and value:
        return [float(value[0]) + at / 4 for at in range(HEAD // 2)]
    return value


def _kinds(*new: str, old: tuple[str, ...]) -> list[str]:
    """Kinds of layers, by their names in the installed transformers."""
    from importlib.metadata import version

    return [*(new if tuple(map(int, version("transformers").split(".")[:2])) >= (5, 20) else old)]


_MROPE = {"text_config.rope_parameters.mrope_section": [4, 2, 2]}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_BY_TYPE = {"sliding_attention": _ROPE, "full_attention": _ROPE}
_DECODERS = (
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"),
    *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"),
    *("xlm-roberta", "xlm-roberta-xl"),
)
_QWEN4 = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": HEAD,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "ngram_vocab_size_base": 64,
    "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 1,
    "heads_per_ngram": 2,
}
_MINIMAX_M3 = {
    "layer_types": ["full_attention", "minimax_m3_sparse"],
    "mlp_layer_types": ["dense", "sparse"],
    "index_n_heads": 2,
    "index_block_size": 4,
    "index_topk_blocks": 2,
    "rotary_dim": 8,
}
OWN: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(
        (
            *("glm46v", "glm4v", "glm4v_moe", "glm_ocr", "glmga", "qwen2_vl", "qwen2_5_vl"),
            "paddleocr_vl",
        ),
        _MROPE,
    ),
    "hunyuan_v1_dense": {"head_dim": HEAD},
    "hunyuan_v1_moe": {"head_dim": HEAD},
    **{f"{family}+decoder": {"start": {"is_decoder": True}} for family in _DECODERS},
    "hunyuan_vl": {
        "text_config.head_dim": HEAD,
        "text_config.rope_parameters.mrope_section": [2, 2, 2, 2],
    },
    "ernie4_5_vl_moe": {
        "text_config.rope_parameters.mrope_section": [3, 3, 2],
        "text_config.moe_intermediate_size": [32, 16],
        "text_config.moe_k": 2,
    },
    "emu3": {
        "vocabulary_map": {"<image>": 4, "<|extra_200|>": 5},
        "vq_config.base_channels": 32,
        "vq_config.codebook_size": 16,
    },
    "chameleon": {"vocabulary_map": {"<image>": 4}, "vq_config.base_channels": 32},
    "janus": {
        "vision_config.projection_dim": WIDTH,
        "vq_config.base_channels": 32,
        "vq_config.num_embeddings": 16,
        "vq_config.embed_dim": 8,
        "vq_config.num_patches": 4,
    },
    "deepseek_ocr2": {
        "text_config.mlp_layer_types": ["dense", "sparse"],
        "text_config.num_experts_per_tok": 2,
        "vision_config.sam_config.global_attn_indexes": [1],
    },
    "deepseek_vl_hybrid": {"high_res_vision_config.global_attn_indexes": [1]},
    "diffusion_gemma": {
        "start": {"vision_config": {"model_type": "gemma4_vision"}},
        "text_config.num_experts": 4,
        "text_config.top_k_experts": 2,
        "text_config.moe_intermediate_size": 32,
        "canvas_length": 8,
    },
    "granite4_vision": {
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[-1, 0]],
        "spatial_target_layers": [0, 1],
    },
    **{
        family: {
            "vision_start_token_id": 8,
            "vision_end_token_id": 9,
            "text_config.rope_parameters.mrope_section": [4, 2, 2],
        }
        for family in ("qwen3_omni_moe_thinker", "qwen2_5_omni_thinker")
    },
    "glm4v_moe": {"text_config.rope_parameters.mrope_section": [2, 1, 1]},
    "ministral": {"head_dim": HEAD, "sliding_window": 8},
    "nemotron": {"num_key_value_heads": HEADS},
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "reformer": {
        "start": {"is_decoder": True},
        "axial_pos_shape": [16, 16],
        "axial_pos_embds_dim": [32, 32],
        "attention_head_size": HEAD,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "feed_forward_size": 96,
    },
    "xmod": {"start": {"default_language": "en_XX"}},
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_dt_rank": 8,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 16, "attn_layer_indices": [1]},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "mamba2": {"num_heads": 8, "n_groups": 2, "chunk_size": 8},
    "granitemoehybrid": {
        "mamba_n_heads": 8,
        "layer_types": _kinds("linear_attention", "full_attention", old=("mamba", "attention")),
    },
    "cohere_compass_text": {
        "rope_parameters": _BY_TYPE,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "cohere_compass": {
        "text_config.rope_parameters": _BY_TYPE,
        "text_config.layer_types": ["sliding_attention", "full_attention"],
    },
    "step3p7": {
        "text_config.rope_parameters": _BY_TYPE,
        "text_config.layer_types": ["sliding_attention", "full_attention"],
        "text_config.mlp_layer_types": ["dense", "sparse"],
        "text_config.sliding_window": 8,
        "text_config.per_layer_config": ...,
    },
    "zamba2": {
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "hybrid_layer_ids": [1],
        "chunk_size": 8,
    },
    "zamba": {"attention_hidden_size": 128, "attention_head_dim": 32, "mamba_dt_rank": 8},
    "xlstm": {
        "hidden_size": 2 * WIDTH,
        "embedding_dim": 2 * WIDTH,
        "num_blocks": 2,
        "chunk_size": 16,
        "max_inference_chunksize": 16,
        "autocast_kernel_dtype": "float32",
    },
    "mistral4": {"head_dim": 32, "rope_parameters.max_position_embeddings": 256},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "blt": {
        "encoder_hash_byte_group_vocab": 200,
        "hidden_size_global": WIDTH,
        "local_attention_window_len": 8,
        "patching_threshold": 4.0,
    },
    "apertus1p5": {
        "image_token_offset": 64,
        "vision_config.codebook_size": 16,
        "audio_token_offset": 80,
        "audio_config.codebook_size": 16,
        "audio_config.codebook_dim": WIDTH,
        "vision_config.base_channels": 32,
    },
    "aria": {"projector_patch_to_query_dict": {"16": 4}},
    "molmo2": {
        "adapter_config.vision_feature_layer": [-1, -2],
        "text_config.additional_vocab_size": 16,
        "text_config.rope_scaling_layers": [0],
    },
    "dory": {
        "num_hidden_layers": 8,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"] * 2,
        "n_input_layers": 2,
        "n_recurrent_layers": 4,
        "n_output_layers": 2,
    },
    "glm5_next": {
        "text_config.index_kpool": 2,
        "text_config.num_key_value_heads": HEADS,
        "text_config.qk_rope_head_dim": 0,
        "text_config.qk_head_dim": HEAD,
        "text_config.head_dim": 0,
    },
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "minimax_m3_vl_text": _MINIMAX_M3,
    "minimax_m3_vl": {f"text_config.{name}": value for name, value in _MINIMAX_M3.items()},
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "o_groups": 2,
        "partial_rotary_factor": 0.5,
        "rope_parameters.main.partial_rotary_factor": 0.5,
        "rope_parameters.compress.partial_rotary_factor": 0.5,
        "qk_rope_head_dim": 8,
    },
    "qwen4_exp_text": _QWEN4,
    "qwen4_exp": {f"text_config.{name}": value for name, value in _QWEN4.items()},
    "muse_spark": {"out_hidden_size": 4 * WIDTH},
    "minicpm_ocr": {"image_token_id": 4, "video_token_id": 5},
    "dots3_note_text": {"head_dim": 2 * HEAD},
    "dots3_note": {"text_config.head_dim": 2 * HEAD},
}
"""Settings of families that do not follow from the names of settings."""


def config_of(family: str) -> Any:
    import transformers

    made = transformers.CONFIG_MAPPING[family.partition("+")[0]]
    own = dict(OWN.get(family, {}))
    start = own.pop("start", {})
    return shrunk(made(**start), own)


def model_of(family: str) -> Any:
    """The family's small model, with random weights in float32."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    from pipegen.backends.hf.attention import fitting_attention

    config, hf = config_of(family), cast("Any", transformers)  # its own annotations are partial
    images = family in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    auto = hf.AutoModelForImageTextToText if images else hf.AutoModelForCausalLM
    attention = fitting_attention(config, None)
    arguments = {} if attention is None else {"attn_implementation": attention}
    with torch.device("meta"):
        size = sum(
            weights.numel() for weights in auto.from_config(config, **arguments).parameters()
        )
    if size > _WEIGHTS:
        raise ValueError(f"the small model has {size:,} weights")
    torch.manual_seed(0)
    model = auto.from_config(config, dtype=torch.float32, **arguments)
    randomize(model)
    return model.eval()


def randomize(model: Any) -> None:
    """Draw the weights, so that each part of the model counts."""
    import torch

    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if not weights.is_floating_point():
                continue
            if weights.dim() > 1 and "A_log" not in name:
                weights.normal_(
                    0, weights.shape[-1] ** -0.5 if weights.dim() < 4 else 0.1, generator=random
                )
            elif "norm" in name and name.endswith("weight"):
                weights.uniform_(0.8, 1.2, generator=random)
            elif "A_log" not in name and "dt_bias" not in name:
                weights.add_(torch.empty_like(weights).normal_(0, 0.1, generator=random))
        output = model.get_output_embeddings()
        if output is not None and output.weight.shape[0] >= VOCABULARY:
            output.weight[:SPECIAL] = 0
            if getattr(output, "bias", None) is not None:
                output.bias[:SPECIAL] = -1


def tokenizer_of(special: Mapping[int, str] | None = None, **settings: Any) -> Any:
    """One word for each id, and for special tokens (by id) the words that are given."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [
        (special or {}).get(index, f"<{index}>") if index < SPECIAL else f"w{index}"
        for index in range(VOCABULARY)
    ]
    rust = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[3])
    )
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.add_special_tokens(words[:SPECIAL])
    fast: Any = transformers.PreTrainedTokenizerFast
    names = ("pad_token", "bos_token", "eos_token", "unk_token")
    return fast(tokenizer_object=rust, **dict(zip(names, words, strict=False)), **settings)


def family_names() -> list[str]:
    """Every family of the installed transformers that writes text; with `+decoder` those of BERT's
    kind, made as decoders.
    """
    from transformers.models.auto import modeling_auto

    names = {
        *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    return sorted({*names, *(family for family in OWN if "+" in family)})


def is_known(family: str) -> bool:
    """Whether the installed transformers has the family."""
    return family in family_names()
