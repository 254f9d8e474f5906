#!/usr/bin/env bash
# TRL gives a `rollout_func` each prompt once for each of its generations, and its docstring says "with no duplication".
#
# The docstring of `GRPOTrainer` says that a `rollout_func` gets the prompts of the process "with no
# duplication", and that it returns as many completions for each as `num_generations` says. So one
# expects two prompts of a batch of eight, with four generations, and returns four completions for
# each. The function gets eight prompts, each four times in a row, and one completion for each is
# right. Four for each would be 32 completions for eight prompts.
#
# trl 1.16.0, with transformers 5.19.0, torch 2.13.0 and datasets 5.2.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet torch==2.13.0 transformers==5.19.0 datasets==5.2.0 trl==1.16.0
cat >"$folder/show.py" <<'PYTHON'
import sys
import warnings

import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

warnings.simplefilter("ignore")
words = {word: number for number, word in enumerate(["<end>", "one", "two", "yes"])}
split = Tokenizer(models.WordLevel(words, unk_token="<end>"))
split.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=split, eos_token="<end>", pad_token="<end>", unk_token="<end>"
)
config = LlamaConfig(
    vocab_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
)
config.eos_token_id = config.pad_token_id = 0
seen = []


def rollouts(prompts, trainer):
    seen.append(list(prompts))
    ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    answers = [[3, 0] for _ in prompts]
    return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}


def reward(completions, **others):
    return [float(number) for number, _ in enumerate(completions)]


trainer = trl.GRPOTrainer(
    LlamaForCausalLM(config),
    reward,
    args=trl.GRPOConfig(
        output_dir=sys.argv[1],
        per_device_train_batch_size=8,
        num_generations=4,
        max_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=Dataset.from_list([{"prompt": "one"}, {"prompt": "two"}]),
    processing_class=tokenizer,
    rollout_func=rollouts,
)
trainer.train()
docstring = " ".join(trl.GRPOTrainer.__doc__.split())
print("trl", trl.__version__)
print("the docstring says 'with no duplication':", "with no duplication" in docstring)
print("the prompts of one call:", seen[0])
assert "with no duplication" in docstring
assert sorted(seen[0]) == ["one"] * 4 + ["two"] * 4, seen[0]
PYTHON
"$python" "$folder/show.py" "$folder/out"
