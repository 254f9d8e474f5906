"""A LoRA adapter is loaded as a whole or refused by name, by both engines that load one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipegen.backends.checkpoint.adapters import BadAdapter, check_adapter
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.engines.settings import ModelLoadConfig

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from support.models import encoded, write_model  # noqa: E402

from pipegen.backends.hf.hf_engine import HFEngine  # noqa: E402  - needs the packages

SIZES = {"q_proj": 64, "v_proj": 32}
PREFIX = "base_model.model.model"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers."""
    return write_model(tmp_path_factory.mktemp("model"))


def weights(
    layers: Sequence[int] = (0, 1),
    modules: Sequence[str] = ("q_proj", "v_proj"),
    prefix: str = PREFIX,
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for layer in layers:
        for module in modules:
            name = f"{prefix}.layers.{layer}.self_attn.{module}"
            made |= {
                f"{name}.lora_A.weight": torch.ones(4, 48),
                f"{name}.lora_B.weight": torch.ones(SIZES[module], 4),
            }
    return made


def write(folder: Path, tensors: dict[str, Any], *, as_bin: bool = False, **config: Any) -> str:
    from safetensors.torch import save_file

    if as_bin:
        torch.save(tensors, folder / "adapter_model.bin")
    else:
        save_file(tensors, folder / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": sorted(SIZES),
        "bias": "none",
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return str(folder)


def by_names(model: Path, adapter: str) -> None:
    check_adapter(Checkpoint(ModelLoadConfig(model=str(model))), adapter)


def by_loading(model: Path, adapter: str) -> None:
    load(ModelLoadConfig(model=str(model), adapter=adapter))


def behind_another(model: Path, adapter: str) -> None:
    """As the second of the adapters that requests choose from."""
    good = Path(adapter) / "good"
    good.mkdir(exist_ok=True)
    adapters = {"good": write(good, weights()), "bad": adapter}
    load(ModelLoadConfig(model=str(model), adapters=adapters))


def load(settings: ModelLoadConfig) -> None:
    pytest.importorskip("peft")
    with pytest.raises(CallFailed) as failed:
        HFEngine(settings).generate([encoded([70], max_new_tokens=1)])
    assert isinstance(failed.value.error, BackendFailed)
    assert failed.value.error.scope == "batch"
    raise failed.value.__cause__ or failed.value


EITHER = pytest.mark.parametrize("check", [by_names, by_loading, behind_another])
Check = Callable[[Path, str], None]


@EITHER
@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            weights(prefix="base_model.model.transformer"),
            (
                r"matches nothing of the model: .* no module for 8 of its weights, such as"
                r" .*layers\.0\.self_attn"
            ),
        ),
        (
            weights(layers=(0, 1, 2, 3)),
            (
                r"matches the model in part: the model has no module for 8 of its weights, such as"
                r" .*layers\.2\.self_attn"
            ),
        ),
        (
            weights(layers=(0,)),
            (
                r"in part: 4 weights of its modules are missing, such as"
                r" .*layers\.1\.self_attn\.q_proj\.lora_A"
            ),
        ),
        (
            weights(modules=("q_proj",)),
            (
                r"in part: 4 weights of its modules are missing, such as"
                r" .*layers\.0\.self_attn\.v_proj\.lora_A"
            ),
        ),
        (
            {name: one for name, one in weights().items() if "lora_A" in name},
            r"in part: 4 weights .* such as .*layers\.0\.self_attn\.q_proj\.lora_B",
        ),
    ],
    ids=["nothing", "more layers", "one layer", "one module", "half of each pair"],
)
def test_an_adapter_that_does_not_match_as_a_whole_is_refused_by_name(
    check: Check, tensors: Any, words: str, model: Path, tmp_path: Path
) -> None:
    adapter = write(tmp_path, tensors)
    with pytest.raises(BadAdapter, match=words) as refused:
        check(model, adapter)
    assert repr(adapter) in str(refused.value)


@EITHER
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("adapter_config.json", "["),
        ("adapter_model.safetensors", "version https://git-lfs"),
        ("", ""),
    ],
)
def test_what_is_no_adapter_is_refused_by_name(
    check: Check, name: str, content: str, model: Path, tmp_path: Path
) -> None:
    write(tmp_path, weights())
    if name:
        (tmp_path / name).write_text(content)
    else:
        (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(BadAdapter, match=str(tmp_path)):
        check(model, str(tmp_path))


@EITHER
def test_an_adapter_whose_file_ends_too_early_is_refused_by_name(
    check: Check, model: Path, tmp_path: Path
) -> None:
    file = Path(write(tmp_path, weights())) / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadAdapter, match=r"adapter_model\.safetensors is not whole"):
        check(model, str(tmp_path))


def test_names_are_compared_by_pefts_rules(model: Path, tmp_path: Path) -> None:
    one_layer, no_values = weights(layers=(1,)), weights(modules=("q_proj",))
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (weights(), {}),
        (weights(), {"as_bin": True}),
        (weights(), {"target_modules": "all-linear"}),
        (weights(), {"target_modules": ["q_proj", "v_proj", "no_such_module"]}),
        (one_layer, {"layers_to_transform": [1]}),
        (one_layer, {"target_modules": r".*layers\.1\.self_attn\.[qv]_proj"}),
        (no_values, {"exclude_modules": ["v_proj"]}),
        (
            {**weights(), "base_model.model.lm_head.weight": torch.ones(2)},
            {"modules_to_save": ["lm_head"]},
        ),
    ]
    for tensors, config in cases:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        by_names(model, write(folder, tensors, **config))


