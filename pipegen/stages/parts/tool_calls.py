"""Tool calls in the text of an answer, read without code for any family of models.

The form of a call comes from what the checkpoint says (a response template beside its tokenizer),
else from its chat template. Calls with sentinels as name, argument and value are rendered. What
stands before, between and after the sentinels is the form. Arguments are JSON, or tagged values.

A reading counts only if the template, given the calls, writes the very text of the answer.
Otherwise the text stays text, and `unread` says why.

>>> from pipegen.testing.fake import ToyRenderer
>>> read_calls("It is sunny.", "", (), Writer(ToyRenderer()))
ToolCalls(content=None, calls=(), unread=None)
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from returns.result import Failure, Success

from pipegen.core.border import guard
from pipegen.core.errors import InvalidRequest, TemplateFailed
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.tokenizer import Renderer
from pipegen.records.frozen import NOTHING, FrozenMapping, freeze, thaw
from pipegen.records.options import ChatTemplateOptions
from pipegen.stages.parts.reasoning import reasoning_of
from pipegen.stages.parts.template import (
    call_template,
    honours_thinking,
    probe_variables,
    shape_content,
)

__all__ = ["CallTexts", "ToolCalls", "Writer", "call_texts", "read_calls", "writer_of"]

_NAME, _KEYS, _VALUES = ("zqone", "zqtwo"), ("zqkey", "zqmore"), ("QZXJ7", "QZXK8")
_IDS, _WORDS = ("zqid00001", "zqid00002"), "Qzwords"
_USER = {"role": "user", "content": "Hello there"}


_TAG_BEGUN = re.compile(r"[<\[][^<>\[\]]*$")
"""The beginning of a tag, which two texts may share that write different ones."""
_LAST_TAG = re.compile(r"(<[^/<>][^<>]*>|\[[^/\[\]]+\])\s*$")
"""A tag at the end of a text that closes no other tag."""


class ToolCalls(NamedTuple):
    """What was read."""

    content: str | None = None
    """The text before the calls; None where there are no calls."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """The calls, in the OpenAI form: arguments are JSON text."""
    unread: str | None = None
    """Why the answer's calls could not be read."""


