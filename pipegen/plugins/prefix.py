"""Take a marker off the start of an answer.

>>> strip_prefix(["Assistant:"]).trim("Assistant: A cat.")
'A cat.'
"""

from __future__ import annotations

from collections.abc import Sequence

from pipegen.engines.plugin import Plugin
from pipegen.records.fields import InvalidField

__all__ = ["strip_prefix"]


def strip_prefix(markers: Sequence[str]) -> Plugin:
    r"""Remove one marker from the start of the answer, the longest that is there, with the white space on both sides of it; on every engine.

    Markers are taken literally, so give what cannot begin a word: `"Assistant:"` or `"assistant\n"` rather than `"assistant"`. White space before the
    text or the marker makes no difference. A second marker stays, and a text without one is not changed.

    Raises `InvalidField` unless `markers` holds at least one string, and none that is only white space.

    >>> plugin = strip_prefix(("assistant\n", "<|assistant|>", "<|assistant|>assistant\n"))
    >>> plugin.trim("\n<|assistant|>assistant\n\nYes."), plugin.trim("  No.")
    ('Yes.', '  No.')
    """
    if isinstance(markers, str) or not markers or not all(isinstance(marker, str) and marker.strip() for marker in markers):
        raise InvalidField(f"strip_prefix takes at least one marker, in a tuple or a list, and none of them blank, not {markers!r}")
    longest_first = sorted((marker.lstrip() for marker in markers), key=len, reverse=True)

    def trim(text: str) -> str:
        begun = text.lstrip()
        marker = next((marker for marker in longest_first if begun.startswith(marker)), None)
        return text if marker is None else begun[len(marker) :].lstrip()

    return Plugin(name="strip_prefix", version=repr(sorted(markers)), trim=trim)
