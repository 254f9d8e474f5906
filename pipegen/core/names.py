"""Names that people give: the nearest one that is known, and the error for one that is not.

>>> raise InvalidField("there is no stage 'rendr'" + nearest("rendr", ["render"]))
Traceback (most recent call last):
...
pipegen.core.names.InvalidField: there is no stage 'rendr'; did you mean 'render'?
"""

from __future__ import annotations

from collections.abc import Iterable

CLOSE = 0.85
"""How alike two names are where one is the other with a letter wrong, and not a name of its own."""


_DIVIDERS = str.maketrans("", "", "-_ .")


class InvalidField(ValueError):
    """A record was given a value that its field does not take, or a pipe a name that it cannot
    have.
    """


def folded(name: str) -> str:
    """A name as names are compared, however they are divided and written.

    >>> folded("Top-K") == folded("top_k")
    True
    """
    return name.lower().translate(_DIVIDERS)


def nearest(word: str, names: Iterable[str], alike: float = 0.6) -> str:
    """`; did you mean 'x'?` for the nearest known word, or nothing.

    alike: how alike the two have to be, as `difflib` counts it: 1 is equal.

    >>> nearest("temprature", ["temperature", "top_p"])
    "; did you mean 'temperature'?"
    >>> nearest("top_a", ["temperature", "top_p"], CLOSE), nearest("topP", ["top_p"], CLOSE)
    ('', "; did you mean 'top_p'?")
    """
    if len(word) > 100:  # nobody's name; and looking at it would take long
        return ""
    import difflib

    known = list(names)
    same = [name for name in known if folded(name) == folded(word)]
    matches = same or difflib.get_close_matches(word, known, n=1, cutoff=alike)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def misspelt(word: str, names: Iterable[str]) -> str:
    """The name that a word is a spelling of with a letter wrong; empty where there is none.

    A word and its plural are two words, and so are a quantity and its unit.

    >>> misspelt("temprature", ["temperature"]), misspelt("stops", ["stop"])
    ('temperature', '')
    >>> misspelt("temperature_c", ["temperature"])
    ''
    """
    import difflib

    near = difflib.get_close_matches(word[:100], list(names), n=1, cutoff=0.9)
    return "" if not near or near[0] in (f"{word}s", word.removesuffix("s"), word[:-2]) else near[0]