class Writer(NamedTuple):
    """A chat template with its variables, as a request has them."""

    renderer: Renderer
    template: str | None = None
    variables: FrozenMapping = NOTHING
    probed: FrozenMapping = NOTHING

    def write(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, opens: bool
    ) -> str | None:
        """The conversation as text; None where the template rejects it. Some take the arguments of
        calls only as JSON text.
        """
        text = self._written(messages, tools, opens)
        if text is None and any(message.get("tool_calls") for message in messages):
            text = self._written([*map(_with_text, messages)], tools, opens)
        return text

    def _written(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], opens: bool
    ) -> str | None:
        slot = call_template(
            self.renderer,
            [shape_content(one, self.renderer, self.template, self.probed) for one in messages],
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
    return {**message, "tool_calls": [*map(_openai, calls)]} if calls else message


def writer_of(renderer: Renderer, chat: ChatTemplateOptions) -> Writer:
    """The template as these options have it rendered."""
    more = chat.template_kwargs or NOTHING
    probed = probe_variables(more)
    honoured = honours_thinking(renderer, chat.template, probed)
    thinking = {"enable_thinking": bool(chat.enable_thinking)} if honoured else {}
    return Writer(renderer, chat.template, freeze({**thinking, **more}), probed)


class _Form(NamedTuple):
    """How the template writes calls."""

    open: str
    """What is before the name of the first call, white space before it left out."""
    before: str | None
    """What is between the beginning of an answer without words and `open`; None where the template
    begins such an answer otherwise than another.
    """
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
    shown: str = ""
    """For JSON: the arguments of a call, as the template writes them."""


def _call(number: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": _IDS[number],
        "type": "function",
        "function": {"name": _NAME[number], "arguments": dict(arguments)},
    }


def _said(content: str, *calls: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": [*calls]} if calls else {})}


_TOOLS = [
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
    for name in _NAME
]


@functools.lru_cache(maxsize=32)
def _form_of(writer: Writer) -> Slot[_Form]:
    """The form of the template's calls; `TemplateFailed` where it cannot be derived."""

    def written(*calls: Mapping[str, Any], content: str = "") -> str | None:
        return writer.write([_USER, _said(content, *calls)], _TOOLS, opens=False)

    one = written(_call(0, {_KEYS[0]: _VALUES[0]}))
    if one is None or any(word not in one for word in (_NAME[0], _VALUES[0])):
        return Failure(TemplateFailed("the chat template does not write the name of a call"))
    plain = written(content=_WORDS) or ""
    head, _, end = plain.rpartition(_WORDS)
    worded = written(_call(0, {_KEYS[0]: _VALUES[0]}), content=_WORDS)
    prompt = writer.write([_USER], _TOOLS, opens=True) or ""
    starts = [worded.partition(_WORDS)[0] if worded and _WORDS in worded else "", prompt, head]
    start = max(
        (text for text in starts if one.startswith(text) and _NAME[0] in one[len(text) :]),
        key=len,
        default="",
    )
    start = start or _TAG_BEGUN.sub("", _common(one, prompt))
    body = one[len(start) :]
    if body.count(_NAME[0]) != 1:
        return Failure(TemplateFailed("the chat template does not write the name of a call once"))
    parts = [("name", body.index(_NAME[0]), len(_NAME[0]))]
    if body.count(_IDS[0]) == 1:
        parts.append(("id", body.index(_IDS[0]), len(_IDS[0])))
    arguments = _arguments_in(body)
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
    edges = [(place, place + size) for _, place, size in parts]
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
        empty_tail = none.rpartition(_NAME[0])[2] if _NAME[0] in none else ""
    pair = written(_call(0, {_KEYS[0]: _VALUES[0]}), _call(1, {_KEYS[0]: _VALUES[1]}))
    between = None
    if pair is not None and pair.startswith(one[: len(start) + edges[-1][1]]):
        more = pair[len(start) + edges[-1][1] :]
        begins = {"name": _NAME[1], "id": _IDS[1]}.get(parts[0][0], "")
        between = more[: more.index(begins)] if begins and begins in more else None
    opening = body[: edges[0][0]].lstrip()
    until = one[: len(start) + edges[0][0] - len(opening)]
    begun = next((text for text in (prompt, head) if text and until.startswith(text)), None)
    behind = (worded or "").partition(_WORDS)[2].partition(opening)[0]
    return Success(
        _Form(
            open=opening,
            before=None if begun is None else until[len(begun) :],
            glue="" if behind.strip() else behind,
            holes=tuple(kind for kind, _, _ in parts),
            literals=tuple(literals),
            between=between or None,
            tail=tail,
            end=_end_of(tail, end),
            tags=tags,
            lead=start[len(begun) :] if begun and start.startswith(begun) else "",
            empty_tail=empty_tail,
            shown=next(
                (body[first : first + size] for kind, first, size in parts if kind == "json"), ""
            ),
        )
    )


def _common(one: str, other: str) -> str:
    """What both texts begin with."""
    places = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return one[: sum(1 for _ in places)]


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
    shared = _common(tail[::-1], end[::-1])[::-1]
    tag = _LAST_TAG.search(tail)
    return shared[shared.index("<") :] if "<" in shared else tag[0] if tag else ""


def _arguments_in(body: str) -> tuple[str, int, int] | None:
    """Where the arguments are, as JSON or as JSON in a JSON string."""
    wanted = {_KEYS[0]: _VALUES[0]}
    for kind, sign in (("json", "{"), ("text", '"')):
        place = body.find(sign)
        while place >= 0:
            value, stop = _json_at(body, place)
            if (kind == "text" and isinstance(value, str) and _loads(value) == wanted) or (
                value == wanted
            ):
                return kind, place, stop - place
            place = body.find(sign, place + 1)
    return None


def _json_at(text: str, place: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, place)
    except (ValueError, RecursionError):
        return None, place


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _Read(NamedTuple):
    """One call, before its values have types."""

    name: str
    number: str | None
    arguments: Mapping[str, Any] | tuple[tuple[str, str], ...]


def _sequence(text: str, place: int, form: _Form, ending: str) -> list[_Read] | None:
    """The calls from this place on, where the text has the form up to its end."""
    found: list[_Read] = []
    closing = form.tail.removesuffix(form.end).rstrip().removesuffix(ending.strip())
    while True:
        read = _one(text, place, form, closing)
        if read is None:
            return None
        call, place = read
        found.append(call)
        if form.between and text.startswith(form.between, place):
            place += len(form.between)
        else:
            return found


def _one(text: str, place: int, form: _Form, closing: str) -> tuple[_Read, int] | None:
    """The call at this place, and where it ends."""
    name, number = "", None
    arguments: Any = {}
    for index, kind in enumerate(form.holes):
        if index and kind != "tagged":
            literal = form.literals[index - 1]
            if not text.startswith(literal, place):
                return None
            place += len(literal)
        if kind in ("name", "id"):
            ends = [*form.literals, *(form.tags[:1] if form.tags else ())][index : index + 1]
            ends = ends or [closing, form.between or ""]
            if kind == "name" and form.empty_tail:
                ends.append(form.empty_tail.removesuffix(form.end))
            stops = [text.find(end, place) for end in ends if end]
            stop = min((one for one in stops if one > place), default=-1)
            if stop < 0:
                return None
            if kind == "name":
                name = text[place:stop]
            else:
                number = text[place:stop]
            place = stop
        elif kind == "tagged":
            tagged = _tagged(text, place, form, closing)
            if tagged is None:
                return None
            arguments, place = tagged
        else:
            value, place = _json_at(text, place)
            arguments = _loads(value) if kind == "text" and isinstance(value, str) else value
            if not isinstance(arguments, dict):
                return None
    return _Read(name, number, arguments), place


def _tagged(
    text: str, place: int, form: _Form, closing: str
) -> tuple[tuple[tuple[str, str], ...], int] | None:
    opens, middle, following = form.tags or ("", "", "")
    pairs: list[tuple[str, str]] = []
    if not text.startswith(opens, place):
        return (), place
    place += len(opens)
    while True:
        key_end = text.find(middle, place)
        if key_end < 0:
            return None
        value_start = key_end + len(middle)
        stops = [text.find(end, value_start) for end in (following, form.between, closing) if end]
        stop = min((one for one in stops if one >= 0), default=len(text))
        pairs.append((text[place:key_end], text[value_start:stop]))
        if following and text.startswith(following, stop) and middle in text[stop:]:
            place = stop + len(following)
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
        loaded = _loads(text)
        return text if loaded is None and text != "null" else loaded

    return {key: value(key, text) for key, text in read.arguments}


def read_calls(
    answer: str, ending: str, tools: Sequence[Any], writer: Writer, *, forced: bool = False
) -> ToolCalls:
    """The tool calls of an answer. `answer` is its text with all tokens but the one that ended it,
    whose text `ending` is. A `forced` one has the template's form and no words before it, and
    counts with any white space in its arguments.
    """
    form = _form_of(writer)
    prompt = writer.write([_USER], tools, opens=True) or ""
    named = _by_checkpoint(answer, prompt, tools, writer.renderer)
    if named is None and not is_ok(form):
        return ToolCalls(unread=form.failure().message)
    opening = form.unwrap().open if is_ok(form) else ""
    seems = bool(named and named[1]) or bool(opening and opening in answer)
    if not seems:
        return ToolCalls()
    candidates = itertools.chain(
        [named] if named and named[1] else [],
        _candidates(answer, ending, tools, form.unwrap()) if is_ok(form) else (),
    )
    plain = writer.write([_USER, _said(_WORDS)], tools, opens=False) or ""
    opened = (prompt, plain.rpartition(_WORDS)[0])
    tried = False
    for content, calls in candidates:
        tried = True
        if forced:
            return ToolCalls("", tuple(freeze(_openai(call)) for call in calls))
        for message in _messages(content, calls):
            whole = writer.write([_USER, message], tools, opens=False)
            if whole is not None and _is_written(whole, answer, ending, opened, form):
                return ToolCalls(content, tuple(freeze(_openai(call)) for call in calls))
    if tried:
        return ToolCalls(
            unread="the chat template writes the calls that were read in the answer otherwise than"
            " the answer does"
        )
    return ToolCalls(unread="the answer begins a tool call, and does not go on in its form")


def _candidates(
    answer: str, ending: str, tools: Sequence[Any], form: _Form
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What the answer may mean: the text before the calls, and the calls."""
    place = answer.find(form.open)
    reads = _sequence(answer, place + len(form.open), form, ending)
    if not reads:
        return
    before = answer[:place]
    for how in ("schema", "json", "text"):
        calls = [
            {
                "id": read.number or f"call{index:05d}",
                "type": "function",
                "function": {"name": read.name, "arguments": _typed(read, tools, how)},
            }
            for index, read in enumerate(reads)
        ]
        bare = before.removeprefix(form.lead)
        for content in dict.fromkeys(
            (
                before.removesuffix(form.glue),
                before,
                before.rstrip("\n"),
                before.strip(),
                bare,
                bare.strip(),
            )
        ):
            yield content, calls
        if all(isinstance(read.arguments, Mapping) for read in reads):
            return


def _messages(content: str, calls: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The assistant's message, with the thoughts in the text and apart."""
    yield _said(content, *calls)
    thought = reasoning_of(content)
    if thought.reasoning:
        yield {**_said(thought.answer, *calls), "reasoning_content": thought.reasoning}
    elif "</think>" in content or content.strip():
        opened = reasoning_of(content, opened=True)
        if opened.closed and opened.reasoning:
            yield {**_said(opened.answer, *calls), "reasoning_content": opened.reasoning}


def _is_written(
    whole: str, answer: str, ending: str, opened: Sequence[str], form: Slot[_Form]
) -> bool:
    """Whether the conversation, as the template writes it, ends with the very text of the answer
    and what the template writes behind an answer. Before it is one of the turns `opened`.
    """
    ends = [whole, whole.rstrip().removesuffix(ending.strip())]
    ends += [whole.removesuffix(form.unwrap().end)] if is_ok(form) else []
    return any(
        text.endswith(answer) and text[: len(text) - len(answer)] in opened
        for end in ends
        for text in (end, end.rstrip("\n"))
    )


def _openai(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


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
        arguments = _loads(arguments) if isinstance(arguments, str) else arguments
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


class CallTexts(NamedTuple):
    """What a template writes around the name and the arguments of one call."""

    before: str
    """What is before the call where no words are."""
    opens: str
    between: str
    closes: str


@functools.lru_cache(maxsize=32)
def call_texts(writer: Writer) -> Slot[CallTexts]:
    """The parts of a call whose arguments are JSON; `TemplateFailed` where they are written
    otherwise, or where a call of these parts is not read back.
    """
    return _form_of(writer).bind(functools.partial(_texts_of, writer))


def _texts_of(writer: Writer, form: _Form) -> Slot[CallTexts]:
    if [kind for kind in form.holes if kind != "id"] != ["name", "json"]:
        return Failure(TemplateFailed("the chat template does not write arguments as JSON"))
    if form.before is None:
        words = "the chat template begins an answer that is a call otherwise than its prompts end"
        return Failure(TemplateFailed(words))
    texts = [form.open]
    for kind, literal in zip(form.holes, (*form.literals, form.tail), strict=True):
        texts[-1] += "call00000" if kind == "id" else ""
        texts += [] if kind == "id" else [""]
        texts[-1] += literal
    made = CallTexts(form.before, texts[0], texts[1], texts[2].removesuffix(form.end))
    answer = f"{made.before}{made.opens}{_NAME[0]}{made.between}{form.shown}{made.closes}"
    read = read_calls(answer, form.end.strip(), _TOOLS, writer)
    functions = [call["function"] for call in read.calls]
    known = [(one["name"], _loads(one["arguments"])) for one in functions]
    if known == [(_NAME[0], {_KEYS[0]: _VALUES[0]})] and not (read.content or "").strip():
        return Success(made)
    words = "a call in the form that the chat template writes is not read back from its text"
    return Failure(TemplateFailed(words))
