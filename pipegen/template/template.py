"""Find out what a chat template does by rendering small conversations.

>>> from pipegen.testing.fake import ToyRenderer
>>> honours_thinking(ToyRenderer(), None, FrozenMapping())
True
>>> honours_thinking(ToyRenderer(thinking=False), None, FrozenMapping())
False
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipegen.core.errors import TemplateFailed
from pipegen.core.foreign_calls import guard
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.tokenizer import Renderer
from pipegen.records.frozen import NOTHING, FrozenMapping, thaw
from pipegen.records.messages import ROLES
from pipegen.template.control_tokens import ControlTokens
from pipegen.template.untrusted import Conversation

__all__ = [
    "PromptFunction",
    "author",
    "call_template",
    "composes",
    "decoded_by",
    "honours_thinking",
    "ignores_users",
    "is_inert",
    "known_words",
    "probe_variables",
    "shape_content",
    "unwritten_words",
    "written_by",
]

_PROBE, _BESIDE = "probe text", "other words"
_PARTS_SHOWN = ("'type': 'text'", '"type": "text"')
"""How a list of parts is rendered by a template that takes strings only."""


@dataclass(frozen=True, slots=True)
class PromptFunction:
    """A renderer that is a user's function of the messages."""

    write: Callable[[Sequence[Mapping[str, Any]]], str]
    template: str | None = ""  # its source is not known

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]],
        template: str | None,
        variables: Mapping[str, Any],
    ) -> str:
        text: object = self.write(messages)
        if not isinstance(text, str):
            raise TypeError(f"it gave {type(text).__name__}, not the text of the prompt")
        return text


def author(renderer: Renderer) -> str:
    """Who writes the prompt, in words.

    >>> author(PromptFunction(print))
    "the function 'print' of pg.stages.render"
    """
    if not isinstance(renderer, PromptFunction):
        return "the chat template"
    write = renderer.write
    return f"the function {getattr(write, '__name__', type(write).__name__)!r} of pg.stages.render"


@functools.cache
def _refusals() -> tuple[type[Exception], ...]:
    """The errors with which a template rejects messages."""
    try:
        from jinja2 import TemplateError
    except ImportError:  # then there is no Jinja template
        return ()
    return (TemplateError,)


def _advice(renderer: Renderer, reason: str) -> str:
    """What to do where the template is broken, whatever the messages; empty where that is not
    known.
    """
    if isinstance(renderer, PromptFunction):
        return "correct the function: it gets messages as plain data, and gives the prompt's text"
    if reason.startswith("SecurityError"):
        return (
            "correct options.chat.template, or the model's chat_template.jinja: the installed"
            " version of what renders it does not allow this"
        )
    broken = reason.startswith(("TemplateSyntaxError", "TemplateAssertionError"))
    return (
        "correct options.chat.template, or the model's chat_template.jinja: no message can be"
        " rendered by it"
        if broken
        else ""
    )


def call_template(
    renderer: Renderer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    template: str | None,
    variables: Mapping[str, Any],
    probes: bool = False,
) -> Slot[str]:
    """Call the template once; `TemplateFailed` with what it raised. With `probes` nothing is
    logged: a template may reject a probe.

    >>> from pipegen.testing.fake import ToyRenderer
    >>> call_template(
    ...     ToyRenderer(raises=TypeError("no")), [], template=None, variables={}
    ... ).failure().message
    'the chat template raised TypeError: no'
    """
    return guard(
        lambda: renderer.render(messages, tools=tools, template=template, variables=variables),
        lambda raised: TemplateFailed(
            f"{author(renderer)} raised {raised.words}",
            incident=raised.incident,
            hint=_advice(renderer, raised.words),
        ),
        known=(Exception,) if probes else _refusals(),
    )


@functools.lru_cache(maxsize=32)
def _probes(
    renderer: Renderer, template: str | None, more: FrozenMapping, thinking: bool
) -> tuple[str | None, ...]:
    """Harmless conversations rendered with `thinking`; None for each that the template rejects."""
    user = {"role": "user", "content": _content("user", renderer, template, more)}
    system = {"role": "system", "content": _content("system", renderer, template, more)}
    variables = {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "enable_thinking": thinking,
        **thaw(more),
    }
    renders = (
        call_template(renderer, messages, template=template, variables=variables, probes=True)
        for messages in ([user], [system, user])
    )
    return tuple(slot.unwrap() if is_ok(slot) else None for slot in renders)


