#!/usr/bin/env bash
# generate() of RobertaForCausalLM gives other tokens than the model's own forward pass.
# RoBERTa counts the positions of tokens from `pad_token_id` + 1. The model does so itself when it
# gets no `position_ids`, as in training. generate() makes `position_ids` that begin with 0, and the
# model takes them: each token is read at a position that is two less, the first ones at positions
# that no training has reached. It is so with and without a cache. BERT, which counts from 0, shows
# what is usual. There is no warning.
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
from transformers import BertConfig, BertLMHeadModel, RobertaConfig, RobertaForCausalLM

sizes = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "is_decoder": True,
    "initializer_range": 0.5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 1,
}
prompt = torch.tensor([[5, 9, 13, 17, 21]])
mask = torch.ones_like(prompt)


@torch.no_grad()
def first_logits(model, use_cache: bool) -> list[torch.Tensor]:
    """Those of the first new token: of generate(), of forward(), and of it from position 0 on."""
    made = model.generate(
        prompt,
        attention_mask=mask,
        max_new_tokens=1,
        do_sample=False,
        use_cache=use_cache,
        output_logits=True,
        return_dict_in_generate=True,
    ).logits[0][0]
    from_zero = torch.arange(prompt.shape[1])[None]
    plain = model(prompt, attention_mask=mask).logits[0, -1]
    return [made, plain, model(prompt, attention_mask=mask, position_ids=from_zero).logits[0, -1]]


print(f"transformers {transformers.__version__}: largest difference of generate()'s logits")
as_expected = True
for config, kind in ((BertConfig, BertLMHeadModel), (RobertaConfig, RobertaForCausalLM)):
    torch.manual_seed(0)
    model = kind(config(**sizes)).eval()
    for use_cache in (True, False):
        made, plain, from_zero = first_logits(model, use_cache)
        gaps = [(made - other).abs().max().item() for other in (plain, from_zero)]
        print(
            f"  {kind.__name__:18} use_cache={use_cache!s:5} from forward() {gaps[0]:.4f},"
            f" from forward() with positions that begin with 0 {gaps[1]:.4f}"
        )
        differs = kind is RobertaForCausalLM
        as_expected &= (gaps[0] > 0.01) == differs and gaps[1] < 0.001
sys.exit(not as_expected)
PYTHON
echo "generate() reads RoBERTa's tokens at other positions than forward() does."
