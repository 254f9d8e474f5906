"""Tool calls in the text of an answer, read without code for any family of models.

The syntax of a call comes from what the checkpoint says (a response template beside its tokenizer),
else from its chat template (see `pipegen.template.call_syntax`).

A reading counts only if the template, given the calls, writes the very text of the answer. Ids are
not compared, where the model writes others. Tagged values are compared as texts. Otherwise the text
stays text, and `unread` says why.

>>> from pipegen.testing.fake import ToyRenderer
>>> read_calls("It is sunny.", "", (), Writer(ToyRenderer()))
ToolCalls(content=None, calls=(), unread=None)
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipegen.answer.split_thought import reasoning_of
from pipegen.core.errors import InvalidRequest
from pipegen.core.foreign_calls import attempt, guard
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.tokenizer import Renderer
from pipegen.records.frozen import NOTHING, freeze
from pipegen.template.call_signs import looks_like_call
from pipegen.template.call_syntax import (
    ARGUMENTS,
    FIRST_ID,
    NAME,
    USER,
    WORDS,
    Syntax,
    Writer,
    json_at,
    loads,
    named_id,
    openai_call,
    said,
    syntax_of,
    thought_before_call,
    tool_of,
    writers_of,
)

__all__ = ["ToolCalls", "read_calls"]

_SAMPLE = {"name": NAME, "arguments": ARGUMENTS}
OTHERWISE = "the chat template writes the call of the answer otherwise"
BEGUN = "the answer begins a tool call, and does not go on in its form"


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
    """The arguments with their types: of JSON as they are, of tagged values each by the tool's
    schema (`schema`), as JSON where they are some (`json`), or as text (`text`).
    """
    if isinstance(read.arguments, Mapping):
        return dict(read.arguments)
    if how == "text":
        return dict(read.arguments)
    if how == "json":
        return {key: next(_readings(text), text) for key, text in read.arguments}
    parameters: Mapping[str, Any] = {}
    for name, schema in map(tool_of, tools):
        if name == read.name and isinstance(schema, Mapping):
            parameters = schema
    entries = parameters.get("properties")
    entries = entries if isinstance(entries, Mapping) else {}
    shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    return {key: _value(text, entries.get(key), shared) for key, text in read.arguments}


def _value(text: str, entry: Any, shared: Mapping[str, Any]) -> Any:
    """A tagged value: the first of its readings that its schema allows. They are JSON, what Python
    writes for JSON, and text. A text is one where the schema takes no other value.

    >>> [_value("true", {"type": kind}, {}) for kind in ("boolean", "string")]
    [True, 'true']
    >>> _value("{'a': None}", {"type": "object"}, {})
    {'a': None}
    """
    from pipegen.answer.json_check import wrong_in_json

    readings = [*(value for value in _readings(text) if not isinstance(value, str)), text]
    schema = {**shared, **entry} if isinstance(entry, Mapping) else {}
    return next((value for value in readings if not wrong_in_json(value, schema)), readings[0])


def _readings(text: str) -> Iterator[Any]:
    loaded = loads(text)
    if loaded is not None or text.strip() == "null":
        yield loaded
        return
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return
    if value is None or isinstance(value, (bool, list, dict)):
        written = attempt(lambda: loads(json.dumps(value)))
        if written.value_or(None) == value:
            yield value


def read_calls(
    answer: str, ending: str, tools: Sequence[Any], writer: Writer, cut: str = ""
) -> ToolCalls:
    """The tool calls of an answer. `answer` is its text with all tokens but the one that ended it,
    whose text `ending` is. `cut` says what cut the answer, if anything did.
    """
    prompt = writer.write([USER], tools, opens=True) or ""
    plain = writer.write([USER, said(WORDS)], tools, opens=False) or ""
    named = _by_checkpoint(answer, prompt, tools, writer.renderer)
    forms = writers_of(writer)
    found = [_read_by(form, answer, ending, tools, named, (prompt, plain)) for form in forms]
    read = next((one for one in found if one.calls), None)
    if read is not None:
        return read
    signs = [_sign(form, tools) for form in forms]
    begun = any(
        one.unread and is_ok(syntax_of(form)) for one, form in zip(found, forms, strict=True)
    )
    if not begun and not looks_like_call(answer, tools, signs, plain, cut=bool(cut)):
        return ToolCalls()
    if cut:
        return ToolCalls(unread=f"the answer was cut within a tool call: {cut}")
    form = _meant(answer, tools, writer, (prompt, plain.rpartition(WORDS)[0]))
    reasons = (one.unread for one in found if one.unread)
    return ToolCalls(unread=f"{OTHERWISE}: {form}" if form else next(reasons, BEGUN))


def _sign(writer: Writer, tools: Sequence[Any]) -> str:
    """What the template writes before the name of a call; all that it writes with one where that is
    not known.
    """
    syntax = syntax_of(writer)
    message = said("", {"id": FIRST_ID, "type": "function", "function": _SAMPLE})
    return (
        syntax.unwrap().open
        if is_ok(syntax)
        else writer.write([USER, message], tools, opens=False) or ""
    )


def _read_by(
    writer: Writer,
    answer: str,
    ending: str,
    tools: Sequence[Any],
    named: tuple[str, list[dict[str, Any]]] | None,
    texts: tuple[str, str],
) -> ToolCalls:
    """What is read where ids are as this writer writes them."""
    syntax = syntax_of(writer)
    if named is None and not is_ok(syntax):
        return ToolCalls(unread=syntax.failure().message)
    opening = syntax.unwrap().open if is_ok(syntax) else ""
    seems = bool(named and named[1]) or bool(opening and opening in answer)
    if not seems:
        return ToolCalls()
    candidates = itertools.chain(
        [_Candidate(named[0], named[1], named[1])] if named and named[1] else [],
        _candidates(answer, ending, tools, syntax.unwrap()) if is_ok(syntax) else (),
    )
    around = _around_thought(writer, opening)
    opened = (texts[0], texts[1].rpartition(WORDS)[0])
    tried: Sequence[Mapping[str, Any]] | None = None
    for content, written, calls, stands_for in candidates:
        tried = calls if tried is None else tried
        for message in _messages(content, written, around):
            rendered = writer.write([USER, message], tools, opens=False)
            if rendered is None:
                continue
            for made, number in stands_for.items():
                rendered = rendered.replace(made, number, 1)
            if _is_written(rendered, answer, ending, opened, syntax):
                named_ids = writer.ids == "named"
                given = ({**call, "id": named_id(call)} if named_ids else call for call in calls)
                return ToolCalls(content, tuple(freeze(openai_call(call)) for call in given))
    if tried is None:
        return ToolCalls(unread=BEGUN)
    # a value with an end tag was not read as it was meant
    form = "" if "</" in repr(tried) else _form(tried, tools, writer, opened)
    return ToolCalls(unread=f"{OTHERWISE}: {form}" if form else OTHERWISE)


def _meant(answer: str, tools: Sequence[Any], writer: Writer, opened: Sequence[str]) -> str:
    """How the template writes the call that an answer has in another form; empty where the answer
    has no JSON of a call.
    """
    names = {name for name, _ in map(tool_of, tools)}
    for start in (found.start() for found in itertools.islice(re.finditer(r"\{", answer), 64)):
        value, _ = json_at(answer, start)
        inner = value.get("function") if isinstance(value, dict) else None
        call = inner if isinstance(inner, dict) else value
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str) or name not in names:
            continue
        arguments = call.get("arguments", call.get("parameters"))
        arguments = loads(arguments) if isinstance(arguments, str) else arguments
        if isinstance(arguments, dict):
            function = {"name": name, "arguments": arguments}
            meant = {"id": FIRST_ID, "type": "function", "function": function}
            return _form([meant], tools, writer, opened)
    return ""


def _form(
    calls: Sequence[Mapping[str, Any]], tools: Sequence[Any], writer: Writer, opened: Sequence[str]
) -> str:
    """How the template writes these calls; empty where it does not."""
    text = writer.write([USER, said("", *calls)], tools, opens=False) or ""
    syntax = syntax_of(writer)
    end = syntax.unwrap().end if is_ok(syntax) else ""
    before = next((one for one in opened if one and text.startswith(one)), text)
    form = text.removeprefix(before).removesuffix(end)
    return repr(form)[:600] if calls[0]["function"]["name"] in form else ""


class _Candidate(NamedTuple):
    """What an answer may mean."""

    content: str
    """The text before the calls."""
    written: Sequence[Mapping[str, Any]]
    """The calls, of which the template is to write the text of the answer."""
    calls: Sequence[Mapping[str, Any]]
    """The calls, as they are given: their tagged values have types."""
    stands_for: Mapping[str, str] = NOTHING
    """Ids that were made, and those of the answer in their places."""


def _candidates(
    answer: str, ending: str, tools: Sequence[Any], syntax: Syntax
) -> Iterator[_Candidate]:
    start = answer.find(syntax.open)
    reads = _sequence(answer, start + len(syntax.open), syntax, ending)
    if not reads:
        return
    before = answer[:start]
    bare = before.removeprefix(syntax.lead)
    contents = dict.fromkeys(
        content
        for text in (bare, before)
        for content in (text.removesuffix(syntax.glue), text, text.rstrip("\n"), text.strip())
    )
    made = [f"call{index:05d}" for index in range(len(reads))]
    numbers = [read.number or own for read, own in zip(reads, made, strict=True)]
    texts = not all(isinstance(read.arguments, Mapping) for read in reads)
    # a template may refuse the ids that a model writes
    for ids in (numbers, made)[: 1 if numbers == made else 2]:
        stands_for = {
            own: number
            for own, number in zip(made, numbers, strict=True)
            if ids is made and own != number
        }
        typed = _calls(reads, ids, tools, "schema")
        for how in ("schema", "json", "text") if texts else ("schema",):
            written = typed if how == "schema" else _calls(reads, ids, tools, how)
            for content in contents:
                calls = written if how == "json" else typed
                yield _Candidate(content, written, calls, stands_for)


def _calls(
    reads: Sequence[_Read], ids: Sequence[str], tools: Sequence[Any], how: str
) -> list[dict[str, Any]]:
    return [
        {
            "id": own,
            "type": "function",
            "function": {"name": read.name, "arguments": _typed(read, tools, how)},
        }
        for read, own in zip(reads, ids, strict=True)
    ]


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
