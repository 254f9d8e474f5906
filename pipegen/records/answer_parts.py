"""The parts of an answer's content, where a server gives a list of them."""

from __future__ import annotations

from collections.abc import Mapping

_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
"""The types of parts that hold what a model thought: Mistral's, Anthropic's and Databricks'. The
words of one may be missing, or hidden.
"""
_HOLDERS = ("thinking", "reasoning", "summary", "text")


def texts_of(content: object) -> tuple[object, str | None]:
    """The text of a message, and what it thought, where its content is a list of parts.

    >>> texts_of([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi"}])
    ('Hi', 'Hm.')
    """
    if not isinstance(content, list):
        return content, None
    text, thought = "", ""
    for part in content:
        if isinstance(part, str):
            text += part
        elif isinstance(part, Mapping) and part.get("type") in _THOUGHTS:
            words = next((part[name] for name in _HOLDERS if part.get(name) is not None), "")
            inner, _ = texts_of(words)
            if not isinstance(inner, str):
                return content, None
            thought += inner
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            text += part["text"]
        else:
            return content, None
    return text, thought or None
