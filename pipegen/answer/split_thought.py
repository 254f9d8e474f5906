r"""Where reasoning ends and the answer begins.

>>> reasoning_of("<think>\nTwo and two.\n</think>\n\n4")
Reasoning(reasoning='Two and two.', answer='4', closed=True)
"""

from __future__ import annotations

from typing import NamedTuple

from pipegen.core.errors import UnsupportedOption
from pipegen.core.names import InvalidField
from pipegen.records.fields import names_of
from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import Finish


class Reasoning(NamedTuple):
    """A text in two parts."""

    reasoning: str | None
    """Stripped; None if there is none, and empty if it was opened and closed at once."""
    answer: str
    """Empty if the reasoning did not end."""
    closed: bool
    """Whether the reasoning ended, if there is any."""


def reasoning_of(
    text: str, open: str = "<think>", close: str = "</think>", *, opened: bool = False
) -> Reasoning:
    """Split a text, such as `result.raw_text`, into reasoning and answer.

    Reasoning is at the start of the text, between `open` and the first `close`. If there is a
    `close` and no `open` before it, the text is reasoning from its start: the chat template wrote
    `open` at the end of the prompt. With `opened=True`, which says that it did, a text without
    `close` is unfinished reasoning; otherwise it is the answer. An `open` later in the text is part
    of the answer.

    Raises `InvalidField` unless `open` and `close` are different strings and neither is blank.

    >>> reasoning_of("two and two</think> 4")
    Reasoning(reasoning='two and two', answer='4', closed=True)
    >>> reasoning_of("<think>Let me see, two and")
    Reasoning(reasoning='Let me see, two and', answer='', closed=False)
    >>> reasoning_of("4"), reasoning_of("two and", opened=True).closed
    (Reasoning(reasoning=None, answer='4', closed=True), False)
    """
    for word in (open, close):
        if not isinstance(word, str) or not word.strip() or open == close:
            raise InvalidField(
                "reasoning is between two different strings that are not blank, not between"
                f" {open!r} and {close!r}"
            )
    stripped = text.lstrip()
    written = stripped.startswith(open)
    inside, end, answer = stripped.removeprefix(open).partition(close)
    if not end:
        return (
            Reasoning(inside.strip(), "", closed=False)
            if written or opened
            else Reasoning(None, text, closed=True)
        )
    if not written and not opened and open in inside:
        return Reasoning(None, text, closed=True)
    return Reasoning(inside.strip(), answer.lstrip(), closed=True)


def thinking_beside_form(options: GenerationOptions) -> UnsupportedOption | None:
    """The error for thinking that is asked beside a form, which holds from the first token: nothing
    would be thought. None where no form is asked.

    >>> thinking_beside_form(GenerationOptions(structured={"choice": ("yes", "no")})).message
    'enable_thinking=True is not honoured with choice: the form holds from the first token, so that nothing would be thought'
    >>> thinking_beside_form(GenerationOptions()) is None
    True
    """
    form = options.structured
    name = (
        None
        if form is None
        else next((name for name in names_of(form) if getattr(form, name) is not None), None)
    )
    if name is None:
        return None
    message = (
        f"enable_thinking=True is not honoured with {name}: the form holds from the first token, so"
        " that nothing would be thought"
    )
    hint = (
        f"leave out one of the two: think first, and ask for the {name} in a second request that"
        " holds the thoughts"
    )
    return UnsupportedOption(message, option="enable_thinking", hint=hint)


def thinking_unfinished(
    finish: Finish, text: str, *, reasoning: str | None = None, prompt: str | None = None
) -> bool:
    r"""Whether the length limit ended the row before the answer began. `reasoning` is what a server
    returned separately; `prompt`, the rendered prompt, may open the reasoning.

    >>> (
    ...     thinking_unfinished(Finish.LENGTH, "<think>Two and"),
    ...     thinking_unfinished(Finish.LENGTH, "Two", prompt="<think>\n"),
    ... )
    (True, True)
    >>> (
    ...     thinking_unfinished(Finish.LENGTH, "", reasoning="Two and"),
    ...     thinking_unfinished(Finish.LENGTH, "4", reasoning="Two and two."),
    ... )
    (True, False)
    """
    if finish is not Finish.LENGTH:
        return False
    if reasoning:
        return not text.strip()
    return not reasoning_of(text, opened=(prompt or "").rstrip().endswith("<think>")).closed