@functools.lru_cache(maxsize=32)
def honours_thinking(renderer: Renderer, template: str | None, more: FrozenMapping) -> bool:
    """Whether `enable_thinking` changes what the template writes; `more` are its other variables.
    False if it rejects the probes.
    """
    pairs = zip(
        _probes(renderer, template, more, True),
        _probes(renderer, template, more, False),
        strict=True,
    )
    return any(on is not None and off is not None and on != off for on, off in pairs)


@functools.lru_cache(maxsize=32)
def written_by(renderer: Renderer, template: str | None, more: FrozenMapping) -> str:
    """The template's source and its renders of harmless content in turns of every role: text with
    every control token that it is known to write.
    """
    renders = [
        *_probes(renderer, template, more, True),
        *_probes(renderer, template, more, False),
        *_turns(renderer, template, NOTHING),
    ]
    renders += _turns(renderer, template, more) if more and None in renders else ()
    return "\0".join(text for text in (template, renderer.template, *renders) if text)


@functools.lru_cache(maxsize=32)
def _turns(renderer: Renderer, template: str | None, more: FrozenMapping) -> tuple[str | None, ...]:
    """Harmless conversations in which every role has a turn, and tools are defined and called; None
    for each that the template rejects.
    """
    variables = {"add_generation_prompt": True, "continue_final_message": False, **thaw(more)}
    turns: list[tuple[list[dict[str, Any]], list[Any]]] = []
    for role in ("assistant", "developer", "tool", "user"):
        content, user = (_content(speaker, renderer, template, more) for speaker in (role, "user"))
        turns.append(
            (_conversation(role, content, user), [_tool(_PROBE)] if role == "user" else [])
        )
    renders = (
        call_template(
            renderer, messages, tools=tools, template=template, variables=variables, probes=True
        )
        for messages, tools in turns
    )
    return tuple(slot.unwrap() if is_ok(slot) else None for slot in renders)


@functools.lru_cache(maxsize=128)
def _takes(
    role: str, renderer: Renderer, template: str | None, more: FrozenMapping
) -> tuple[bool, bool]:
    """Whether the template writes this role's content if it is a string, and if it is a list of
    text parts.
    """
    texts = [text or "" for text in _role_renders(role, _PROBE, renderer, template, more)]
    return _PROBE in texts[0], _PROBE in texts[1] and not any(
        shown in texts[1] for shown in _PARTS_SHOWN
    )


@functools.lru_cache(maxsize=128)
def _role_renders(
    role: str, text: str, renderer: Renderer, template: str | None, more: FrozenMapping
) -> tuple[str | None, str | None]:
    """A conversation with these words in a turn of the role, as a string and as a text part; None
    where the template rejects it.
    """
    variables = {"add_generation_prompt": False, "continue_final_message": False, **thaw(more)}
    other = "other turn" if role == "user" else _content("user", renderer, template, more)
    forms: tuple[Any, ...] = (text, [{"type": "text", "text": text}])
    slots = [
        call_template(
            renderer,
            _conversation(role, form, other),
            template=template,
            variables=variables,
            probes=True,
        )
        for form in forms
    ]
    first, second = (slot.unwrap() if is_ok(slot) else None for slot in slots)
    return first, second


def _conversation(role: str, content: Any, other: Any) -> list[dict[str, Any]]:
    user, probed = {"role": "user", "content": other}, {"role": role, "content": content}
    if role == "user":
        return [probed]
    if role == "assistant":
        return [user, probed, user]
    if role == "tool":
        return [user, _calling("probe"), {**probed, "name": "probe", "tool_call_id": "call00001"}]
    return [probed, user]


def _calling(name: str, content: str | None = "") -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "type": "function",
                "id": "call00001",
                "function": {"name": name, "arguments": {name: name}},
            }
        ],
    }


def _tool(name: str) -> dict[str, Any]:
    entry = {"type": "string", "description": name}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": name,
            "parameters": {"type": "object", "properties": {name: entry}},
        },
    }


def _content(role: str, renderer: Renderer, template: str | None, more: FrozenMapping) -> Any:
    strings, parts = _takes(role, renderer, template, more)
    return [{"type": "text", "text": _BESIDE}] if parts and not strings else _BESIDE


