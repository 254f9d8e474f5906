"""Control tokens: the tokens of a tokenizer that steer a model, and the characters that they are
made of.

They are the tokenizer's special tokens, and the other added tokens that the chat template writes
(such as `<think>`). Added tokens of a form that steers some family of models are too: `<|...|>`,
`<｜...｜>`, `[|...|]`, `[INST]`, `</s>`. Other added tokens, such as Gemma's newlines and HTML tags,
are ordinary text.

>>> control = ControlTokens(ids={"<s>": 1, "[INST]": 2})
>>> control.pieces("<s>[INST] hi")
['', '<s>', '', '[INST]', ' hi']
>>> sorted(character for character in control.edges if character.isascii())
['<', '>', '[', ']']
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from immutabledict import immutabledict

from pipegen.core.foreign_calls import call_tokenizer
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.fields import mapping, record

_SHAPES = re.compile(
    r"<\|.*\|?>|<.*\|>|<｜.*｜>|\[\|.*\|\]|\[/?[@A-Za-z][^\s\[\]]*\]|</?(?:s|bos|eos|pad|unk|mask|cls|sep)>",
    re.DOTALL,
)
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_UNUSUAL = ("\U000f5a3c", "\U00013000", "\U0002a6d6", "\U0001fae8", "\u1400", "\ua000")
"""Characters that few vocabularies have: private use, rare scripts, an emoji."""
_MARKS = re.compile(r"^[\W_]+|[\W_]+$")
_BLANK = " \t\n\v\f\r▁"


@functools.lru_cache(maxsize=64)
def _pattern(tokens: immutabledict[str, int]) -> re.Pattern[str]:
    """Finds the leftmost and then the longest token, as tokenizers do, in a time that does not
    depend on the number of tokens.
    """
    return re.compile(f"({_branches(_tree(tokens))})" if tokens else "((?!))")


def _tree(tokens: Iterable[str]) -> dict[str, object]:
    root: dict[str, Any] = {}
    for token in tokens:
        node = root
        for character in token:
            node = node.setdefault(character, {})
        node[""] = {}
    return root


def _branches(node: Mapping[str, Any]) -> str:
    ways = [
        re.escape(character) + _branches(child)
        for character, child in sorted(node.items())
        if character
    ]
    if not ways:
        return ""
    return (
        f"(?:{'|'.join(ways)})?"
        if "" in node
        else ways[0]
        if len(ways) == 1
        else f"(?:{'|'.join(ways)})"
    )


@functools.lru_cache(maxsize=64)
def _numbers(tokens: immutabledict[str, int]) -> frozenset[int]:
    return frozenset(tokens.values())


@functools.lru_cache(maxsize=64)
def _edges(tokens: immutabledict[str, int]) -> frozenset[str]:
    cores = [token.strip(_BLANK) or token for token in tokens]
    return _with_variants({core[0] for core in cores} | {core[-1] for core in cores})


@functools.lru_cache(maxsize=64)
def _letters(tokens: immutabledict[str, int]) -> frozenset[str]:
    characters = {character for token in tokens for character in token.strip(_BLANK) or token}
    return _with_variants(
        {
            form
            for character in characters
            for form in (character, *character.lower(), *character.upper())
        }
    )


@functools.lru_cache(maxsize=64)
def _joined(tokens: immutabledict[str, int]) -> str:
    return "\0".join(tokens).casefold()


@functools.lru_cache(maxsize=64)
def _names(tokens: immutabledict[str, int]) -> frozenset[str]:
    return frozenset(_MARKS.sub("", token).casefold() for token in tokens)


def _with_variants(characters: set[str]) -> frozenset[str]:
    """The characters, and those that normalization may turn into one of them, such as the
    full-width `<`.
    """
    return frozenset(characters).union(
        variant for variant, parts in _variants().items() if not characters.isdisjoint(parts)
    )


@functools.cache
def _variants() -> Mapping[str, str]:
    return {
        chr(code): unicodedata.normalize("NFKD", chr(code))
        for code in range(0x80, 0x20000)
        if unicodedata.decomposition(chr(code))
    }


@record
class ControlTokens:
    """The control tokens of a tokenizer with a template, and its other added tokens, which are
    ordinary text with one id.
    """

    ids: Annotated[immutabledict[str, int], mapping]
    ordinary: Annotated[immutabledict[str, int], mapping] = immutabledict()

    if TYPE_CHECKING:  # accepts any mapping

        def __init__(
            self, *, ids: Mapping[str, int], ordinary: Mapping[str, int] = ...
        ) -> None: ...

    @property
    def known(self) -> frozenset[int]:
        """The ids of the control tokens."""
        return _numbers(self.ids)

    @property
    def edges(self) -> frozenset[str]:
        """The characters that begin or end a control token. Text without them makes none, unless a
        template writes the edges around it.
        """
        return _edges(self.ids)

    @property
    def letters(self) -> frozenset[str]:
        """All characters of control tokens, in upper and lower case."""
        return _letters(self.ids)

    def has_part(self, text: str) -> bool:
        """Whether the text, in any case, is a part of a control token."""
        return text.casefold() in _joined(self.ids)

    def has_name(self, text: str) -> bool:
        """Whether the text, in any case, is all that is between the marks of a control token, as
        `think` is in `<think>`.
        """
        return text.strip().casefold() in _names(self.ids)

    def found_in(self, text: str) -> tuple[int, str] | None:
        """The index and the text of the first control token; None if there is none."""
        match = _pattern(self.ids).search(text)
        return (match.start(), match.group()) if match else None

    def pieces(self, text: str, *, at_most: int = 0) -> list[str]:
        """The text cut at its control tokens: text, token, text, token, ..., text. With `at_most`,
        only the first tokens are cut out.
        """
        return _pattern(self.ids).split(text, at_most)

    def ordinary_pieces(self, text: str) -> list[str]:
        """The text cut at the other added tokens, in the same form."""
        return _pattern(self.ordinary).split(text)


@functools.lru_cache(maxsize=32)
def control_tokens(tokenizer: Tokenizer, written: str, images: str = "") -> ControlTokens:
    """The control tokens. `written` is the template's source and some renders; `images` are image
    tokens, joined by NULs.

    The tokens for unknown characters and single bytes, and those of blanks only, are not control
    tokens.
    """
    special, added, of_images = (
        tokenizer.special_tokens,
        tokenizer.control_tokens,
        images.split("\0"),
    )
    unknown = {
        token_id
        for character in _UNUSUAL
        for token_id in call_tokenizer(tokenizer.encode, character)
    }

    def steers(token: str, token_id: int) -> bool:
        if token_id in unknown or _BYTE.fullmatch(token):
            return False
        if token in special or _SHAPES.fullmatch(token):
            return True
        return bool(token.strip(_BLANK)) and (token in written or token in of_images)

    ids = {
        token: token_id
        for token, token_id in {**added, **special}.items()
        if token and steers(token, token_id)
    }
    return _control(
        ids=immutabledict(ids),
        ordinary=immutabledict(
            {token: token_id for token, token_id in added.items() if token and token not in ids}
        ),
    )


_control = functools.lru_cache(maxsize=32)(ControlTokens)
"""Equal ones are the same object, which the caches of this module find at once."""
