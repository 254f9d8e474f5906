r"""Remove from an answer what comes before it: what the model thought, or a marker.

>>> split_reasoning().trim("<think>\nTwo and two.\n</think>\n\n4")
'4'
>>> strip_prefix(["Assistant:"]).trim("Assistant: A cat.")
'A cat.'
"""

from __future__ import annotations

from collections.abc import Sequence

from pipegen.answer.split_thought import reasoning_of
from pipegen.core.names import InvalidField
from pipegen.engines.plugin import Plugin


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


def split_reasoning(
    open: str = "<think>", close: str = "</think>", *, opened: bool = False
) -> Plugin:
    """Trim the text to the answer. See `reasoning_of` for the rule and the errors.

    `reasoning_of(result.raw_text)` still gives the reasoning. If the reasoning did not end, the
    text is empty. `opened=True` is for chat templates that open the reasoning themselves.

    >>> plugin = split_reasoning()
    >>> [
    ...     plugin.trim(text)
    ...     for text in ("4", "<think></think>4", "two and two</think> 4", "<think>two and")
    ... ]
    ['4', '4', '4', '']
    """
    reasoning_of("", open, close)  # an error is found here, not in every row
    return Plugin(
        name="split_reasoning",
        version=repr((open, close, opened)),
        trim=lambda text: reasoning_of(text, open, close, opened=opened).answer,
    )
