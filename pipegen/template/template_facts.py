"""What is found out about a chat template, whatever the words of a request are: once for each
template and its variables, not with every request.

Its source says what it may write: control tokens that it puts together from parts, characters that
it makes of others, and the words that it knows.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from pipegen.engines.tokenizer import Tokenizer
from pipegen.template.choose_render import is_structure
from pipegen.template.control_tokens import ControlTokens, control_tokens
from pipegen.template.literals import compared_beyond
from pipegen.template.template import Template, written_by

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


class TemplateFacts(NamedTuple):
    """A template beside the control tokens that it may write."""

    control: ControlTokens
    source: str
    known: frozenset[str]
    """Its own words, in lower case."""
    decoded: frozenset[str]
    """The characters of which it may make others."""
    composes: bool
    """Whether it may put a control token together from parts."""

    def guarded(
        self, trusted: Collection[str], texts: Collection[tuple[str, str]]
    ) -> frozenset[str]:
        """The characters that foreign words may make or move a control token with; `trusted` is
        the other text of the request.
        """
        wide = bool(self.decoded) or self.composes or self._may_complete(trusted, texts)
        return self.control.letters | self.decoded if wide else self.control.edges

    def _may_complete(self, trusted: Collection[str], texts: Collection[tuple[str, str]]) -> bool:
        """Whether foreign words may complete a control token that the trusted text begins: it
        holds a character of an edge, and they are a part of one.
        """
        edges = self.control.edges
        if not any(not edges.isdisjoint(text) for text in trusted):
            return False
        return any(
            stripped
            and self.control.has_part(stripped)
            and not is_structure(text, path, frozenset())
            for path, text in texts
            for stripped in (text.strip(),)
        )

    def compared(
        self, texts: Collection[tuple[str, str]], guarded: frozenset[str]
    ) -> frozenset[str]:
        """The text of the template's comparisons that foreign words hold, as far as no guarded
        character is in it. Texts of the request's structure are no words.
        """
        compared = compared_beyond(self.source, guarded)
        if not any(compared):
            return frozenset()
        return compared.found_in(
            [text for path, text in texts if not is_structure(text, path, self.known)]
        )


@functools.lru_cache(maxsize=32)
def template_facts(tokenizer: Tokenizer, template: Template, images: str = "") -> TemplateFacts:
    """The facts of a template; `images` are image tokens, joined by NULs."""
    control = control_tokens(tokenizer, written_by(template), images)
    source = "\n".join(filter(None, (template.source, template.renderer.template)))
    return TemplateFacts(
        control=control,
        source=source,
        known=known_words(source),
        decoded=decoded_by(source),
        composes=composes(source, control.ids),
    )
