"""LoRA adapters: vLLM gives what the Hugging Face engine gives with peft."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.ask import PROMPTS, chat, greedy


def write_adapter(folder: Path, model: str, rank: int) -> Path:
    """An adapter of that rank for two projections of each layer, with random weights that are large enough to change what is said."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((Path(model) / "config.json").read_text())
    shapes = {"q_proj": config["num_attention_heads"] * config["head_dim"], "v_proj": config["num_key_value_heads"] * config["head_dim"]}
    draw = torch.Generator().manual_seed(rank)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for module, out in shapes.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(rank, config["hidden_size"], generator=draw) * 0.2
            weights[f"{name}.lora_B.weight"] = torch.randn(out, rank, generator=draw) * 0.2
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "target_modules": sorted(shapes), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**said, "base_model_name_or_path": model}))
    return folder


@pytest.mark.parametrize(("family", "rank"), [("qwen3", 8), ("llama", 12)])  # vLLM makes room for 8 and 16
def test_an_adapter_gives_the_same_on_both_engines(family: str, rank: int, vllm_of: Callable[..., Any], model_of: Callable[..., str], tmp_path: Path) -> None:
    adapter = str(write_adapter(tmp_path / "adapter", model_of(family), rank))
    requests = [chat(text, greedy(stop=pg.StopOptions(ignore_eos=True))) for text in PROMPTS]
    with pg.backends.hf(model_of(family), dtype="float32") as plain, pg.backends.hf(model_of(family), dtype="float32", adapter=adapter) as adapted:
        without, wanted = ([slot.unwrap().token_ids for slot in pg.run(route, requests)] for route in (plain, adapted))
    with vllm_of(family, adapter=adapter) as fast:
        found = [slot.unwrap().token_ids for slot in pg.run(fast, requests)]
    assert found == wanted
    assert all(ids != other for ids, other in zip(wanted, without, strict=True))
