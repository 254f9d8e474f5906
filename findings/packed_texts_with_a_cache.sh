#!/usr/bin/env bash
# Packed texts see each other in a default call of a transformers model, and not with gradient checkpointing.
# DataCollatorWithFlattening puts texts into one row, with positions that begin again at 0. Models of
# transformers 5 keep these texts apart by the positions, also without flash attention, but only
# where there is no cache. `use_cache` is true by default, so a plain forward pass makes one, in
# training as well. Then each text attends to all before it in its row, and nothing warns. Gradient
# checkpointing turns the cache off, so it changes the loss. Trainer sets `use_cache=False`: its loss
# is right, and that of a loop of one's own, or of a model that scores texts, is not.
# torch 2.13.0, transformers 5.24.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet torch==2.13.0 transformers==5.24.0
"$python" - <<'PYTHON'
import sys

import torch
import transformers
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
texts = [list(range(3, 13)), list(range(20, 27))]
packed = DataCollatorWithFlattening(return_tensors="pt")([{"input_ids": text} for text in texts])


def model(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.3,
            attn_implementation=attention,
        )
    )


def alone(llama: LlamaForCausalLM) -> float:
    """The mean loss of all tokens, where each text has a row for itself."""
    rows = [torch.tensor([text]) for text in texts]
    losses = [llama(row, labels=row).loss.item() * (row.shape[1] - 1) for row in rows]
    return sum(losses) / sum(row.shape[1] - 1 for row in rows)


print(f"transformers {transformers.__version__}: positions {packed['position_ids'].tolist()}")
found = []
for attention in ("eager", "sdpa"):
    llama = model(attention)
    losses = {"each text alone": alone(llama)}
    losses["packed, evaluation"] = llama.eval()(**packed).loss.item()
    losses["packed, training"] = llama.train()(**packed).loss.item()
    losses["packed, use_cache=False"] = llama(**packed, use_cache=False).loss.item()
    llama.activation_checkpointing_enable()
    losses["packed, training with checkpointing"] = llama(**packed).loss.item()
    right = losses["each text alone"]
    for name, loss in losses.items():
        print(f"  {attention:5} {name:36} loss {loss:.4f}")
    found.append([abs(loss - right) < 1e-3 for loss in losses.values()])
sys.exit(found != [[True, False, False, True, True]] * 2)
PYTHON
echo "Packed texts are apart only where no cache is made, and a default call makes one."
