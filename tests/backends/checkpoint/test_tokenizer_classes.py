"""Which class transformers takes for a tokenizer, what the classes make, and that files alone give
the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import transformers
from support.small_tokenizers import chatml_tokenizer, instruct_tokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.tokenization_auto import (
    MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS,
    TOKENIZER_MAPPING_NAMES,
)

from pipegen.backends.checkpoint.families import FAMILIES
from pipegen.backends.checkpoint.tokenizer_classes import MAKINGS, WHOLE, candidates
from pipegen.backends.checkpoint.tokenizer_file import LightTokenizer, added_states, parts
from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer, load_tokenizer

READ = {name: family for name, family in FAMILIES.items() if family.tokenizer is not None}
OF_CLASS = {family.tokenizer: name for name, family in READ.items()} | {
    "Qwen3_5Tokenizer": "llama",
    "LlamaTokenizer": "llama",
}
"""A family for each class."""
TEXTS = (
    *(
        "Hello world",
        " one",
        "  two",
        "\n\n x",
        "don't I'm",
        "1234 + 5",
        "你好，世界",
        "👩‍🚀 é e\u0301",
    ),
    *("a<|im_end|>b", "<s>x</s>", "<extra> <|endoftext|>", "<mask>"),
)
TEMPLATE = "{{ bos_token }}{{ pad_token }}{{ own_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
FLAGS = {
    "lstrip": True,
    "rstrip": False,
    "normalized": False,
    "single_word": False,
    "special": False,
}
AS_TOKEN = {"__type": "AddedToken", "content": "<|im_end|>", **FLAGS}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "as saved": {},
    "no special tokens named": dict.fromkeys(
        ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token"), ...
    ),
    "none": dict.fromkeys(("bos_token", "pad_token", "mask_token")),
    "more tokens": {"extra_special_tokens": ["<extra>", "<|im_end|>"], "sep_token": "<sep>"},
    "named ones": {"extra_special_tokens": {"own_token": "<own>"}, "image_token": "<image>"},
    "a token with flags": {"eos_token": AS_TOKEN},
    "added tokens": {"added_tokens_decoder": {"<|im_end|>": {}}},
    "added tokens with flags": {"added_tokens_decoder": {"<|im_end|>": FLAGS, "<pad>": FLAGS}},
    "one added token": {"added_tokens_decoder": {"900": {"content": "<new>", **FLAGS}}},
}


NOT_LIGHT = {
    ("no special tokens named", name) for name in ("Qwen3_5Tokenizer", "LlamaTokenizer")
} | {("one added token", name) for name in MAKINGS}
"""What one of the classes that may be taken reads otherwise than another, or than the file."""


def made(name: str, folder: Path, **settings: Any) -> Path:
    """A folder with a tokenizer that the class has made and saved; `...` takes a setting out."""
    sentencepiece = name in ("GemmaTokenizer", "LlamaTokenizer")
    base = instruct_tokenizer() if sentencepiece else chatml_tokenizer()
    model = json.loads(base.backend_tokenizer.to_str())["model"]
    special = {f"{kind}_token": f"<{kind}>" for kind in ("bos", "unk", "pad")}
    merges = [tuple(pair) for pair in model["merges"]]
    given: dict[str, Any] = {"vocab": model["vocab"], "merges": merges, **special}
    getattr(transformers, name)(
        **given, eos_token="<|im_end|>", chat_template=TEMPLATE
    ).save_pretrained(folder)
    if name in ("GPT2Tokenizer", "CohereTokenizer"):
        settings = {"add_prefix_space": False, **settings}
    flags = settings.get("added_tokens_decoder")
    if isinstance(flags, dict) and "900" not in flags:  # changes of what the file has
        tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        settings["added_tokens_decoder"] = {
            token.pop("id"): {**token, **flags.get(token["content"], {})} for token in tokens
        }
    file = folder / "tokenizer_config.json"
    changed = {**json.loads(file.read_text()), **settings}
    file.write_text(json.dumps({k: v for k, v in changed.items() if v is not ...}))
    (folder / "config.json").write_text(json.dumps({"model_type": OF_CLASS[name]}))
    return folder


def loaded(folder: Path, model: str | None) -> tuple[HFTokenizer, HFRenderer]:
    return load_tokenizer(str(folder), model=model)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", MAKINGS)
def test_the_files_of_each_class_give_what_it_gives(
    name: str, settings: str, tmp_path: Path
) -> None:
    folder = made(name, tmp_path / "model", **SETTINGS[settings])
    (by_class, rendered), (light, read) = loaded(folder, None), loaded(folder, "a")
    raw, source = by_class.source, light.source
    assert type(raw).__name__ == name or name == "Qwen3_5Tokenizer"
    assert isinstance(source, LightTokenizer) == ((settings, name) not in NOT_LIGHT)
    assert added_states(source.backend_tokenizer) == added_states(raw.backend_tokenizer)
    assert dict(light.control_tokens) == dict(by_class.control_tokens)
    assert [light.encode(text) for text in TEXTS] == [by_class.encode(text) for text in TEXTS]
    for text in TEXTS:
        assert light.decode(light.encode(text)) == by_class.decode(by_class.encode(text))
    assert source.special_tokens_map == raw.special_tokens_map
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    assert [getattr(source, name) for name in ids] == [getattr(raw, name) for name in ids]
    assert source("Hi")["input_ids"][:1] == raw("Hi")["input_ids"][:1]
    messages = [{"role": "user", "content": "Hi"}]
    texts = [
        renderer.render(messages, tools=(), template=None, variables={})
        for renderer in (rendered, read)
    ]
    assert texts[0] == texts[1]


def with_flag(folder: Path, text: str, **flags: bool) -> None:
    """Change the flags of an added token of `tokenizer.json`."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    for token in content["added_tokens"]:
        if token["content"] == text:
            token.update(flags)
    file.write_text(json.dumps(content))


