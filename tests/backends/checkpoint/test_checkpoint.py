"""The light facts of a checkpoint, read without weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from immutabledict import immutabledict
from support.models import encoded, write_model

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.locate import locate
from pipegen.core.errors import CallFailed, ContractError, InvalidRequest
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.option_table import DEFAULTS
from pipegen.testing.image_files import image_file

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("qwen") / "model")


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("vision") / "model", "qwen3_vl")


def facts(folder: Path, **settings: Any) -> Checkpoint:
    return Checkpoint(ModelLoadConfig(model=str(folder), **settings))


def edited(folder: Path, into: Path, **changes: Callable[[dict[str, Any]], Any]) -> Checkpoint:
    """The facts of a copy without weights whose JSON files are changed (a file whose change gives
    None is left out).
    """
    for file in folder.iterdir():
        if file.suffix in (".json", ".jinja"):
            change = changes.get(file.stem)
            settings = json.loads(file.read_text()) if file.suffix == ".json" else None
            text = (
                file.read_text()
                if change is None
                else json.dumps(change(settings))
                if change(settings) is not None
                else None
            )
            if text is not None:
                (into / file.name).write_text(text)
    return facts(into)


def test_names_are_folders_hub_names_or_the_embedded_model(
    qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(qwen.parent)
    assert locate("model") == "model"
    assert locate("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert locate("gpt2") == "gpt2"
    assert (Path(locate("embedded")) / "config.json").is_file()
    for path in (
        *("/no/such", "./no", "../no", "~/no/such", "no/such/folder"),
        os.fspath(qwen / "config.json"),
    ):
        with pytest.raises(FileNotFoundError, match="there is no checkpoint folder"):
            locate(path)


# A8
def test_every_end_token_is_found_wherever_the_checkpoint_names_them(
    qwen: Path, tmp_path: Path
) -> None:
    made = iter(range(9))

    def ends(**changes: Any) -> tuple[int, ...]:
        into = tmp_path / str(next(made))
        into.mkdir()
        return edited(qwen, into, **changes).eos_token_ids

    own = facts(qwen).tokenizer.raw.eos_token_id
    assert ends(generation_config=lambda settings: {**settings, "eos_token_id": [0, 5, 0]}) == (
        0,
        5,
    )
    assert ends(generation_config=lambda settings: {**settings, "eos_token_id": 0}) == (0,)
    assert ends(
        generation_config=lambda settings: None,
        config=lambda settings: {**settings, "eos_token_id": [7, 8]},
    ) == (7, 8)
    assert ends(
        generation_config=lambda settings: None,
        config=lambda settings: {**settings, "eos_token_id": None},
    ) == (own,)


def test_the_generation_settings_are_frozen_and_may_be_missing(qwen: Path, tmp_path: Path) -> None:
    settings = edited(
        qwen,
        tmp_path,
        generation_config=lambda settings: {**settings, "temperature": 0.6, "eos_token_id": [1, 2]},
    ).generation_config
    assert isinstance(settings, immutabledict)
    assert (settings["temperature"], settings["eos_token_id"]) == (0.6, (1, 2))
    (tmp_path / "generation_config.json").unlink()
    assert facts(tmp_path).generation_config == {}


# B9
def test_a_plain_prompt_begins_with_bos_where_the_tokenizer_puts_one(
    qwen: Path, tmp_path: Path
) -> None:
    assert facts(qwen).bos_token is None
    assert facts(write_model(tmp_path, "llama")).bos_token == "<s>"


# B5
def test_rows_are_padded_with_the_pad_token_or_an_end_token(qwen: Path, tmp_path: Path) -> None:
    assert facts(qwen).pad_token_id == facts(qwen).tokenizer.raw.pad_token_id
    llama = facts(write_model(tmp_path, "llama"))
    assert llama.tokenizer.raw.pad_token_id is None
    assert llama.pad_token_id == llama.eos_token_ids[0]


def test_the_context_length_is_that_of_the_text_model(
    qwen: Path, vision: Path, tmp_path: Path
) -> None:
    assert facts(qwen).context_length == 512
    assert facts(vision).context_length == 512
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert facts(tmp_path).context_length is None


def test_facts_are_kept_for_the_files_that_they_are_of(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    first = edited(qwen, tmp_path / "a")
    known = (first.context_length, first.vocab_size, first.own_dtype, first.is_vision_model)
    again, other = (
        facts(tmp_path / "a"),
        edited(
            tmp_path / "a",
            tmp_path / "b",
            config=lambda config: {**config, "max_position_embeddings": 77},
        ),
    )
    assert other.context_length == 77
    monkeypatch.setattr(Checkpoint, "config", property(lambda _: pytest.fail("was read again")))
    assert known == (again.context_length, again.vocab_size, again.own_dtype, again.is_vision_model)


def test_what_images_need_is_known_of_a_vision_model_alone(qwen: Path, vision: Path) -> None:
    sees, reads = facts(vision), facts(qwen)
    seen = (sees.takes_images, sees.image_placeholder, sees.images_unsupported_reason)
    assert seen == (True, "<|image_pad|>", "")
    seen = (reads.takes_images, reads.image_placeholder, reads.images_unsupported_reason)
    assert seen == (False, None, "qwen3 is a text model")
    assert sees.image_spec.factor == 32
    image = sees.prepare_image(
        ImageSource(data=image_file(width=70, height=33)), DEFAULTS.preprocess, 0
    ).unwrap()
    assert image.grid == (1, 2, 4)
    assert (
        sees.prepare_image(ImageSource(data=b"nothing"), DEFAULTS.preprocess, 2).failure().index
        == 2
    )
    with pytest.raises(ContractError, match="was not loaded"):
        sees.prepare_image(ImageSource(path="a.png"), DEFAULTS.preprocess, 0)


def test_a_prompt_holds_exactly_the_marks_of_its_images(vision: Path) -> None:
    sees = facts(vision)
    mark = sees.image_token_id
    image = sees.prepare_image(
        ImageSource(data=image_file(width=64, height=64)), DEFAULTS.preprocess, 0
    ).unwrap()
    assert mark is not None
    assert image.tokens == 4
    assert sees.check_placeholders(encoded([mark] * 4, images=[image]).prompt) is None
    for wrong in (
        encoded([mark] * 3, images=[image]),
        encoded([mark]),
        encoded([1], images=[image]),
    ):
        assert isinstance(sees.check_placeholders(wrong.prompt), InvalidRequest)
    assert facts(vision, variant="text").check_placeholders(encoded([mark]).prompt) is None


def test_reading_the_facts_loads_no_weights(vision: Path, tmp_path: Path) -> None:
    bare = edited(vision, tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
    assert bare.tokenizer.vocab_size == facts(vision).tokenizer.vocab_size
    assert bare.renderer.template is not None


def test_a_hub_name_is_read_from_the_cache_when_there_is_no_network(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models--some--model"
    shutil.copytree(qwen, repository / "snapshots" / "abc")
    (repository / "snapshots" / "abc" / "generation_config.json").unlink()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", os.fspath(tmp_path))
    hub = Checkpoint(ModelLoadConfig(model="some/model"))
    assert hub.eos_token_ids == facts(qwen).eos_token_ids
    assert hub.generation_config == {}
    assert hub.tokenizer.vocab_size == facts(qwen).tokenizer.vocab_size
    with pytest.raises(CallFailed, match="cannot read the configuration of 'some/other'"):
        _ = Checkpoint(ModelLoadConfig(model="some/other")).config


def test_without_pillow_images_are_refused_and_text_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.checkpoint import checkpoint as module
    from pipegen.core.distribution import MissingExtra, need
    from pipegen.core.errors import UnsupportedMultimodal
    from pipegen.records.messages import ImageSource
    from pipegen.records.option_groups import VlmPreprocessOptions

    def without_pillow(package: str, extra: str, purpose: str) -> None:
        if package == "PIL":
            raise MissingExtra("no Pillow here")
        need(package, extra, purpose)

    monkeypatch.setattr(module, "need", without_pillow)
    checkpoint = Checkpoint(ModelLoadConfig(model="embedded"))
    assert checkpoint.image_placeholder == "<|image_pad|>"
    error = checkpoint.prepare_image(ImageSource(data=b"x"), VlmPreprocessOptions(), 0).failure()
    assert isinstance(error, UnsupportedMultimodal)
    assert "no Pillow here" in error.message
