"""Tool calls in the text of an answer, read without code for any family of models.

The syntax of a call comes from what the checkpoint says (a response template beside its tokenizer),
else from its chat template (see `pipegen.stages.parts.call_syntax`).

A reading counts only if the template, given the calls, writes the very text of the answer.
Otherwise the text stays text, and `unread` says why.

>>> from pipegen.testing.fake import ToyRenderer
>>> read_calls("It is sunny.", "", (), Writer(ToyRenderer()))
ToolCalls(content=None, calls=(), unread=None)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipegen.core.border import guard
from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.tokenizer import Renderer
from pipegen.records.frozen import freeze
from pipegen.stages.parts.call_syntax import (
    USER,
    WORDS,
    Syntax,
    Writer,
    json_at,
    loads,
    openai_call,
    said,
    syntax_of,
    thought_before_call,
)
from pipegen.stages.parts.reasoning import reasoning_of

__all__ = ["ToolCalls", "read_calls"]


class ToolCalls(NamedTuple):
    """What was read."""

    content: str | None = None
    """The text before the calls; None where there are no calls."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """The calls, in the OpenAI form: arguments are JSON text."""
    unread: str | None = None
    """Why the answer's calls could not be read."""


class _Read(NamedTuple):
    """One call, before its values have types."""

    name: str
    number: str | None
    arguments: Mapping[str, Any] | tuple[tuple[str, str], ...]


def _sequence(text: str, start: int, syntax: Syntax, ending: str) -> list[_Read] | None:
    """The calls from this place on, where the text has the syntax up to its end."""
    calls: list[_Read] = []
    closing = syntax.tail.removesuffix(syntax.end).rstrip().removesuffix(ending.strip())
    while True:
        read = _one(text, start, syntax, closing)
        if read is None:
            return None
        call, start = read
        calls.append(call)
        if syntax.between and text.startswith(syntax.between, start):
            start += len(syntax.between)
        else:
            return calls


def _one(text: str, position: int, syntax: Syntax, closing: str) -> tuple[_Read, int] | None:
    """The call at this place, and where it ends."""
    name, call_id = "", None
    arguments: Any = {}
    for index, kind in enumerate(syntax.holes):
        if index and kind != "tagged":
            literal = syntax.literals[index - 1]
            if not text.startswith(literal, position):
                return None
            position += len(literal)
        if kind in ("name", "id"):
            ends = [*syntax.literals, *(syntax.tags[:1] if syntax.tags else ())][index : index + 1]
            ends = ends or [closing, syntax.between or ""]
            if kind == "name" and syntax.empty_tail:
                ends.append(syntax.empty_tail.removesuffix(syntax.end))
            stops = [text.find(end, position) for end in ends if end]
            stop = min((end for end in stops if end > position), default=-1)
            if stop < 0:
                return None
            if kind == "name":
                name = text[position:stop]
            else:
                call_id = text[position:stop]
            position = stop
        elif kind == "tagged":
            tagged = _tagged(text, position, syntax, closing)
            if tagged is None:
                return None
            arguments, position = tagged
        else:
            value, position = json_at(text, position)
            arguments = loads(value) if kind == "text" and isinstance(value, str) else value
            if not isinstance(arguments, dict):
                return None
    return _Read(name, call_id, arguments), position


def _tagged(
    text: str, position: int, syntax: Syntax, closing: str
) -> tuple[tuple[tuple[str, str], ...], int] | None:
    opens, middle, following = syntax.tags or ("", "", "")
    pairs: list[tuple[str, str]] = []
    if not text.startswith(opens, position):
        return (), position
    position += len(opens)
    while True:
        key_end = text.find(middle, position)
        if key_end < 0:
            return None
        value_start = key_end + len(middle)
        stops = [text.find(end, value_start) for end in (following, syntax.between, closing) if end]
        stop = min((index for index in stops if index >= 0), default=len(text))
        pairs.append((text[position:key_end], text[value_start:stop]))
        if following and text.startswith(following, stop) and middle in text[stop:]:
            position = stop + len(following)
            continue
        return tuple(pairs), stop


def _typed(read: _Read, tools: Sequence[Any], how: str) -> dict[str, Any]:
    """The arguments with their types: of JSON as they are, of tagged values by the tool's schema
    (`schema`), as JSON where they are some (`json`), or as text (`text`).
    """
    if isinstance(read.arguments, Mapping):
        return dict(read.arguments)
    kinds: dict[str, Any] = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        if function.get("name") == read.name:
            parameters = function.get("parameters") or {}
            kinds = dict(parameters.get("properties") or {})

    def value(key: str, text: str) -> Any:
        entry = kinds.get(key)
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        if how == "text" or (how == "schema" and kind == "string"):
            return text
        if text in ("True", "False", "None"):
            return {"True": True, "False": False, "None": None}[text]
        loaded = loads(text)
        return text if loaded is None and text != "null" else loaded

    return {key: value(key, text) for key, text in read.arguments}


