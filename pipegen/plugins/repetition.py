"""Halt a row that loops, and keep one occurrence of what it repeats.

>>> plugin = halt_on_repetition(ngram=20, count=3, min_length=1)
>>> text = "A red car. A blue bus. A blue bus. A blue bus. A blue"
>>> _, kept = plugin.feed(plugin.start(), text)
>>> text[:kept], plugin.trim(text[:kept])
('A red car. A blue bus. A blue bus. A blue bus', 'A red car. A blue bus.')
"""

from __future__ import annotations

from pipegen.core.names import InvalidField
from pipegen.engines.plugin import Plugin

PLAIN = "0123456789+-.,:;|=_*#~/()[]{} \t\r\n"
"""Characters whose repetition is no loop: numbers in a list, rules, empty tables, white space."""


def halt_on_repetition(*, ngram: int = 400, count: int = 4, min_length: int = 200) -> Plugin:
    """Halt an answer whose text ends in a loop, and trim the loop to one occurrence.

    ngram: the longest repeated text, in characters.
    count: how often it must occur in a row.
    min_length: how long the whole loop must be, in characters.

    Digits, brackets, rules and white space alone are no loop. For JSON use
    `forbid_repeated_objects`, or a larger `min_length`. The row halts at the character that
    completes the loop, never at white space. The trim cuts a loop at the end of the text after its
    first occurrence, at a word boundary; trimming again changes nothing. White space at the ends of
    the text does not matter. Each character costs one search through about `ngram` characters.
    Raises `InvalidField` for an `ngram` or `min_length` below 1, or a `count` below 2.

    >>> halt_on_repetition().trim("I see a cat. " + "It sleeps on the mat. " * 12)
    'I see a cat. It sleeps on the mat.'
    >>> halt_on_repetition().trim("ha ha ha"), len(halt_on_repetition().trim("[" + "0, " * 200))
    ('ha ha ha', 601)
    """
    for name, value, low in (
        ("ngram", ngram, 1),
        ("count", count, 2),
        ("min_length", min_length, 1),
    ):
        if type(value) is not int or value < low:
            raise InvalidField(
                f"halt_on_repetition takes a whole number of at least {low} as {name}, not"
                f" {value!r}"
            )
    # in every loop the last so many characters also occur one period earlier
    echo = -(-min_length * (count - 1) // count)
    memory = max(count * ngram, min_length)

    def period(text: str, end: int) -> int:
        """The length of what is repeated at the end of `text[:end]`; 0 if that is no loop."""
        last = text[max(0, end - echo) : end]
        if len(last) < echo or last[-1].isspace() or not last.strip(PLAIN):
            return 0
        first = max(0, end - echo - ngram)
        position = text.rfind(last, first, end - 1)
        while position >= 0:
            length = end - echo - position
            start = end - max(count * length, min_length)
            if start >= 0 and text[start : end - length] == text[start + length : end]:
                return length
            position = text.rfind(last, first, position + echo - 1)
        return 0

    def feed(seen: str, new_text: str) -> tuple[str, int | None]:
        """`seen` is the end of the text, without white space at the start of the whole."""
        new = new_text if seen else new_text.lstrip()
        text = seen + new
        halt = next((end for end in range(len(seen) + 1, len(text) + 1) if period(text, end)), None)
        return text[-memory:], None if halt is None else halt - len(text) + len(new_text)

    def trim(text: str) -> str:
        begin = len(text) - len(text.lstrip())
        while length := period(text[begin:].rstrip(), len(text[begin:].rstrip())):
            text = _once(text.rstrip(), begin, length)
        return text

    return Plugin(
        name="halt_on_repetition",
        version=repr((ngram, count, min_length)),
        start=str,
        feed=feed,
        trim=trim,
    )


def _once(text: str, begin: int, length: int) -> str:
    """The text with one occurrence of the `length` characters that it repeats at its end, after
    `begin`.
    """
    start = len(text) - length
    while start > begin and text[start - 1] == text[start - 1 + length]:
        start -= 1
    # the text before the loop ends as the loop does: begin at a whole word
    if start > begin and not text[start - 1].isspace():
        starts = (index for index in range(start, start + length) if text[index].isspace())
        start = next(starts, start - 1) + 1
    return text[: start + length].rstrip()
