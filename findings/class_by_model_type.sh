#!/usr/bin/env bash
# transformers gives a checkpoint of `model_type: qwen2` Qwen2's rule for splitting text, whatever its tokenizer.json says.
#
# A tokenizer.json holds the rule by which text is split before its merges apply, and
# tokenizer_config.json names the class `PreTrainedTokenizerFast`, which adds nothing. So one expects
# the ids of the file. `AutoTokenizer` reads `model_type` of config.json too. For "qwen2" it takes
# `Qwen2Tokenizer` in place of the named class, and that class sets Qwen's own rule, which splits a
# number into its digits. A model of this architecture with a tokenizer of its own, which merges
# "12", then gets other ids than it was trained on, without a warning. Without config.json, or with
# "llama", "gpt2" or "mistral", the ids are those of the file.
#
# transformers 5.24.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet transformers==5.24.0
cat >"$folder/show.py" <<'PYTHON'
import json
import sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

folder = Path(sys.argv[1])
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {letter: number for number, letter in enumerate([*letters, "12", "<|end|>"])}
own = Tokenizer(models.BPE(vocabulary, [("1", "2")]))
own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
own.decoder = decoders.ByteLevel()
own.save(str(folder / "tokenizer.json"))
named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
(folder / "tokenizer_config.json").write_text(json.dumps(named))
text = "12 is 12"
expected = own.encode(text).tokens
print("transformers", transformers.__version__)
print("tokenizer.json:", expected)
same = {}
for kind in ("llama", "gpt2", "mistral", "qwen2"):
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = loaded.convert_ids_to_tokens(loaded(text, add_special_tokens=False)["input_ids"])
    print(f"model_type {kind}, {type(loaded).__name__}:", tokens)
    same[kind] = tokens == expected
assert same == {"llama": True, "gpt2": True, "mistral": True, "qwen2": False}, same
PYTHON
mkdir "$folder/checkpoint"
"$python" "$folder/show.py" "$folder/checkpoint"
