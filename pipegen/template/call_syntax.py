"""How a chat template writes tool calls, read off it without code for any family of models.

Calls with sentinels as name, argument and value are rendered. What stands before, between and after
the sentinels is the syntax. Arguments are JSON, or tagged values.

>>> from pipegen.testing.fake import ToyRenderer
>>> syntax_of(Writer(ToyRenderer())).unwrap().open
'[{"id": "'
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from returns.result import Failure, Success

from pipegen.core.errors import TemplateFailed
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.tokenizer import Renderer
from pipegen.records.frozen import NOTHING, FrozenMapping, freeze, thaw
from pipegen.records.options import ChatTemplateOptions
from pipegen.template.template import (
    call_template,
    honours_thinking,
    probe_variables,
    shape_content,
)

__all__ = [
    "ARGUMENTS",
    "FIRST_ID",
    "ID",
    "NAME",
    "THOUGHT",
    "TOOLS",
    "USER",
    "WORDS",
    "Syntax",
    "ThoughtIn",
    "Writer",
    "arguments_in",
    "common_beginning",
    "json_at",
    "loads",
    "named_id",
    "said",
    "syntax_of",
    "thought_before_call",
    "thoughts_in",
    "tool_of",
    "openai_call",
    "writer_of",
    "writers_of",
]

NAME, THOUGHT, WORDS = "zqone", "Qzthought", "Qzwords"
_NAMES, _KEYS, _VALUES = (NAME, "zqtwo"), ("zqkey", "zqmore"), ("QZXJ7", "QZXK8")
FIRST_ID = "call00000"
"""The id of a call that has none."""
ID = "zqid00001"
ARGUMENTS = {_KEYS[0]: _VALUES[0]}
_IDS = (ID, "zqid00002")
USER = {"role": "user", "content": "Hello there"}
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")

_TAG_BEGUN = re.compile(r"[<\[][^<>\[\]]*$")
"""The beginning of a tag, which two texts may share that write different ones."""
_LAST_TAG = re.compile(r"(<[^/<>][^<>]*>|\[[^/\[\]]+\])\s*$")
"""A tag at the end of a text that closes no other tag."""


class Writer(NamedTuple):
    """A chat template with its variables, as a request has them."""

    renderer: Renderer
    template: str | None = None
    variables: FrozenMapping = NOTHING
    probed: FrozenMapping = NOTHING
    ids: Literal["written", "left out", "named"] = "written"
    """The ids of calls: as the template writes them, left out of what it writes, or made of the
    call's name (`functions.NAME:ID`), whatever number the template gives a call.
    """

    def write(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, opens: bool
    ) -> str | None:
        """The conversation as text; None where the template rejects it. Some take the arguments of
        calls only as JSON text.
        """
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        if calls and self.ids == "named":
            messages = [*map(_with_names, messages)]
        text = self._written(messages, tools, opens)
        if text is None and calls:
            text = self._written([*map(_with_text, messages)], tools, opens)
        if text is None or self.ids == "written":
            return text
        return (_without_ids if self.ids == "left out" else _with_ids)(text, calls)

    def _written(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], opens: bool
    ) -> str | None:
        slot = call_template(
            self.renderer,
            [
                shape_content(message, self.renderer, self.template, self.probed)
                for message in messages
            ],
            tools=tools,
            template=self.template,
            variables={
                **thaw(self.variables),
                "add_generation_prompt": opens,
                "continue_final_message": False,
            },
            probes=True,
        )
        return slot.unwrap() if is_ok(slot) else None


def _with_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [*map(openai_call, calls)]} if calls else message


def _with_names(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = [{**call, "id": named_id(call)} for call in message.get("tool_calls") or ()]
    return {**message, "tool_calls": calls} if calls else message


def named_id(call: Mapping[str, Any]) -> str:
    """The id of a call, made of its name.

    >>> named_id({"id": "0", "function": {"name": "add"}})
    'functions.add:0'
    """
    return f"functions.{call['function']['name']}:{call['id']}"


def _with_ids(text: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """The text with the ids of its calls where the template counts them."""
    parts: list[str] = []
    place = 0
    for index, call in enumerate(calls):
        counted = re.escape(named_id({**call, "id": index}))
        found = re.compile(rf"{counted}(?![0-9])").search(text, place)
        if found:
            parts += [text[place : found.start()], named_id(call)]
            place = found.end()
    return "".join((*parts, text[place:]))


def _without_ids(text: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """The text without the ids of its calls, and without the keys or tags before them."""
    return functools.reduce(_without_id, calls, text)


def _without_id(text: str, call: Mapping[str, Any]) -> str:
    word = re.escape(call["id"])
    for pattern in (
        rf',\s*"\w+":\s*"{word}"',
        rf'"\w+":\s*"{word}",\s*',
        rf"(<[^<>]+>|\[[^\[\]]+\]){word}(?=[<\[])",
    ):
        shorter, count = re.subn(pattern, "", text, count=1)
        if count:
            return shorter
    return text


@functools.lru_cache(maxsize=32)
def writers_of(writer: Writer) -> tuple[Writer, ...]:
    """The writer, and those whose ids are as models write them. Some leave out what the template
    writes. Others make ids of names.

    >>> from pipegen.testing.fake import ToyRenderer
    >>> [each.ids for each in writers_of(Writer(ToyRenderer()))]
    ['written', 'left out']
    """
    plain = writer._replace(ids="written")
    calls = [_call(index, ARGUMENTS) for index in range(2)]
    both = plain.write([USER, said("", *calls)], TOOLS, opens=False) or ""
    counted = all(f"{name}:{index}" in both for index, name in enumerate(_NAMES))
    named = counted or (NAME not in both and ID in both)
    syntax = syntax_of(plain)
    numbered = is_ok(syntax) and "id" in syntax.unwrap().holes
    others = [
        *([plain._replace(ids="named")] if named else ()),
        *([plain._replace(ids="left out")] if numbered else ()),
    ]
    read = [each for each in others if is_ok(syntax_of(each))]
    return (plain, *read) if numbered else (*read, plain)


def tool_of(tool: Any) -> tuple[str, Any]:
    """The name of a tool, and the schema of its arguments."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    return str(function.get("name") or ""), function.get("parameters") or {"type": "object"}


