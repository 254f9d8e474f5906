#!/usr/bin/env bash
# generate_batch() of transformers ends at no stop string, and ignores min_new_tokens and max_length, without a warning.
# It is the same GenerationConfig that generate() reads, and where generate_batch() drops the penalty
# for repetition it logs that. Nothing is logged for these three: its requests have a limit of new
# tokens and ends of text, and no other rule for when to stop. A text that max_length would end runs
# on to an end of text, so a model that writes none fills the cache. max_new_tokens is kept.
# torch 2.13.0, transformers 5.24.0, psutil 7.2.2. Checked 2026-11-30.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet torch==2.13.0 transformers==5.24.0 psutil==7.2.2
"$python" - <<'PYTHON'
import logging
import sys
import warnings

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.generation import ContinuousBatchingConfig

letters = "_abcdefghijklmno"
size = len(letters)
vocabulary = Tokenizer(models.WordLevel({letter: at for at, letter in enumerate(letters)}, unk_token="_"))
vocabulary.pre_tokenizer = pre_tokenizers.Split("", "isolated")
vocabulary.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
).eval()
with torch.no_grad():  # a model that writes the alphabet: after each letter the next, or else the one after that
    layer = model.model.layers[0]
    for weight in (layer.self_attn.o_proj, layer.mlp.down_proj, model.model.embed_tokens, model.lm_head):
        weight.weight.zero_()
    for at in range(size):
        model.model.embed_tokens.weight[at, at] = 1.0
        model.lm_head.weight[(at + 1) % size, at] = 1.0
        model.lm_head.weight[(at + 2) % size, at] = 0.9
prompt = [letters.index("a"), letters.index("b")]

logged: list[str] = []


class Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logged.append(record.getMessage())


for name in ("transformers", "ContinuousBatchingLogger"):
    logging.getLogger(name).addHandler(Keep(logging.WARNING))


def texts(**settings: object) -> tuple[str, str, list[str]]:
    """What generate() and generate_batch() write for one configuration, and what the second one logs."""
    config = GenerationConfig(do_sample=False, pad_token_id=0, **settings)
    ids = torch.tensor([prompt])
    one = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=config,
        tokenizer=tokenizer if config.stop_strings else None,
    )[0, len(prompt) :].tolist()
    logged.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        (result,) = model.generate_batch(
            [prompt],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=8, max_batch_tokens=64, max_requests_per_batch=4
            ),
        ).values()
    assert result.error is None
    messages = [*logged, *(str(warning.message) for warning in warned)]
    return (
        tokenizer.decode(one),
        tokenizer.decode(result.generated_tokens),
        messages,
    )


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
at = letters.index
seen = {}
for name, settings in {
    "max_new_tokens=3": {"eos_token_id": at("j"), "max_new_tokens": 3},
    "repetition_penalty=2.0": {"eos_token_id": at("j"), "max_new_tokens": 4, "repetition_penalty": 2.0},
    'stop_strings=["de"]': {"eos_token_id": at("j"), "max_new_tokens": 9, "stop_strings": ["de"]},
    "min_new_tokens=6": {"eos_token_id": at("e"), "max_new_tokens": 6, "min_new_tokens": 6},
    "max_length=5": {"eos_token_id": at("j"), "max_length": 5},
}.items():
    seen[name] = texts(**settings)
    one, batch, messages = seen[name]
    print(f"  {name}:\n    generate:       {one}\n    generate_batch: {batch}")
    for message in messages:
        print(f"    logged: {message}")
expected = {
    "max_new_tokens=3": ("cde", "cde"),
    "repetition_penalty=2.0": ("cdef", "cdef"),
    'stop_strings=["de"]': ("cde", "cdefghij"),
    "min_new_tokens=6": ("cdfghi", "cde"),
    "max_length=5": ("cde", "cdefghij"),
}
logs = [name for name, (_, _, messages) in seen.items() if messages]
sys.exit({name: found[:2] for name, found in seen.items()} != expected or logs != ["repetition_penalty=2.0"])
PYTHON
echo "Stop strings, the smallest number of tokens and the largest length are ignored without a warning."
