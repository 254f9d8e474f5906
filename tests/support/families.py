"""Every family of the installed transformers beside pipegen: whether a row's greedy ids are those
of the model's plain forward of that row alone, without a cache.

    cd tests && python -m support.families results.json          # every family
    cd tests && python -m support.families results.json llama blt
    cd tests && python -m support.families --table results.json  # the table as markdown

The models are tiny and random. Windows and other lengths at which attention changes are 8 to 12
tokens, scalings of positions begin at 32, and rows go beyond them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FAMILIES", "OWN", "Outcome", "compared", "model_of", "table"]

VOCABULARY = 128
SPECIAL = 16
"""Ids below are special tokens, such as those of images; rows have none of them."""
NEW = 12
TIE = 1e-5
"""A margin of the reference below which either token is right."""
CLOSE = 2e-3
"""How far log probabilities may be from the reference's."""
WIDTH, HEADS, HEAD = 64, 4, 16

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
            *("decoder_attention_heads", "index_n_heads", "attention_heads", "linear_num_heads"),
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
    **dict.fromkeys(("linear_num_key_heads", "index_topk", "num_kv_heads"), 2),
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
_VISION_LAYERS = ("num_hidden_layers", "depth", "encoder_layers", "num_layers", "layers")
_WINDOWS = re.compile(r"(sliding_window(_size)?|attention_window_size|attention_chunk_size|local_attention|window_size)$")


def shrunk(config: Any, own: Mapping[str, Any] | None = None) -> Any:
    """A small configuration of the same family, its parts included.

    own: settings of the family that take the place of those made here, as paths with dots.
    """
    made = _shrunk(config.to_dict())
    text = _text_of(config)
    for name, value in (own or {}).items():
        *parents, last = name.split(".")
        place = made
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is Ellipsis:
            place.pop(last, None)
        else:
            place[last] = value
    del text
    return type(config).from_dict(made)


def _text_of(config: Any) -> Any:
    return config.get_text_config()


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
                made[name] = {
                    str(chosen.index(int(key))): each
                    for key, each in value.items()
                    if int(key) in chosen
                } if name not in ("id2label", "label2id") else value
            else:
                made[name] = _shrunk(value, depth + 1)
        elif name in names:
            made[name] = len(chosen)
        elif isinstance(value, (list, tuple)) and len(value) == layers > 1 and not _numbers(value, layers):
            made[name] = [_small(name, value[layer], settings) for layer in chosen]
        elif isinstance(value, (list, tuple)) and value and _numbers(value, layers):
            made[name] = [chosen.index(layer) for layer in value if layer in chosen]
        elif re.search(r"_token_(id|index)$|^(im|image|video|audio)_.*_id$", name) and isinstance(value, (int, list)):
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


def _numbers(value: Sequence[Any], layers: int) -> bool:
    """Whether a list holds the numbers of layers, and not a value for each."""
    return all(type(each) is int and 0 <= each < layers for each in value) and all(
        first < second for first, second in zip(value, value[1:], strict=False)
    ) and len(value) < layers


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
    if re.search(r"intermediate_size|ffn_dim|n_inner|ffn_hidden_size|d_ff$|mlp_dim|^dff$|dim_ff$", name):
        return min(value, 96)
    if re.search(r"experts?_per_tok|experts_per_token|moe_topk|moe_k$|top_k_experts|moe_top_k", name):
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


OWN: Mapping[str, Mapping[str, Any]] = {}
"""Settings of families that do not follow from the names of settings."""
FAMILIES: Mapping[str, Any] = {}


def config_of(family: str) -> Any:
    import transformers

    made = transformers.CONFIG_MAPPING[family]
    own = dict(OWN.get(family, {}))
    start = own.pop("start", {})
    return shrunk(made(**start), own)


