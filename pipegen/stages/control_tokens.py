"""Control tokens: which they are, and how look-alikes in user and tool content stay text.

Control tokens are the tokenizer's special tokens, and those other added tokens that the chat template itself writes, such as `<think>`. Not every
added token: Gemma's hold runs of newlines and HTML tags, which steer nothing.

A look-alike is hidden before the template is rendered: a private-use character takes the place of its first character, so that the template trims
and splits the content as it would any other, and what is still a control token in the rendered text was written by the template or the developer.

>>> control = ControlTokens(ids={"<s>": 1, "[INST]": 2})
>>> control.pieces("<s>[INST] hi")
['', '<s>', '', '[INST]', ' hi']
>>> marks = choose_marks(control, avoid="")
>>> hidden = control.hide("say <s>", marks)
>>> control.found_in(hidden), marks.put_back(hidden)
(None, 'say <s>')
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from immutabledict import immutabledict

from pipegen.fields import mapping, record
from pipegen.tokenizer import Tokenizer

__all__ = ["ControlTokens", "Marks", "choose_marks", "control_tokens", "rewrite_untrusted"]

UNTRUSTED_ROLES = ("user", "tool")
"""Whose words may not steer. System, developer and assistant turns are the caller's own and keep their control tokens."""
_UNKNOWN_CHARACTER = "\U000f5a3c"
_BLANK = " \t\n\v\f\r▁"


@functools.lru_cache(maxsize=64)
def _pattern(tokens: immutabledict[str, int]) -> re.Pattern[str]:
    """Finds the leftmost token, and of those the longest, as tokenizers do."""
    return re.compile("(" + "|".join(map(re.escape, sorted(tokens, key=lambda token: (-len(token), token)))) + ")" if tokens else "((?!))")


@functools.lru_cache(maxsize=64)
def _numbers(tokens: immutabledict[str, int]) -> frozenset[int]:
    return frozenset(tokens.values())


@record
class Marks:
    """Private-use characters that stand for the first characters of look-alikes."""

    originals: Mapping[str, str] = immutabledict()
    """Each mark and the character it stands for."""

    def in_text(self, text: str) -> bool:
        """Whether any mark stands in the text, plain or as a JSON escape (which some templates write)."""
        return any(form in text for mark in self.originals for form in (mark, _escape(mark)))

    def put_back(self, text: str) -> str:
        """The text with every mark replaced by the character it stands for."""
        for mark, original in self.originals.items():
            text = text.replace(mark, original).replace(_escape(mark), original)
        return text


def _escape(mark: str) -> str:
    return json.dumps(mark)[1:-1]


@record
class ControlTokens:
    """The control tokens of a tokenizer under a template, and the other added tokens, which are ordinary text with an id of its own."""

    ids: Annotated[immutabledict[str, int], mapping]
    ordinary: Annotated[immutabledict[str, int], mapping] = immutabledict()

    if TYPE_CHECKING:  # any mapping is taken, and kept frozen

        def __init__(self, *, ids: Mapping[str, int], ordinary: Mapping[str, int] = ...) -> None: ...

    @property
    def known(self) -> frozenset[int]:
        """The ids of the control tokens."""
        return _numbers(self.ids)

    def found_in(self, text: str) -> tuple[int, str] | None:
        """Where the first control token stands in the text (in characters), and which it is; None where there is none."""
        found = _pattern(self.ids).search(text)
        return (found.start(), found.group()) if found else None

    def pieces(self, text: str) -> list[str]:
        """The text cut at its control tokens: text, token, text, token, ..., text."""
        return _pattern(self.ids).split(text)

    def ordinary_pieces(self, text: str) -> list[str]:
        """The text cut at the other added tokens, in the same form."""
        return _pattern(self.ordinary).split(text)

    def hide(self, text: str, marks: Marks) -> str:
        """The text with the first character of each look-alike marked, again until none is left: a mark can reveal another."""
        mark_of = {original: mark for mark, original in marks.originals.items()}
        while self.found_in(text):
            text = _pattern(self.ids).sub(lambda found: mark_of[found.group()[0]] + found.group()[1:], text)
        return text

    def hide_parts(self, parts: Sequence[str], marks: Marks) -> list[str]:
        """Hide look-alikes in text parts that the template will write one after another, whether it trims each of them or not."""
        hidden = _cut("".join(parts), parts, lambda joined: self.hide(joined, marks))
        cores = [part.strip() for part in hidden]
        kept = _cut("".join(cores), cores, lambda joined: self.hide(joined, marks))
        return [part.replace(core, new, 1) if core else part for part, core, new in zip(hidden, cores, kept, strict=True)]


