r"""Regular expressions: `\d`, `\w` and `\s` mean ASCII on every engine, a dot is anything but
`\n`, and whether a text matches.

>>> ascii_regex(r"\d{2}[\w-]\\d")
'[0-9]{2}[0-9A-Za-z_-]\\\\d'
>>> matches(r"\d{4}", "2024"), matches(r"\d{4}", "٢٠٢٤")
(True, False)
"""

# llguidance need not be installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import re
from typing import Any

_CLASSES = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r" \t\n\r\f\v",
    "D": "\\x00-/:-\U0010ffff",
    "W": "\\x00-/:-@\\[-^`{-\U0010ffff",
    "S": "\\x00-\\x08\\x0e-\\x1f!-\U0010ffff",
}
"""What is written for a class of characters within brackets."""


@functools.lru_cache(maxsize=1024)
def ascii_regex(pattern: str) -> str:
    r"""The pattern with `\d`, `\w`, `\s`, `\D`, `\W` and `\S` written out, as ASCII has them, and
    with a dot as `[^\n]`: engines differ in these.
    """
    dot = "." if re.search(r"\(\?[a-z]*s", pattern) else r"[^\n]"
    parts: list[str] = []
    # within so many brackets: Rust's syntax has classes within classes, as in `[[:digit:].]`
    index, inside = 0, 0
    while index < len(pattern):
        mark, size = pattern[index], 1
        if mark == "\\":
            size, name = 2, pattern[index + 1 : index + 2]
            if name in _CLASSES and inside:
                # there is no range up to a class
                parts[-1] = r"\-" if parts[-1] == "-" else parts[-1]
                parts.append(_CLASSES[name])
            elif name in _CLASSES:
                parts.append(
                    f"[^{_CLASSES[name.lower()]}]" if name.isupper() else f"[{_CLASSES[name]}]"
                )
            else:
                parts.append(pattern[index : index + 2])
        elif mark == "[":
            # a bracket that comes first is one of the characters
            opened = re.compile(r"\[\^?\]?").match(pattern, index)
            size, inside = (1 if opened is None else len(opened[0])), inside + 1
            parts.append(pattern[index : index + size])
        else:
            inside -= mark == "]" and inside > 0
            parts.append(dot if mark == "." and not inside else mark)
        index += size
    return "".join(parts)


def edge_in(pattern: str) -> bool:
    r"""Whether a pattern has the edge of a word (`\b`, `\B`), which no grammar knows.

    >>> edge_in(r"\bab"), edge_in(r"\\b[\b]")
    (True, False)
    """
    return any(match[1] for match in _EDGES.finditer(pattern))


_EDGES = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|(\\[bB])|\\.", re.DOTALL)


def matches(pattern: str, text: str, *, cut: bool = False) -> bool | None:
    """Whether a whole text matches, or with `cut` the start of one that does; None where that
    cannot be told.

    The library llguidance is asked where it is installed: it takes no longer for any pattern.
    Python's `re` is asked about patterns that cannot take long.
    """
    matcher = _matcher(pattern)
    if matcher is not None:
        reader, data = matcher.deep_copy(), list(text.encode("utf-8", "surrogatepass"))
        read = reader.try_consume_tokens(data)
        # an error: the pattern is too large for it
        return (
            None
            if reader.is_error()
            else bool(read == len(data) and (cut or reader.is_accepting()))
        )
    compiled = None if cut else _compiled(pattern)
    return (
        None if compiled is None or len(text) > _LONGEST else compiled.fullmatch(text) is not None
    )


def found_in(pattern: str, text: str) -> bool | None:
    """Whether a text has a part that matches; None where that cannot be told."""
    compiled = _compiled(pattern)
    return None if compiled is None or len(text) > _LONGEST else compiled.search(text) is not None


@functools.lru_cache(maxsize=256)
def _matcher(pattern: str) -> Any:
    """What reads a text by a pattern, byte by byte; None without llguidance, and for a pattern that
    it does not take.
    """
    try:
        from llguidance import LLMatcher, LLTokenizer, regex_to_lark
    except ImportError:
        return None
    try:
        grammar = LLMatcher.grammar_from_lark(
            f"start: TEXT\nTEXT: /{regex_to_lark(ascii_regex(pattern), '')}/\n"
        )
        return (
            None
            if LLMatcher.validate_grammar(grammar)
            else LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
        )
    except ValueError:  # half of a surrogate pair
        return None


_LONGEST = 10_000
"""Characters of a text that `re` is asked about."""
_REPEATS = re.compile(r"\\.|([*+]|\{\d*,\d*\})")

_NESTED = re.compile(r"\[\[|--|&&|~~|\|\|")
"""What other engines, and Python one day, read as sets of characters within sets."""


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """The pattern for `re`; None where it does not take it, or could take very long: a group that
    is repeated, or more than two repeats without a bound.
    """
    repeats = [match for match in _REPEATS.finditer(pattern) if match[1]]
    if (
        len(repeats) > 2
        or _NESTED.search(pattern)
        or any(pattern[: match.start()].endswith(")") for match in repeats)
    ):
        return None
    try:
        return re.compile(ascii_regex(pattern), re.ASCII)
    except (re.error, OverflowError, RecursionError):
        return None
