"""How a chat template writes tool calls, read off it without code for any family of models.

Calls with sentinels as name, argument and value are rendered. What stands before, between and after
the sentinels is the syntax. Arguments are JSON, or tagged values.

>>> from pipegen.testing.fake import ToyRenderer
>>> syntax_of(Writer(Template(ToyRenderer()))).unwrap().open
'[{"id": "'
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from returns.result import Failure, Success

from pipegen.core.errors import TemplateFailed
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.tokenizer import Renderer
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.template.template import (
    USER,
    JsonObject,
    Template,
    assistant,
    between,
    call,
    template_of,
    tool,
)

NAME, THOUGHT, WORDS = "zqone", "Qzthought", "Qzwords"
ID = "zqid00001"
_NEXT_NAME, _NEXT_ID = "zqtwo", "zqid00002"
_KEY, _NEXT_KEY = "zqkey", "zqmore"
_VALUE, _NEXT_VALUE = "QZXJ7", "QZXK8"
ARGUMENTS = {_KEY: _VALUE}
_BOTH = {**ARGUMENTS, _NEXT_KEY: _NEXT_VALUE}
TOOLS = [tool(name, _KEY, _NEXT_KEY) for name in (NAME, _NEXT_NAME)]
_CALL = call(NAME, ARGUMENTS, ID)
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")

_TAG_BEGUN = re.compile(r"[<\[][^<>\[\]]*$")
"""The beginning of a tag, which two texts may share that write different ones."""
_LAST_TAG = re.compile(r"(<[^/<>][^<>]*>|\[[^/\[\]]+\])\s*$")
"""A tag at the end of a text that closes no other tag."""


class Writer(NamedTuple):
    """A chat template as a request has it, and how the ids of calls are written."""

    template: Template
    ids: Literal["written", "left out", "named"] = "written"
    """The ids of calls: as the template writes them, left out of what it writes, or made of the
    call's name (`functions.NAME:ID`), whatever number the template gives a call.
    """

    @property
    def opening(self) -> str:
        """What is before the name of the first call; empty where that is not known."""
        return syntax_of(self).map(lambda syntax: syntax.open).value_or("")

    def prompt(self, tools: Sequence[JsonObject], **more: bool) -> str:
        """A short conversation up to the answer; empty where the template rejects it."""
        return self.template.write([USER], tools, add_generation_prompt=True, **more).value_or("")

    def answer(self, message: JsonObject, tools: Sequence[JsonObject]) -> str | None:
        """The conversation with this answer; None where the template rejects it. Some take the
        arguments of calls only as JSON text.
        """
        calls = message.get("tool_calls") or ()
        message = _with_calls(message, named_call) if self.ids == "named" else message
        slot = self.template.write([USER, message], tools)
        if calls and not is_ok(slot):
            slot = self.template.write([USER, _with_calls(message, openai_call)], tools)
        text = slot.value_or(None)
        if text is None or self.ids == "written":
            return text
        return (_without_ids if self.ids == "left out" else _with_ids)(text, calls)


def _with_calls(
    message: JsonObject, change: Callable[[Mapping[str, Any]], JsonObject]
) -> JsonObject:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [*map(change, calls)]} if calls else message


def named_call(one: Mapping[str, Any]) -> JsonObject:
    """The call with an id that is made of its name.

    >>> named_call(call("add", {}, "0"))["id"]
    'functions.add:0'
    """
    return {**one, "id": f"functions.{one['function']['name']}:{one['id']}"}


def openai_call(one: Mapping[str, Any]) -> JsonObject:
    """The call in the OpenAI form: its arguments are JSON text."""
    function = one["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**one, "function": {**function, "arguments": arguments}}


def _with_ids(text: str, calls: Sequence[JsonObject]) -> str:
    """The text with the ids of its calls where the template counts them."""
    parts: list[str] = []
    place = 0
    for index, one in enumerate(calls):
        counted = re.escape(named_call({**one, "id": index})["id"])
        found = re.compile(rf"{counted}(?![0-9])").search(text, place)
        if found:
            parts += [text[place : found.start()], named_call(one)["id"]]
            place = found.end()
    return "".join((*parts, text[place:]))


def _without_ids(text: str, calls: Sequence[JsonObject]) -> str:
    """The text without the ids of its calls, and without the keys or tags before them."""
    for word in (re.escape(one["id"]) for one in calls):
        forms = (
            rf',\s*"\w+":\s*"{word}"',
            rf'"\w+":\s*"{word}",\s*',
            rf"(<[^<>]+>|\[[^\[\]]+\]){word}(?=[<\[])",
        )
        form = next((form for form in forms if re.search(form, text)), "(?!)")
        text = re.sub(form, "", text, count=1)
    return text


def writer_of(renderer: Renderer, chat: ChatTemplateOptions) -> Writer:
    """The template as these options have it rendered."""
    return Writer(template_of(renderer, chat))


@functools.lru_cache(maxsize=32)
def writers_of(writer: Writer) -> tuple[Writer, ...]:
    """The writer, and those whose ids are as models write them. Some leave out what the template
    writes. Others make ids of names.

    >>> from pipegen.testing.fake import ToyRenderer
    >>> [each.ids for each in writers_of(Writer(Template(ToyRenderer())))]
    ['written', 'left out']
    """
    plain = writer._replace(ids="written")
    calls = _CALL, call(_NEXT_NAME, ARGUMENTS, _NEXT_ID)
    both = plain.answer(assistant("", *calls), TOOLS) or ""
    counted = f"{NAME}:0" in both and f"{_NEXT_NAME}:1" in both
    named = counted or (NAME not in both and ID in both)
    numbered = "id" in syntax_of(plain).map(lambda syntax: syntax.holes).value_or(())
    others = [
        *([plain._replace(ids="named")] if named else ()),
        *([plain._replace(ids="left out")] if numbered else ()),
    ]
    read = [each for each in others if is_ok(syntax_of(each))]
    return (plain, *read) if numbered else (*read, plain)


def tool_of(tool: object) -> tuple[str, Any]:
    """The name of a tool, and the schema of its arguments."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    return str(function.get("name") or ""), function.get("parameters") or {"type": "object"}


