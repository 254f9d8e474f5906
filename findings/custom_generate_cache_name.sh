#!/usr/bin/env bash
# A custom_generate loop that asks for past_key_values gives other tokens on transformers 5.24.
# generate() calls a function given as custom_generate with the cache among its keyword arguments.
# 5.24 renamed it from `past_key_values` to `cache`. Outputs and calls of the model still take the
# old name. The keyword arguments of the loop are a plain dict, and have the new name alone. A loop
# which asks there what is cached already finds nothing, and reads the whole sequence into the cache
# again: no error, no warning.
# torch 2.13.0, transformers 5.23.0 and 5.24.0. Checked 2026-11-28.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
cat >"$folder/loop.py" <<'PYTHON'
import sys
import warnings

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

warnings.simplefilter("error")
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=128,
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


def greedy(
    model, input_ids, logits_processor, stopping_criteria, generation_config, **state
):
    """Each pass reads the tokens that are not in the cache yet."""
    first = True
    while input_ids.shape[1] < generation_config.max_length:
        cache = state.get("past_key_values")
        cached = 0 if cache is None else cache.get_seq_length()
        inputs = model.prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=input_ids.shape[1] - cached,
            is_first_iteration=first,
            **state,
        )
        outputs = model(**inputs, return_dict=True)
        state = model._update_model_kwargs_for_generation(outputs, state)
        token = outputs.logits[:, -1:].argmax(-1)
        input_ids = torch.cat([input_ids, token], dim=-1)
        first = False
    return input_ids


prompt = torch.arange(1, 11)[None]
arguments = {
    "attention_mask": torch.ones_like(prompt),
    "max_new_tokens": 12,
    "do_sample": False,
}
expected = model.generate(prompt, **arguments)[0, 10:].tolist()
seen = model.generate(prompt, custom_generate=greedy, **arguments)[0, 10:].tolist()
print(f"transformers {transformers.__version__}")
print(f"  generate      {expected}")
print(f"  the same loop {seen}")
sys.exit((seen == expected) != (sys.argv[1] == "same"))
PYTHON

"$python" -m pip install --quiet torch==2.13.0 transformers==5.23.0
"$python" "$folder/loop.py" same
"$python" -m pip install --quiet transformers==5.24.0
"$python" "$folder/loop.py" different
echo "The loop is right on 5.23.0, and silently wrong on 5.24.0."
