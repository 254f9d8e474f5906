"""Loading: what is asked for is what is loaded, and what cannot be loaded says why."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import encoded, write_model

import pipegen as pg
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.backends.hf.load import load_model, pick_device
from pipegen.core.distribution import MissingExtra, install_hint
from pipegen.core.names import InvalidField
from pipegen.engines.settings import ModelLoadConfig


def load(folder: Any, **settings: Any) -> Any:
    return load_model(Checkpoint(ModelLoadConfig(model=str(folder), **settings)))


@pytest.fixture
def folder(folder_of: Callable[[str], Path]) -> Path:
    return folder_of("qwen3")


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("auto", torch.float32),
        ("bf16", torch.bfloat16),
        ("float16", torch.float16),
        ("float32", torch.float32),
    ],
)
def test_the_dtype_is_the_one_asked_for(asked: str, got: torch.dtype, folder: Path) -> None:  # C7
    assert load(folder, dtype=asked).dtype == got


def test_auto_keeps_the_dtype_of_the_file_and_makes_the_embedded_model_float32(
    folder: Path, tmp_path: Path
) -> None:
    load(folder, dtype="bf16").save_pretrained(tmp_path)
    for file in folder.glob("*token*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert load(tmp_path).dtype == torch.bfloat16
    assert load("embedded").dtype == torch.float32
    assert load("embedded", dtype="bfloat16").dtype == torch.bfloat16


def test_a_dtype_that_does_not_exist_is_refused() -> None:  # C7
    with pytest.raises(InvalidField, match="dtype"):
        ModelLoadConfig(model="embedded", dtype="nn")


def test_the_device_is_the_one_asked_for_or_the_best_there_is(folder: Path) -> None:
    assert pick_device("meta") == torch.device("meta")
    assert pick_device(None).type == (
        "cuda"
        if torch.cuda.is_available()
        else "mps"
        if torch.backends.mps.is_available()
        else "cpu"
    )
    assert load(folder, device="cpu").device.type == "cpu"
    assert load(folder, device_map="cpu").device.type == "cpu"


def test_attention_and_further_settings_reach_the_model(folder: Path) -> None:
    model = load(folder, attn_implementation="eager", engine_kwargs={"output_attentions": True})
    assert model.config._attn_implementation == "eager"
    assert model.config.output_attentions


def test_attention_kernels_agree(folder: Path, engine: Any) -> None:
    inputs = [encoded([70, 71, 72], max_new_tokens=8), encoded([70], max_new_tokens=8)]
    eager = HFEngine(
        ModelLoadConfig(model=str(folder), dtype="float32", attn_implementation="eager")
    )
    assert eager.generate(inputs) == engine.generate(inputs)


def test_the_checkpoints_own_settings_do_not_slip_in(tmp_path: Path, engine: Any) -> None:
    settings = {
        "do_sample": True,
        "temperature": 9.0,
        "repetition_penalty": 5.0,
        "suppress_tokens": list(range(200)),
        "max_length": 5,
        "cache_implementation": "static",
    }
    other = HFEngine(ModelLoadConfig(model=str(write_model(tmp_path, **settings))))
    inputs = [encoded([70, 71, 72], max_new_tokens=12)]
    assert other.generation_config["repetition_penalty"] == 5.0
    assert other.generate(inputs) == engine.generate(inputs)
    assert other.computing.loaded().generation_config.cache_implementation is None


def test_a_folder_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkpoint folder '/no/such/model'"):
        HFEngine(ModelLoadConfig(model="/no/such/model"))


@pytest.mark.parametrize(
    ("setting", "package", "words"),
    [
        ({"adapter": "x"}, "peft", f"LoRA adapter needs the package peft: {install_hint('peft')}"),
        ({"device_map": "auto"}, "accelerate", "device_map needs"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(
    setting: dict[str, Any], package: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as missing:
        pg.backends.hf(folder, **setting)
    assert words in str(missing.value)
    assert missing.value.name == package


def test_without_torch_the_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingExtra,
        match=re.escape(f"the Hugging Face engine needs the package torch: {install_hint('hf')}"),
    ):
        pg.backends.hf("embedded")


def edit(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / name
    settings = json.loads(file.read_text())
    change(settings)
    file.write_text(json.dumps(settings))


def test_a_checkpoint_with_nothing_to_pad_with_is_refused(tmp_path: Path) -> None:  # B5
    folder = write_model(tmp_path)
    edit(
        folder,
        "tokenizer_config.json",
        lambda settings: [settings.pop(name) for name in ("pad_token", "eos_token")],
    )
    edit(
        folder,
        "generation_config.json",
        lambda settings: [settings.pop(name) for name in ("pad_token_id", "eos_token_id")],
    )
    edit(
        folder,
        "config.json",
        lambda settings: settings.update(eos_token_id=None, pad_token_id=None),
    )
    with pytest.raises(ValueError, match="neither a pad token nor an end token"):
        load(folder)


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_model(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError,
        match=(
            r"1 of the model's weights are missing, such as model\.layers\.1\.mlp\.up_proj\.weight"
        ),
    ):
        load(folder)


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is an encoder-decoder \(t5\)"):
        load(tmp_path)


def test_a_vision_model_may_be_loaded_for_text_alone(
    folder_of: Callable[[str], Path], engine_of: Callable[[str], Any]
) -> None:
    engine = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3_vl")), variant="text"))
    assert "images" not in engine.capabilities.honours
    assert engine.capabilities.reason == "it was loaded with variant='text'"
    assert engine.image_placeholder is None
    whole = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3_vl"))))
    assert whole.image_placeholder == "<|image_pad|>"
    inputs = [encoded([70, 71], max_new_tokens=5)]
    assert engine.generate(inputs) == engine_of("qwen3_vl").generate(inputs)


def test_a_text_model_is_not_loaded_as_a_vision_model(folder: Path) -> None:
    with pytest.raises(InvalidField, match="is a text model"):
        _ = HFEngine(ModelLoadConfig(model=str(folder), variant="vlm")).capabilities


def test_a_lora_adapter_changes_what_is_said_as_its_merged_weights_do(
    folder: Path, tmp_path: Path, engine: Any
) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    lora = peft.get_peft_model(
        load(folder),
        peft.LoraConfig(
            r=2, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False
        ),
    )
    lora.save_pretrained(tmp_path / "adapter")
    merged = tmp_path / "merged"
    lora.merge_and_unload().save_pretrained(merged)
    for file in folder.glob("*token*"):
        (merged / file.name).write_bytes(file.read_bytes())
    inputs = [encoded([70, 71, 72], max_new_tokens=10), encoded([75], max_new_tokens=10)]
    adapted = HFEngine(
        ModelLoadConfig(model=str(folder), adapter=str(tmp_path / "adapter"))
    ).generate(inputs)
    assert adapted == HFEngine(ModelLoadConfig(model=str(merged))).generate(inputs)
    assert adapted != engine.generate(inputs)


def test_models_that_are_first_needed_at_the_same_time_both_load_whole() -> None:
    routes = [pg.backends.hf("embedded", variant="text") for _ in range(3)]
    at_once = threading.Barrier(len(routes))

    def first_answer(route: pg.Route) -> str:
        at_once.wait(timeout=60)
        with route:
            return (
                pg.run(route, [{"prompt": "Hi"}], pg.GenerationOptions(max_new_tokens=2))[0]
                .unwrap()
                .raw_text
            )

    with ThreadPoolExecutor(len(routes)) as pool:
        assert len(set(pool.map(first_answer, routes))) == 1