class Syntax(NamedTuple):
    """How the template writes calls."""

    open: str
    """What is before the name of the first call, white space before it left out."""
    ahead: str | None
    """What is between the beginning of an answer without words and the name of its call; None where
    the template begins such an answer otherwise than another.
    """
    behind: str
    """What is behind the name of one call."""
    glue: str
    """The white space between the words of an answer and its first call."""
    holes: tuple[str, ...]
    """The kinds of the parts of a call, in order: `name`, `id`, `json`, `text` (JSON as a JSON
    string) or `tagged`.
    """
    literals: tuple[str, ...]
    """What is between the parts."""
    between: str | None
    """What is between the last part of a call and the first of the next; None where the template
    writes one call only.
    """
    tail: str
    """What is behind the last part of the last call."""
    end: str
    """What of the tail is behind the answer."""
    tags: tuple[str, str, str] | None = None
    """For tagged values: between the part before and the first key, between key and value, and
    between a value and the next key.
    """
    lead: str = ""
    """What the template writes before the words of an answer with calls."""
    empty_tail: str = ""
    """For tagged values: what follows the name where there are no arguments."""


@functools.lru_cache(maxsize=64)
def syntax_of(writer: Writer) -> Slot[Syntax]:
    """The syntax of the template's calls; `TemplateFailed` where it cannot be derived."""
    single = writer.answer(assistant("", _CALL), TOOLS) or ""
    if NAME not in single or _VALUE not in single:
        return _underived("does not write the name of a call")
    prompt = writer.prompt(TOOLS)
    head, _, end = (writer.answer(assistant(WORDS), TOOLS) or "").rpartition(WORDS)
    worded = writer.answer(assistant(WORDS, _CALL), TOOLS) or ""
    before_words, behind_words = between(worded, WORDS) or ("", "")
    start = _start(writer, single, prompt, (before_words, prompt, head))
    body = single.removeprefix(start)
    if body.count(NAME) != 1:
        return _underived("does not write the name of a call once")
    holes = _holes(body)
    texts = between(body, *(text for _, text in holes)) if holes else None
    if texts is None:
        return _underived("writes the arguments in a form of its own")
    before, *literals, tail = texts
    if not before.strip():
        return _underived("writes nothing before the name of a call")
    kinds = tuple(kind for kind, _ in holes)
    tags, empty_tail = None, ""
    if kinds[-1] == "tagged":
        both = writer.answer(assistant("", call(NAME, _BOTH, ID)), TOOLS) or ""
        _, following, *_ = between(both, _VALUE, _NEXT_KEY) or ("", "")
        middle = holes[-1][1].removeprefix(_KEY).removesuffix(_VALUE)
        tags = (literals.pop(), middle, following)
        bare = writer.answer(assistant("", call(NAME, {}, ID)), TOOLS) or ""
        empty_tail = bare.rpartition(NAME)[2] if NAME in bare else ""
    opening = before.lstrip()
    until = (start + before).removesuffix(opening)
    begun = next((text for text in (prompt, head) if text and until.startswith(text)), None)
    called, _, behind = body.partition(NAME)
    glue = behind_words.partition(opening)[0]
    return Success(
        Syntax(
            open=opening,
            ahead=None if begun is None else (start + called).removeprefix(begun),
            behind=behind,
            glue="" if glue.strip() else glue,
            holes=kinds,
            literals=tuple(literals),
            between=_between_calls(writer, single.removesuffix(tail), kinds[0]),
            tail=tail,
            end=_end_of(tail, end),
            tags=tags,
            lead=start.removeprefix(begun) if begun and start.startswith(begun) else "",
            empty_tail=empty_tail,
        )
    )


def _underived(why: str) -> Slot[Syntax]:
    return Failure(TemplateFailed(f"the chat template {why}"))


