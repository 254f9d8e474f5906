#!/usr/bin/env bash
# A LoRA adapter's biases stay in the answers of the other adapters of a model, and after it is deleted.
#
# An adapter that was trained with bias="lora_only" saves the biases of the layers that it adapts.
# peft gives a model several adapters, set_adapter() chooses, and two of them with biases are
# refused. So one expects that an adapter with biases and one without answer as each does alone.
# When the first is loaded, it writes its biases over the model's own. They are there for the second
# as well. Nor does delete_adapter() give the model's own back: the second one's logits are still
# not its own. No error, no warning.
#
# torch 2.13.0, transformers 5.23.0, peft 0.21.2. Checked 2026-11-30.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet torch==2.13.0 transformers==5.23.0 peft==0.21.2
cat >"$folder/show.py" <<'PYTHON'
import sys
import warnings

import peft
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

folder = sys.argv[1]
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    attention_bias=True,
)
LlamaForCausalLM(config).save_pretrained(f"{folder}/base")


def base():
    return LlamaForCausalLM.from_pretrained(f"{folder}/base")


for name, bias in (("biases", "lora_only"), ("plain", "none")):
    adapted = get_peft_model(base(), LoraConfig(target_modules=["q_proj", "o_proj"], bias=bias))
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data = torch.randn_like(weight)
    adapted.save_pretrained(f"{folder}/{name}")

ids = torch.arange(1, 11)[None]


def logits(first, second=None, delete=False):
    """Of the last of these adapters, beside the other, or after the other is deleted."""
    model = PeftModel.from_pretrained(base(), f"{folder}/{first}", adapter_name=first)
    if second is not None:
        model.load_adapter(f"{folder}/{second}", adapter_name=second)
        model.set_adapter(second)
    if delete:
        model.delete_adapter(first)
    with torch.no_grad():
        return model.eval()(ids).logits


with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    alone, beside = logits("plain"), logits("biases", "plain")
    after = logits("biases", "plain", delete=True)
own = [torch.allclose(alone, other, atol=1e-2) for other in (beside, after)]
print("peft", peft.__version__)
print("beside an adapter with biases, the logits are its own:", own[0])
print("after that one was deleted:", own[1])
print("warnings about it:", sum("bias" in str(entry.message) for entry in seen))
assert own == [False, False]
assert not any("bias" in str(entry.message) for entry in seen)
PYTHON
"$python" "$folder/show.py" "$folder"
