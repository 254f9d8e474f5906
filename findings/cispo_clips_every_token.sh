#!/usr/bin/env bash
# TRL's `loss_type="cispo"` with default settings multiplies every token's gradient by 0.2.
# CISPO cuts the importance weights of tokens at a maximum, which is far above 1, so that it acts on
# few tokens. TRL takes `epsilon_high` itself for that maximum. For the other losses it is a distance
# from 1, and its default, that of `epsilon`, is 0.2. So with the defaults each weight is cut to 0.2:
# on-policy, where all weights are 1, the gradient is a fifth of that of "dapo", and off-policy a
# token that has become twice as likely counts as one that has not changed. There is no warning, and
# Adam hides the factor: only the norm of the gradient and `cispo_clip_ratio` show it.
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

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

warnings.simplefilter("ignore")
words = {word: number for number, word in enumerate(["<end>", "count", "yes", "no"])}
split = Tokenizer(models.WordLevel(words, unk_token="<end>"))
split.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=split, eos_token="<end>", pad_token="<end>", unk_token="<end>"
)


def gradient(**settings: object) -> tuple[float, object]:
    """The norm of the gradient of one on-policy step of given answers, and how many were cut."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    config.eos_token_id = config.pad_token_id = 0

    def rollouts(prompts, trainer):
        answers = [[2 + number % 2, 0] for number, _ in enumerate(prompts)]
        ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}

    trainer = trl.GRPOTrainer(
        LlamaForCausalLM(config),
        lambda completions, **others: [float("yes" in text) for text in completions],
        args=trl.GRPOConfig(
            output_dir=sys.argv[1],
            per_device_train_batch_size=4,
            num_generations=4,
            max_steps=1,
            max_grad_norm=1e9,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=Dataset.from_list([{"prompt": "count"}] * 4),
        processing_class=tokenizer,
        rollout_func=rollouts,
    )
    trainer.train()
    log = next(log for log in trainer.state.log_history if "grad_norm" in log)
    return log["grad_norm"], log.get("cispo_clip_ratio")


print("trl", trl.__version__)
usual, _ = gradient(loss_type="dapo")
default, cut = gradient(loss_type="cispo")
high, _ = gradient(loss_type="cispo", epsilon_high=5.0)
print(f"gradient of cispo / of dapo, on-policy: {default / usual:.3f}, tokens cut: {cut}")
print(f"the same with epsilon_high=5.0: {high / usual:.3f}")
assert abs(default / usual - 0.2) < 1e-3, (default, usual)
assert abs(high / usual - 1) < 1e-3, (high, usual)
PYTHON
"$python" "$folder/show.py" "$folder/out"
