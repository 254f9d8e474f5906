"""Model folders whose files hold something else than they should: one typed failure that names the
file, for all rows or for those with images.
"""

from __future__ import annotations

import codecs
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen import embedded
from pipegen.backends.checkpoint.load_errors import broken_file
from pipegen.testing.image_files import image_file

pytest.importorskip("torch")
pytest.importorskip("transformers")

Change = Callable[[Path], object]
TEXT = {"messages": [{"role": "user", "content": "Hi"}]}
IMAGE = {"prompt": "What is it?", "images": [image_file("PNG")]}


def slots_of(tmp_path: Path, change: Change, **settings: Any) -> list[Any]:
    folder = tmp_path / "model"
    shutil.copytree(embedded.path(), folder)
    change(folder)
    with pg.backends.hf(folder, **settings) as route:
        return list(pg.run(route, [TEXT, IMAGE], {"max_new_tokens": 2}))


def written(name: str, content: bytes | str) -> Change:
    return lambda folder: (folder / name).write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


def marked(name: str) -> Change:
    return lambda folder: (folder / name).write_bytes(
        codecs.BOM_UTF8 + (folder / name).read_bytes()
    )


def changed(name: str, **entries: Any) -> Change:
    return lambda folder: (folder / name).write_text(
        json.dumps({**json.loads((folder / name).read_text()), **entries})
    )


def text_changed(**entries: Any) -> Change:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps({**config, "text_config": {**config["text_config"], **entries}})
        )

    return change


def in_its_place(name: str, make: Callable[[Path], object]) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def folder_for(name: str) -> Change:
    return in_its_place(name, Path.mkdir)


def dangling(name: str) -> Change:
    return in_its_place(name, lambda file: file.symlink_to(file.name))


def indexed(content: str) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        (folder / "model.safetensors.index.json").write_text(content)

    return change


