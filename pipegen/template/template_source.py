"""What a chat template's source says of what it may write: control tokens that it puts together from
parts, characters that it makes of others, and the words that it knows.

>>> composes("{{ '<' ~ key ~ '>' }}", frozenset({"<think>"}))
True
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterable

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