@functools.lru_cache(maxsize=128)
def _drops(kind: str, renderer: Renderer, template: str | None, more: FrozenMapping) -> bool:
    """Whether the template takes words of this kind, of a role or of `_ENTRIES`, and writes the
    same whatever they are.
    """
    if kind in ROLES:
        pairs = [
            *zip(
                *(
                    _role_renders(kind, text, renderer, template, more)
                    for text in (_PROBE, _BESIDE)
                ),
                strict=True,
            )
        ]
        return any(first is not None for first, _ in pairs) and all(
            first == other for first, other in pairs
        )
    user = {"role": "user", "content": _content("user", renderer, template, more)}

    def written(text: str) -> str | None:
        variables = {"add_generation_prompt": False, "continue_final_message": False, **thaw(more)}
        variables.update(
            {"documents": [dict.fromkeys(("title", "text", "content", "contents", "data"), text)]}
            if kind == "documents"
            else {}
        )
        messages = (
            [
                user,
                _calling(text),
                {"role": "tool", "content": "done", "name": text, "tool_call_id": "call00001"},
            ]
            if kind == "tool_calls"
            else [user]
        )
        tools = [_tool(text)] if kind == "tools" else []
        slot = call_template(
            renderer, messages, tools=tools, template=template, variables=variables, probes=True
        )
        return slot.unwrap() if is_ok(slot) else None

    first = written("probe")
    return first is not None and first == written("other")


@functools.lru_cache(maxsize=32)
def _calls_only_beside_null(renderer: Renderer, template: str | None, more: FrozenMapping) -> bool:
    """Whether the template writes tool calls beside content that is null, and drops them beside the
    empty text.
    """
    user = {"role": "user", "content": _content("user", renderer, template, more)}
    variables = {"add_generation_prompt": False, "continue_final_message": False, **thaw(more)}

    def writes(content: str | None) -> bool:
        first, other = (
            call_template(
                renderer,
                [user, _calling(name, content)],
                template=template,
                variables=variables,
                probes=True,
            )
            for name in ("probe", "other")
        )
        return is_ok(first) and is_ok(other) and first.unwrap() != other.unwrap()

    return not writes("") and writes(None)


def unwritten_words(
    write: Callable[[Conversation], Slot[str]],
    shaped: Conversation,
    renderer: Renderer,
    template: str | None,
    more: FrozenMapping,
) -> TemplateFailed | None:
    """The error of words that the template takes and does not write, as one without a branch for
    the results of tools does; None if there are none.

    What a template does with words of a kind is found out once. If it seems to drop them, the
    conversation is rendered with other ones: equal renders show that it does. A thought that is
    taken out of an earlier answer is no such word, nor is a name or an id.
    """
    kinds: dict[str, str] = {}
    for row, message in enumerate(shaped.messages):
        if isinstance(message["content"], list):
            part = _unwritten_part(write, shaped, row, renderer, template, more)
            if part is not None:
                return part
        if _has_words(message["content"]):
            kinds.setdefault(message["role"], f"messages[{row}].content")
        if message.get("tool_calls"):
            kinds.setdefault("tool_calls", f"messages[{row}].tool_calls")
    kinds.update({"tools": "tools"} if shaped.tools else {})
    kinds.update(
        {"documents": "template_kwargs.documents"} if shaped.variables.get("documents") else {}
    )
    for kind, path in kinds.items():
        if _drops(kind, renderer, template, more):
            first, other = write(shaped), write(_with_other_words(shaped, kind))
            if is_ok(first) and is_ok(other) and first.unwrap() == other.unwrap():
                what = f"turns of role {kind!r}" if kind in ROLES else kind
                reason = f"{author(renderer)} writes nothing of {path}: it has no place for {what}"
                lets = "let the function write them"
                sets = "set options.chat.template to a template that has"
                return TemplateFailed(
                    reason,
                    hint=(
                        f"{lets if isinstance(renderer, PromptFunction) else sets}, or put the"
                        " words into a turn of a role that it writes"
                    ),
                )
    return _unwritten_turn(write, shaped, renderer)


def _has_words(content: Any) -> bool:
    if isinstance(content, list):
        return any(part["type"] == "text" and part["text"] for part in content)
    return bool(content)


