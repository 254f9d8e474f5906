#!/usr/bin/env bash
# With dynamic RoPE scaling, the same greedy call of one model gives other tokens the second time.
# The frequencies grow with the longest sequence that the module has seen. They go back only when a
# sequence shorter than `max_position_embeddings` comes. So a prompt of at least that length is read
# with the frequencies of the calls before it: other rows, other users. A fresh model, or a short
# call in between, gives the first answer again.
# torch 2.13.0, transformers 5.24.0. Checked 2026-11-28.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet torch==2.13.0 transformers==5.24.0
"$python" <<'PYTHON'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=12,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
).eval()


def greedy(length: int) -> list[int]:
    prompt = torch.arange(3, 3 + length)[None]
    mask = torch.ones_like(prompt)
    made = model.generate(prompt, attention_mask=mask, max_new_tokens=8, do_sample=False)
    return made[0, length:].tolist()


first, second = greedy(12), greedy(12)
greedy(3)
third = greedy(12)
print(f"transformers {transformers.__version__}: new tokens of one prompt of 12 tokens")
print(f"  first call                  {first}")
print(f"  second call                 {second}")
print(f"  third, after a short prompt {third}")
sys.exit(first == second or first != third)
PYTHON
echo "The second call differs from the first, and a short prompt in between undoes it."
