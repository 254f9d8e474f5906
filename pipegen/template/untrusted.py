"""Foreign text: the strings of a request that the caller did not write, and marks for their
characters.

Foreign are user and tool turns, earlier answers with their tool calls, names and ids of all turns,
definitions of tools, and the template's other variables (such as documents). System and developer
turns are the caller's own, and so is what `ChatTemplateOptions.trust` names.

A mark is a private-use character that replaces one that can be part of a control token. Templates
trim, split and join marked text like any other, so a control token in the rendered text was not
made from it.

>>> conversation = Conversation([{"role": "user", "content": "say <s>"}], [], {})
>>> foreign_strings(conversation, ())
[('messages[0].content', 'say <s>')]
>>> marks = choose_marks("<>", ["say <s>"])
>>> marked = rewrite_foreign(conversation, (), lambda text, path: marks.mark(text))
>>> "<" in marked.messages[0]["content"], marks.put_back(marked.messages[0]["content"])
(False, 'say <s>')
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from immutabledict import immutabledict

from pipegen.records.fields import mapping, record

OWN = frozenset({"system", "developer"})
"""The roles whose turns are the caller's own."""
Rewrite = Callable[[str, str], str]


class Conversation(NamedTuple):
    """The input of a template, as dicts and lists."""

    messages: list[dict[str, Any]]
    tools: list[Any]
    variables: dict[str, Any]
    """The other variables of the template."""


@record
class Marks:
    """Private-use characters, each with the character that it replaces."""

    originals: Annotated[immutabledict[str, str], mapping] = immutabledict()

    if TYPE_CHECKING:  # accepts any mapping

        def __init__(self, *, originals: Mapping[str, str] = ...) -> None: ...

    def only(self, characters: frozenset[str]) -> Marks:
        """The marks that replace one of the characters."""
        return _only(self.originals, characters)

    def mark(self, text: str) -> str:
        """The text with a mark for each character that has one; of the same length."""
        for mark, original, _ in _pairs(self.originals):
            text = text.replace(original, mark)
        return text

    def in_text(self, text: str) -> bool:
        """Whether any mark is in the text, plain or as a JSON escape."""
        return any(mark in text or escaped in text for mark, _, escaped in _pairs(self.originals))

    def harmless(self, text: str) -> str:
        """The marked text with `0` for every mark: a character that no template escapes, drops, or
        writes in another case.

        >>> Marks(originals={"\ue000": "<"}).harmless("a \ue000 b")
        'a 0 b'
        """
        for mark, _, escaped in _pairs(self.originals):
            text = text.replace(mark, "0").replace(escaped, "0")
        return text

    def left_in(self, text: str) -> bool:
        """Whether any mark is in the text: plain, or spelled in other characters, as in JSON, a URL
        or HTML.
        """
        spelled = _spelled(text if self.originals else "")
        return any(
            mark in text or not spelled.isdisjoint(_spellings(mark)) for mark in self.originals
        )

    def put_back(self, text: str) -> str:
        """The text with every mark replaced by its character."""
        escapes = "\\u" in text
        if text.isascii() and not escapes:
            return text
        for mark, original, escaped in _pairs(self.originals):
            text = text.replace(mark, original)
            text = text.replace(escaped, original) if escapes else text
        return text


@functools.lru_cache(maxsize=64)
def _pairs(originals: immutabledict[str, str]) -> tuple[tuple[str, str, str], ...]:
    return tuple((mark, original, _escape(mark)) for mark, original in originals.items())


@functools.lru_cache(maxsize=64)
def _only(originals: immutabledict[str, str], characters: frozenset[str]) -> Marks:
    return Marks(
        originals={mark: original for mark, original in originals.items() if original in characters}
    )


def _escape(mark: str) -> str:
    return json.dumps(mark)[1:-1]


_PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010ffff]")
_SPELLED = re.compile(
    r"\\u[0-9a-f]{4}|(?:%|\\x)(?:e[ef]|f[0-9a-f](?:%|\\x)[0-9a-f]{2})(?:(?:%|\\x)[0-9a-f]{2}){2}|&#(?:[0-9]+|x[0-9a-f]+);"
)
_SIGNS = ("\\", "%", "&#")
"""What begins a character that is spelled in others."""


def _spelled(text: str) -> frozenset[str]:
    """The characters that the text spells in others, in lower case."""
    return (
        frozenset(match.group() for match in _SPELLED.finditer(text.lower()))
        if any(sign in text for sign in _SIGNS)
        else frozenset()
    )


