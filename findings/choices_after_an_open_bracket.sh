#!/usr/bin/env bash
# lm_eval gives all choices one score where a prompt ends with "(" and the choices are "A)", "B)".
# A choice is scored by the tokens of prompt and choice together, without the first ones: as many as
# the prompt has alone. That is right only where no token holds both. After a line break "(A" is one
# token of Llama 3, Qwen 3 and DeepSeek V3. So the letter is cut off, and for each choice the model
# reads the prompt's own tokens and ")": the scores are equal, the first choice wins, and accuracy is
# the share of questions whose answer is A, for any model. There is no error and no warning. With the
# bracket in the choices, or a tokenizer that has no such token, the scores differ. Words of a language
# without spaces can be joined to a prompt as well: some choices of a question, and others not.
# lm_eval 0.4.13, with torch 2.13.0, transformers 5.24.0 and accelerate 1.15.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 lm_eval==0.4.13
HF_HUB_OFFLINE=1 HF_HOME="$folder/home" "$python" - <<'PYTHON'
import sys
from importlib.metadata import version

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

letters = "ABCD"
question = "The best answer is:\n"


def scores(joined: bool, prompt: str, choices: list[str]) -> list[float]:
    """The log-likelihoods of the choices; `joined` tokenizers have a token of "(" and a letter."""
    merged = [f"({letter}" for letter in letters] if joined else []
    words = ["<end>", *sorted({*question, *letters, "(", ")"}), *merged]
    split = Tokenizer(
        models.BPE(
            {word: number for number, word in enumerate(words)},
            [(word[0], word[1]) for word in merged],
            unk_token="<end>",
        )
    )
    # one sign may stand before the letters of a word
    split.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\sA-Za-z]?[A-Za-z]+|\s|."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=split, eos_token="<end>", pad_token="<end>")
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            initializer_range=0.4,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
    )
    judge = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
    asked = [
        Instance("loglikelihood", {}, (prompt, choice), number)
        for number, choice in enumerate(choices)
    ]
    return [round(score, 3) for score, _ in judge.loglikelihood(asked, disable_tqdm=True)]


print(f"lm_eval {version('lm_eval')}: the log-likelihoods of the four choices")
distinct = {}
for joined in (False, True):
    for where, prompt, form in (
        ("the choices", question, "({})"),
        ("the prompt", question + "(", "{})"),
    ):
        found = scores(joined, prompt, [form.format(letter) for letter in letters])
        distinct[joined, where] = len(set(found))
        print(f'  {"with" if joined else "without"} a token "(A", "(" in {where}: {found}')
expected = {
    (False, "the choices"): 4,
    (False, "the prompt"): 4,
    (True, "the choices"): 4,
    (True, "the prompt"): 1,
}
sys.exit(distinct != expected)
PYTHON
echo "Where prompt and choice share a token, lm_eval does not score that token."
