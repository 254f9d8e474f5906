"""What is found out about a chat template, whatever the words of a request are: once for each
template and its variables, not with every request.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import NamedTuple

from pipegen.engines.tokenizer import Tokenizer
from pipegen.template.choose_render import is_structure
from pipegen.template.control_tokens import ControlTokens, control_tokens
from pipegen.template.literals import compared_beyond
from pipegen.template.template import Template, written_by
from pipegen.template.template_source import composes, decoded_by, known_words


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
