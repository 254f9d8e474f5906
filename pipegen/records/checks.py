"""What a field takes: a check gets the value and returns it (perhaps made immutable), or raises `ValueError` with the words for what it takes.

>>> whole(low=1)(3)
3
>>> tuple_of(text)(["a", ""])
Traceback (most recent call last):
...
ValueError: a string that is not empty at position 1
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any, TypeVar

from immutabledict import immutabledict

from pipegen.core.border import guard
from pipegen.core.errors import InvalidRequest
from pipegen.records.limits import NESTING, VALUES

__all__ = [
    "SHOWN",
    "Check",
    "boolean",
    "freeze",
    "mapping",
    "nearest",
    "one_of",
    "path",
    "printed",
    "real",
    "schema_of",
    "text",
    "tuple_of",
    "whole",
    "with_schema",
]

_NOTHING: immutabledict[str, Any] = immutabledict()
T = TypeVar("T")
Check = Callable[[Any], Any]


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


class _Printer(reprlib.Repr):
    """As `reprlib` prints, with the keys of a dict in their own order, and an object that cannot be printed by its class."""

    def repr_instance(self, x: Any, level: int) -> str:
        return guard(lambda: repr(x)[:200], lambda raised: InvalidRequest(raised.words), known=(Exception,)).value_or(type(x).__name__)

    def repr_dict(self, x: Mapping[Any, Any], level: int) -> str:
        if not x or level <= 0:
            return "{...}" if x else "{}"
        pairs = [f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}" for key, value in islice(x.items(), self.maxdict)]
        return "{" + ", ".join([*pairs, "..."] if len(x) > self.maxdict else pairs) + "}"


SHOWN = 10
"""How many entries of a list or a mapping a message shows."""
_PRINTER = _Printer()
_PRINTER.maxlevel = 4
_PRINTER.maxlist = _PRINTER.maxtuple = _PRINTER.maxdict = _PRINTER.maxset = _PRINTER.maxfrozenset = SHOWN
_PRINTER.maxstring = _PRINTER.maxother = _PRINTER.maxlong = 200


def printed(value: object) -> str:
    """A value as a message may show it: short, whatever it is; what is nested deep, or holds itself, is shown in part.

    >>> loop = [1]; loop.append(loop)
    >>> printed({"a": 1}), printed(loop), printed(10**5000)
    ("{'a': 1}", '[1, [1, [1, [1, [...]]]]]', 'int of too many digits')
    """
    if isinstance(value, int) and value.bit_length() > 10_000:  # Python prints no number of more than some thousand digits
        return f"{type(value).__name__} of too many digits"
    return guard(lambda: _PRINTER.repr(value)[:200], lambda raised: InvalidRequest(raised.words), known=(Exception,)).value_or(type(value).__name__)


def with_schema(check: Check, schema: Mapping[str, Any]) -> Check:
    """The check, with what it takes as JSON Schema beside it.

    >>> schema_of(with_schema(lambda value: value, {"type": "null"}))
    {'type': 'null'}
    """
    check.schema = {name: value for name, value in schema.items() if value is not None}  # type: ignore[attr-defined]  # read by schema_of
    return check


def schema_of(check: Check) -> dict[str, Any]:
    """What a check takes, as JSON Schema; empty (anything) where it does not say.

    >>> schema_of(whole(low=1))
    {'type': 'integer', 'minimum': 1}
    """
    return dict(getattr(check, "schema", {}))


def whole(low: int | None = None, high: int | None = None) -> Check:
    """A whole number within bounds; `True` is none."""
    words = "a whole number" + (f" of at least {low}" if low is not None else "") + (f" and at most {high}" if high is not None else "")

    def check(value: Any) -> Any:
        if type(value) is not int or (low is not None and value < low) or (high is not None and value > high):
            raise ValueError(words)
        return value

    return with_schema(check, {"type": "integer", "minimum": low, "maximum": high})


def real(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf) -> Check:
    """A finite number with `low <= value <= high` and `value > above`, kept as a float; `True` and NaN are none."""
    if above > -math.inf:
        words = f"a number above {above:g}" + (f" and at most {high:g}" if high < math.inf else "")
    else:
        words = f"a number of at least {low:g}" + (f" and at most {high:g}" if high < math.inf else "")

    def check(value: Any) -> Any:
        if type(value) not in (int, float) or not (low <= value <= high and value > above):
            raise ValueError(words)
        try:
            kept = float(value)
        except OverflowError:  # a whole number beyond what a float holds
            raise ValueError(words) from None
        if not math.isfinite(kept):
            raise ValueError(words)
        return kept

    lowest = {"exclusiveMinimum": above} if above > -math.inf else {"minimum": low} if low > -math.inf else {}
    return with_schema(check, {"type": "number", **lowest, "maximum": high if high < math.inf else None})


def boolean(value: Any) -> Any:
    """True or False, nothing else."""
    if type(value) is not bool:
        raise ValueError("True or False")
    return value


def text(value: Any) -> Any:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("a string that is not empty")
    return value


def one_of(*choices: str) -> Check:
    """One of these words; case does not matter, and the word is kept as given here."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and value.lower() in choices:
            return value.lower()
        raise ValueError("one of " + ", ".join(map(repr, choices)) + (nearest(value, choices) if isinstance(value, str) else ""))

    return with_schema(check, {"enum": list(choices)})


