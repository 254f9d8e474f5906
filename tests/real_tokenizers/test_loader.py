"""Real tokenizers as transformers loads them from a checkpoint: the ids of their own
`tokenizer.json`, or an error whose advice mends it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pairs import FOLDER
from tokenizers import Tokenizer as Rust

from pipegen.backends.checkpoint.tokenizers import load_tokenizer
from pipegen.records.fields import InvalidField

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