def openai_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call in the OpenAI form: its arguments are JSON text."""
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def writer_of(renderer: Renderer, chat: ChatTemplateOptions) -> Writer:
    """The template as these options have it rendered."""
    more = chat.template_kwargs or NOTHING
    probed = probe_variables(more)
    honoured = honours_thinking(renderer, chat.template, probed)
    thinking = {"enable_thinking": bool(chat.enable_thinking)} if honoured else {}
    return Writer(renderer, chat.template, freeze({**thinking, **more}), probed)


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


def _call(index: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": _IDS[index],
        "type": "function",
        "function": {"name": _NAMES[index], "arguments": dict(arguments)},
    }


def said(content: str, *calls: Mapping[str, Any]) -> dict[str, Any]:
    """A message of the assistant."""
    return {"role": "assistant", "content": content, **({"tool_calls": [*calls]} if calls else {})}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": key} for key in _KEYS},
                "required": [],
            },
        },
    }
    for name in _NAMES
]


@functools.lru_cache(maxsize=64)
def syntax_of(writer: Writer) -> Slot[Syntax]:
    """The syntax of the template's calls; `TemplateFailed` where it cannot be derived."""

    def written(*calls: Mapping[str, Any], content: str = "") -> str | None:
        return writer.write([USER, said(content, *calls)], TOOLS, opens=False)

    single = written(_call(0, ARGUMENTS))
    if single is None or any(word not in single for word in (NAME, _VALUES[0])):
        return Failure(TemplateFailed("the chat template does not write the name of a call"))
    plain = written(content=WORDS) or ""
    head, _, end = plain.rpartition(WORDS)
    worded = written(_call(0, ARGUMENTS), content=WORDS)
    prompt = writer.write([USER], TOOLS, opens=True) or ""
    starts = [worded.partition(WORDS)[0] if worded and WORDS in worded else "", prompt, head]
    start = max(
        (text for text in starts if single.startswith(text) and NAME in single[len(text) :]),
        key=len,
        default="",
    )
    start = start or _TAG_BEGUN.sub("", common_beginning(single, prompt))
    thought = thought_before_call(writer)
    opening = single[len(start) :].partition(NAME)[0].lstrip()
    if thought is not None and not thought.closing.endswith(opening):
        # an empty thought is no part of the call
        shared = common_beginning(opening[::-1], thought.closing[::-1])[::-1]
        start = single[: single.index(NAME, len(start)) - len(shared)] if shared.strip() else start
    body = single[len(start) :]
    if body.count(NAME) != 1:
        return Failure(TemplateFailed("the chat template does not write the name of a call once"))
    parts = [("name", body.index(NAME), len(NAME))]
    if body.count(ID) == 1:
        parts.append(("id", body.index(ID), len(ID)))
    arguments = arguments_in(body)
    tags: tuple[str, str, str] | None = None
    if arguments is not None:
        parts.append(arguments)
    elif body.count(_KEYS[0]) == 1 and body.count(_VALUES[0]) == 1:
        key, value = body.index(_KEYS[0]), body.index(_VALUES[0])
        parts.append(("tagged", key, value + len(_VALUES[0]) - key))
    else:
        return Failure(
            TemplateFailed("the chat template writes the arguments in a form of its own")
        )
    parts.sort(key=lambda part: part[1])
    edges = [(offset, offset + size) for _, offset, size in parts]
    literals = [body[stop:begin] for (_, stop), (begin, _) in itertools.pairwise(edges)]
    if not body[: edges[0][0]].strip():
        return Failure(TemplateFailed("the chat template writes nothing before the name of a call"))
    tail = body[edges[-1][1] :]
    empty_tail = ""
    if parts[-1][0] == "tagged":
        both = written(_call(0, dict(zip(_KEYS, _VALUES, strict=True)))) or ""
        first, second = both.rfind(_VALUES[0]), both.rfind(_KEYS[1])
        middle = body[edges[-1][0] + len(_KEYS[0]) : edges[-1][1] - len(_VALUES[0])]
        tags = (literals.pop(), middle, both[first + len(_VALUES[0]) : second])
        none = written(_call(0, {})) or ""
        empty_tail = none.rpartition(NAME)[2] if NAME in none else ""
    pair = written(_call(0, ARGUMENTS), _call(1, {_KEYS[0]: _VALUES[1]}))
    between = None
    if pair is not None and pair.startswith(single[: len(start) + edges[-1][1]]):
        more = pair[len(start) + edges[-1][1] :]
        begins = {"name": _NAMES[1], "id": _IDS[1]}.get(parts[0][0], "")
        between = more[: more.index(begins)] if begins and begins in more else None
    opening = body[: edges[0][0]].lstrip()
    until = single[: len(start) + edges[0][0] - len(opening)]
    before = next((text for text in (prompt, head) if text and until.startswith(text)), None)
    glue = (worded or "").partition(WORDS)[2].partition(opening)[0]
    return Success(
        Syntax(
            open=opening,
            ahead=None if before is None else single[len(before) : len(start) + body.index(NAME)],
            behind=body[body.index(NAME) + len(NAME) :],
            glue="" if glue.strip() else glue,
            holes=tuple(kind for kind, _, _ in parts),
            literals=tuple(literals),
            between=between or None,
            tail=tail,
            end=_end_of(tail, end),
            tags=tags,
            lead=start[len(before) :] if before and start.startswith(before) else "",
            empty_tail=empty_tail,
        )
    )


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
    writer: Writer, message: Mapping[str, Any], following: str, tools: Sequence[Any] = ()
) -> Iterator[ThoughtIn]:
    """How the template writes a thought into this answer, in which `following` comes after it."""
    prompt = writer.write([USER], tools, opens=True) or ""
    for field in _THOUGHT_FIELDS:
        text = writer.write([USER, {**message, field: THOUGHT}], tools, opens=False) or ""
        head, thought, rest = text.partition(THOUGHT)
        closing, there, behind = rest.partition(following)
        if not thought or not there:
            continue
        if head.startswith(prompt):
            yield ThoughtIn(field, head.removeprefix(prompt), closing, behind)
        elif prompt.startswith(head) and not prompt.removeprefix(head).strip():
            yield ThoughtIn(field, "", closing, behind)


@functools.lru_cache(maxsize=32)
def thought_before_call(writer: Writer) -> ThoughtIn | None:
    """How the template writes an answer that is a thought and a call, up to the call's name and
    behind it; None where it writes none.
    """
    message = said("", _call(0, ARGUMENTS))
    return next(thoughts_in(writer, message, NAME, TOOLS), None)


def common_beginning(first: str, second: str) -> str:
    """What both texts begin with."""
    places = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return first[: sum(1 for _ in places)]


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
    shared = common_beginning(tail[::-1], end[::-1])[::-1]
    tag = _LAST_TAG.search(tail)
    return shared[shared.index("<") :] if "<" in shared else tag[0] if tag else ""


def arguments_in(text: str) -> tuple[str, int, int] | None:
    """Where the arguments are, as JSON or as JSON in a JSON string."""
    for kind, sign in (("json", "{"), ("text", '"')):
        start = text.find(sign)
        while start >= 0:
            value, stop = json_at(text, start)
            if (kind == "text" and isinstance(value, str) and loads(value) == ARGUMENTS) or (
                value == ARGUMENTS
            ):
                return kind, start, stop - start
            start = text.find(sign, start + 1)
    return None


def json_at(text: str, start: int) -> tuple[Any, int]:
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