def path(value: Any) -> Any:
    """A path, or a name, as text: a string that is not empty, or what `os.fspath` makes one of."""
    kept = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(kept, str) or not kept:
        raise ValueError("a path or a name")
    return kept


def tuple_of(item: Check) -> Check:
    """A tuple (or list) whose items all pass `item`; a bare string is none. The position of a bad one is named."""

    def check(value: Any) -> Any:
        if not isinstance(value, (tuple, list)):
            raise ValueError("a tuple or a list")
        kept = []
        for position, entry in enumerate(value):
            try:
                kept.append(item(entry))
            except ValueError as refusal:
                raise ValueError(f"{refusal} at position {position}") from None
        return tuple(kept)

    return with_schema(check, {"type": "array", "items": schema_of(item)})


def freeze(value: Any) -> Any:
    """Plain data made deeply immutable: mappings, lists, tuples, strings, bytes, numbers, booleans and None; within the limits of nesting and size.

    >>> freeze({"a": [1, {"b": 2}]})
    immutabledict({'a': (1, immutabledict({'b': 2}))})
    """
    return _frozen(value, 1, count())


def _frozen(value: Any, depth: int, seen: Iterator[int]) -> Any:
    if value is None or isinstance(value, (str, bytes, int, float, bool)):
        return value
    if depth > NESTING:
        raise ValueError(f"plain data nested at most {NESTING} deep")
    if isinstance(value, Mapping):
        return immutabledict({_key(key): _frozen(entry, depth + 1, seen) for key, entry in _few(value.items(), seen)}) if len(value) else _NOTHING
    if isinstance(value, (list, tuple)):
        return tuple([_frozen(entry, depth + 1, seen) for entry in _few(value, seen)])
    raise ValueError(f"plain data (mappings, lists, strings, numbers, booleans, None), without {type(value).__name__}")


def _few(entries: Iterable[T], seen: Iterator[int]) -> Iterator[T]:
    for entry in entries:
        if next(seen) >= VALUES:
            raise ValueError(f"plain data with at most {VALUES} values")
        yield entry


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"mappings with string keys, without {printed(key)}")
    return key


def mapping(value: Any) -> Any:
    """A mapping of plain data, deeply frozen."""
    if not isinstance(value, Mapping):
        raise ValueError("a mapping")
    return freeze(value)


for _check, _schema in (
    (boolean, {"type": "boolean"}),
    (text, {"type": "string", "minLength": 1}),
    (path, {"type": "string", "minLength": 1}),
    (mapping, {"type": "object"}),
):
    with_schema(_check, _schema)