OTHER_VOCABULARY = {
    "type": "BPE",
    "vocab": {letter: number for number, letter in enumerate("abcdefghij")},
    "merges": [],
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n"
FOR_ALL: dict[str, tuple[Change, str]] = {
    "configuration of null": (
        written("config.json", "null"),
        "config.json holds None, where a JSON object is expected",
    ),
    "configuration of a list": (
        written("config.json", "[]"),
        "config.json holds [], where a JSON object is expected",
    ),
    "configuration with a mark": (
        marked("config.json"),
        "config.json begins with a byte order mark",
    ),
    "configuration is a folder": (
        folder_for("config.json"),
        "config.json is a folder, where a file is expected",
    ),
    "tokenizer of null": (written("tokenizer.json", "null"), "tokenizer.json holds None"),
    "tokenizer with a mark": (
        marked("tokenizer.json"),
        "tokenizer.json begins with a byte order mark",
    ),
    "tokenizer's settings are a folder": (
        folder_for("tokenizer_config.json"),
        "tokenizer_config.json is a folder",
    ),
    "tokenizer's settings are a link to nothing": (
        dangling("tokenizer_config.json"),
        "tokenizer_config.json is missing",
    ),
    "tokenizer's settings of another type": (
        changed("tokenizer_config.json", model_max_length="big"),
        "cannot read the tokenizer of",
    ),
    "another tokenizer": (
        changed("tokenizer.json", model=OTHER_VOCABULARY, added_tokens=[]),
        "cannot read the tokenizer of",
    ),
    "another image token": (
        changed("config.json", image_token_id=300),
        "config.json says that id 300 stands for an image, and to the tokenizer it is",
    ),
    "no image token": (changed("config.json", image_token_id=-1), "cannot read the tokenizer of"),
    "template of git-lfs": (
        written("chat_template.jinja", POINTER),
        "chat_template.jinja is a pointer of git-lfs",
    ),
    "template in latin-1": (
        written("chat_template.jinja", b"caf\xe9 {{ messages }}"),
        "chat_template.jinja is no text in UTF-8",
    ),
    "template is a page": (
        written("chat_template.jinja", "<!DOCTYPE html><html>Not found</html>"),
        "its chat template writes nothing of what a user says",
    ),
    "template of null": (
        written("chat_template.jinja", "null"),
        "its chat template writes nothing of what a user says",
    ),
    "template is a folder": (folder_for("chat_template.jinja"), "chat_template.jinja is a folder"),
    "template is a link to nothing": (
        dangling("chat_template.jinja"),
        "chat_template.jinja is missing",
    ),
    "generation settings are a folder": (
        folder_for("generation_config.json"),
        "generation_config.json is a folder",
    ),
    "generation settings of null": (
        written("generation_config.json", "null"),
        "generation_config.json holds None",
    ),
    "an end token in words": (
        changed("generation_config.json", eos_token_id="<|im_end|>"),
        "eos_token_id takes an id or a list of ids, not '<|im_end|>'",
    ),
    "an end token that is no whole number": (
        changed("generation_config.json", eos_token_id=[2, 3.5]),
        "takes an id or a list of ids, not (2, 3.5)",
    ),
    "no positions": (text_changed(max_position_embeddings=0), "it has 0 positions"),
    "positions without bound": (
        text_changed(rope_parameters={"rope_type": "linear", "factor": 1e308}),
        "cannot read the configuration of",
    ),
    "other shapes": (
        text_changed(hidden_size=96),
        "its weights have other shapes than its config.json says",
    ),
    "an index of null": (indexed("null"), "model.safetensors.index.json holds None"),
    "an index of nothing": (indexed("{}"), "model.safetensors.index.json has no weight_map"),
}


@pytest.mark.parametrize("case", FOR_ALL)
def test_a_file_that_holds_something_else_is_one_failure_that_names_it(
    case: str, tmp_path: Path
) -> None:
    change, words = FOR_ALL[case]
    first, second = (slot.failure() for slot in slots_of(tmp_path, change))
    assert first == second
    assert isinstance(first, pg.BackendFailed)
    assert words in first.message
    assert str(tmp_path / "model") in first.message
    assert "\n" not in first.message
    assert first.hint


FOR_IMAGES: dict[str, tuple[Change, str]] = {
    "nested without end": (
        written("preprocessor_config.json", "[" * 100_000),
        "preprocessor_config.json is no JSON",
    ),
    "null": (written("preprocessor_config.json", "null"), "preprocessor_config.json holds None"),
    "a folder": (folder_for("preprocessor_config.json"), "preprocessor_config.json is a folder"),
    "a mean of another type": (changed("preprocessor_config.json", image_mean="x"), "ValueError"),
    "a mean of one number": (changed("preprocessor_config.json", image_mean=[0.5]), "ValueError"),
    "a scale in words": (changed("preprocessor_config.json", rescale_factor="x"), "cannot be used"),
    "a mean that is no number": (
        changed("preprocessor_config.json", image_mean=[float("nan"), 0, 0]),
        "pixels that are no finite numbers",
    ),
    "sizes below zero": (
        changed("preprocessor_config.json", size={"shortest_edge": -1, "longest_edge": -5}),
        "min_pixels",
    ),
    "patches of nothing": (changed("preprocessor_config.json", patch_size=0), "patch_size"),
}


@pytest.mark.parametrize("case", FOR_IMAGES)
def test_a_broken_image_processor_fails_the_rows_with_images_alone(
    case: str, tmp_path: Path
) -> None:
    change, words = FOR_IMAGES[case]
    text, image = slots_of(tmp_path, change)
    assert pg.is_ok(text)
    assert isinstance(image.failure(), pg.UnsupportedMultimodal)
    assert words in image.failure().message
    assert str(tmp_path / "model") in image.failure().message
    assert "preprocessor_config.json" in image.failure().hint


@pytest.mark.parametrize(
    "source", ["{% for m in messages %}{{ m.content", "{{ messages | no_such_filter }}"]
)
def test_a_template_that_is_broken_whatever_the_messages_is_said_to_be(
    source: str, tmp_path: Path
) -> None:
    for slot in slots_of(tmp_path, written("chat_template.jinja", source)):
        assert isinstance(slot.failure(), pg.TemplateFailed)
        assert "chat_template.jinja" in slot.failure().hint


@pytest.mark.parametrize("name", ["/" + "a" * 5000, "~no-such-user-here/model"])
def test_a_name_that_can_be_no_folder_is_refused_at_construction(name: str) -> None:
    with pytest.raises(pg.InvalidField, match="there is no checkpoint folder") as refused:
        pg.backends.hf(name)
    assert len(str(refused.value)) <= 300


def test_folders_beside_the_files_that_are_read_are_of_no_account(tmp_path: Path) -> None:
    (tmp_path / "notes.json").mkdir()
    (tmp_path / "list.json").write_text("[1]")
    assert broken_file(sorted(tmp_path.iterdir())) is None
