#!/usr/bin/env bash
# What a tool says as 3.10 reaches a model of Mistral's as 3.1.
# mistral_common is the reference for the prompts of these models. Its tokenizers of the versions 2 and
# 3 (Mistral 7B Instruct v0.3, Nemo, Pixtral) read the text of a tool's answer as JSON, and write what
# it says anew. A version 3.10 or a price 2.50 loses its zero, a long number its last digits, 1e999
# becomes Infinity, quotes around a text go, and of two equal keys the first is lost. 007 is no JSON,
# and stays. Version 7 writes the text as it is. The arguments of a call lose their zeros in all.
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
from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, FunctionCall, Tool, ToolCall
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

print(f"mistral-common {version('mistral-common')}")
data = Path(mistral_common.__file__).parent / "data"
tool = Tool(function=Function(name="newest", parameters={"type": "object", "properties": {}}))
call = ToolCall(id="abcdefghi", function=FunctionCall(name="newest", arguments='{"than": 3.10}'))
# what the tool says, and what versions 2 and 3 write of it
said = {
    "3.10": "3.1",
    "12345678901234567.25": "1.2345678901234568e+16",
    "1e999": "Infinity",
    '"quoted"': '"quoted"',
    '{"n": 1.50, "n": 2.50}': '{"n": 2.5}',
    "007": '"007"',
}
# the file of each tokenizer, and what stands around an answer
old_3 = ('{"content": ', ', "call_id": "abcdefghi"}')
new = ("abcdefghi[TOOL_CONTENT] ", "")
files = {
    "mistral_instruct_tokenizer_240216.model.v2": ('[{"name": "newest", "content": ', "}]"),
    "mistral_instruct_tokenizer_240323.model.v3": old_3,
    "tekken_240718.json": old_3,
    "tekken_240911.json": old_3,
    "mistral_instruct_tokenizer_241114.model.v7": new,
}
same = True
for name, (before, after) in files.items():
    tokenizer = MistralTokenizer.from_file(str(data / name))
    print(f"{name}, {type(tokenizer.instruct_tokenizer).__name__}")
    for text, other in said.items():
        messages = [
            UserMessage(content="Which Python is the newest?"),
            AssistantMessage(tool_calls=[call]),
            ToolMessage(content=text, tool_call_id="abcdefghi", name="newest"),
        ]
        asked = ChatCompletionRequest(messages=messages, tools=[tool])
        prompt = (tokenizer.encode_chat_completion(asked).text or "").replace("\N{LOWER ONE EIGHTH BLOCK}", " ")
        shown = prompt.partition("[TOOL_RESULTS]")[2].partition("[/TOOL_RESULTS]")[0].strip()
        same &= shown == before + (text if before == new[0] else other) + after
        same &= '{"than": 3.1}' in prompt
        print(f"  {text:24} -> {shown}")
sys.exit(not same)
PYTHON
echo "Versions 2 and 3 read a tool's text as JSON: send a JSON string where the text must stay."
