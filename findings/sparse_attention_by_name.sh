#!/usr/bin/env bash
# DeepSeek V3.2 attends to all tokens when its attention function is registered under another name.
# A function of AttentionInterface.register is taken for a drop-in. The model applies the choice of
# its indexer, the sparse attention it was trained with, only if the name is "eager" or "sdpa"; to
# others it gives `indices`, which transformers' own sdpa_attention_forward takes and ignores. With
# that very function under another name each token attends to all tokens before it. Logits are the
# same up to `index_topk` tokens, so short tests pass.
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
from transformers import AttentionInterface, AttentionMaskInterface
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

AttentionInterface.register("same_function", sdpa_attention_forward)
AttentionMaskInterface.register("same_function", sdpa_mask)
prompt = torch.arange(1, 13)[None]


@torch.no_grad()
def logits(attention: str, index_topk: int) -> torch.Tensor:
    torch.manual_seed(0)
    config = DeepseekV32Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        first_k_dense_replace=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        index_topk=index_topk,
        index_head_dim=16,
        index_n_heads=2,
        initializer_range=0.3,
        attn_implementation=attention,
    )
    return DeepseekV32ForCausalLM(config).eval()(prompt).logits[0]


def gap(one: torch.Tensor, other: torch.Tensor) -> list[float]:
    return [round(value, 2) for value in (one - other).abs().amax(-1).tolist()]


named = gap(logits("sdpa", 4), logits("same_function", 4))
eager = gap(logits("sdpa", 4), logits("eager", 4))
dense = gap(logits("sdpa", 12), logits("same_function", 4))
print(f"transformers {transformers.__version__}: largest difference of logits, by position")
print(f"  sdpa, and eager                                      {eager}")
print(f"  sdpa, and its function under another name            {named}")
print(f"  sdpa that selects all tokens, and that other name    {dense}")
sys.exit(any(eager) or any(dense) or any(named[:4]) or not all(named[4:]))
PYTHON
echo "Under another name the tokens that the indexer selects are not used."
