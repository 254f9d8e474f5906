"""Tool calls in the text of an answer, read without code for any family of models.

The syntax of a call comes from what the checkpoint says (a response template beside its tokenizer),
else from its chat template (see `pipegen.template.call_syntax`).

A reading counts only if the template, given the calls, writes the very text of the answer. Ids are
not compared, where the model writes others. Tagged values are compared as texts. Otherwise the text
stays text, and `unread` says why.

>>> from pipegen.records.option_groups import ChatTemplateOptions
>>> from pipegen.template.call_syntax import writer_of
>>> from pipegen.testing.fake import ToyRenderer
>>> read_calls("It is sunny.", "", (), writer_of(ToyRenderer(), ChatTemplateOptions()))
ToolCalls(content=None, calls=(), unread=None)
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipegen.answer.split_thought import reasoning_of
from pipegen.core.errors import InvalidRequest
from pipegen.core.foreign_calls import attempt, guard
from pipegen.core.slots import is_ok
from pipegen.engines.tokenizer import Renderer
from pipegen.records.frozen import NOTHING, freeze
from pipegen.template.call_signs import looks_like_call
from pipegen.template.call_syntax import (
    ARGUMENTS,
    NAME,
    WORDS,
    Syntax,
    ThoughtIn,
    Writer,
    json_at,
    json_in,
    loads,
    named_call,
    openai_call,
    syntax_of,
    thought_beside_call,
    tool_of,
    writers_of,
)
from pipegen.template.template import FIRST_ID, JsonObject, assistant, call, numbered_id

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


class _AnswerInTemplate(NamedTuple):
    """An answer, and what the template writes around it."""

    text: str
    """All but the token that ended it."""
    ending: str
    """The text of this token."""
    tools: Sequence[Any]
    opened: tuple[str, str]
    """What may be before it: a prompt, and what is before an answer of words."""


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
    words: dict[str, str] = {}
    arguments: Any = {}
    for index, kind in enumerate(syntax.holes):
        literal = syntax.literals[index - 1] if index and kind != "tagged" else ""
        if not text.startswith(literal, position):
            return None
        position += len(literal)
        if kind in ("name", "id"):
            ends = [*syntax.literals, *(syntax.tags or ())[:1]][index : index + 1]
            ends = ends or [closing, syntax.between or ""]
            if kind == "name" and syntax.empty_tail:
                ends.append(syntax.empty_tail.removesuffix(syntax.end))
            stops = [text.find(end, position) for end in ends if end]
            stop = min((end for end in stops if end > position), default=-1)
            if stop < 0:
                return None
            words[kind], position = text[position:stop], stop
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
    return _Read(words["name"], words.get("id"), arguments), position


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


def _typed(read: _Read, tools: Sequence[object], how: str) -> dict[str, object]:
    """The arguments with their types: of JSON as they are, of tagged values each by the tool's
    schema (`schema`), as JSON where they are some (`json`), or as text (`text`).
    """
    if isinstance(read.arguments, Mapping) or how == "text":
        return dict(read.arguments)
    if how == "json":
        return {key: next(_readings(text), text) for key, text in read.arguments}
    schemas = {name: schema for name, schema in map(tool_of, tools) if isinstance(schema, Mapping)}
    parameters = schemas.get(read.name, NOTHING)
    entries = parameters.get("properties")
    entries = entries if isinstance(entries, Mapping) else {}
    shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    others = parameters.get("additionalProperties")
    return {key: _value(text, entries.get(key, others), shared) for key, text in read.arguments}


def _value(text: str, entry: object, shared: Mapping[str, object]) -> Any:
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


def _readings(text: str) -> Iterator[object]:
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
    prompt, plain = writer.prompt(tools), writer.answer(assistant(WORDS), tools) or ""
    text = _AnswerInTemplate(answer, ending, tools, (prompt, plain.rpartition(WORDS)[0]))
    own = _by_checkpoint(text, writer.template.renderer)
    forms = writers_of(writer)
    found = [_read_by(form, text, own) for form in forms]
    read = next((one for one in found if one.calls), None)
    if read is not None:
        return read
    sample = assistant("", call(NAME, ARGUMENTS))
    signs = [form.opening or form.answer(sample, tools) or "" for form in forms]
    begun = any(one.unread and form.opening for one, form in zip(found, forms, strict=True))
    if not begun and not looks_like_call(answer, tools, signs, plain, cut=bool(cut)):
        return ToolCalls()
    if cut:
        return ToolCalls(unread=f"the answer was cut within a tool call: {cut}")
    reasons = (one.unread for one in found if one.unread)
    return _otherwise(_meant(text, writer), next(reasons, BEGUN))


def _otherwise(form: str, reason: str) -> ToolCalls:
    return ToolCalls(unread=f"{OTHERWISE}: {form}" if form else reason)


def _read_by(writer: Writer, answer: _AnswerInTemplate, own: _Candidate | None) -> ToolCalls:
    """What is read where ids are as this writer writes them; `own` is what the checkpoint's own
    reader found.
    """
    syntax = syntax_of(writer)
    if own is None and not is_ok(syntax):
        return ToolCalls(unread=syntax.failure().message)
    candidates = [own] if own and own.calls else []
    if not candidates and not (writer.opening and writer.opening in answer.text):
        return ToolCalls()
    read = syntax.map(lambda known: _candidates(answer, known)).value_or(iter(()))
    around, end = thought_beside_call(writer), syntax.map(lambda known: known.end).value_or(None)
    tried: Sequence[JsonObject] | None = None
    for candidate in itertools.chain(candidates, read):
        tried = candidate.calls if tried is None else tried
        for message in _messages(candidate, around):
            rendered = writer.answer(message, answer.tools)
            if rendered is not None and _is_written(candidate.numbered(rendered), answer, end):
                named = map(named_call, candidate.calls)
                calls = map(openai_call, named if writer.ids == "named" else candidate.calls)
                return ToolCalls(candidate.content, tuple(map(freeze, calls)))
    if tried is None:
        return ToolCalls(unread=BEGUN)
    # a value with an end tag was not read as it was meant
    return _otherwise("" if "</" in repr(tried) else _form(tried, writer, answer), OTHERWISE)


def _meant(answer: _AnswerInTemplate, writer: Writer) -> str:
    """How the template writes the call that an answer has in another form; empty where the answer
    has no JSON of a call.
    """
    names = {name for name, _ in map(tool_of, answer.tools)}
    found = (_call_in(value, "") for value, _ in itertools.islice(json_in(answer.text, "{"), 64))
    calls = ({**one, "id": FIRST_ID} for one in found if one and one["function"]["name"] in names)
    meant = next(calls, None)
    return "" if meant is None else _form([meant], writer, answer)


def _call_in(value: Any, call_id: str) -> JsonObject | None:
    """The call that plain data are, with this id where they have none; None if they are no call."""
    inner = value.get("function") if isinstance(value, Mapping) else None
    function = inner if isinstance(inner, Mapping) else value
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return None
    arguments = function.get("arguments", function.get("parameters"))
    arguments = loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, Mapping):
        return None
    return call(function["name"], dict(arguments), str(value.get("id") or call_id))


def _form(calls: Sequence[JsonObject], writer: Writer, answer: _AnswerInTemplate) -> str:
    """How the template writes these calls; empty where it does not."""
    text = writer.answer(assistant("", *calls), answer.tools) or ""
    end = syntax_of(writer).map(lambda syntax: syntax.end).value_or("")
    before = next((one for one in answer.opened if one and text.startswith(one)), text)
    form = text.removeprefix(before).removesuffix(end)
    return repr(form)[:600] if calls[0]["function"]["name"] in form else ""


class _Candidate(NamedTuple):
    """What an answer may mean."""

    content: str
    """The text before the calls."""
    written: Sequence[JsonObject]
    """The calls, of which the template is to write the text of the answer."""
    calls: Sequence[JsonObject]
    """The calls, as they are given: their tagged values have types."""
    stands_for: Mapping[str, str] = NOTHING
    """Ids that were made, and those of the answer in their places."""

    def numbered(self, rendered: str) -> str:
        """The text with the ids of the answer."""
        for made, number in self.stands_for.items():
            rendered = rendered.replace(made, number, 1)
        return rendered


def _candidates(answer: _AnswerInTemplate, syntax: Syntax) -> Iterator[_Candidate]:
    start = answer.text.find(syntax.open)
    reads = _sequence(answer.text, start + len(syntax.open), syntax, answer.ending)
    if not reads:
        return
    before = answer.text[:start]
    contents = dict.fromkeys(
        content
        for text in (before.removeprefix(syntax.lead), before)
        for content in (text.removesuffix(syntax.glue), text, text.rstrip("\n"), text.strip())
    )
    made = tuple(numbered_id(index) for index in range(len(reads)))
    numbers = tuple(read.number or own for read, own in zip(reads, made, strict=True))
    tagged = any(not isinstance(read.arguments, Mapping) for read in reads)
    # a template may refuse the ids that a model writes
    for ids in dict.fromkeys((numbers, made)):
        pairs = zip(ids, numbers, strict=True)
        stands_for = {own: number for own, number in pairs if own != number}
        typed = _calls(reads, ids, answer.tools, "schema")
        for how in ("schema", "json", "text") if tagged else ("schema",):
            written = typed if how == "schema" else _calls(reads, ids, answer.tools, how)
            calls = written if how == "json" else typed
            for content in contents:
                yield _Candidate(content, written, calls, stands_for)


def _calls(
    reads: Sequence[_Read], ids: Sequence[str], tools: Sequence[object], how: str
) -> list[JsonObject]:
    return [
        call(read.name, _typed(read, tools, how), own) for read, own in zip(reads, ids, strict=True)
    ]


def _messages(candidate: _Candidate, around: ThoughtIn | None) -> Iterator[JsonObject]:
    """The assistant's message, with the thoughts in the text and apart."""
    content, calls = candidate.content, candidate.written
    yield assistant(content, *calls)
    if around and content.startswith(around.opens):
        inner = content.removeprefix(around.opens)
        if inner.endswith(around.closing):
            yield {**assistant("", *calls), around.field: inner.removesuffix(around.closing)}
    thought, opened = reasoning_of(content), reasoning_of(content, opened=True)
    if not thought.reasoning and opened.closed:
        thought = opened
    if thought.reasoning:
        yield {**assistant(thought.answer, *calls), "reasoning_content": thought.reasoning}


