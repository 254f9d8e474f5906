"""Names that people give: the nearest one that is known, and the error for one that is not.

>>> raise InvalidField("there is no stage 'rendr'" + nearest("rendr", ["render"]))
Traceback (most recent call last):
...
pipegen.core.names.InvalidField: there is no stage 'rendr'; did you mean 'render'?
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["InvalidField", "nearest"]


class InvalidField(ValueError):
    """A record was given a value that its field does not take, or a pipe a name that it cannot
    have.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word, or nothing.

    >>> nearest("temprature", ["temperature", "top_p"])
    "; did you mean 'temperature'?"
    """
    if len(word) > 100:  # nobody's name; and looking at it would take long
        return ""
    import difflib

    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