def test_a_named_token_is_special_whatever_the_file_says_of_it(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": ...}
    folder = made("Qwen2Tokenizer", tmp_path / "model", **settings)
    with_flag(folder, "<|im_end|>", special=False)
    (by_class, _), (light, _) = loaded(folder, None), loaded(folder, "a")
    assert isinstance(light.source, LightTokenizer)
    assert added_states(light.source.backend_tokenizer) == added_states(
        by_class.source.backend_tokenizer
    )
    assert "<|im_end|>" in light.special_tokens == by_class.special_tokens


@pytest.mark.parametrize(
    ("map_of", "settings"),
    [
        ({"additional_special_tokens": ["<x>"]}, {"additional_special_tokens": ["<y>"]}),
        ({"additional_special_tokens": ["<x>"]}, {"extra_special_tokens": {"own_token": "<y>"}}),
        ({"chat_template": "other"}, {}),
    ],
    ids=str,
)
def test_a_map_of_special_tokens_that_says_otherwise_goes_through_the_class(
    map_of: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = made("Qwen2Tokenizer", tmp_path / "model", added_tokens_decoder=..., **settings)
    (folder / "special_tokens_map.json").write_text(json.dumps(map_of))
    assert not isinstance(loaded(folder, "a")[0].source, LightTokenizer)


def test_a_token_that_is_found_elsewhere_than_by_the_file_goes_through_the_class(
    tmp_path: Path,
) -> None:
    flags = {"added_tokens_decoder": {"<|im_end|>": FLAGS}}
    folder = made("Qwen2Tokenizer", tmp_path / "model", **flags)
    assert isinstance(loaded(folder, "a")[0].source, LightTokenizer)
    with_flag(folder, "<|im_end|>", single_word=True)
    assert not isinstance(loaded(folder, "b")[0].source, LightTokenizer)


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder", "model"])
@pytest.mark.parametrize("name", MAKINGS)
def test_a_file_of_other_parts_goes_through_the_class(name: str, part: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path / "model")
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content[part] = {
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": {"type": "Fuse"},
        "model": {**content["model"], "fuse_unk": not content["model"]["fuse_unk"]},
    }[part]
    file.write_text(json.dumps(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipegen.backends.checkpoint.tokenizers.require_file_ids", lambda *_: None)
        tokenizer, _ = loaded(folder, "a")
    assert not isinstance(tokenizer.source, LightTokenizer)


@pytest.mark.parametrize("named", [None, "PreTrainedTokenizerFast", "TokenizersBackend", *MAKINGS])
@pytest.mark.parametrize("family", ["qwen2", "phi3", "mistral", *sorted({*OF_CLASS.values()})])
def test_transformers_takes_one_of_the_candidates(
    family: str, named: str | None, tmp_path: Path
) -> None:
    taken_out = ... if named is None else named
    folder = made("Qwen2Tokenizer", tmp_path, tokenizer_class=taken_out, add_prefix_space=False)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    taken = type(transformers.AutoTokenizer.from_pretrained(folder)).__name__
    expected = candidates(family, named)
    assert expected is None or (WHOLE if taken == "TokenizersBackend" else taken) in expected


@pytest.mark.parametrize("family", READ)
def test_the_class_of_a_family_is_the_registered_one(family: str) -> None:
    assert family in CONFIG_MAPPING
    registered = TOKENIZER_MAPPING_NAMES.get(family) or ""
    assert registered == READ[family].tokenizer
    if registered not in ("", "TokenizersBackend"):
        misnamed = family in MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
        assert misnamed == READ[family].misnamed


@pytest.mark.parametrize("name", MAKINGS)
def test_each_class_makes_what_is_said_of_it(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    raw = getattr(transformers, name).from_pretrained(folder)
    normalizer, pre_tokenizer, decoder = parts(
        raw.backend_tokenizer, "normalizer", "pre_tokenizer", "decoder"
    )
    assert (normalizer, pre_tokenizer) == (MAKINGS[name].normalizer, MAKINGS[name].pre_tokenizer)
    assert decoder["type"] == MAKINGS[name].decoder["type"]