def _unwritten_turn(
    write: Callable[[Conversation], Slot[str]], shaped: Conversation, renderer: Renderer
) -> TemplateFailed | None:
    """The error of a turn whose place the template leaves out, though it writes its role elsewhere:
    a system message behind the first turn, or a second turn in a row. None if there is none.

    Of turns between equal roles one is tried: other words in it must change the render.
    """
    roles = [message["role"] for message in shaped.messages]
    tried: dict[tuple[str, ...], int] = {}
    for row, (before, role, after) in enumerate(
        zip(["", *roles], roles, [*roles[1:], ""], strict=False)
    ):
        told = row > 0 and role in ("system", "developer")
        twice = role in (before, after) and role != "tool"
        if (told or twice) and _has_words(shaped.messages[row]["content"]):
            tried.setdefault((before, role, after), row)
    whole = write(shaped) if tried else None
    if whole is None or not is_ok(whole):  # which the render itself says
        return None
    for row in tried.values():
        message = shaped.messages[row]
        turns = list(shaped.messages)
        turns[row] = {**message, "content": _changed(message["content"])}
        other = write(shaped._replace(messages=turns))
        if is_ok(other) and other.unwrap() == whole.unwrap():
            return TemplateFailed(
                f"{author(renderer)} writes nothing of messages[{row}].content: it has no place for"
                f" a turn of role {roles[row]!r} there",
                hint="put the words into the first message, or into a turn of another role",
            )
    return None


@functools.lru_cache(maxsize=128)
def _skips_parts(
    role: str, media: frozenset[str], renderer: Renderer, template: str | None, more: FrozenMapping
) -> bool:
    """Whether words of several text parts, beside media of these kinds, are not all found in what
    the template writes.
    """
    words = [f"{_PROBE} {place} end" for place in range(4)]
    texts = [{"type": "text", "text": word} for word in words]
    parts = [*({"type": kind} for kind in sorted(media)), *texts]
    other = "other turn" if role == "user" else _content("user", renderer, template, more)
    slot = call_template(
        renderer,
        _conversation(role, parts, other),
        template=template,
        variables={"add_generation_prompt": False, "continue_final_message": False, **thaw(more)},
        probes=True,
    )
    return is_ok(slot) and not all(word in slot.unwrap() for word in words)


def _unwritten_part(
    write: Callable[[Conversation], Slot[str]],
    shaped: Conversation,
    row: int,
    renderer: Renderer,
    template: str | None,
    more: FrozenMapping,
) -> TemplateFailed | None:
    """The error of a text part of a message that the template does not write."""
    message = shaped.messages[row]
    content = message["content"]
    media = frozenset(part["type"] for part in content) - {"text"}
    if not _skips_parts(message["role"], media, renderer, template, more) or len(content) < 2:
        return None
    for place, part in enumerate(content):
        if part["type"] != "text" or not part["text"].strip():
            continue
        parts = [*content]
        parts[place] = {**part, "text": f"{part['text']} probe"}
        messages = [*shaped.messages]
        messages[row] = {**message, "content": parts}
        first, other = write(shaped), write(shaped._replace(messages=messages))
        if is_ok(first) and is_ok(other) and first.unwrap() == other.unwrap():
            return TemplateFailed(
                f"{author(renderer)} writes nothing of messages[{row}].content[{place}]: it reads"
                " other parts of the content",
                hint="put the words into one part, or set options.chat.template to a template that"
                " writes all parts",
            )
    return None


def _with_other_words(shaped: Conversation, kind: str) -> Conversation:
    if kind == "tools":
        return shaped._replace(tools=_changed(shaped.tools))
    if kind == "documents":
        return shaped._replace(
            variables={**shaped.variables, "documents": _changed(shaped.variables["documents"])}
        )
    entry = "content" if kind in ROLES else kind
    turns = [
        (
            {**message, entry: _changed(message[entry])}
            if message.get(entry) and kind in (message["role"], entry)
            else message
        )
        for message in shaped.messages
    ]
    return shaped._replace(messages=turns)


def _changed(value: Any) -> Any:
    """The value with a word more in every text of it, and in every name that has no meaning of its
    own.
    """
    if isinstance(value, str):
        return f"{value} probe"
    if isinstance(value, Mapping):
        unchanged = {key for key in ("type", "id") if isinstance(value.get(key), str)}
        return {
            key if key in _COMMON else f"{key} probe": entry
            if key in unchanged
            else _changed(entry)
            for key, entry in value.items()
        }
    return [_changed(entry) for entry in value] if isinstance(value, list) else value


