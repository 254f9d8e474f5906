"""Words of a conversation that its chat template takes and does not write, as one without a branch
for the results of tools does.

What a template does with words of a kind is found out once. If it seems to drop them, the
conversation is rendered with other ones: equal renders show that it does.

>>> from pipegen.testing.fake import ToyRenderer
>>> ignores_users(ToyRenderer())
False
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pipegen.core.errors import TemplateFailed
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.tokenizer import Renderer
from pipegen.records.frozen import NOTHING
from pipegen.records.messages import ROLES
from pipegen.template.control_tokens import ControlTokens
from pipegen.template.template import (
    BESIDE,
    PROBE,
    PromptFunction,
    Template,
    assistant,
    author,
    call,
    conversation,
    plain_turn,
    result,
    role_renders,
    tool,
)
from pipegen.template.untrusted import Conversation


class _Doubt(NamedTuple):
    """Words that a template seems to drop."""

    path: str
    why: str
    """Why the template would not write them."""
    hint: str
    changed: Conversation
    """The conversation with other words in their place."""


def unwritten_words(
    write: Callable[[Conversation], Slot[str]], shaped: Conversation, template: Template
) -> TemplateFailed | None:
    """The error of words that the template takes and does not write; None if there are none.

    A thought that is taken out of an earlier answer is no such word, nor is a name or an id.
    """
    doubts = [
        *_parts_dropped(shaped, template),
        *_kinds_dropped(shaped, template),
        *_turns_dropped(shaped),
    ]
    if not doubts:
        return None
    rendered = write(shaped)
    for doubt in doubts if is_ok(rendered) else ():
        if rendered == write(doubt.changed):
            writer = author(template.renderer)
            message = f"{writer} writes nothing of {doubt.path}: {doubt.why}"
            return TemplateFailed(message, hint=doubt.hint)
    return None


def _parts_dropped(shaped: Conversation, template: Template) -> Iterator[_Doubt]:
    """Text parts beside others in one message."""
    for row, message in enumerate(shaped.messages):
        content = message["content"]
        if not content or not isinstance(content, list):
            continue
        media = frozenset(part["type"] for part in content) - {"text"}
        if not _skips_parts(message["role"], media, template) or len(content) < 2:
            continue
        for place, part in enumerate(content):
            if part["type"] == "text" and part["text"].strip():
                parts = [*content]
                parts[place] = {**part, "text": _changed(part["text"])}
                yield _Doubt(
                    f"messages[{row}].content[{place}]",
                    "it reads other parts of the content",
                    "put the words into one part, or set options.chat.template to a template that"
                    " writes all parts",
                    _with_content(shaped, row, parts),
                )


@functools.lru_cache(maxsize=128)
def _skips_parts(role: str, media: frozenset[str], template: Template) -> bool:
    """Whether words of several text parts, beside media of these kinds, are not all found in what
    the template writes.
    """
    words = [f"{PROBE} {place} end" for place in range(4)]
    texts = [{"type": "text", "text": word} for word in words]
    parts = [*({"type": kind} for kind in sorted(media)), *texts]
    slot = template.render(conversation(role, parts, template))
    return slot.map(lambda text: not all(word in text for word in words)).value_or(False)


def _kinds_dropped(shaped: Conversation, template: Template) -> Iterator[_Doubt]:
    """Words of a kind: those of a role, tools, their calls, and documents."""
    kinds: dict[str, str] = {}
    for row, message in enumerate(shaped.messages):
        if _has_words(message["content"]):
            kinds.setdefault(message["role"], f"messages[{row}].content")
        if message.get("tool_calls"):
            kinds.setdefault("tool_calls", f"messages[{row}].tool_calls")
    if shaped.tools:
        kinds["tools"] = "tools"
    if shaped.variables.get("documents"):
        kinds["documents"] = "template_kwargs.documents"
    for kind, path in kinds.items():
        if _drops(kind, template):
            is_function = isinstance(template.renderer, PromptFunction)
            yield _Doubt(
                path,
                f"it has no place for {f'turns of role {kind!r}' if kind in ROLES else kind}",
                (
                    "let the function write them"
                    if is_function
                    else "set options.chat.template to a template that has"
                )
                + ", or put the words into a turn of a role that it writes",
                _with_other_words(shaped, kind),
            )


@functools.lru_cache(maxsize=128)
def _drops(kind: str, template: Template) -> bool:
    """Whether the template takes words of this kind, and writes the same whatever they are."""

    def renders(text: str, word: str) -> tuple[str | None, ...]:
        if kind in ROLES:
            return role_renders(kind, text, template)
        turns = [plain_turn("user", template)]
        if kind == "tool_calls":
            turns += [assistant("", call(word, {word: word})), result(word, "done")]
        entries = ("title", "text", "content", "contents", "data")
        documents = {"documents": [dict.fromkeys(entries, word)]} if kind == "documents" else {}
        tools = [tool(word, word)] if kind == "tools" else []
        return (template.render(turns, tools, **documents).value_or(None),)

    first, other = renders(PROBE, "probe"), renders(BESIDE, "other")
    return first == other and any(text is not None for text in first)


def _turns_dropped(shaped: Conversation) -> Iterator[_Doubt]:
    """Turns whose place the template may leave out, though it writes their role elsewhere: a system
    message behind the first turn, or a second turn in a row. Of turns between equal roles one is
    tried.
    """
    roles = [message["role"] for message in shaped.messages]
    tried: dict[tuple[str, ...], int] = {}
    for row, (before, role, after) in enumerate(
        zip(["", *roles], roles, [*roles[1:], ""], strict=False)
    ):
        instructs = row > 0 and role in ("system", "developer")
        twice = role in (before, after) and role != "tool"
        if (instructs or twice) and _has_words(shaped.messages[row]["content"]):
            tried.setdefault((before, role, after), row)
    for row in tried.values():
        yield _Doubt(
            f"messages[{row}].content",
            f"it has no place for a turn of role {roles[row]!r} there",
            "put the words into the first message, or into a turn of another role",
            _with_content(shaped, row, _changed(shaped.messages[row]["content"])),
        )


def _has_words(content: object) -> bool:
    if isinstance(content, list):
        return any(part["type"] == "text" and part["text"] for part in content)
    return bool(content)


def _with_content(shaped: Conversation, row: int, content: object) -> Conversation:
    messages = [*shaped.messages]
    messages[row] = {**messages[row], "content": content}
    return shaped._replace(messages=messages)


def _with_other_words(shaped: Conversation, kind: str) -> Conversation:
    if kind == "tools":
        return shaped._replace(tools=_changed(shaped.tools))
    if kind == "documents":
        documents = _changed(shaped.variables["documents"])
        return shaped._replace(variables={**shaped.variables, "documents": documents})
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


def _changed(value: object) -> Any:
    """The value with a word more in every text of it, and in every name that has no meaning of its
    own.
    """
    if isinstance(value, str):
        return f"{value} probe"
    if isinstance(value, dict):
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
        *("type", "text", "image", "image_url", "video", "audio", "content", "contents", "role"),
        *("name", "id", "tool_calls", "function", "arguments", "description", "parameters"),
        *("properties", "required", "items", "enum", "format", "default", "nullable", "title"),
        *("value", "parts", "blocks", "data", "response", "schema", "json_schema", "pattern"),
        *("minimum", "maximum", "examples", "example", "reasoning_content", "reasoning"),
        *("user", "tool"),
    )
)
"""Names of entries, which templates look for in messages, parts and tools; in words they are
ordinary.
"""


def is_inert(text: str, template: Template, control: ControlTokens) -> bool:
    """Whether words that hold this text, which is common in ordinary words, change no control token
    wherever it is in a turn. Found out once.
    """
    bare = template._replace(variables=NOTHING)
    return (len(text) == 1 or text in _COMMON) and _changes_nothing(text, bare, control)


@functools.lru_cache(maxsize=256)
def _changes_nothing(text: str, template: Template, control: ControlTokens) -> bool:
    def tokens(string: str) -> list[list[str] | None]:
        return [
            None if render is None else control.pieces(render)[1::2]
            for role in ("user", "assistant", "tool")
            for render in role_renders.__wrapped__(role, string, template)
        ]

    return all(
        tokens(form.replace("@", text)) == tokens(form.replace("@", "q" * len(text))) != [None] * 6
        for form in ("@", "@probe text@other@", "@ words @", "w@w")
    )


def ignores_users(renderer: Renderer) -> bool:
    """Whether the model's own template writes the same whatever a user says, as a page of HTML in
    its place does. False where it rejects the probes.
    """
    return _drops("user", Template(renderer))
