"""The facts of a configuration read from its file are those that transformers reads."""

from __future__ import annotations

import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import chatml_tokenizer
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from pipegen.backends.checkpoint import verdicts
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.families import FAMILIES
from pipegen.backends.checkpoint.file_config import FileConfig, config_in
from pipegen.engines.settings import ModelLoadConfig

READ = [name for name, family in FAMILIES.items() if family.tokenizer is not None]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def entries_of(family: str, **changes: Any) -> dict[str, Any]:
    """What transformers writes for a family, with changes of its text model."""
    entries = json.loads(CONFIG_MAPPING[family]().to_json_string(use_diff=False))
    text = entries.get("text_config", entries)
    text.update({"eos_token_id": 2, "vocab_size": 99, **changes})
    text.setdefault("n_positions" if family == "gpt2" else "max_position_embeddings", 128)
    return entries


class AsRead(Checkpoint):
    @cached_property
    def described(self) -> Any:
        return self.config


def facts(made: Checkpoint) -> list[Any]:
    return [
        made.model_type,
        made.is_vision_model,
        made.vocab_size,
        made.positions,
        made.own_dtype,
        made.eos_token_ids,
        made.image_token_id,
        made.videos.token_id,
    ]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))


NESTED = {"gemma3_text"}
"""Families whose positions differ by layer."""
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"max_position_embeddings": 256, "dtype": "float16"},
    {"eos_token_id": [3, 2]},
    {"rope_parameters": None, "rope_scaling": YARN},
    {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    {"rope_parameters": LLAMA3},
)


REFUSED = {("gpt2", 6), *(("phi3", change) for change in (3, 4, 5, 6))}
"""Positions that transformers does not take for the family."""


@pytest.mark.parametrize(
    ("family", "change"),
    [
        (family, change)
        for family in READ
        for change in range(len(CHANGES))
        if (family, change) not in REFUSED
    ],
)
def test_the_facts_of_a_file_are_those_of_transformers(
    family: str, change: int, tmp_path: Path
) -> None:
    chatml_tokenizer().save_pretrained(tmp_path)
    entries = entries_of(family, **CHANGES[change])
    (tmp_path / "config.json").write_text(json.dumps(entries))
    load = ModelLoadConfig(model=str(tmp_path), trust_remote_code=False)
    light = Checkpoint(load)
    if isinstance(light.described, FileConfig):
        found = facts(light)
        shutil.rmtree(verdicts.checks())
        assert found == facts(AsRead(load))
    else:
        assert CHANGES[change].keys() & {"rope_scaling", "rope_parameters"} or family in NESTED


@pytest.mark.parametrize("family", READ)
def test_a_family_that_takes_images_is_one_of_transformers(family: str) -> None:
    takes = family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    assert takes == bool(FAMILIES[family].video_processor)


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": "many"},
        {"vocab_size": True},
        {"max_position_embeddings": None},
        {"max_position_embeddings": 0},
        {"eos_token_id": None},
        {"dtype": "int8"},
        {"rope_scaling": {"type": "longrope"}},
        {"rope_scaling": {"type": "yarn"}},
        {
            "rope_parameters": {"rope_type": "default"},
            "rope_scaling": {"type": "linear", "factor": 2},
        },
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        {"text_config": {}},
    ],
    ids=str,
)
def test_what_may_be_read_otherwise_is_left_to_transformers(change: dict[str, Any]) -> None:
    entries = {"model_type": "llama", "vocab_size": 9, "max_position_embeddings": 8}
    assert config_in({**entries, "eos_token_id": 2}) is not None
    assert config_in({**entries, "eos_token_id": 2, **change}) is None


def test_a_configuration_in_disorder_is_refused_by_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": "many"}')
    with pytest.raises(Exception, match="vocab_size"):
        AutoConfig.from_pretrained(tmp_path)
    with pytest.raises(Exception, match="cannot read the configuration"):
        _ = Checkpoint(ModelLoadConfig(model=str(tmp_path))).vocab_size