def model_of(family: str) -> Any:
    """The family's small model, with random weights in float32."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    config = config_of(family)
    if family in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        auto = transformers.AutoModelForImageTextToText
    else:
        auto = transformers.AutoModelForCausalLM
    from pipegen.backends.hf.attention import fitting_attention

    attention = fitting_attention(config, None)
    torch.manual_seed(0)
    arguments = {} if attention is None else {"attn_implementation": attention}
    with torch.device("meta"):
        size = sum(
            weights.numel() for weights in auto.from_config(config, **arguments).parameters()
        )
    if size > 30_000_000:
        raise ValueError(f"the small model has {size:,} weights")
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
                weights.normal_(0, weights.shape[-1] ** -0.5 if weights.dim() < 4 else 0.1, generator=random)
            elif "norm" in name and name.endswith("weight"):
                weights.uniform_(0.8, 1.2, generator=random)
            elif "A_log" not in name and "dt_bias" not in name:
                weights.add_(torch.empty_like(weights).normal_(0, 0.1, generator=random))
        output = model.get_output_embeddings()
        if output is not None and output.weight.shape[0] >= VOCABULARY:
            output.weight[:SPECIAL] = 0
            if getattr(output, "bias", None) is not None:
                output.bias[:SPECIAL] = -1


def tokenizer_of() -> Any:
    """One word for each id."""
    import transformers
    from tokenizers import Tokenizer, models

    words = {f"t{index}": index for index in range(VOCABULARY)}
    tokens = Tokenizer(models.WordLevel(words, unk_token="t3"))
    tokens.add_special_tokens([f"t{index}" for index in range(SPECIAL)])
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(
        tokenizer_object=tokens, unk_token="t3", eos_token="t2", pad_token="t0", bos_token="t1"
    )


def rows_of() -> list[list[int]]:
    """Six rows of different lengths; the last four begin alike, which pays to be read once."""
    import random

    drawn = random.Random(0)

    def some(count: int) -> list[int]:
        return [drawn.randrange(SPECIAL, VOCABULARY) for _ in range(count)]

    shared = some(48)
    return [some(5), some(14), *(shared + some(count) for count in (3, 9, 17, 26))]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a family."""

    result: str
    """`equal`, `equal one by one`, `wrong`, `refused` or `error`."""
    why: str = ""
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Reference:
    """The plain forward of whole rows."""

    def __init__(self, model: Any, rows: Sequence[Sequence[int]], new: int = NEW) -> None:
        import torch

        self.ids: list[list[int]] = []
        self.margins: list[list[float]] = []
        self.logprobs: list[list[float]] = []
        with torch.no_grad():
            for row in rows:
                ids, margins, logprobs = list(row), list[float](), list[float]()
                for _ in range(new):
                    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
                    best = logits.float().topk(2)
                    margins.append(float(best.values[0] - best.values[1]))
                    ids.append(int(best.indices[0]))
                    logprobs.append(float(logits.float().log_softmax(-1)[ids[-1]]))
                self.ids.append(ids[len(row) :])
                self.margins.append(margins)
                self.logprobs.append(logprobs)

    def differing(self, ours: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """The rows that differ, each with the step; a tie of the reference is none."""
        found = []
        for row, (theirs, mine) in enumerate(zip(self.ids, ours, strict=True)):
            step = next((at for at, pair in enumerate(zip(theirs, mine, strict=True)) if pair[0] != pair[1]), None)
            if step is not None and self.margins[row][step] >= TIE:
                found.append((row, step))
        return found


def compared(model: Any, rows: Sequence[Sequence[int]] | None = None, new: int = NEW, *, why: bool = False) -> Outcome:
    """The outcome for a model. `why`: where rows are wrong, try which ways give right ones."""
    import torch

    import pipegen as pg
    from pipegen.backends.hf.attention import use_grouped

    rows = rows or rows_of()
    tokenizer = tokenizer_of()
    reference = Reference(model, rows, new)
    more: dict[str, Any] = {
        "distinct": len({token for ids in reference.ids for token in ids}),
        "margin": min(min(margins) for margins in reference.margins),
    }
    if not all(value == value for margins in reference.margins for value in margins):
        return Outcome("error", "the plain forward gives no numbers", more)
    use_grouped(model)

    def answers(rows: Sequence[Sequence[int]], route: Any, **options: Any) -> Any:
        requests = [{"prompt_token_ids": list(row)} for row in rows]
        slots = pg.run(route, requests, {"max_new_tokens": new, "ignore_eos": True, **options})
        results = []
        for slot in slots:
            if not pg.is_ok(slot):
                error = slot.failure()
                raise _Refused(f"{type(error).__name__}: {error}")
            results.append(slot.unwrap())
        return results

    def tried(rows: Sequence[Sequence[int]], *, alone: bool = False, **settings: Any) -> Any:
        route = pg.backends.hf(model, tokenizer=tokenizer, **{"batch_size": 4, **settings})
        try:
            if alone:
                return [result.token_ids for row in rows for result in answers([row], route)]
            return [result.token_ids for result in answers(rows, route)]
        finally:
            more["shares_nothing"] = getattr(route.engine.work, "shares_nothing", "")

    def attempt(make: Any) -> tuple[list[tuple[int, int]] | None, str]:
        try:
            return make(), ""
        except (_Refused, pg.InvalidField) as refused:
            return None, f"{refused}"[:400]
        except pg.CallFailed as refused:
            return None, f"{type(refused).__name__}: {refused}"[:400]

    together, refused = attempt(lambda: reference.differing(tried(rows)))
    alone, alone_refused = attempt(
        lambda: reference.differing(tried(rows, alone=True, prefix_memory_bytes=0))
    )
    more["together"] = together if refused == "" else refused
    more["alone"] = alone if alone_refused == "" else alone_refused
    if refused and alone_refused:
        return Outcome("refused", refused, more)
    if together == [] and alone == []:
        # kept rows are continued, and small differences show
        def scored() -> Any:
            route = pg.backends.hf(model, tokenizer=tokenizer, batch_size=4)
            _ = answers(rows, route)
            results = answers(rows, route, logprobs=True)
            return max(
                abs(ours.logprob - theirs)
                for result, right in zip(results, reference.logprobs, strict=True)
                for ours, theirs in zip(result.logprobs, right, strict=True)
            )

        apart, failed = attempt(scored)
        more["apart"] = apart if not failed else failed
        if not failed and apart > CLOSE and why:
            ungroup(model)
            more["ungrouped apart"] = attempt(scored)
        if failed:
            return Outcome("wrong", f"again, with logprobs: {failed}", more)
        if apart > CLOSE:
            return Outcome("wrong", f"log probabilities differ by {apart:.4f}", more)
        return Outcome("equal", "", more)
    if why:
        short = min(map(len, rows[2:]))
        equal = [list(row[:short]) for row in rows[2:]]
        if ungroup(model):
            more["ungrouped together"] = attempt(lambda: reference.differing(tried(rows)))
            more["ungrouped alone"] = attempt(
                lambda: reference.differing(tried(rows, alone=True, prefix_memory_bytes=0))
            )
        short_reference = Reference(model, equal, new)
        more["ungrouped without prefixes"] = attempt(
            lambda: reference.differing(tried(rows, prefix_memory_bytes=0))
        )
        more["ungrouped one length"] = attempt(
            lambda: short_reference.differing(tried(equal, prefix_memory_bytes=0))
        )
        more["ungrouped generate"] = attempt(lambda: reference.differing(_generated(model, rows, new)))
    if alone == []:
        return Outcome("equal one by one", refused or f"rows {together}", more)
    if alone_refused:
        return Outcome("wrong", f"alone {alone_refused}", more)
    return Outcome("wrong", f"alone {alone}, together {together if not refused else refused}", more)


def ungroup(model: Any) -> bool:
    """Take `use_grouped` back; whether it had done something."""
    from pipegen.backends.hf.attention import NAME

    text = model.config.get_text_config()
    if text._attn_implementation != NAME:
        return False
    part = next(
        (name for name in model.config.sub_configs if getattr(model.config, name) is text), None
    )
    model.set_attn_implementation("sdpa" if part is None else {part: "sdpa"})
    return True


def _generated(model: Any, rows: Sequence[Sequence[int]], new: int) -> list[list[int]]:
    """What transformers' own `generate` gives for each row alone."""
    import torch

    out = []
    for row in rows:
        ids = torch.tensor([row])
        whole = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new,
            min_new_tokens=new,
            pad_token_id=0,
            eos_token_id=None,
        )
        out.append(whole[0, len(row) :].tolist())
    return out


