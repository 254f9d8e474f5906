"""A small byte-level tokenizer in plain Python, for tests without any model package.

Ids 0 to 255 are the bytes; then come the merges, the special tokens and the other added tokens,
each in the order given.

>>> toy = ToyTokenizer(merges=("END", "\\n\\n"))
>>> toy.encode("aEND<|im_end|>")
(97, 256, 259)
>>> toy.encode_plain("<|im_end|>", first=False) == tuple(b"<|im_end|>")
True
>>> toy.decode((97, 256, 259))
'aEND<|im_end|>'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import AnyStr

__all__ = ["ToyTokenizer"]


class ToyTokenizer:
    """A `pipegen.engines.tokenizer.Tokenizer` over UTF-8 bytes: the longest merge first, from left
    to right.

    A merge may be bytes that are a part of a character. Decoding is that of byte-level BPE, with
    U+FFFD for what is not UTF-8. Raises `ValueError` for an empty token, one that is given twice,
    and an id beyond the vocabulary.

    >>> ToyTokenizer().decode("é".encode()[:1])
    '\\ufffd'
    """

    def __init__(
        self,
        merges: Sequence[str | bytes] = (),
        special: Sequence[str] = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|image_pad|>"),
        added: Sequence[str] = ("<think>", "</think>"),
    ) -> None:
        pieces = [merge if isinstance(merge, bytes) else merge.encode() for merge in merges]
        tokens = (
            [bytes([byte]) for byte in range(256)]
            + pieces
            + [token.encode() for token in (*special, *added)]
        )
        first_place: dict[bytes, int] = {}
        for position, token in enumerate(tokens):
            if not token or first_place.setdefault(token, position) != position:
                raise ValueError(
                    f"token {position} is {token!r}; a token takes bytes that no other token has"
                )
        first_special = 256 + len(pieces)
        self._tokens = tuple(tokens)
        self._ids = {token: position for position, token in enumerate(tokens[:first_special])}
        self._special = {token: first_special + index for index, token in enumerate(special)}
        self._control = {
            token: first_special + index for index, token in enumerate((*special, *added))
        }
        self._pieces = re.compile(b"|".join([*_longest_first(pieces), b"."]), re.DOTALL)
        self._controls = re.compile("|".join(_longest_first(self._control)) or r"(?!)")

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The special tokens and their ids."""
        return dict(self._special)

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """All added tokens and their ids."""
        return dict(self._control)

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return len(self._tokens)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of the text; control tokens in it become their ids."""
        ids: list[int] = []
        start = 0
        for match in self._controls.finditer(text):
            ids += (
                *self.encode_plain(text[start : match.start()], first=False),
                self._control[match.group()],
            )
            start = match.end()
        return (*ids, *self.encode_plain(text[start:], first=False))

    def encode_plain(self, text: str, *, first: bool) -> tuple[int, ...]:
        """Ids of the text, with control tokens as plain text; `first` is ignored."""
        return tuple(self._ids[piece] for piece in self._pieces.findall(text.encode()))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids; what is not UTF-8 is U+FFFD."""
        unknown = [token_id for token_id in token_ids if not 0 <= token_id < len(self._tokens)]
        if unknown:
            raise ValueError(
                f"id {unknown[0]} is beyond the vocabulary of {len(self._tokens)} tokens"
            )
        return b"".join(self._tokens[token_id] for token_id in token_ids).decode(errors="replace")

    def piece(self, token_id: int) -> str | None:
        """The text of the token, if its bytes are whole characters; see
        `pipegen.engines.tokenizer.Tokenizer`.
        """
        text = self.decode((token_id,))
        return None if "\ufffd" in text else text


def _longest_first(tokens: Iterable[AnyStr]) -> list[AnyStr]:
    return [re.escape(token) for token in sorted(tokens, key=len, reverse=True)]