def _start(writer: Writer, single: str, prompt: str, starts: Sequence[str]) -> str:
    """What is before the answer in a conversation whose answer is a call."""
    before = [text for text in starts if single.startswith(text) and NAME in single[len(text) :]]
    start = max(before, key=len, default="")
    start = start or _TAG_BEGUN.sub("", common_beginning(single, prompt))
    thought = thought_before_call(writer)
    called = single[len(start) :].partition(NAME)[0]
    if thought is None or thought.closing.endswith(called.lstrip()):
        return start
    # an empty thought is no part of the call
    shared = _common_ending(called.lstrip(), thought.closing)
    return (start + called).removesuffix(shared) if shared.strip() else start


def _holes(body: str) -> list[tuple[str, str]]:
    """The parts of a call, in order: their kinds and texts. None where its arguments are written in
    a form that is not known.
    """
    arguments = arguments_in(body)
    tagged = re.search(f"{_KEY}.*{_VALUE}", body, re.DOTALL)
    if arguments is None and tagged and body.count(_KEY) == body.count(_VALUE) == 1:
        arguments = ("tagged", tagged[0])
    if arguments is None:
        return []
    holes = [("name", NAME), arguments, *([("id", ID)] if body.count(ID) == 1 else ())]
    return sorted(holes, key=lambda hole: body.index(hole[1]))


def _between_calls(writer: Writer, first: str, kind: str) -> str | None:
    """What is between the first call and the first part of the next, which is of this kind."""
    following = call(_NEXT_NAME, {_KEY: _NEXT_VALUE}, _NEXT_ID)
    both = writer.answer(assistant("", _CALL, following), TOOLS) or ""
    part = {"name": _NEXT_NAME, "id": _NEXT_ID}.get(kind)
    texts = between(both, first, part) if part else None
    return texts[1] or None if texts and not texts[0] else None


class ThoughtIn(NamedTuple):
    """A thought in an answer, as the template writes it."""

    field: str
    """The field of the message that it is in."""
    opens: str
    """What is between the prompt and the thought; empty where the prompt opens it."""
    closing: str
    """What is between the thought and what follows it."""
    behind: str
    """What is behind that."""


def thoughts_in(
    writer: Writer, message: JsonObject, following: str, tools: Sequence[JsonObject] = ()
) -> Iterator[ThoughtIn]:
    """How the template writes a thought into this answer, in which `following` comes after it."""
    prompt = writer.prompt(tools)
    for field in _THOUGHT_FIELDS:
        text = writer.answer({**message, field: THOUGHT}, tools) or ""
        head, *behind = between(text, THOUGHT, following) or ("",)
        opened = prompt.startswith(head) and not prompt[len(head) :].strip()
        if behind and (opened or head.startswith(prompt)):
            yield ThoughtIn(field, head[len(prompt) :], *behind)


@functools.lru_cache(maxsize=32)
def thought_before_call(writer: Writer) -> ThoughtIn | None:
    """How the template writes an answer that is a thought and a call, up to the call's name and
    behind it; None where it writes none.
    """
    return next(thoughts_in(writer, assistant("", _CALL), NAME, TOOLS), None)


def thought_beside_call(writer: Writer) -> ThoughtIn | None:
    """The same, up to all that the template writes before the name of a call."""
    thought, opening = thought_before_call(writer), writer.opening
    if thought is None or not opening or opening not in thought.closing:
        return None
    return thought._replace(closing=thought.closing.rpartition(opening)[0])


def common_beginning(first: str, second: str) -> str:
    """What both texts begin with."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return "".join(character for character, _ in pairs)


def _common_ending(first: str, second: str) -> str:
    return common_beginning(first[::-1], second[::-1])[::-1]


def _end_of(tail: str, end: str) -> str:
    """What of a tail is behind the answer. `end` is what is behind an answer without calls: it is
    in the tail; or both end with the same tags; or a call ends with a tag of its own.
    """
    if tail.endswith(end) and end.strip() not in tail.removesuffix(end):
        return end
    if not end.strip():
        return end if tail.endswith(end) else ""
    if end.strip() in tail:
        return tail[tail.index(end.strip()) :]
    shared = _common_ending(tail, end)
    tag = _LAST_TAG.search(tail)
    return shared[shared.index("<") :] if "<" in shared else tag[0] if tag else ""


def arguments_in(text: str) -> tuple[str, str] | None:
    """The arguments, as JSON (`json`) or as JSON in a JSON string (`text`), and their text."""
    for kind, sign in (("json", "{"), ("text", '"')):
        for value, written in json_in(text, sign):
            if ARGUMENTS in (value, loads(value) if isinstance(value, str) else None):
                return kind, written
    return None


def json_in(text: str, sign: str) -> Iterator[tuple[object, str]]:
    """The JSON that begins with each sign in the text, and its text; None where there is none."""
    for found in re.finditer(re.escape(sign), text):
        value, stop = json_at(text, found.start())
        yield value, text[found.start() : stop]


def json_at(text: str, start: int) -> tuple[object, int]:
    """The JSON at this place, and where it ends; None, and the place, where there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start


def loads(text: str) -> Any:
    """The JSON; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
