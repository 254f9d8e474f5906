"""Real tokenizers as transformers loads them from a checkpoint: the ids of their own
`tokenizer.json`, or an error whose advice mends it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pairs import FOLDER, TOKENIZERS
from tokenizers import Tokenizer as Rust

from pipegen.backends.checkpoint import tokenizers as loader
from pipegen.backends.checkpoint.tokenizer_file import LightTokenizer, added_states
from pipegen.backends.checkpoint.tokenizers import load_tokenizer
from pipegen.core.names import InvalidField

TEXTS = (
    *("Hello world", " leading space", "  two", "two  spaces", "trailing  ", "1234567 + 89"),
    *("3.14159", "你好，世界", "こんにちは", "नमस्ते ไทย", "a\n\n b\n", "\n"),
    *("\n\n\n x", "\tif x:\n        return x", "👩‍🚀", "é e\u0301 ﬁ", "don't I'm WE'LL"),
    *("<b>a</b>", "https://example.org/a_b?c=d", "x = {'a': [1, 2]}", "A.B.C", "user\n"),
)
LOADED_AS_THEY_ARE = {  # what the checkpoint's config.json says
    "qwen3": "qwen3",
    "qwen2_5": "qwen2",
    "llama3_2": "llama",
    "mistral_nemo": "mistral",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "command_r_plus": "cohere",
    "gpt2": "gpt2",
    "falcon": "falcon",
    "bert_bge": "bert",
    "nomic_bert_moe": "xlm-roberta",
    "gpt35turbo": "gpt2",
    "claude": "gpt2",
}
LOADED_OTHERWISE = {
    "yi": "llama",
    "deepseek_v3": "llama",
    "llama2": "llama",
    "gpt4": "gpt2",
    "gpt4o": "gpt2",
}


FIRST_START = {  # the family in config.json, of those that are read by their files alone
    **dict.fromkeys(("aquila", "deepseek_coder", "deepseek_llm"), "llama"),
    **dict.fromkeys(("llama3", "llama3_1", "llama3_2"), "llama"),
    "qwen1_5": "qwen2",
    "qwen2_5": "qwen2",
    "qwen3": "qwen3",
    "mistral_nemo": "mistral",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "command_r_plus": "cohere",
    "aya_expanse": "cohere2",
    "gpt2": "gpt2",
    "refact": "gpt2",
    "starcoder": "starcoder2",
    "falcon": "falcon",
    "gpt_neox": "gpt_neox",
    "phi_3": "phi3",
}
LATER = {  # read by transformers first: classes and families that are not known, and code
    "claude": "gpt2",
    "gpt35turbo": "gpt2",
    "text_davinci003": "gpt2",
    "chatglm3": "glm",
    "bert_bge": "bert",
    "nomic_bert_moe": "xlm-roberta",
}
OTHERS = {"baichuan2": "llama", "internlm2": "llama", "gemma": "gemma", **LOADED_OTHERWISE}
"""What transformers cannot load, or loads otherwise than the file."""


def checkpoint(name: str, model_type: str, place: Path, **settings: Any) -> str:
    shutil.copytree(FOLDER / "tokenizers" / name, place / name)
    file = place / name / "tokenizer_config.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text(encoding="utf-8")), **settings}), encoding="utf-8"
    )
    (place / name / "config.json").write_text(
        json.dumps({"model_type": model_type}), encoding="utf-8"
    )
    return str(place / name)


def require_the_files_ids(folder: str) -> None:
    tokenizer, _ = load_tokenizer(folder)
    file = Rust.from_file(f"{folder}/tokenizer.json")
    for text in TEXTS:
        assert tokenizer.encode(text) == tuple(file.encode(text, add_special_tokens=False).ids), (
            text
        )


@pytest.mark.parametrize(("name", "model_type"), LOADED_AS_THEY_ARE.items())
def test_what_is_loaded_gives_the_ids_of_its_file(
    tmp_path: Path, name: str, model_type: str
) -> None:
    require_the_files_ids(checkpoint(name, model_type, tmp_path))


@pytest.mark.parametrize(("name", "model_type"), LOADED_OTHERWISE.items())
def test_other_ids_than_the_files_are_an_error_whose_advice_mends_it(
    tmp_path: Path, name: str, model_type: str
) -> None:
    with pytest.raises(InvalidField, match='set "tokenizer_class": "PreTrainedTokenizerFast"'):
        load_tokenizer(checkpoint(name, model_type, tmp_path / "as it is"))
    require_the_files_ids(
        checkpoint(name, model_type, tmp_path / "mended", tokenizer_class="PreTrainedTokenizerFast")
    )


def test_it_is_known_of_each_how_it_is_read() -> None:
    assert len(FIRST_START) == 20
    assert {*FIRST_START, *LATER, *OTHERS} == {*TOKENIZERS}


@pytest.mark.parametrize(("name", "model_type"), FIRST_START.items())
def test_files_alone_give_what_transformers_gives(
    tmp_path: Path, name: str, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    folder = checkpoint(name, model_type, tmp_path)
    (by_class, rendered), (light, read) = load_tokenizer(folder), load_tokenizer(folder, model="a")
    raw, source = by_class.source, light.source
    assert isinstance(source, LightTokenizer)
    assert not isinstance(raw, LightTokenizer)
    assert added_states(source.backend_tokenizer) == added_states(raw.backend_tokenizer)
    for text in (*TEXTS, "".join([*light.control_tokens][:200])):
        ids = light.encode(text)
        assert ids == by_class.encode(text)
        assert light.decode(ids) == by_class.decode(ids)
    assert source.special_tokens_map == raw.special_tokens_map
    for each in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(source, each) == getattr(raw, each)
    bos = raw.bos_token_id
    assert (source("a")["input_ids"][:1] == [bos]) == (raw("a")["input_ids"][:1] == [bos])
    assert read.templates == rendered.templates
    assert loader._writes(read) == loader._writes(rendered)


@pytest.mark.parametrize(("name", "model_type"), LATER.items())
def test_the_rest_is_read_alone_once_transformers_has_read_it(
    tmp_path: Path, name: str, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    folder = checkpoint(name, model_type, tmp_path)
    light = [load_tokenizer(folder, model="a")[0].source for _ in range(2)]
    assert [isinstance(source, LightTokenizer) for source in light] == [False, True]