def test_the_names_in_the_checkpoint_count_as_well(model: Path, tmp_path: Path) -> None:
    """Those of models whose modules transformers names otherwise than their files do."""
    from safetensors.torch import load_file, save_file

    other = write_model(tmp_path / "other")
    stored = load_file(other / "model.safetensors")
    save_file(
        {**stored, "old.name.weight": torch.ones(2)},
        other / "model.safetensors",
        metadata={"format": "pt"},
    )
    folder = tmp_path / "adapter"
    folder.mkdir()
    old = {f"base_model.model.old.name.lora_{half}.weight": torch.ones(2, 2) for half in "AB"}
    by_names(other, write(folder, {**weights(), **old}))


def logits_of(model: Path, adapter: str) -> Any:
    """What transformers gives with the adapter as peft itself reads it."""
    import transformers

    peft = pytest.importorskip("peft")
    hf: Any = transformers
    adapted = peft.PeftModel.from_pretrained(
        hf.AutoModelForCausalLM.from_pretrained(model), adapter
    )
    with torch.inference_mode():
        return adapted.eval()(torch.tensor([[3, 4, 5]])).logits


@pytest.mark.parametrize("as_bin", [False, True])
@pytest.mark.parametrize("dora", [False, True])
def test_a_file_of_pytorch_and_dora_are_read_as_peft_reads_them(
    as_bin: bool, dora: bool, model: Path, tmp_path: Path
) -> None:
    numbers = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(tensor.shape, generator=numbers) for name, tensor in weights().items()
    }
    if dora:
        tensors |= {
            f"{PREFIX}.layers.{layer}.self_attn.{module}.lora_magnitude_vector": torch.rand(
                SIZES[module], generator=numbers
            )
            for layer in (0, 1)
            for module in SIZES
        }
    adapter = write(tmp_path, tensors, as_bin=as_bin, use_dora=dora)
    by_names(model, adapter)
    pytest.importorskip("peft")
    loaded = HFEngine(ModelLoadConfig(model=str(model), adapter=adapter)).computing.weights.model()
    with torch.inference_mode():
        logits = loaded(torch.tensor([[3, 4, 5]])).logits
    torch.testing.assert_close(logits, logits_of(model, adapter), rtol=0, atol=0)


@EITHER
def test_a_file_of_pytorch_with_more_than_tensors_is_refused_unread(
    check: Check, model: Path, tmp_path: Path
) -> None:
    adapter = write(tmp_path, {"a": Path("b")}, as_bin=True)
    with pytest.raises(BadAdapter, match=r"adapter_model\.bin is not read as a file of tensors"):
        check(model, adapter)
    write(tmp_path, {"a": 3}, as_bin=True)
    with pytest.raises(BadAdapter, match=r"adapter_model\.bin holds other things than names"):
        check(model, adapter)


NAMED = "base_model.model.model.layers.0.self_attn.q_proj"


@EITHER
@pytest.mark.parametrize(
    ("changed", "config", "words"),
    [
        (
            {f"{NAMED}.lora_A.weight": torch.ones(4, 40)},
            {"base_model_name_or_path": "other/base"},
            (
                r"lora_A of model\.layers\.0\.self_attn\.q_proj has the shape \[4, 40\], and"
                r" \[4, 48\] is expected; it was made for 'other/base'"
            ),
        ),
        ({f"{NAMED}.lora_B.weight": torch.ones(60, 4)}, {}, r"\[60, 4\], and \[64, 4\]"),
        ({}, {"rank_pattern": {"layers.0.self_attn.q_proj": 2}}, r"\[4, 48\], and \[2, 48\]"),
        ({}, {"r": 8}, r"\[4, 48\], and \[8, 48\] is expected"),
        (
            {f"{NAMED}.lora_magnitude_vector": torch.ones(64)},
            {},
            r"weights of DoRA, such as .*lora_magnitude_vector, and .* has no use_dora",
        ),
    ],
    ids=["input", "output", "rank of a module", "rank", "dora"],
)
def test_a_weight_of_another_shape_is_refused_with_its_module_and_shapes(
    check: Check, changed: Any, config: Any, words: str, model: Path, tmp_path: Path
) -> None:
    adapter = write(tmp_path, {**weights(), **changed}, **config)
    with pytest.raises(BadAdapter, match=words):
        check(model, adapter)


def test_another_kind_of_adapter_is_refused_by_its_form(model: Path, tmp_path: Path) -> None:
    adapter = write(tmp_path, weights(), peft_type="LOHA")
    with pytest.raises(BadAdapter, match="has the form LOHA; LoRA is expected"):
        by_names(model, adapter)


def test_a_bias_of_a_pair_has_no_shape_to_compare(model: Path, tmp_path: Path) -> None:
    bias = {f"{NAMED}.lora_B.bias": torch.ones(64)}
    by_names(model, write(tmp_path, {**weights(), **bias}, lora_bias=True))