class _Refused(Exception):
    """A row's failure."""


def family_names() -> list[str]:
    """Every family of the installed transformers that writes text."""
    from transformers.models.auto import modeling_auto

    return sorted(
        {
            *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            *modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        }
    )


def outcome_of(family: str, *, why: bool = True) -> Outcome:
    try:
        model = model_of(family)
    except Exception as failed:
        return Outcome("error", f"making it: {_summary(failed)}")
    try:
        return compared(model, why=why)
    except Exception as failed:
        return Outcome("error", f"running it: {_summary(failed)}")


def _summary(failed: Exception) -> str:
    frames = traceback.extract_tb(failed.__traceback__)
    frame = frames[-1]
    return f"{type(failed).__name__}: {failed} ({Path(frame.filename).name}:{frame.lineno})"[:500]


def in_child(family: str, seconds: int = 120) -> dict[str, Any]:
    """The outcome of a family, computed in a process of its own."""
    read, write = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(seconds)
        sys.stdout = sys.stderr = open(os.devnull, "w")
        outcome = outcome_of(family)
        with os.fdopen(write, "w") as pipe:
            json.dump(dataclasses.asdict(outcome), pipe, default=str)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    made = (
        json.loads(text)
        if text
        else {"result": "error", "why": f"ended with status {status}", "more": {}}
    )
    return {**made, "seconds": round(time.monotonic() - started, 1)}


def main(arguments: Sequence[str]) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    import pipegen.backends.hf.engine

    assert pipegen
    path = Path(arguments[0])
    known = json.loads(path.read_text()) if path.exists() else {}
    names = arguments[1:] or family_names()
    for family in names:
        known[family] = in_child(family)
        path.write_text(json.dumps(known, indent=1))
        print(f"{family:24} {known[family]['seconds']:5} {known[family]['result']:10} {known[family]['why'][:300]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
