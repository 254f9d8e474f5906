"""Words that an answer may not have, as sequences of token ids.

A word is barred as the tokenizer cuts it at its start, after other text, and after a space. Of a
spelling with several tokens the last one is barred after the others, where the answer has them.

>>> from pipegen.testing.toy import ToyTokenizer
>>> spellings((" no",), ToyTokenizer())
((110, 111),)
>>> barred_after([32, 110], spellings(("no",), ToyTokenizer()))
[111]
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from pipegen.engines.tokenizer import Tokenizer

Spellings = tuple[tuple[int, ...], ...]


@functools.lru_cache(maxsize=256)
def spellings(words: tuple[str, ...], tokenizer: Tokenizer) -> Spellings:
    """All spellings of the words, but those that end with another one."""
    bare = [word.lstrip() for word in words]
    spelled = [
        ids
        for word in bare
        for ids in (
            tokenizer.encode(word),
            tokenizer.encode_plain(word, first=False),
            tokenizer.encode_plain(f" {word}", first=False),
        )
    ]
    found = tuple(dict.fromkeys(ids for ids in spelled if ids))
    return tuple(ids for ids in found if not ends_barred(ids, [*{*found} - {ids}]))


def ends_barred(ids: Sequence[int], barred: Iterable[Sequence[int]]) -> bool:
    """Whether these ids end with one of the spellings."""
    return any(tuple(ids[-len(ending) :]) == tuple(ending) for ending in barred)


def barred_after(ids: Sequence[int], barred: Spellings) -> list[int]:
    """The tokens that would end a spelling after these ids of an answer."""
    return [
        last
        for *others, last in barred
        if not others or tuple(ids[-len(others) :]) == tuple(others)
    ]


def barred_in(ids: Sequence[int], barred: Spellings) -> int | None:
    """Where in an answer the first spelling ends; None where there is none."""
    return next(
        (
            index
            for index, token_id in enumerate(ids)
            if token_id in barred_after(ids[:index], barred)
        ),
        None,
    )
