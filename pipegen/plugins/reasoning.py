r"""Tell what a model thought from what it answered.

>>> reasoning_of("<think>\nTwo and two.\n</think>\n\n4")
Reasoning(reasoning='Two and two.', answer='4', closed=True)
>>> split_reasoning().trim("<think>\nTwo and two.\n</think>\n\n4")
'4'
"""

from __future__ import annotations

from pipegen.engines.plugin import Plugin
from pipegen.stages.parts.reasoning import Reasoning, reasoning_of

__all__ = ["Reasoning", "reasoning_of", "split_reasoning"]


def split_reasoning(open: str = "<think>", close: str = "</think>", *, opened: bool = False) -> Plugin:
    """Trim the text to the answer, without the reasoning before it; on every engine.

    The reasoning is not lost: `reasoning_of(result.raw_text)` gives it, and says whether it ended. Where it did not, since the row ran out of tokens, the
    text is empty. See `reasoning_of` for the rule, and for what it raises; `opened=True` is for chat templates that open the reasoning themselves.

    >>> plugin = split_reasoning()
    >>> [plugin.trim(text) for text in ("4", "<think></think>4", "two and two</think> 4", "<think>two and")]
    ['4', '4', '4', '']
    """
    reasoning_of("", open, close)  # a mistake is found here, and not in every row
    return Plugin(name="split_reasoning", version=repr((open, close, opened)), trim=lambda text: reasoning_of(text, open, close, opened=opened).answer)
