"""Turn generated ids into text one by one, whole characters only.

A character belongs to the token that completes it. Text that was returned is never changed.

>>> from pipegen.testing.toy import ToyTokenizer
>>> toy = ToyTokenizer()
>>> detokenizer = Detokenizer(toy)
>>> [detokenizer.feed(token_id) for token_id in toy.encode("aé!")]
['a', '', 'é', '!']
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from itertools import accumulate

from pipegen.core.foreign_calls import call_tokenizer
from pipegen.engines.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
WINDOW = 8
"""Complete tokens that are decoded again as the context of a new one."""
PATIENCE = 16
"""Tokens that may wait for a character to become complete; then it is U+FFFD."""
INCOMPLETE = 3
"""An incomplete UTF-8 character has at most three bytes, and is decoded as one U+FFFD or one for
each byte.
"""


class Detokenizer:
    """Ids in, text out: the joined pieces are `tokenizer.decode` of all the ids.

    Each id is decoded within a short window of its neighbours. So the cost is linear, and spaces
    between words are as in the whole text. U+FFFD at the end may be an incomplete character: it is
    held back until a character follows, the output ends, or 16 tokens have waited. Byte-fallback
    tokenizers may decode good characters as U+FFFD once invalid bytes follow; here they stay.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._complete = 0  # this many tokens of the window end with a whole character,
        self._base = ""  # and this is their text
        self._given = 0  # this many characters of the window's text were returned

    def feed(self, token_id: int) -> str:
        """The characters that this token completes."""
        if self._complete and self._complete == len(self._window):
            text_after = _after(self._tokenizer, self._window[-1], token_id)
            if text_after:
                return self._follow(token_id, text_after)
        self._window.append(token_id)
        text = self._text()
        sure = len(text.rstrip(REPLACEMENT))
        waiting = len(self._window) - self._complete
        if sure < len(text) and waiting > PATIENCE:
            sure = max(sure, len(text) - INCOMPLETE)
        piece = text[self._given : sure]
        self._given = max(self._given, sure)
        if sure == len(text):
            self._rebase(text)
        elif waiting > PATIENCE:
            self._window = self._window[-WINDOW:]
            self._complete, self._base = 0, ""
            self._given = max(
                0, len(call_tokenizer(self._tokenizer.decode, self._window)) - (len(text) - sure)
            )
        return piece

    @property
    def waits(self) -> bool:
        """Whether text of the last tokens is held back."""
        return len(self._window) > self._complete

    @property
    def settled(self) -> bool:
        """Whether there is text, and all of it was returned."""
        return 0 < self._complete == len(self._window)

    def finish(self) -> str:
        """The text that is held back: the output ends here, perhaps inside a character."""
        text = self._text()
        piece = text[self._given :]
        self._given = len(text)
        return piece

    def _text(self) -> str:
        text = call_tokenizer(self._tokenizer.decode, self._window)
        # a byte-fallback run became invalid; its good characters were returned, so only the rest is
        # decoded
        if not text.startswith(self._base):
            self._given -= len(self._base)
            self._window = self._window[self._complete :]
            self._complete, self._base = 0, ""
            text = call_tokenizer(self._tokenizer.decode, self._window)
        return text

    def _follow(self, token_id: int, piece: str) -> str:
        """As `feed`, for a token whose text after the previous one is known."""
        self._window.append(token_id)
        if len(self._window) > WINDOW:
            self._window, self._base = [token_id], _alone(self._tokenizer, token_id)
            self._complete, self._given = 1, len(self._base)
        else:
            self._base += piece
            self._complete, self._given = len(self._window), len(self._base)
        return piece

    def _rebase(self, text: str) -> None:
        """The whole window is complete: make it the context of the next tokens, and shorten it if
        it is long.
        """
        if text == self._base and self._complete:
            self._window.pop()  # a token without text is no context
        elif len(self._window) > WINDOW:
            self._window = self._window[self._complete :] if text else self._window[1:]
            self._base = call_tokenizer(self._tokenizer.decode, self._window)
            self._complete, self._given = len(self._window), len(self._base)
        elif text:
            self._complete, self._base = len(self._window), text


def spell(
    tokenizer: Tokenizer, token_ids: Iterable[int], hidden: Collection[int] = ()
) -> tuple[str, tuple[int, ...]]:
    """The text of the ids without the hidden ones, and its length after each id; incomplete
    characters at the end come after the last length.

    >>> from pipegen.testing.toy import ToyTokenizer
    >>> spell(ToyTokenizer(), "aé".encode())
    ('aé', (1, 1, 2))
    """
    ids = tuple(token_ids)
    if not ids:
        return "", ()
    # If the tokens' own texts are whole characters and add up to the whole text, a detokenizer
    # would return them.
    pieces = ["" if token_id in hidden else _alone(tokenizer, token_id) for token_id in ids]
    text = "".join(pieces)
    if REPLACEMENT not in text and text == call_tokenizer(
        tokenizer.decode,
        [token_id for token_id in ids if token_id not in hidden] if hidden else ids,
    ):
        return text, tuple(accumulate(map(len, pieces)))
    detokenizer = Detokenizer(tokenizer)
    pieces = ["" if token_id in hidden else detokenizer.feed(token_id) for token_id in ids]
    return "".join((*pieces, detokenizer.finish())), tuple(accumulate(map(len, pieces)))


@functools.lru_cache(maxsize=2**16)
def added(tokenizer: Tokenizer, token_id: int) -> str | None:
    """What a token adds to the text after any other; None if the tokenizer cannot tell.

    >>> from pipegen.testing.toy import ToyTokenizer
    >>> added(ToyTokenizer(), 97), added(ToyTokenizer(), 255)
    ('a', None)
    """
    piece = getattr(tokenizer, "piece", None)
    return None if piece is None else call_tokenizer(piece, token_id)


def own_text(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of a token as it is after other text; U+FFFD for a part of a character.

    >>> from pipegen.testing.toy import ToyTokenizer
    >>> own_text(ToyTokenizer(), 97), own_text(ToyTokenizer(), 255)
    ('a', '\ufffd')
    """
    piece = added(tokenizer, token_id)
    return _alone(tokenizer, token_id) if piece is None else piece


@functools.lru_cache(maxsize=2**16)
def _alone(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of one token by itself."""
    return call_tokenizer(tokenizer.decode, (token_id,))


@functools.lru_cache(maxsize=2**16)
def _after(tokenizer: Tokenizer, before: int, token_id: int) -> str:
    """What a token adds to the text after another one, if both are whole characters; else empty."""
    first, both = _alone(tokenizer, before), call_tokenizer(tokenizer.decode, (before, token_id))
    is_complete = (
        first and both.startswith(first) and REPLACEMENT not in both + _alone(tokenizer, token_id)
    )
    return both[len(first) :] if is_complete else ""


def ids_behind(tokenizer: Tokenizer, text: str, *, after: str = "") -> tuple[int, ...]:
    """The ids of a text that stands behind other text, or behind the control token `after`. Some
    tokenizers put a space before a text that stands alone.

    >>> from pipegen.testing.toy import ToyTokenizer
    >>> ids_behind(ToyTokenizer(), "a<think>"), ids_behind(ToyTokenizer(), "a", after="<think>")
    ((97, 260), (97,))
    """
    for word in (after,) if after else ("x", ".", "1"):
        alone, both = (call_tokenizer(tokenizer.encode, string) for string in (word, word + text))
        if both[: len(alone)] == alone:
            return tuple(both[len(alone) :])
    return tuple(call_tokenizer(tokenizer.encode, text))
