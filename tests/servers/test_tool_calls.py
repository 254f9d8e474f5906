"""Tool calls that pipegen reads in an answer are those that vLLM's parser `hermes` and SGLang's
`qwen25` read in it. Where they differ, the answer is of a kind that is explained here and in
docs/conversations.md.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launch
import pytest

import pipegen as pg
from pipegen.answer.tool_calls import read_calls
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.template.call_syntax import writer_of

COUNT = 500
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("get", "find_it")
]
VALUES = (
    "Rome",
    "",
    "è 日本 🎈",
    'a "b" \\ \n',
    12,
    -3.5,
    1e22,
    True,
    None,
    [1, {"deep": []}],
    "x < y > z & 'q'",
    "{",
)
BEFORE = ("", "", "Let me see.\n", "I look:\n\n", "<think>\nhm\n</think>\n\n")

OTHERWISE: dict[str, dict[str, bool]] = {
    "as the template writes it": {},
    "no call": {},
    "broken JSON": {},
    "no arguments": {"sglang": True},
    "an opened tag": {"vllm": True},
    "other white space": {"vllm": True, "sglang": True},
    "words behind": {"vllm": True, "sglang": True},
    "escaped characters": {"vllm": True, "sglang": True},
    "a key twice": {"vllm": True, "sglang": True},
    "a tag in a value": {"vllm": False},
    "a tool that is not there": {"sglang": False},
    "one call is broken": {"sglang": True},
}
"""Kinds of answers; and whether that parser reads calls where pipegen reads none (True), or reads
none, or fewer, where pipegen reads them (False).
"""


def written(name: str, arguments: Any) -> str:
    inner = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{name}", "arguments": {inner}}}\n</tool_call>'


def drawn(number: int) -> tuple[str, str]:
    """An answer, and of what kind it is."""
    draw = random.Random(number)
    kind = draw.choice([*OTHERWISE, *["as the template writes it"] * 8])

    def arguments() -> dict[str, Any]:
        keys = draw.sample(("city", "n", "flag", "ü"), k=draw.choice((0, 1, 1, 2, 3)))
        return {key: draw.choice(VALUES) for key in keys}

    def name() -> str:
        return draw.choice(("get", "find_it"))

    before = draw.choice(BEFORE)
    calls = "\n".join(written(name(), arguments()) for _ in range(draw.choice((1, 1, 2, 3))))
    first = {**arguments(), "city": "Rome"}
    one = written(name(), first)
    match kind:
        case "no call":
            text = draw.choice(("It is sunny.", "", 'I say {"name": "get"}.', "tool_call", "<tool"))
        case "broken JSON":
            end = draw.choice((",}\n</tool_call>", "\n</tool_call>", "]}\n</tool_call>"))
            text = one.removesuffix("}\n</tool_call>").removesuffix("}") + end
        case "no arguments":
            text = f'<tool_call>\n{{"name": "{name()}"}}\n</tool_call>'
        case "an opened tag":
            text = one.removesuffix("\n</tool_call>")
        case "other white space":
            old, new = draw.choice(
                ((", ", ","), ('": ', '":'), ("{", "{ "), ("\n</tool_call>", "\n\n</tool_call>"))
            )
            text = one.replace(old, new, 1)
        case "words behind":
            text = calls + draw.choice(("\nThat is all.", " ", "\n\nAnd?"))
        case "escaped characters":
            text = one.replace("Rome", draw.choice((r"R\u006fme", r"Ro\/me")))
        case "a key twice":
            text = one.replace('"city"', '"city": 1, "city"')
        case "a tag in a value":
            text = written(name(), {"city": draw.choice(("</tool_call>", "a </tool_call> b"))})
        case "a tool that is not there":
            text = written("nowhere", arguments())
        case "one call is broken":
            text = f'{one}\n<tool_call>\n{{"name": \n</tool_call>'
        case _:
            text = calls
    return before + text, kind


def parsed(engine: str, model: str, answers: list[str]) -> list[Any]:
    script = Path(__file__).with_name("parse_calls.py")
    given = json.dumps({"answers": answers, "tools": TOOLS})
    done = subprocess.run(
        [os.environ[launch.PYTHONS[engine]], str(script), engine, model],
        input=given.encode(),
        env={**os.environ, **launch.ENVIRONMENT, "PYTHONPATH": launch.PATHS[engine]},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return [[tuple(call) for call in calls] for calls in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope="session")
def ours(hf_of: Callable[[str], pg.Route]) -> list[Any]:
    """What pipegen reads in each answer."""
    renderer: Any = hf_of("embedded").engine.renderer  # type: ignore[union-attr]
    writer = writer_of(renderer, ChatTemplateOptions(enable_thinking=True))
    found = [
        read_calls(drawn(number)[0], "<|im_end|>", TOOLS, writer).calls for number in range(COUNT)
    ]
    return [
        [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
        for calls in found
    ]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_servers_own_parsers_agree(
    engine: str,
    ours: list[Any],
    folder_of: Callable[[str], str],
    record_property: Callable[[str, object], None],
) -> None:
    answers = [drawn(number) for number in range(COUNT)]
    theirs = parsed(engine, folder_of("embedded"), [answer for answer, _ in answers])
    differ = Counter[tuple[str, bool]]()
    for (answer, kind), mine, other in zip(answers, ours, theirs, strict=True):
        if mine != other:
            differ[kind, not mine] += 1
            assert not mine or other[: len(mine)] != mine, answer
    alike = COUNT - differ.total()
    record_property("table", f"{engine}: {alike} of {COUNT} alike; otherwise {dict(differ)}")
    wanted = {(kind, more[engine]) for kind, more in OTHERWISE.items() if engine in more}
    assert {*differ} == wanted
