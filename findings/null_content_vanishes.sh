#!/usr/bin/env bash
# A chat template that asks `message['content'] is none` loses tool calls on transformers 5.23.
# The message of an assistant that calls a tool has `content: null`, as OpenAI's API gives it. Some
# models' templates, DeepSeek V3's among them, write the calls where `content is none`. Since 5.23
# apply_chat_template drops keys whose value is null before the template sees them. An undefined
# variable is not none in Jinja, so the test is false: the calls are left out of the prompt, with no
# error and no warning. The test `is not none` becomes true.
# transformers 5.22.2 and 5.23.0, jinja2 3.1.6. Checked 2026-11-28.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
cat >"$folder/calls.py" <<'PYTHON'
import sys

import transformers
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

template = (
    "{% for message in messages %}<{{ message['role'] }}>"
    "{% if message['content'] is none %}"
    "{% for call in message['tool_calls'] %}"
    "[call {{ call['function']['name'] }} {{ call['function']['arguments']['city'] }}]"
    "{% endfor %}"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% endfor %}"
)
call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
messages = [
    {"role": "user", "content": "Is it warm?"},
    {"role": "assistant", "content": None, "tool_calls": [call]},
    {"role": "tool", "content": "28 degrees"},
]
words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
prompt = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
print(f"transformers {transformers.__version__}: the prompt of a question, a call and its result")
print(f"  {prompt}")
written = "[call weather Rome]" in prompt
sys.exit(written != (sys.argv[1] == "written") or "28 degrees" not in prompt)
PYTHON

"$python" -m pip install --quiet transformers==5.22.2 jinja2==3.1.6
"$python" "$folder/calls.py" written
"$python" -m pip install --quiet transformers==5.23.0
"$python" "$folder/calls.py" lost
echo "The call is in the prompt on 5.22.2, and is not on 5.23.0."