_COMMON = frozenset(
    (
        *(
            "type",
            "text",
            "image",
            "image_url",
            "video",
            "audio",
            "content",
            "contents",
            "role",
            "name",
            "id",
            "tool_calls",
            "function",
            "arguments",
        ),
        *(
            "description",
            "parameters",
            "properties",
            "required",
            "items",
            "enum",
            "format",
            "default",
            "nullable",
            "title",
            "value",
            "parts",
            "blocks",
            "data",
        ),
        *(
            "response",
            "schema",
            "json_schema",
            "pattern",
            "minimum",
            "maximum",
            "examples",
            "example",
            "reasoning_content",
            "reasoning",
            "user",
            "tool",
        ),
    )
)
"""Names of entries, which templates look for in messages, parts and tools; in words they are
ordinary.
"""


def is_inert(text: str, renderer: Renderer, template: str | None, control: ControlTokens) -> bool:
    """Whether words that hold this text, which is common in ordinary words, change no control token
    wherever it is in a turn. Found out once.
    """
    return (len(text) == 1 or text in _COMMON) and _changes_nothing(
        text, renderer, template, control
    )


@functools.lru_cache(maxsize=256)
def _changes_nothing(
    text: str, renderer: Renderer, template: str | None, control: ControlTokens
) -> bool:
    def tokens(string: str) -> list[list[str] | None]:
        pieces: list[list[str] | None] = []
        for role in ("user", "assistant", "tool"):
            renders = _role_renders.__wrapped__(role, string, renderer, template, NOTHING)
            pieces += [
                None if render is None else control.pieces(render)[1::2] for render in renders
            ]
        return pieces

    return all(
        tokens(form.replace("@", text)) == tokens(form.replace("@", "q" * len(text))) != [None] * 6
        for form in ("@", "@probe text@other@", "@ words @", "w@w")
    )


def ignores_users(renderer: Renderer) -> bool:
    """Whether the model's own template writes the same whatever a user says, as a page of HTML in
    its place does. False where it rejects the probes.

    >>> from pipegen.testing.fake import ToyRenderer
    >>> ignores_users(ToyRenderer())
    False
    """

    def written(text: str) -> list[str | None]:
        variables = {"add_generation_prompt": True, "continue_final_message": False}
        forms: tuple[Any, Any] = (text, [{"type": "text", "text": text}])
        slots = (
            call_template(
                renderer,
                [{"role": "user", "content": form}],
                template=None,
                variables=variables,
                probes=True,
            )
            for form in forms
        )
        return [slot.unwrap() if is_ok(slot) else None for slot in slots]

    first = written(_PROBE)
    return any(text is not None for text in first) and first == written(_BESIDE)


def shape_content(
    message: Mapping[str, Any],
    renderer: Renderer,
    template: str | None,
    more: FrozenMapping,
    *,
    continued: bool = False,
) -> dict[str, Any]:
    """The message with its content in a form that the template writes.

    Text parts are joined to a string if the template takes only strings, and a string becomes a
    text part if it takes only parts. Content with images stays a list. No content is the empty
    text, or null where the template writes tool calls only beside null. It is a part too where the
    message is `continued`.
    """
    content = message["content"]
    content = content or "" if continued else content
    if not content and message.get("tool_calls") and not continued:
        only_null = _calls_only_beside_null(renderer, template, more)
        return {**message, "content": None if only_null else ""}
    if content is None:
        return {**message, "content": ""}
    if (
        isinstance(content, list)
        and all(part["type"] == "text" for part in content)
        and _takes(message["role"], renderer, template, more) == (True, False)
    ):
        return {**message, "content": "".join(part["text"] for part in content)}
    if (
        isinstance(content, str)
        and (content or continued)
        and _takes(message["role"], renderer, template, more) == (False, True)
    ):
        return {**message, "content": [{"type": "text", "text": content}]}
    return {**message, "content": content}


_LONG = 200


def probe_variables(more: Mapping[str, Any]) -> FrozenMapping:
    """Variables for probes: short, and the same for requests that differ only in their documents.

    >>> probe_variables({"documents": [{"text": "a"}, {"text": "b"}], "reasoning_effort": "high"})
    FrozenMapping({'documents': (FrozenMapping({'text': 'x'}),), 'reasoning_effort': 'high'})
    """
    if not more:
        return NOTHING  # the same object, for fast look-ups in the caches
    return FrozenMapping(
        {
            name: value if isinstance(value, str) and len(value) <= _LONG else _short(value)
            for name, value in more.items()
        }
    )


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return "x"
    if isinstance(value, Mapping):
        return FrozenMapping({key: _short(entry) for key, entry in value.items()})
    return tuple(map(_short, value[:1])) if isinstance(value, (tuple, list)) else value