def _is_written(rendered: str, answer: _AnswerInTemplate, end: str | None) -> bool:
    """Whether the conversation, as the template writes it, ends with the very text of the answer
    and what the template writes behind an answer. Before it is one of the turns that open one; the
    first, the prompt, may end in more white space, where the answer begins with none.
    """
    text, prompt = answer.text, answer.opened[0]
    begins = [*answer.opened]
    if not text[:1].isspace():
        begins += [prompt[:size] for size in range(len(prompt.rstrip()), len(prompt))]
    ends = [rendered, rendered.rstrip().removesuffix(answer.ending.strip())]
    ends += [] if end is None else [rendered.removesuffix(end)]
    return any(
        whole.endswith(text) and whole[: len(whole) - len(text)] in begins
        for until in ends
        for whole in (until, until.rstrip("\n"))
    )


def _by_checkpoint(answer: _AnswerInTemplate, renderer: Renderer) -> _Candidate | None:
    """What the checkpoint's own reader finds; None where it has none, or fails."""
    read = getattr(renderer, "read_response", None)
    if read is None:
        return None
    slot = guard(
        lambda: read(answer.text, prompt=answer.opened[0], tools=answer.tools),
        lambda raised: InvalidRequest(raised.words),
        known=(Exception,),
    )
    message = slot.value_or(None)
    if not isinstance(message, Mapping):
        return None
    entries = message.get("tool_calls") or ()
    found = [_call_in(one, numbered_id(index)) for index, one in enumerate(entries)]
    calls = [one for one in found if one is not None]
    content = message.get("content")
    text = content if isinstance(content, str) else ""
    return _Candidate(text, calls, calls) if len(calls) == len(found) else None