@functools.lru_cache(maxsize=256)
def _spellings(mark: str) -> tuple[str, ...]:
    """How a mark is spelled in JSON, in a URL, in Python's bytes and in HTML."""
    code, data = ord(mark), mark.encode()
    in_url, in_bytes = ("".join(f"{sign}{byte:02x}" for byte in data) for sign in ("%", "\\x"))
    return _escape(mark)[:6], in_url, in_bytes, f"&#{code};", f"&#x{code:x};"


def choose_marks(characters: Iterable[str], avoid: Iterable[str], source: str = "") -> Marks | None:
    """A mark for each of the characters, none of which is in the template's source or in the texts
    of `avoid`, spelled or not; None if no private-use character is left.
    """
    taken = _marks_in_source(source).union(*map(_marks_in, avoid))
    if not taken:
        return _first_marks(frozenset(characters))
    return _marks(
        frozenset(characters),
        (mark for mark in _free() if mark not in taken and taken.isdisjoint(_spellings(mark))),
    )


def _marks_in(text: str) -> frozenset[str]:
    """The private-use characters of the text, and those that it spells in others."""
    private = () if text.isascii() else _PRIVATE.findall(text)
    return _spelled(text).union(private)


_marks_in_source = functools.lru_cache(maxsize=32)(_marks_in)
"""The same, remembered: requests share a template."""


def _free() -> Iterator[str]:
    return (
        chr(code)
        for block in (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
        for code in block
    )


@functools.lru_cache(maxsize=64)
def _first_marks(characters: frozenset[str]) -> Marks | None:
    return _marks(characters, _free())


def _marks(characters: frozenset[str], free: Iterator[str]) -> Marks | None:
    chosen = dict(zip(free, sorted(characters), strict=False))
    return Marks(originals=chosen) if len(chosen) == len(characters) else None


def foreign_strings(conversation: Conversation, trust: Collection[str]) -> list[tuple[str, str]]:
    """Every foreign string with its path. `trust` has the roles that are not foreign, and "tools"
    or "template_kwargs" if those are not.
    """
    strings: list[tuple[str, str]] = []

    def note(text: str, path: str) -> str:
        strings.append((path, text))
        return text

    rewrite_foreign(conversation, trust, note)
    return strings


def trusted_part(conversation: Conversation, trust: Collection[str]) -> Conversation:
    """The trusted parts of the conversation; they may contain some foreign text."""
    messages = [message for message in conversation.messages if message["role"] in trust]
    return Conversation(
        messages,
        conversation.tools if "tools" in trust else [],
        conversation.variables if "template_kwargs" in trust else {},
    )


def rewrite_foreign(
    conversation: Conversation, trust: Collection[str], rewrite: Rewrite
) -> Conversation:
    """The conversation with every foreign string (keys too) passed through `rewrite`, which is
    called with the string and its path.
    """
    return Conversation(
        [
            _message(message, f"messages[{row}]", trust, rewrite)
            for row, message in enumerate(conversation.messages)
        ],
        (
            conversation.tools
            if "tools" in trust
            else _rewritten(conversation.tools, "tools", rewrite)
        ),
        (
            conversation.variables
            if "template_kwargs" in trust
            else {
                name: _rewritten(value, f"template_kwargs.{name}", rewrite)
                for name, value in conversation.variables.items()
            }
        ),
    )


def _message(
    message: dict[str, object], path: str, trust: Collection[str], rewrite: Rewrite
) -> dict[str, object]:
    role, content = message["role"], message["content"]
    if role == "assistant" and role in trust:
        return message
    extras = {
        _rewritten(key, path, rewrite): _rewritten(value, f"{path}.{key}", rewrite)
        for key, value in message.items()
        if key not in ("role", "content")
    }
    if role not in trust:
        content = (
            _parts(content, path, rewrite)
            if isinstance(content, list)
            else _rewritten(content, f"{path}.content", rewrite)
        )
    return {"role": role, "content": content, **extras}


def _parts(parts: list[Any], path: str, rewrite: Rewrite) -> list[Any]:
    return [
        (
            {**part, "text": rewrite(part["text"], f"{path}.content[{row}].text")}
            if part["type"] == "text"
            else part
        )
        for row, part in enumerate(parts)
    ]


def _rewritten(value: object, path: str, rewrite: Rewrite) -> Any:
    if isinstance(value, str):
        return rewrite(value, path)
    if isinstance(value, dict):
        return {
            _rewritten(key, path, rewrite): _rewritten(entry, f"{path}.{key}", rewrite)
            for key, entry in value.items()
        }
    return (
        [_rewritten(entry, f"{path}[{row}]", rewrite) for row, entry in enumerate(value)]
        if isinstance(value, list)
        else value
    )
