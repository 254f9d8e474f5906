#!/usr/bin/env bash
# With tools, the prompt of a Mistral model's next turn does not begin with the prompt of the turn before.
# mistral_common, the reference for these prompts, writes the tools once, before the last question of
# the user. One expects a conversation to grow at its end. Here the tools leave their old place with
# each question: a prefix cache (vLLM, SGLang) serves the few tokens before them, and all tools and
# turns are prefilled anew, and in training over turns the ids of an earlier turn are no beginning of
# the later one's. Version 3 (Nemo, Pixtral) moves the system message in the same way; version 7
# keeps it in front. Within one question, over calls and their results, the prompt only grows.
# mistral-common 1.13.1, sentencepiece 0.2.2. Checked 2026-11-30.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet mistral-common==1.13.1 sentencepiece==0.2.2
"$python" - <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

import mistral_common
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, FunctionCall, Tool, ToolCall
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

print(f"mistral-common {version('mistral-common')}")
data = Path(mistral_common.__file__).parent / "data"
parameters = {"type": "object", "properties": {"city": {"type": "string", "description": "A city."}}}
tools = [Tool(function=Function(name=f"tool_{number}", parameters=parameters)) for number in range(20)]
call = ToolCall(id="abcdefghi", function=FunctionCall(name="tool_1", arguments='{"city": "Rome"}'))
first = [UserMessage(content="Is it warm in Rome?")]
second = [*first, AssistantMessage(content="It is."), UserMessage(content="And in Oslo?")]
called = [*first, AssistantMessage(tool_calls=[call]), ToolMessage(content="It is.", tool_call_id="abcdefghi", name="tool_1")]
system = [SystemMessage(content="Answer in one word. " * 50)]


def ids(tokenizer, messages, tools):
    asked = ChatCompletionRequest(messages=messages, tools=tools)
    return tokenizer.encode_chat_completion(asked).tokens


def common(one, other):
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


# a conversation, and whether its second prompt begins with its first, by tokenizer
turns = {
    "no tools": ((first, second, None), (True, True, True)),
    "20 tools": ((first, second, tools), (False, False, False)),
    "20 tools, a call and its result": ((first, called, tools), (True, True, True)),
    "a system message": ((system + first, system + second, None), (False, False, True)),
}
files = (
    "mistral_instruct_tokenizer_240323.model.v3",
    "tekken_240911.json",
    "mistral_instruct_tokenizer_241114.model.v7",
)
same = True
for place, name in enumerate(files):
    tokenizer = MistralTokenizer.from_file(str(data / name))
    print(f"{name}, {type(tokenizer.instruct_tokenizer).__name__}")
    for what, ((before, after, given), begins) in turns.items():
        old, new = ids(tokenizer, before, given), ids(tokenizer, after, given)
        kept = common(old, new)
        print(f"  {what}: {kept} of the {len(old)} tokens of the first prompt begin the second, of {len(new)}")
        same &= (kept == len(old)) == begins[place] and (begins[place] or kept < 30)
sys.exit(not same)
PYTHON
echo "Tools stand before the last question: do not count on a prefix from turn to turn."
