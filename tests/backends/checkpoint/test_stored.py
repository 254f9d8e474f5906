"""What is read of stored weights, and the dtype that follows from it for every engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.load_errors import header
from pipegen.engines.settings import ModelLoadConfig

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from support.models import write_model  # noqa: E402  - needs the packages


def dtype(folder: Path, asked: str = "auto") -> str:
    return Checkpoint(ModelLoadConfig(model=str(folder), dtype=asked)).dtype


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    said = json.loads((folder / "config.json").read_text())
    change(said)
    (folder / "config.json").write_text(json.dumps(said))


def stored_as(folder: Path, kind: Any, *, shards: bool = False) -> Path:
    """A checkpoint whose configuration names no dtype, with weights of that one."""
    from safetensors.torch import load_file, save_file

    write_model(folder)
    edit(folder, lambda said: [said.pop(name, None) for name in ("dtype", "torch_dtype")])
    weights = {
        name: tensor.to(kind) for name, tensor in load_file(folder / "model.safetensors").items()
    }
    if shards:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": dict.fromkeys(weights, "one.safetensors")})
        )
    save_file(
        weights,
        folder / ("one.safetensors" if shards else "model.safetensors"),
        metadata={"format": "pt"},
    )
    return folder


@pytest.mark.parametrize(
    ("said", "got"),
    [
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("float16", "float16"),
        ("float64", "float32"),
        ("float8_e4m3fn", "bfloat16"),
    ],
)
def test_auto_is_what_the_configuration_names(said: str, got: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    edit(folder, lambda settings: settings.update(dtype=said))
    assert dtype(folder) == got
    assert dtype(folder, "fp16") == "float16"


@pytest.mark.parametrize(
    ("kind", "got"),
    [
        (torch.float32, "float32"),
        (torch.bfloat16, "bfloat16"),
        (torch.float16, "float16"),
        (torch.float64, "float32"),
    ],
)
@pytest.mark.parametrize("shards", [False, True])
def test_where_it_names_none_the_weights_say(
    kind: Any, got: str, shards: bool, tmp_path: Path
) -> None:
    assert dtype(stored_as(tmp_path, kind, shards=shards)) == got


def test_without_safetensors_it_is_float32(tmp_path: Path) -> None:
    (stored_as(tmp_path, torch.bfloat16) / "model.safetensors").unlink()
    assert dtype(tmp_path) == "float32"


def test_a_part_of_a_model_may_name_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "qwen3_vl")
    edit(folder, lambda said: (said.pop("dtype"), said["text_config"].update(dtype="bfloat16")))
    assert dtype(folder) == "bfloat16"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"\x02\0\0\0\0\0\0\0[]",
        b"\xff" * 16,
        b"\x09\0\0\0\0\0\0\0{",
    ],
)
def test_what_is_no_safetensors_file_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file"):
        header(file)


def test_a_file_that_ends_too_early_is_named(tmp_path: Path) -> None:
    file = stored_as(tmp_path, torch.float32) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(
        ValueError, match=r"model\.safetensors is not whole: it has \d+ of \d+ bytes"
    ):
        header(file)
