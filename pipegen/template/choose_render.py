"""Which render of a conversation is the prompt: one whose control tokens are those of the same
conversation with harmless words.

The words are rendered with marks in the place of the characters that could make or move a control
token, and as they are. If the two are the same but for the marks, the template has passed the words
on, and the marks are put back. If not, it looks into the words: it escapes, encodes, sorts, counts
or compares them. Then they are rendered a third time, with zeros for the marks, which shows whether
marks come through as they are. If they do, the prompt is the plain render where its control tokens
are those of the harmless ones and it differs from them only where the words are, and else the
marked one. If they do not, it is the plain render where its control tokens are the harmless ones,
and else there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import Slot
from pipegen.template.control_tokens import ControlTokens
from pipegen.template.untrusted import Conversation, Marks, Rewrite, rewrite_foreign

ALLOW = 'change the content, or set control_tokens="allow"'
_ENTRIES = re.compile(
    r"messages\[\d+\](\.tool_calls\[\d+\](\.function)?)?|template_kwargs\.documents\[\d+\]"
    r"|tools\[\d+\](\.function(\.parameters(\.(properties\..+|items.*))?(?<!\.properties))?)?",
    re.DOTALL,
)
"""The places whose entries have names that the form of messages, documents, tools and their calls
gives them, and JSON Schema.
"""
_NAMES = frozenset(
    {
        "id",
        "type",
        "function",
        "name",
        "description",
        "parameters",
        "arguments",
        "properties",
        "required",
        "items",
        "enum",
    }
)
_TYPED = re.compile(
    r"(?:messages\[\d+\]\.tool_calls\[\d+\]|tools\[\d+\].*)\.(?!(?:name|description|title)$)\w+(\[\d+\])?",
    re.DOTALL,
)
_TYPES = frozenset(
    {"function", "object", "array", "string", "number", "integer", "boolean", "null"}
)
_OUTER = re.compile(r"messages\[\d+\](\.tool_calls\[\d+\])?|template_kwargs\.documents\[\d+\]")
"""The places whose names are the caller's choice, not that of who wrote the words."""
_SETTING = re.compile(r"template_kwargs\.(?!documents\b).*", re.DOTALL)


def is_structure(text: str, path: str, known: frozenset[str]) -> bool:
    """Whether the text is no words of anybody's: the name of an entry, a type of JSON Schema, or a
    setting of the template (one of its `known` words).
    """
    if text in _NAMES and _ENTRIES.fullmatch(path) is not None:
        return True
    if text.lower() in _TYPES and _TYPED.fullmatch(path) is not None:
        return True
    return (
        text.lower() in known and (_SETTING.fullmatch(path) or _OUTER.fullmatch(path)) is not None
    )


def marker(
    marks: Marks, known: frozenset[str], sought: frozenset[str], control: ControlTokens
) -> Rewrite:
    """What marks the foreign text: all of it, but of the conversation's structure only what can
    begin or end a control token.

    Other words that the template knows are structure too, since it may read entries of that name.
    They are words where the template compares with them (`sought`), and where it may write them
    within a control token.
    """
    edges = marks.only(control.edges)

    def is_kept(text: str, path: str) -> bool:
        if is_structure(text, path, known):
            return True
        if text.lower() not in known or text.strip().casefold() in sought:
            return False
        return not (control.has_name(text) if _ENTRIES.fullmatch(path) else control.has_part(text))

    return lambda text, path: (edges if is_kept(text, path) else marks).mark(text)


def chosen_render(
    write: Callable[[Conversation], Slot[str]],
    shaped: Conversation,
    trust: frozenset[str],
    marks: Marks,
    control: ControlTokens,
    mark: Rewrite,
) -> Slot[tuple[str, Marks]]:
    """The render that is the prompt, with the marks that are in it; `InvalidRequest` where there is
    none.

    Templates take the thoughts out of earlier answers. So where an answer's words are its only
    trouble, they may go without marks.
    """
    marked, slot = write(rewrite_foreign(shaped, trust, mark)).value_or(None), write(shaped)
    plain = slot.value_or(None)
    if marked is None:
        message = (
            "the chat template fails if the characters of control tokens in this content are"
            " replaced, so pipegen cannot guard it"
        )
        return Failure(slot.swap().value_or(InvalidRequest(message, hint=ALLOW)))
    if plain is not None and plain == marks.put_back(marked):
        return Success(
            (plain, Marks()) if hides_nothing(marked, marks, control) else (marked, marks)
        )
    zeros = write(
        rewrite_foreign(shaped, trust, lambda text, path: marks.harmless(mark(text, path)))
    ).value_or(None)
    passed_on = zeros == marks.harmless(marked)
    harmless, allowed = marked if zeros is None else zeros, marked if passed_on else None
    if plain is not None and _agrees(plain, harmless, allowed, control):
        return Success((plain, Marks()))
    if not passed_on:
        message = (
            "the chat template changes characters of control tokens in the content, so its own"
            " control tokens cannot be told from the content's"
        )
        return Failure(InvalidRequest(message, hint=ALLOW))
    if any(message["role"] == "assistant" for message in shaped.messages):
        answers = write(rewrite_foreign(shaped, trust | {"assistant"}, mark)).value_or(None)
        if answers is not None and control.pieces(answers)[1::2] == control.pieces(marked)[1::2]:
            return Success((answers, marks))
    return Success((marked, marks))


def hides_nothing(hidden: str, marks: Marks, control: ControlTokens) -> bool:
    """Whether the text has the same control tokens, in the same places, once its marks are replaced
    by what they stand for.
    """
    if not marks.originals:
        return True
    shown, pieces = control.pieces(marks.put_back(hidden)), control.pieces(hidden)
    return len(shown) == len(pieces) and shown == [marks.put_back(piece) for piece in pieces]


def _agrees(plain: str, harmless: str, marked: str | None, control: ControlTokens) -> bool:
    """Whether the render of the words themselves has the control tokens of the harmless one, and
    differs from it only where a `marked` one has marks.
    """
    pieces, zeros = control.pieces(plain), control.pieces(harmless)
    if pieces[1::2] != zeros[1::2] or marked is None:
        return pieces[1::2] == zeros[1::2]
    hidden = control.pieces(marked)
    return all(
        mine == zero or (len(hidden) == len(zeros) and zero != hidden[row])
        for row, (mine, zero) in enumerate(zip(pieces, zeros, strict=True))
    )
