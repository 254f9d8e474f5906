"""Remove a marker from the start of an answer.

>>> strip_prefix(["Assistant:"]).trim("Assistant: A cat.")
'A cat.'
"""

from __future__ import annotations

from collections.abc import Sequence

from pipegen.engines.plugin import Plugin
from pipegen.records.fields import InvalidField


def strip_prefix(markers: Sequence[str]) -> Plugin:
    r"""Remove the longest of the markers that the answer begins with, and the white space around
    it.

    Choose markers that cannot begin a word: `"Assistant:"` rather than `"assistant"`. White space
    before the text or the marker does not matter. Only one marker is removed. Raises `InvalidField`
    unless `markers` has at least one string, and none that is blank.

    >>> plugin = strip_prefix(("assistant\n", "<|assistant|>", "<|assistant|>assistant\n"))
    >>> plugin.trim("\n<|assistant|>assistant\n\nYes."), plugin.trim("  No.")
    ('Yes.', '  No.')
    """
    if (
        isinstance(markers, str)
        or not markers
        or not all(isinstance(marker, str) and marker.strip() for marker in markers)
    ):
        raise InvalidField(
            "strip_prefix takes at least one marker, in a tuple or a list, and none of them blank,"
            f" not {markers!r}"
        )
    longest_first = sorted((marker.lstrip() for marker in markers), key=len, reverse=True)

    def trim(text: str) -> str:
        stripped = text.lstrip()
        marker = next((marker for marker in longest_first if stripped.startswith(marker)), None)
        return text if marker is None else stripped[len(marker) :].lstrip()

    return Plugin(name="strip_prefix", version=repr(sorted(markers)), trim=trim)
