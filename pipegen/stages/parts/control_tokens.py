"""Control tokens: which tokens of a tokenizer steer, and the characters that can make them.

Control tokens are the tokenizer's special tokens, the other added tokens that the chat template writes (such as `<think>`), and every added token of a
shape that steers in some family of models: `<|...|>`, `<｜...｜>`, `[INST]`, `</s>`. Not every added token: Gemma's hold runs of newlines and HTML tags,
which steer nothing.

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

from pipegen.core.border import of_tokenizer
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.fields import mapping, record

__all__ = ["ControlTokens", "control_tokens"]

_SHAPES = re.compile(r"<\|.*\|?>|<.*\|>|<｜.*｜>|\[/?[@A-Za-z][^\s\[\]]*\]|</?(?:s|bos|eos|pad|unk|mask|cls|sep)>", re.DOTALL)
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_UNUSUAL = ("\U000f5a3c", "\U00013000", "\U0002a6d6", "\U0001fae8", "\u1400", "\ua000")
"""Characters that hardly any vocabulary holds: from private use, from old and rare scripts, an emoji."""
_BLANK = " \t\n\v\f\r▁"


@functools.lru_cache(maxsize=64)
def _pattern(tokens: immutabledict[str, int]) -> re.Pattern[str]:
    """Finds the leftmost token, and of those the longest, as tokenizers do; its time does not grow with the number of tokens."""
    return re.compile(f"({_branches(_tree(tokens))})" if tokens else "((?!))")


def _tree(tokens: Iterable[str]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for token in tokens:
        node = root
        for character in token:
            node = node.setdefault(character, {})
        node[""] = {}
    return root


def _branches(node: Mapping[str, Any]) -> str:
    ways = [re.escape(character) + _branches(child) for character, child in sorted(node.items()) if character]
    if not ways:
        return ""
    return f"(?:{'|'.join(ways)})?" if "" in node else ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


@functools.lru_cache(maxsize=64)
def _numbers(tokens: immutabledict[str, int]) -> frozenset[int]:
    return frozenset(tokens.values())


@functools.lru_cache(maxsize=64)
def _edges(tokens: immutabledict[str, int]) -> frozenset[str]:
    cores = [token.strip(_BLANK) or token for token in tokens]
    return _with_variants({core[0] for core in cores} | {core[-1] for core in cores})


@functools.lru_cache(maxsize=64)
def _letters(tokens: immutabledict[str, int]) -> frozenset[str]:
    own = {character for token in tokens for character in token.strip(_BLANK) or token}
    return _with_variants({form for character in own for form in (character, *character.lower(), *character.upper())})


def _with_variants(characters: set[str]) -> frozenset[str]:
    """The characters, and those that normalising may turn into one of them, such as the full-width `<`."""
    return frozenset(characters).union(variant for variant, parts in _variants().items() if not characters.isdisjoint(parts))


@functools.cache
def _variants() -> Mapping[str, str]:
    return {chr(code): unicodedata.normalize("NFKD", chr(code)) for code in range(0x80, 0x20000) if unicodedata.decomposition(chr(code))}


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

    @property
    def edges(self) -> frozenset[str]:
        """The characters that can begin or end a control token: text without any of them makes none, unless its middle is put between others' edges."""
        return _edges(self.ids)

    @property
    def letters(self) -> frozenset[str]:
        """The characters that can be in a control token at all, in upper and lower case."""
        return _letters(self.ids)

    def found_in(self, text: str) -> tuple[int, str] | None:
        """Where the first control token is in the text (in characters), and which it is; None where there is none."""
        found = _pattern(self.ids).search(text)
        return (found.start(), found.group()) if found else None

    def pieces(self, text: str) -> list[str]:
        """The text cut at its control tokens: text, token, text, token, ..., text."""
        return _pattern(self.ids).split(text)

    def ordinary_pieces(self, text: str) -> list[str]:
        """The text cut at the other added tokens, in the same form."""
        return _pattern(self.ordinary).split(text)


@functools.lru_cache(maxsize=32)
def control_tokens(tokenizer: Tokenizer, written: str, images: str = "") -> ControlTokens:
    """The control tokens, given what the template writes (its source and some renders of harmless content) and `image_tokens`, with NULs between.

    What an unknown character becomes is none (it steers nothing): the token for unknown words, those for single bytes. Nor is one of blanks only.
    """
    special, added, of_images = tokenizer.special_tokens, tokenizer.control_tokens, images.split("\0")
    unknown = {number for character in _UNUSUAL for number in of_tokenizer(tokenizer.encode, character)}

    def steers(token: str, number: int) -> bool:
        if number in unknown or _BYTE.fullmatch(token):
            return False
        if token in special or _SHAPES.fullmatch(token):
            return True
        return bool(token.strip(_BLANK)) and (token in written or token in of_images)

    ids = {token: number for token, number in {**added, **special}.items() if token and steers(token, number)}
    return ControlTokens(ids=immutabledict(ids), ordinary=immutabledict({token: number for token, number in added.items() if token and token not in ids}))
