#!/usr/bin/env bash
# repetition_penalty penalised the end of text in left-padded rows, until transformers 5.23.
# Many models pad with their end of text. Up to 5.22 the penalty read the columns of padding as
# tokens of the prompt, so a shorter row of a batch was less likely to end than alone. 5.23 leaves
# padding out: the same call gives other texts, of other lengths.
# torch 2.13.0, transformers 5.22.2 and 5.23.0. Checked 2026-11-28.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
cat >"$folder/rows.py" <<'PYTHON'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
).eval()
end = 7
settings = {
    "max_new_tokens": 10,
    "do_sample": False,
    "repetition_penalty": 1.3,
    "eos_token_id": end,
    "pad_token_id": end,
}


def greedy(rows: list[list[int]]) -> list[list[int]]:
    """The new tokens of each row of a left-padded batch, and nothing after its end."""
    width = max(map(len, rows))
    ids = torch.tensor([[end] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    made = model.generate(ids, attention_mask=mask, **settings)[:, width:].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in made]


(alone,) = greedy([[5, 9, 13]])
seen, _ = greedy([[5, 9, 13], [3, 7, 11, 15, 4, 8, 12, 6]])
print(f"transformers {transformers.__version__}: at most 10 new tokens of one row; {end} ends it")
print(f"  alone               {alone}")
print(f"  beside a longer one {seen}")
sys.exit((seen == alone) != (sys.argv[1] == "same"))
PYTHON

"$python" -m pip install --quiet torch==2.13.0 transformers==5.22.2
"$python" "$folder/rows.py" different
"$python" -m pip install --quiet transformers==5.23.0
"$python" "$folder/rows.py" same
echo "The batch changes the row on 5.22.2, and does not on 5.23.0."
