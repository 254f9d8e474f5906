"""What of a checkpoint's files is part of the model's identity."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pipegen.backends.checkpoint import file_digests
from pipegen.backends.checkpoint.file_digests import identity_of
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.engines.settings import ModelLoadConfig

TENSORS = 97


def tensors(changed: int | None = None, place: int = 0) -> dict[str, torch.Tensor]:
    """Many tensors of 40 kB; one of them with another number at one place."""
    made = {f"layer.{number}": torch.arange(10_000.0) + number for number in range(TENSORS)}
    if changed is not None:
        made[f"layer.{changed}"][place] += 0.5
    return made


def save(folder: Path, values: dict[str, torch.Tensor], name: str = "model.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    if name.endswith(".safetensors"):
        save_file(values, folder / name)
    else:
        torch.save(values, folder / name)
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_change_of_any_tensor_is_seen(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path / "a", tensors(), name)
    known = {identity_of(folder)}
    for changed in range(TENSORS):
        save(folder, tensors(changed, (0, 5_000, 9_999)[changed % 3]), name)
        known.add(identity_of(folder))
    assert len(known) == TENSORS + 1
    save(folder, tensors(), name)
    assert identity_of(folder) in known


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_every_byte_counts_where_the_whole_is_asked(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path / "a", tensors(), name)
    before, sampled = identity_of(folder, whole=True), identity_of(folder)
    assert before != sampled
    data = bytearray((folder / name).read_bytes())
    place = len(data) // 2 + 700  # samples miss it, or the archive's own sums do
    data[place] ^= 1
    (folder / name).write_bytes(data)
    assert identity_of(folder, whole=True) != before


@pytest.mark.parametrize("whole", [False, True])
def test_files_that_are_as_they_were_are_not_read_again(
    tmp_path: Path, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = save(tmp_path / "a", tensors())
    reads: list[bool] = []
    read = file_digests._read
    monkeypatch.setattr(file_digests, "_read", lambda *how: (reads.append(whole), read(*how))[1])
    clock = [(folder / "model.safetensors").stat().st_mtime_ns]
    monkeypatch.setattr(file_digests.time, "time_ns", lambda: clock[0])
    fresh = identity_of(folder, whole=whole)
    assert (identity_of(folder, whole=whole), len(reads)) == (fresh, 2)  # too new to be sure
    clock[0] += 10**10
    assert [identity_of(folder, whole=whole) for _ in range(3)] == [fresh] * 3
    assert len(reads) == 3
    identity_of(folder, whole=not whole)
    assert len(reads) == 4  # the one is not the other
    file = folder / "model.safetensors"
    times = file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as copies do that keep it
    assert identity_of(folder, whole=whole) != fresh


def test_a_verdict_that_is_no_digest_is_as_if_it_were_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "a", {"a": torch.ones(3)})
    before = identity_of(folder)
    monkeypatch.setattr(file_digests, "kept", lambda *about, **more: {"identity": 3})
    assert identity_of(folder) == before


def test_a_job_with_checked_weights_takes_no_rows_of_samples(tmp_path: Path) -> None:
    save(tmp_path / "a", {"a": torch.ones(3)})
    engines = [
        HFEngine(ModelLoadConfig(model=str(tmp_path / "a"), check_weights=checks))
        for checks in (False, True)
    ]
    sampled, whole = engines
    assert sampled.identity == identity_of(tmp_path / "a")
    assert whole.identity == identity_of(tmp_path / "a", whole=True)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *((name, False) for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth")),
        *((name, False) for name in ("training_args.bin", "trainer_state.json", "scaler.pt")),
        *((name, False) for name in ("all_results.json", "train_log.txt", "log.txt", "README.md")),
        *(
            (name, False)
            for name in ("sampler.bin", "grad_scaler.pt", "optimizer_0.bin", "loss.txt")
        ),
        *((name, True) for name in ("optimizers.json", "merges.txt", "consolidated.00.pth")),
        *((name, False) for name in ("zero_to_fp32.py", "requirements.txt", "trainer_log.jsonl")),
        *((name, True) for name in ("vocab.txt", "modeling_mine.py", "generation_config.json")),
        *((name, True) for name in ("tokenizer.json", "chat_template.jinja", "blog.json")),
        ("additional_chat_templates/tools.jinja", True),
        ("pytorch_model.bin", True),
    ],
)
def test_what_training_leaves_beside_a_model_is_no_part_of_it(
    tmp_path: Path, name: str, counts: bool
) -> None:
    folder = save(tmp_path / "a", {"a": torch.ones(3)})
    before = identity_of(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"one")
    assert (identity_of(folder) != before) == counts
    with_it = identity_of(folder)
    (folder / name).write_bytes(b"two")
    assert (identity_of(folder) != with_it) == counts


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"weights",
        (2**40).to_bytes(8, "little"),
        (4).to_bytes(8, "little") + b"[1]x",
        (2).to_bytes(8, "little") + b"{}",
        (7).to_bytes(8, "little") + b'{"a":1}',
    ],
)
def test_a_file_that_is_no_model_has_a_digest_too(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(data)
    before = identity_of(tmp_path)
    file.write_bytes(data + b"!")
    assert identity_of(tmp_path) != before


def test_names_and_shapes_count(tmp_path: Path) -> None:
    made: list[dict[str, Any]] = [
        {"a": torch.zeros(4)},
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(8, dtype=torch.int16)},
    ]
    known = {identity_of(save(tmp_path / str(number), one)) for number, one in enumerate(made)}
    assert len(known) == len(made)
    with safe_open(tmp_path / "0" / "model.safetensors", "pt") as opened:
        assert json.dumps([*opened.keys()]) == '["a"]'


def test_the_layout_of_an_adapters_settings_and_its_mode_do_not_count(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", tensors(), "adapter_model.safetensors")
    file = folder / "adapter_config.json"

    def digest(text: str) -> str:
        file.write_text(text)
        return identity_of(folder)

    plain = digest('{"r": 4, "target_modules": ["q_proj", "v_proj"], "inference_mode": true}')
    for same in (
        '{"r":4,"target_modules":["q_proj","v_proj"],"inference_mode":false}',
        '{"target_modules": ["v_proj", "q_proj"],\n  "r": 4\n}\n',
    ):
        assert digest(same) == plain
    for other in (
        '{"r": 8, "target_modules": ["q_proj", "v_proj"]}',
        '{"r": 4, "target_modules": ["q_proj"]}',
        '{"r": 4, "target_modules": ["q_proj", "v_proj"], "use_dora": true}',
        '{"r": 4, "target_modules"',
        "[]",
    ):
        assert digest(other) != plain
