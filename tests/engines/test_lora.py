"""LoRA adapters: vLLM gives what the Hugging Face engine gives with peft."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.ask import PROMPTS, chat, greedy


def write_adapter(folder: Path, model: str, rank: int, **ranks: int) -> Path:
    """An adapter of that rank for two projections of each layer, with random weights that are large
    enough to change what is said; `ranks` are of modules.
    """
    import torch
    from safetensors.torch import save_file

    config = json.loads((Path(model) / "config.json").read_text())
    shapes = {
        "q_proj": config["num_attention_heads"] * config["head_dim"],
        "v_proj": config["num_key_value_heads"] * config["head_dim"],
    }
    draw = torch.Generator().manual_seed(rank)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for module, out in shapes.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            own = ranks.get(module, rank)
            weights[f"{name}.lora_A.weight"] = (
                torch.randn(own, config["hidden_size"], generator=draw) * 0.2
            )
            weights[f"{name}.lora_B.weight"] = torch.randn(out, own, generator=draw) * 0.2
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted(shapes),
        "bias": "none",
    }
    said |= {"rank_pattern": ranks}
    (folder / "adapter_config.json").write_text(
        json.dumps({**said, "base_model_name_or_path": model})
    )
    return folder


# vLLM makes room for 8 and 32
@pytest.mark.parametrize(
    ("family", "rank", "ranks"), [("qwen3", 8, {}), ("llama", 12, {"q_proj": 20})]
)
def test_an_adapter_gives_the_same_on_both_engines(
    family: str,
    rank: int,
    ranks: dict[str, int],
    vllm_of: Callable[..., Any],
    model_of: Callable[..., str],
    tmp_path: Path,
) -> None:
    import vllm

    adapter = str(write_adapter(tmp_path / "adapter", model_of(family), rank, **ranks))
    requests = [chat(text, greedy(stop=pg.StopOptions(ignore_eos=True))) for text in PROMPTS]
    with (
        pg.backends.hf(model_of(family), dtype="float32") as plain,
        pg.backends.hf(model_of(family), dtype="float32", adapter=adapter) as adapted,
    ):
        without, wanted = (
            [slot.unwrap().token_ids for slot in pg.run(route, requests)]
            for route in (plain, adapted)
        )
    with vllm_of(family, adapter=adapter) as fast:
        # it reads one rank, and would scale all modules by it
        if ranks and vllm.__version__.startswith("0.27"):
            error = pg.run(fast, requests)[0].failure()
            assert isinstance(error, pg.BackendFailed)
            assert "does not read rank_pattern" in error.message
            return
        found = [slot.unwrap().token_ids for slot in pg.run(fast, requests)]
    assert found == wanted
    assert all(ids != other for ids, other in zip(wanted, without, strict=True))


def test_an_adapter_that_matches_in_part_is_refused_before_vllm_starts(
    vllm_of: Callable[..., Any], model_of: Callable[..., str], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    file = write_adapter(tmp_path / "adapter", model_of("qwen3"), 8) / "adapter_model.safetensors"
    save_file(
        {name: weight for name, weight in load_file(file).items() if ".layers.0." in name}, file
    )
    with vllm_of("qwen3", adapter=str(tmp_path / "adapter")) as fast:
        error = pg.run(fast, [chat(PROMPTS[0], greedy())])[0].failure()
        assert not fast.engine.loaded
    assert isinstance(error, pg.BackendFailed)
    assert "matches the model in part" in error.message


def test_each_request_has_its_own_adapter_on_both_engines(
    vllm_of: Callable[..., Any], model_of: Callable[..., str], tmp_path: Path
) -> None:
    model = model_of("qwen3")
    adapters = {
        name: str(write_adapter(tmp_path / name, model, rank))
        for name, rank in (("a", 8), ("b", 12), ("c", 4))
    }
    requests: Any = [
        {
            "messages": [{"role": "user", "content": text}],
            "options": {"max_new_tokens": 12, "ignore_eos": True, "adapter": name},
        }
        for text in PROMPTS
        for name in ("a", "", "b", "c")
    ]
    with pg.backends.hf(model, dtype="float32", adapters=adapters) as route:
        wanted = [slot.unwrap().token_ids for slot in pg.run(route, requests)]
    with vllm_of("qwen3", adapters=adapters) as fast:
        assert [slot.unwrap().token_ids for slot in pg.run(fast, requests)] == wanted
        # once more, behind what the prefix cache has of each adapter
        assert [slot.unwrap().token_ids for slot in pg.run(fast, requests)] == wanted
        continued: Any = [{"prompt": "Yes", "continuation": ", no", "options": {"adapter": "a"}}]
        unscored = pg.score(fast, continued)[0].failure()
        error = pg.run(fast, [chat("Hi", greedy(adapter="d"))])[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert "has no adapter 'd': its adapters are 'a', 'b', 'c'" in error.message
    assert "no log probabilities of given tokens" in unscored.message
    texts = [tuple(wanted[place::4]) for place in range(4)]
    assert len({*texts}) == 4
