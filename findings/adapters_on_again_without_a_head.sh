#!/usr/bin/env bash
# After disable_adapters(), transformers' enable_adapters() leaves the modules_to_save of an adapter off.
#
# A model with a loaded adapter has disable_adapters() for passes without it, and enable_adapters()
# to have it back. So one expects the adapter's logits again. The first goes to LoRA's modules and to
# those that the adapter holds whole (`modules_to_save`, such as a trained lm_head). The second goes
# to LoRA's alone. The whole modules stay the base model's: other logits, no error, no warning. Nor
# does set_adapter() turn them on.
#
# torch 2.13.0, transformers 5.23.0, peft 0.21.2. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet torch==2.13.0 transformers==5.23.0 peft==0.21.2
cat >"$folder/show.py" <<'PYTHON'
import sys

import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
base = LlamaForCausalLM(config)
base.save_pretrained(sys.argv[1] + "/base")
lora = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
trained = get_peft_model(base, lora)
for name, weight in trained.named_parameters():
    if "lora_" in name or "modules_to_save" in name:
        weight.data = torch.randn_like(weight)
trained.save_pretrained(sys.argv[1] + "/adapter")

model = LlamaForCausalLM.from_pretrained(sys.argv[1] + "/base").eval()
model.load_adapter(sys.argv[1] + "/adapter")
ids = torch.arange(1, 11)[None]


def logits():
    with torch.no_grad():
        return model(ids).logits


with_adapter = logits()
model.disable_adapters()
without = logits()
model.enable_adapters()
again = logits()
model.set_adapter("default")
after_set = logits()
print("transformers", transformers.__version__)
print("the adapter changes the logits:", not torch.allclose(with_adapter, without))
print("enable_adapters() gives them back:", torch.allclose(with_adapter, again))
print("set_adapter() gives them back:", torch.allclose(with_adapter, after_set))
assert not torch.allclose(with_adapter, without)
assert not torch.allclose(with_adapter, again)
assert not torch.allclose(with_adapter, after_set)
PYTHON
"$python" "$folder/show.py" "$folder"
