#!/usr/bin/env bash
# A left-padded row of DeepSeek V4 attends to its padding: its logits are not those that it has alone.
# The model compresses windows of 4 and of 128 tokens into one key each. Windows are counted from the
# first column of the batch, and the attention mask does not reach them. Which of them a token may see
# is counted by its position in the row. So a row that is padded by 8 sees windows of padding, and
# not its own. There is no error and no warning, and Llama shows what is usual.
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
from transformers import AutoModelForCausalLM, DeepseekV4Config, LlamaConfig

sizes = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
configs = {
    "Llama": LlamaConfig(intermediate_size=64, **sizes),
    "DeepSeek V4": DeepseekV4Config(
        moe_intermediate_size=16,
        head_dim=16,
        q_lora_rank=16,
        o_groups=2,
        o_lora_rank=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        index_topk=4,
        index_head_dim=8,
        index_n_heads=2,
        sliding_window=8,
        **sizes,
    ),
}
short = [5, 9, 13, 17, 21, 25]


def first_logits(model, *rows: list[int]) -> torch.Tensor:
    """What `generate` computes for the first new token of the first row, left-padded."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    settings = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    return model.generate(ids, attention_mask=mask, max_new_tokens=1, **settings).logits[0][0]


def differences(config) -> dict[int, float]:
    """By padding: the largest difference of the logits in a batch from those alone."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    alone = first_logits(model, short)
    return {
        padding: (first_logits(model, short, list(range(30, 36 + padding))) - alone)
        .abs()
        .max()
        .item()
        for padding in (0, 1, 4, 8)
    }


print(f"transformers {transformers.__version__}: logits in a batch less logits alone, at most")
changed = {}
for name, config in configs.items():
    found = differences(config)
    shown = ", ".join(f"{size:.5f} (padded by {padding})" for padding, size in found.items())
    print(f"  {name:12} {shown}")
    changed[name] = [size > 0.01 for size in found.values()]
sys.exit(changed != {"Llama": [False] * 4, "DeepSeek V4": [False, True, True, True]})
PYTHON
echo "Any padding changes a row of DeepSeek V4, and none changes a row of Llama."