def read_calls(answer: str, ending: str, tools: Sequence[Any], writer: Writer) -> ToolCalls:
    """The tool calls of an answer. `answer` is its text with all tokens but the one that ended it,
    whose text `ending` is.
    """
    syntax = syntax_of(writer)
    prompt = writer.write([USER], tools, opens=True) or ""
    named = _by_checkpoint(answer, prompt, tools, writer.renderer)
    if named is None and not is_ok(syntax):
        return ToolCalls(unread=syntax.failure().message)
    opening = syntax.unwrap().open if is_ok(syntax) else ""
    seems = bool(named and named[1]) or bool(opening and opening in answer)
    if not seems:
        return ToolCalls()
    candidates = itertools.chain(
        [named] if named and named[1] else [],
        _candidates(answer, ending, tools, syntax.unwrap()) if is_ok(syntax) else (),
    )
    around = _around_thought(writer, opening)
    plain = writer.write([USER, said(WORDS)], tools, opens=False) or ""
    opened = (prompt, plain.rpartition(WORDS)[0])
    tried = False
    for content, calls in candidates:
        tried = True
        for message in _messages(content, calls, around):
            rendered = writer.write([USER, message], tools, opens=False)
            if rendered is not None and _is_written(rendered, answer, ending, opened, syntax):
                return ToolCalls(content, tuple(freeze(openai_call(call)) for call in calls))
    if tried:
        return ToolCalls(
            unread="the chat template writes the calls that were read in the answer otherwise than"
            " the answer does"
        )
    return ToolCalls(unread="the answer begins a tool call, and does not go on in its form")


def _candidates(
    answer: str, ending: str, tools: Sequence[Any], syntax: Syntax
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What the answer may mean: the text before the calls, and the calls."""
    start = answer.find(syntax.open)
    reads = _sequence(answer, start + len(syntax.open), syntax, ending)
    if not reads:
        return
    before = answer[:start]
    for how in ("schema", "json", "text"):
        calls = [
            {
                "id": read.number or f"call{index:05d}",
                "type": "function",
                "function": {"name": read.name, "arguments": _typed(read, tools, how)},
            }
            for index, read in enumerate(reads)
        ]
        bare = before.removeprefix(syntax.lead)
        contents = [
            content
            for text in (bare, before)
            for content in (text.removesuffix(syntax.glue), text, text.rstrip("\n"), text.strip())
        ]
        for content in dict.fromkeys(contents):
            yield content, calls
        if all(isinstance(read.arguments, Mapping) for read in reads):
            return


def _around_thought(writer: Writer, opening: str) -> tuple[str, str, str] | None:
    """The field of a thought before a call, and what is before and behind it, up to the call."""
    thought = thought_before_call(writer)
    if thought is None or not opening or opening not in thought.closing:
        return None
    return thought.field, thought.opens, thought.closing.rpartition(opening)[0]


def _messages(
    content: str, calls: Sequence[Mapping[str, Any]], around: tuple[str, str, str] | None
) -> Iterator[dict[str, Any]]:
    """The assistant's message, with the thoughts in the text and apart."""
    yield said(content, *calls)
    field, opens, closing = around or ("", "", "")
    if around and content.startswith(opens) and content.removeprefix(opens).endswith(closing):
        yield {**said("", *calls), field: content.removeprefix(opens).removesuffix(closing)}
    thought = reasoning_of(content)
    if thought.reasoning:
        yield {**said(thought.answer, *calls), "reasoning_content": thought.reasoning}
    elif "</think>" in content or content.strip():
        opened = reasoning_of(content, opened=True)
        if opened.closed and opened.reasoning:
            yield {**said(opened.answer, *calls), "reasoning_content": opened.reasoning}


def _is_written(
    rendered: str, answer: str, ending: str, opened: Sequence[str], syntax: Slot[Syntax]
) -> bool:
    """Whether the conversation, as the template writes it, ends with the very text of the answer
    and what the template writes behind an answer. Before it is one of the turns `opened`; the
    first, the prompt, may end in more white space, where the answer begins with none.
    """
    begins = [*opened]
    if not answer[:1].isspace():
        bare = opened[0].rstrip()
        begins += [opened[0][:end] for end in range(len(bare), len(opened[0]))]
    ends = [rendered, rendered.rstrip().removesuffix(ending.strip())]
    ends += [rendered.removesuffix(syntax.unwrap().end)] if is_ok(syntax) else []
    return any(
        text.endswith(answer) and text[: len(text) - len(answer)] in begins
        for end in ends
        for text in (end, end.rstrip("\n"))
    )


def _by_checkpoint(
    answer: str, prompt: str, tools: Sequence[Any], renderer: Renderer
) -> tuple[str, list[dict[str, Any]]] | None:
    """What the checkpoint's own reader finds; None where it has none, or fails."""
    read = getattr(renderer, "read_response", None)
    if read is None:
        return None
    slot = guard(
        lambda: read(answer, prompt=prompt, tools=tools),
        lambda raised: InvalidRequest(raised.words),
        known=(Exception,),
    )
    message = slot.unwrap() if is_ok(slot) else None
    if not isinstance(message, Mapping):
        return None
    calls = []
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return None
        arguments = function.get("arguments")
        arguments = loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(arguments, Mapping):
            return None
        calls.append(
            {
                "id": str(call.get("id") or f"call{index:05d}"),
                "type": "function",
                "function": {"name": function["name"], "arguments": dict(arguments)},
            }
        )
    content = message.get("content")
    return (content if isinstance(content, str) else ""), calls
