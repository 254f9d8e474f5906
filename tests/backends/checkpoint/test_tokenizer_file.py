"""A tokenizer that transformers loads otherwise than its own tokenizer.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import transformers
from packaging.version import Version
from support.small_tokenizers import (
    chatml_tokenizer,
    instruct_tokenizer,
    turns_tokenizer,
    unigram_tokenizer,
)
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer as Rust,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from pipegen.backends.checkpoint import tokenizer_file
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.tokenizers import load_tokenizer
from pipegen.core.names import InvalidField
from pipegen.engines.settings import ModelLoadConfig

TAKES_BYTES = Version(transformers.__version__) >= Version("5.22")
"""Whether transformers takes a file of bytes as it is, whichever class of Llama it names."""
CHARACTERS = sorted(set("".join(tokenizer_file.PROBES + tokenizer_file.LEADING)) - {" "})


def bytes_like_deepseek() -> Rust:
    """Bytes, words with their space in front, numbers by threes."""
    made = Rust(
        models.BPE(
            {
                character: number
                for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
            },
            [],
        )
    )
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|."), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    return made


def words_like_yi(*, prefix: bool = False) -> Rust:
    """SentencePiece's spaces, with none put in front of a text unless `prefix`."""
    vocab = {
        token: number
        for number, token in enumerate(["<unk>", "<s>", "</s>", "▁", *CHARACTERS, "▁o", "▁▁"])
    }
    made = Rust(
        models.BPE(
            vocab, [("▁", "o"), ("▁", "▁")], unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    first: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    made.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def folder_of(rust: Rust, path: Path, **settings: Any) -> str:
    rust.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return str(path)


NAMED = pytest.mark.parametrize("named", ["LlamaTokenizer", "LlamaTokenizerFast"])


@NAMED
def test_a_class_that_splits_text_otherwise_is_an_error_that_says_what_mends_it(
    tmp_path: Path, named: str
) -> None:
    folder = folder_of(words_like_yi(), tmp_path, tokenizer_class=named)
    with pytest.raises(
        InvalidField, match='set "tokenizer_class": "PreTrainedTokenizerFast"'
    ) as raised:
        load_tokenizer(folder)
    assert folder in str(raised.value)
    assert repr(named) in str(raised.value)


@NAMED
@pytest.mark.parametrize("settings", [{}, {"legacy": False}, {"add_prefix_space": False}])
def test_a_file_of_bytes_is_taken_where_it_loads_as_it_is(
    tmp_path: Path, named: str, settings: dict[str, Any]
) -> None:
    folder = folder_of(bytes_like_deepseek(), tmp_path, tokenizer_class=named, **settings)
    if not TAKES_BYTES:
        with pytest.raises(InvalidField, match='"tokenizer_class": "PreTrainedTokenizerFast"'):
            load_tokenizer(folder)
        return
    tokenizer, _ = load_tokenizer(folder)
    for text in (*tokenizer_file.PROBES, *tokenizer_file.LEADING):
        expected = bytes_like_deepseek().encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == tuple(expected)


@pytest.mark.parametrize("make", [bytes_like_deepseek, words_like_yi])
@pytest.mark.parametrize("mended", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_the_setting_that_the_error_names_mends_it(tmp_path: Path, make: Any, mended: str) -> None:
    tokenizer, _ = load_tokenizer(folder_of(make(), tmp_path, tokenizer_class=mended))
    for text in (*tokenizer_file.PROBES, *tokenizer_file.LEADING):
        assert tokenizer.encode(text) == tuple(make().encode(text, add_special_tokens=False).ids)


def test_every_engine_that_reads_checkpoints_gets_the_error(tmp_path: Path) -> None:
    folder = folder_of(words_like_yi(), tmp_path, tokenizer_class="LlamaTokenizer")
    with pytest.raises(InvalidField, match="Hello world"):
        # read when it is asked for
        Checkpoint(ModelLoadConfig(model=folder)).tokenizer  # noqa: B018


def test_code_of_a_checkpoint_s_own_is_named_in_the_advice() -> None:
    class OwnTokenizer:
        pass

    settings = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["a.B", None]}}
    assert 'take "AutoTokenizer" out of its "auto_map"' in tokenizer_file._advice(
        OwnTokenizer(), settings
    )
    assert "it has none" in tokenizer_file._advice(OwnTokenizer(), {})


def test_spaces_at_the_start_of_a_text_count(tmp_path: Path) -> None:
    folder = folder_of(
        words_like_yi(prefix=True), tmp_path, tokenizer_class="LlamaTokenizer", legacy=True
    )
    with pytest.raises(InvalidField, match="' one' becomes"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "settings",
    [{"legacy": False}, {"add_prefix_space": True}, {"add_prefix_space": True, "legacy": False}],
)
def test_what_the_checkpoints_settings_ask_for_is_no_difference(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    tokenizer, _ = load_tokenizer(
        folder_of(
            words_like_yi(prefix=True), tmp_path, tokenizer_class="LlamaTokenizer", **settings
        )
    )
    assert tokenizer.decode(tokenizer.encode("one")).strip() == "one"


@pytest.mark.parametrize(
    "settings", [{}, {"legacy": False}, {"add_prefix_space": False}, {"add_prefix_space": True}]
)
def test_lost_spaces_are_a_difference_whatever_the_settings(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    folder = folder_of(bytes_like_deepseek(), tmp_path, **settings)
    raw = transformers.LlamaTokenizer.from_pretrained(folder)
    with pytest.raises(InvalidField, match="PreTrainedTokenizerFast"):
        tokenizer_file.require_file_ids(raw, bytes_like_deepseek(), settings, folder)


def test_a_prefix_space_is_a_difference_unless_the_settings_ask_for_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match="'Hello world' becomes"):
        load_tokenizer(
            folder_of(words_like_yi(), tmp_path, tokenizer_class="LlamaTokenizer", legacy=False)
        )
    load_tokenizer(
        folder_of(
            words_like_yi(), tmp_path, tokenizer_class="LlamaTokenizer", add_prefix_space=True
        )
    )


@pytest.mark.parametrize(
    "make", [chatml_tokenizer, instruct_tokenizer, turns_tokenizer, unigram_tokenizer]
)
def test_the_same_parts_are_compared_without_any_text(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make().save_pretrained(tmp_path)
    monkeypatch.setattr(tokenizer_file, "_probes", lambda *_: pytest.fail("texts were compared"))
    load_tokenizer(str(tmp_path))


def test_other_parts_that_split_text_alike_are_no_difference() -> None:
    raw = chatml_tokenizer()
    changed = Rust.from_str(raw.backend_tokenizer.to_str())
    changed.normalizer = normalizers.Sequence(
        [changed.normalizer, normalizers.NFC()]
        if changed.normalizer
        else [normalizers.Replace("never in a text", "x")]
    )
    tokenizer_file.require_file_ids(raw, changed, {}, "it")


def test_an_added_token_of_the_file_that_is_not_loaded_is_a_difference() -> None:
    raw = chatml_tokenizer()
    changed = Rust.from_str(raw.backend_tokenizer.to_str())
    changed.add_special_tokens([AddedToken("<|new|>", normalized=False, special=True)])
    with pytest.raises(InvalidField, match=r"a<\|new\|>b.*added_tokens_decoder"):
        tokenizer_file.require_file_ids(raw, changed, {}, "it")


def test_a_normaliser_s_switches_are_settings() -> None:
    raw = chatml_tokenizer()
    changed = Rust.from_str(raw.backend_tokenizer.to_str())
    changed.normalizer = normalizers.Lowercase()
    tokenizer_file.require_file_ids(raw, changed, {"do_lower_case": False}, "it")
    with pytest.raises(InvalidField):
        tokenizer_file.require_file_ids(raw, changed, {}, "it")


def test_a_file_in_another_order_is_compared_too(tmp_path: Path) -> None:
    file, content = tmp_path / "tokenizer.json", json.loads(words_like_yi().to_str())
    file.write_text(json.dumps({"model": content.pop("model"), **content}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer"})
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(InvalidField, match="'Hello world' becomes"):
        load_tokenizer(str(tmp_path))
