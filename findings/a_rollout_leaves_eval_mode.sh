#!/usr/bin/env bash
# A `rollout_func` of TRL that leaves the model in eval mode lets one of the accumulated batches count several times.
#
# A `rollout_func` that generates with the model in training puts it into eval mode, so that dropout is
# off. The Trainer calls `model.train()` at the start of every batch. So one expects that the mode
# after the function does not matter to a model without dropout. But the function runs after that
# call, and `GRPOTrainer` takes `model.training` for whether it trains or evaluates. The losses "grpo"
# and "bnpo" are divided by the number of accumulated batches in training alone. So of four batches,
# the one in which the function ran counts four times, without a warning: another gradient. The
# default loss, "dapo", is the same in both modes.
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


def gradient(leave_in_eval: bool, loss_type: str) -> float:
    """The norm of the gradient of one step of four batches, of given answers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    config.eos_token_id = config.pad_token_id = 0

    def rollouts(prompts, trainer):
        trainer.model.eval()  # as for generation
        answers = [[2 + number % 2, 0] for number, _ in enumerate(prompts)]
        ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        if not leave_in_eval:
            trainer.model.train()
        return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}

    trainer = trl.GRPOTrainer(
        LlamaForCausalLM(config),
        lambda completions, **others: [float("yes" in text) for text in completions],
        args=trl.GRPOConfig(
            output_dir=sys.argv[1],
            loss_type=loss_type,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            num_generations=4,
            max_steps=1,
            max_grad_norm=1e9,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": "count"}] * 16),
        processing_class=tokenizer,
        rollout_func=rollouts,
    )
    trainer.train()
    return next(log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log)


print("trl", trl.__version__)
ratios = {}
for loss_type in ("grpo", "bnpo", "dapo"):
    ratios[loss_type] = gradient(True, loss_type) / gradient(False, loss_type)
    print(f"{loss_type}: gradient after eval mode / after training mode: {ratios[loss_type]:.3f}")
assert ratios["grpo"] > 1.5, ratios
assert abs(ratios["dapo"] - 1) < 1e-6, ratios
PYTHON
"$python" "$folder/show.py" "$folder/out"
