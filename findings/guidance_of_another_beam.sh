#!/usr/bin/env bash
# With `guidance_scale`, generate() takes another beam's history, or that of rejected tokens, for a text's own.
# Classifier-free guidance compares each token's probability with that which it has without the
# prompt. generate() reads the text once more for that, one token a call, with a cache of its own. It
# takes each row for the continuation of the same row of the call before. Beams change their rows, and
# prompt lookup and assisted decoding take tokens back: neither reaches that cache. So beam search
# scores texts by tokens of others, and lookup, which must not change a greedy text, changes it.
# `use_cache=False` does the same. Guidance of 1, and greedy decoding, are right. There is no warning.
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
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=24,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.35,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
).eval()
prompts = [[5, 9, 13, 5, 9, 13, 5], [1, 2, 1, 2, 1, 2, 1, 2, 3], [7, 7, 7, 7, 8, 7, 7, 7]]


class Guidance(LogitsProcessor):
    """The same guidance, which reads each whole text anew: its last prompt token and what follows."""

    def __init__(self, scale: float, width: int) -> None:
        self.scale = scale
        self.start = width - 1

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        alone = model(input_ids[:, self.start :], use_cache=False).logits[:, -1].log_softmax(-1)
        return alone + self.scale * (scores.log_softmax(-1) - alone)


def made(prompt: list[int], **settings: object) -> list[int]:
    ids = torch.tensor([prompt])
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        do_sample=False,
        **settings,
    )[0, len(prompt) :].tolist()


print(f"transformers {transformers.__version__}: texts of {len(prompts)} prompts that are as they should be")
right = {}
for name, settings in {
    "greedy": {},
    "beam search": {"num_beams": 4},
    "beam search, no cache": {"num_beams": 4, "use_cache": False},
    "prompt lookup": {"prompt_lookup_num_tokens": 4},
}.items():
    for scale in (1.0, 1.5):
        pairs = [
            (
                made(prompt, guidance_scale=scale, **settings),
                made(prompt, logits_processor=[Guidance(scale, len(prompt))], **settings),
            )
            for prompt in prompts
        ]
        right[name, scale] = sum(got == due for got, due in pairs)
        print(f"  {name}, guidance_scale={scale}: {right[name, scale]}")
print("  the last pair:", *pairs[-1])
same = {key for key, count in right.items() if count == len(prompts)}
wrong = {key for key, count in right.items() if count < len(prompts)}
expected = {(name, 1.5) for name in ("beam search", "beam search, no cache", "prompt lookup")}
sys.exit(wrong != expected or len(same) + len(wrong) != len(right))
PYTHON
echo "Beams and speculated tokens do not reach the cache of the guidance."