def _cut(joined: str, parts: Sequence[str], hide: Callable[[str], str]) -> list[str]:
    hidden, start, out = hide(joined), 0, []  # a mark takes one character's place, so lengths stay
    for part in parts:
        out.append(hidden[start : start + len(part)])
        start += len(part)
    return out


@functools.lru_cache(maxsize=32)
def control_tokens(tokenizer: Tokenizer, written: str, pictures: str = "") -> ControlTokens:
    """The control tokens, given what the template writes (its source and some renders of harmless content) and `picture_tokens`, with NULs between.

    The token that any unknown character becomes is none (it steers nothing), nor is one of blanks only.
    """
    special, added, of_pictures = tokenizer.special_tokens, tokenizer.control_tokens, pictures.split("\0")
    unknown = set(tokenizer.encode(_UNKNOWN_CHARACTER)) & set(special.values())
    ids = {
        token: number
        for token, number in {**added, **special}.items()
        if token and number not in unknown and (token in special or ((token in written or token in of_pictures) and token.strip(_BLANK)))
    }
    return ControlTokens(ids=immutabledict(ids), ordinary=immutabledict({token: number for token, number in added.items() if token and token not in ids}))


def choose_marks(control: ControlTokens, avoid: str) -> Marks | None:
    """One mark for each character that a control token begins with, none of them in `avoid` or in a control token; None where all of them stand there."""
    avoid += "".join(control.ids)
    used = set(avoid)
    free = (chr(code) for block in (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE)) for code in block)
    usable = (mark for mark in free if mark not in used and _escape(mark) not in avoid)
    firsts = sorted({token[0] for token in control.ids})
    marks = dict(zip(usable, firsts, strict=False))
    return Marks(originals=immutabledict(marks)) if len(marks) == len(firsts) else None


def rewrite_untrusted(messages: Sequence[dict[str, Any]], rewrite: Callable[[list[str], list[str]], list[str]]) -> list[dict[str, Any]]:
    """The plain messages, with every string of user and tool messages (but the role) passed through `rewrite`.

    It is called with strings that the template may write one after another (the text parts of one message, else a single string) and the place of
    each, and returns as many.
    """
    return [_rewritten(message, f"messages[{row}]", rewrite) if message["role"] in UNTRUSTED_ROLES else message for row, message in enumerate(messages)]


def _rewritten(message: Mapping[str, Any], place: str, rewrite: Callable[[list[str], list[str]], list[str]]) -> dict[str, Any]:
    def leaf(value: Any, at: str) -> Any:
        if isinstance(value, str):
            return rewrite([value], [at])[0]
        if isinstance(value, Mapping):
            return {leaf(key, at): leaf(entry, f"{at}.{key}") for key, entry in value.items()}
        return [leaf(entry, f"{at}[{position}]") for position, entry in enumerate(value)] if isinstance(value, list) else value

    content = message["content"]
    if isinstance(content, list):
        rows = [row for row, part in enumerate(content) if part["type"] == "text"]
        texts = rewrite([content[row]["text"] for row in rows], [f"{place}.content[{row}].text" for row in rows])
        new: Any = [dict(part) for part in content]
        for row, text in zip(rows, texts, strict=True):
            new[row]["text"] = text
    else:
        new = leaf(content, f"{place}.content")
    extras = {key: leaf(value, f"{place}.{key}") for key, value in message.items() if key not in ("role", "content")}
    return {"role": message["role"], "content": new, **extras}
