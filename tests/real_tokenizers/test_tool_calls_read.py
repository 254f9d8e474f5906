"""Tool calls that real chat templates write are read back, and no other calls are read."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pairs import FOLDER, PAIRS, Pair, loaded, tokenizer_of
from support.tagged import called, fits, read, tool as tool_of_schema

import pipegen as pg
from pipegen.answer.forced_calls import call_texts
from pipegen.answer.tool_calls import read_calls
from pipegen.backends.checkpoint.tokenizers import HFRenderer
from pipegen.core.slots import is_ok
from pipegen.ending.detokenize import ids_behind
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.results import Encoded
from pipegen.template.call_syntax import (
    ARGUMENTS,
    NAME,
    TOOLS as TOOLS_TRIED,
    WORDS,
    Writer,
    syntax_of,
    thought_before_call,
    writer_of,
)
from pipegen.template.template import USER, assistant, call, numbered_id
from pipegen.testing.fake import FakeEngine


def tool(name: str, **properties: str) -> dict[str, Any]:
    entries = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": entries, "required": []}
    function = {"name": name, "description": name, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool("get_weather", city="string", days="integer", ok="boolean"),
    tool("search", query="string"),
]


CASES: dict[str, tuple[str, list[dict[str, Any]], int]] = {  # and how many templates must be read
    "one": ("", [call("get_weather", {"city": "New York, NY"})], 100),
    "types": ("", [call("get_weather", {"city": "12", "days": 3, "ok": True})], 78),
    "none": ("", [call("get_weather", {})], 80),
    "two": (
        "",
        [
            call("get_weather", {"city": "Rome"}),
            call("search", {"query": 'a "b" <c>'}, numbered_id(1)),
        ],
        85,
    ),
    "words": ("Let me see.", [call("get_weather", {"city": "Rome"})], 82),
}


def answer_of(writer: Writer, content: str, calls: list[dict[str, Any]]) -> tuple[str, str] | None:
    """The answer with these calls as the template writes it, and its last token; None where the
    template writes no calls.
    """
    prompt = writer.prompt(TOOLS)
    whole = writer.answer(assistant(content, *calls), TOOLS)
    plain = writer.answer(assistant(WORDS), TOOLS)
    if not prompt or whole is None or plain is None:
        return None
    head, _, end = plain.rpartition(WORDS)
    start = next((text for text in (prompt, head) if text and whole.startswith(text)), None)
    if start is None:
        return None
    answer = whole[len(start) :]
    if any(one["function"]["name"] not in answer for one in calls):
        return None
    if end and answer.endswith(end):
        return answer.removesuffix(end), end.strip()
    last = re.search(r"(<[^/<>][^<>]*>|</s>)\s*$", answer)
    return (answer[: last.start()], last[1]) if last else (answer, "")


@pytest.mark.parametrize("case", CASES)
def test_calls_of_most_templates_are_read_back_and_none_wrongly(case: str) -> None:
    content, calls, least = CASES[case]
    raw = tokenizer_of("qwen3", False).raw
    raw.bos_token, raw.eos_token, raw.pad_token, raw.unk_token = "<s>", "</s>", "<pad>", "<unk>"
    wanted = [(one["function"]["name"], one["function"]["arguments"]) for one in calls]
    counts: Counter[str] = Counter()
    for path in sorted((FOLDER / "templates").glob("*/*.jinja")):
        renderer = HFRenderer(raw, path.read_text(encoding="utf-8"))
        writer = writer_of(renderer, ChatTemplateOptions(enable_thinking=False))
        written = answer_of(writer, content, calls)
        if written is None:
            counts["not written"] += 1
            continue
        found = read_calls(*written, TOOLS, writer)
        read = [
            (one["function"]["name"], json.loads(one["function"]["arguments"]))
            for one in found.calls
        ]
        assert not read or repr(read) == repr(wanted), path
        assert read or found.unread, path
        counts["read" if read else "unread"] += 1
    print(case, dict(counts))
    assert counts["read"] >= least, counts


def test_calls_are_forced_and_read_behind_thoughts_as_most_templates_write_them() -> None:
    raw = tokenizer_of("qwen3", False).raw
    raw.bos_token, raw.eos_token, raw.pad_token, raw.unk_token = "<s>", "</s>", "<pad>", "<unk>"
    counts: Counter[str] = Counter()
    for path in sorted((FOLDER / "templates").glob("*/*.jinja")):
        renderer = HFRenderer(raw, path.read_text(encoding="utf-8"))
        writer = writer_of(renderer, ChatTemplateOptions(enable_thinking=True))
        counts["forced" if is_ok(call_texts(writer)) else "not forced"] += 1
        thought = thought_before_call(writer)
        syntax = syntax_of(writer)
        if thought is None or not is_ok(syntax):
            counts["no thought beside a call"] += 1
            continue
        behind = thought.behind.removesuffix(syntax.unwrap().end)
        answer = f"{thought.opens}So be it.{thought.closing}{NAME}{behind}"
        found = read_calls(answer, syntax.unwrap().end.strip(), TOOLS_TRIED, writer)
        read = [json.loads(one["function"]["arguments"]) for one in found.calls]
        assert read in ([], [ARGUMENTS]), path
        assert read or found.unread, path
        counts["read behind a thought" if read else "unread"] += 1
    print(dict(counts))
    assert counts["forced"] >= 80, counts
    assert counts["read behind a thought"] >= 56 and not counts["unread"], counts


# begin a text and a call otherwise, after a thought
CHANNELS = "gptoss|muse-glimmer|Solar-Open"


@pytest.mark.parametrize("pair", [one for one in PAIRS if re.search(CHANNELS, str(one))], ids=str)
def test_a_model_with_channels_may_answer_with_a_call_or_a_text_after_a_thought(pair: Pair) -> None:
    tokenizer, renderer = loaded(pair)
    chat = ChatTemplateOptions(enable_thinking=True)
    writer = writer_of(renderer, chat)
    prompt = writer.prompt(TOOLS)
    thought = thought_before_call(writer)
    assert thought is not None
    wanted = call("get_weather", {"city": "Rome"})
    messages = ({"content": WORDS}, {"content": "", "tool_calls": [wanted]})
    for message in messages:
        said = {"role": "assistant", thought.field: "So be it.", **message}
        whole = writer.answer(said, TOOLS) or ""
        assert whole.startswith(prompt)
        ids = tokenizer.encode(whole.removeprefix(prompt).rstrip())
        token = tokenizer.decode(ids[-1:])
        first: list[int] = []
        opened = len(ids_behind(tokenizer, thought.opens))

        def script(row: Encoded, ids: Any = ids, first: Any = first, opened: int = opened) -> Any:
            first.append(len(row.prompt.token_ids) - opened)
            return ids[len(row.prompt.token_ids) - first[0] :]

        ends: Any = {"eos_tokens": (token,), "tokenizer": tokenizer, "renderer": renderer}
        engine = FakeEngine(script, **ends)
        engine.image_placeholder = None
        request = {"messages": [USER], "tools": TOOLS}
        options = {"max_thinking_tokens": 20, "enable_thinking": True}
        result = pg.run(pg.route(engine), [request], options)[0].unwrap()
        assert result.token_ids == ids
        assert result.reasoning == "So be it."
        if not is_ok(syntax_of(writer)):  # muse-glimmer writes the name twice
            assert bool(result.tool_calls_unread) == ("tool_calls" in message)
            assert result.tool_calls == ()
        elif "tool_calls" in message:
            (read,) = result.tool_calls
            assert json.loads(read["function"]["arguments"]) == {"city": "Rome"}
        else:
            assert (result.text, result.tool_calls) == (WORDS, ())


AWKWARD = (
    *("", "\n", " a\n", "</parameter>", "</arg_value>x", "</function>", "</tool_call>", "1e5"),
    *(
        "true",
        "null",
        "None",
        '"',
        "'",
        "\\n",
        '{"a": 1}',
        "[1",
        "<b>\n</b>\n<",
        "é🎈",
        "<parameter=a>",
    ),
)
"""Texts that are read as texts, whatever they look like."""


def awkward_calls(closes: str) -> Iterator[tuple[dict[str, Any], dict[str, str], dict[str, Any]]]:
    """Properties, texts of arguments that have these, and their values."""
    for text in AWKWARD:
        if fits(text, closes):
            yield {"a": {"type": "string"}}, {"a": text}, {"a": text}
    scalars: list[tuple[str, str, Any]] = [
        *(("integer", "-12", -12), ("number", "0.5", 0.5), ("number", "100000.0", 1e5)),
        *(("boolean", "True", True), ("boolean", "false", False), ("null", "null", None)),
    ]
    entries = {kind: {"type": kind} for kind, _, _ in scalars}
    for kind, text, value in scalars:
        yield entries, {kind: text}, {kind: value}
    if "\n" in closes:
        value = {"a": [None, {"b": "</parameter>\n"}], "é": [[]]}
        written = json.dumps(value, ensure_ascii=False)
        yield (
            {"o": {"type": "object"}, "more": {"type": "integer"}},
            {"o": written, "more": "1"},
            {"o": value, "more": 1},
        )


def test_forced_calls_of_tagged_values_are_read_back() -> None:
    raw = tokenizer_of("qwen3", False).raw
    raw.bos_token, raw.eos_token, raw.pad_token, raw.unk_token = "<s>", "</s>", "<pad>", "<unk>"
    tagged = []
    for path in sorted((FOLDER / "templates").glob("*/*.jinja")):
        renderer = HFRenderer(raw, path.read_text(encoding="utf-8"))
        slot = call_texts(writer_of(renderer, ChatTemplateOptions()))
        tags = slot.map(lambda texts: texts.tags).value_or(None)
        if tags is None:
            continue
        tagged.append(path.stem)
        for properties, texts, values in awkward_calls(tags.closes):
            schema = {"type": "object", "properties": properties}
            tools = [tool("get", city="string"), tool_of_schema("get_all", schema)]
            result = called(renderer, tools, "get_all", texts)
            assert (read(result), result.tool_calls_unread) == ([("get_all", values)], None), path
    print(tagged)
    assert len(tagged) >= 23
    for name in ("Qwen3-Coder", "ByteDance-Seed-OSS", "MiniMax-M2", "Qwen3.5-4B"):
        assert name in tagged
