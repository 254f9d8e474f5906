"""The tool calls that a server's own parser reads in answers: run with the python of that engine.

    python parse_calls.py vllm MODEL < answers.json

The answers are a list of texts, and the tools that there are; what is printed is, for each answer, a
list of names and arguments.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

Calls = list[tuple[str, Any]]


def vllm(model: str, tools: list[Any]) -> Callable[[str], Calls]:
    from transformers import AutoTokenizer
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    parser: Any = Hermes2ProToolParser(AutoTokenizer.from_pretrained(model))

    def read(answer: str) -> Calls:
        found = parser.extract_tool_calls(answer, None).tool_calls
        return [(call.function.name, json.loads(call.function.arguments)) for call in found]

    return read


def sglang(model: str, tools: list[Any]) -> Callable[[str], Calls]:
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.qwen25_detector import Qwen25Detector

    known: Any = [Tool.model_validate(tool) for tool in tools]

    def read(answer: str) -> Calls:
        found = Qwen25Detector().detect_and_parse(answer, known).calls
        return [(call.name, json.loads(call.parameters)) for call in found]

    return read


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # a call that cannot be read is logged with its traceback
    given = json.load(sys.stdin)
    reader = {"vllm": vllm, "sglang": sglang}[sys.argv[1]](sys.argv[2], given["tools"])
    print("\n" + json.dumps([reader(answer) for answer in given["answers"]]))
