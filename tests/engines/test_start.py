"""Starting the real vLLM: what it does not take is one typed failure, and the next engine starts;
no id that the model does not have reaches it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipegen as pg
from pipegen.testing.ask import PROMPTS, chat, greedy

TWO: list[Any] = [{"prompt": "Hi"}, {"prompt": "Hello there"}]


def failure_of(route: pg.Route) -> pg.BackendFailed:
    errors = {slot.failure() for slot in pg.run(route, TWO, greedy(max_new_tokens=2))}
    assert len(errors) == 1
    (error,) = errors
    assert isinstance(error, pg.BackendFailed)
    return error


def test_what_does_not_start_is_one_failure_and_another_engine_starts(
    vllm_of: Callable[..., Any], model_of: Callable[..., str], tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import save_file

    shutil.copytree(model_of("qwen3"), tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pg.backends.vllm(tmp_path / "model", dtype="float32", enforce_eager=True) as route:
        assert str(tmp_path / "model") in failure_of(route).message
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 8,
        "lora_alpha": 8,
        "target_modules": ["nothing"],
        "bias": "none",
    }
    (adapter / "adapter_config.json").write_text(json.dumps(said))
    save_file(
        {"base_model.model.model.layers.0.nothing.lora_A.weight": torch.zeros(8, 48)},
        adapter / "adapter_model.safetensors",
    )
    with vllm_of("qwen3", adapter=str(adapter)) as route:
        assert str(adapter) in failure_of(route).message
    with vllm_of("qwen3", max_model_len=10**7) as route:
        assert "vllm cannot start vLLM on" in failure_of(route).message
    with vllm_of("qwen3") as route:
        assert all(map(pg.is_ok, pg.run(route, [chat(text, greedy()) for text in PROMPTS])))


def test_ids_that_the_model_does_not_have_end_nothing(
    vllm_of: Callable[..., Any], model_of: Callable[..., str], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    shutil.copytree(model_of("qwen3"), tmp_path / "model")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    tokenizer.save_pretrained(tmp_path / "model")
    bad = tokenizer.convert_tokens_to_ids("<turn>")
    requests: list[Any] = [
        {"prompt": "Hi"},
        {"prompt_token_ids": [bad]},
        {"prompt": "Hi", "options": {"stop_token_ids": [bad], "min_new_tokens": 2}},
        {"prompt": "Hi", "options": {"stop": ["<turn>"], "min_new_tokens": 2}},
    ]
    settings: dict[str, Any] = {
        "dtype": "float32",
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_seqs": 16,
        "enforce_eager": True,
    }
    with pg.backends.vllm(tmp_path / "model", **settings) as route:
        slots = pg.run(route, requests, greedy(max_new_tokens=3))
    assert [pg.is_ok(slot) for slot in slots] == [True, False, False, True]
    assert all(isinstance(slot.failure(), pg.InvalidRequest) for slot in slots[1:3])