_FILLED = re.compile(r"%[-+ #0-9.]*[a-z]|%\(\w+\)[a-z]|\{[^{}]*\}")
"""The place of a value in a format string."""
_PART_TAKEN = re.compile(r"\s*(?:\[|\.|\|(?!\s*(?:e|safe|string|trim)\b))")
_DECODES = {"striptags": "&", "unescape": "&", "decode": "&%+=\\"}
"""Filters and methods that make other characters of words, and the characters with which these are
written.
"""
_ROLE = re.compile(r"""[\s+~\-{}(]*(?:\w+(?:\.role|\[['"]role['"]\])|role\b)""")


@functools.lru_cache(maxsize=32)
def composes(source: str, tokens: Collection[str]) -> bool:
    """Whether the template may compose a control token from parts, as in `'<' + key + '>'` or
    `'<%s>' % key`. Some text in it ends with the start of one, or holds the start of one and is
    cut, as in `'<|end|>'[:2]`.

    The role may follow: it is not foreign text.

    >>> (
    ...     composes("{{ '<' ~ key ~ '>' }}", frozenset({"<think>"})),
    ...     composes("{{ '<|' + m.role + '|>' }}", frozenset({"<|user|>"})),
    ... )
    (True, False)
    >>> composes("{{ '<{}>'.format(key) }}", frozenset({"<think>"}))
    True
    """
    starts = frozenset(token[:end] for token in tokens for end in range(1, len(token)))
    longest = max(map(len, starts), default=0)

    def opens(text: str) -> bool:
        return any(text[-size:] in starts for size in range(1, longest + 1))

    def takes_words(text: str) -> bool:
        *before, _ = _FILLED.split(text)
        return any(map(opens, before))

    def is_cut(text: str, following: str) -> bool:
        return _PART_TAKEN.match(following) is not None and any(start in text for start in starts)

    def may_begin_one(text: str, following: str) -> bool:
        return (
            takes_words(text)
            or ((opens(text) or opens(text.rstrip())) and not _ROLE.match(following))
            or is_cut(text, following)
        )

    return any(may_begin_one(text, following) for text, following in _literals(source))


@functools.lru_cache(maxsize=32)
def decoded_by(source: str) -> frozenset[str]:
    """The characters with which words may spell others that the template makes of them, as
    `striptags` makes `<` of `&lt;`.

    >>> (
    ...     sorted(decoded_by("{{ m.content | striptags }}")),
    ...     sorted(decoded_by("{{ m.content | trim }}")),
    ... )
    (['&'], [])
    """
    return frozenset(
        character
        for kind, name in _tokens(source)
        if kind == "name"
        for character in _DECODES.get(name, "")
    )


@functools.lru_cache(maxsize=32)
def known_words(source: str) -> frozenset[str]:
    """The words that the template may compare with: its strings, and the names of entries; any
    other text it can only write.

    In lower case, since a template may change the case first: `type | upper == 'STRING'`.

    >>> sorted(known_words("{% if m.name == 'Python' %}{{ m['type'] }}{% endif %}"))
    ['name', 'python', 'type']
    """
    tokens = _tokens(source)
    names = (
        name
        for (_, before), (kind, name) in itertools.pairwise(tokens)
        if kind == "name" and before == "."
    )
    return frozenset(
        word.lower() for word in (*names, *(text for kind, text in tokens if kind == "string"))
    )


def _literals(source: str) -> Iterable[tuple[str, str]]:
    """Each literal text of a Jinja source, with the source after it."""
    tokens = _tokens(source)
    return (
        (text, "".join(after for _, after in tokens[row + 1 : row + 9]))
        for row, (kind, text) in enumerate(tokens)
        if kind in ("data", "string")
    )


def _tokens(source: str) -> list[tuple[str, str]]:
    """The tokens of a Jinja source, with strings unescaped; none without Jinja."""
    try:
        from jinja2 import Environment, TemplateError
    except ImportError:
        return []
    try:
        # it renders nothing
        tokens = [(str(kind), str(text)) for _, kind, text in Environment().lex(source)]  # noqa: S701
    except TemplateError:  # then it does not render
        return []
    return [(kind, _unescaped(text[1:-1]) if kind == "string" else text) for kind, text in tokens]


def _unescaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("unicode-escape", "replace")
