r"""Separate what a model thought from its answer.

>>> reasoning_of("<think>\nTwo and two.\n</think>\n\n4")
Reasoning(reasoning='Two and two.', answer='4', closed=True)
>>> split_reasoning().trim("<think>\nTwo and two.\n</think>\n\n4")
'4'
"""

from __future__ import annotations

from pipegen.answer.split_thought import Reasoning, reasoning_of
from pipegen.engines.plugin import Plugin

__all__ = ["Reasoning", "reasoning_of", "split_reasoning"]


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
