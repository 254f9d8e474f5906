"""Plain data (mappings, lists, strings, numbers, booleans, None): made immutable, compared, made
mutable again, and shown in messages.

Frozen data are equal if they are written equally. To Python `1`, `1.0` and `True` are equal, and so
are mappings in another order; a chat template writes them differently, and so does JSON.

>>> (
...     freeze({"n": 1}) == freeze({"n": 1}),
...     freeze({"n": 1}) == freeze({"n": True}),
...     freeze({"a": 1, "b": 2}) == freeze({"b": 2, "a": 1}),
... )
(True, False, False)
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

from immutabledict import immutabledict

T = TypeVar("T")
NESTING = 64
"""How deep the lists and mappings of plain data may be nested."""
VALUES = 200_000
"""How many values plain data may have in all; a list that occurs several times counts each time."""


class FrozenMapping(immutabledict[str, Any]):
    """A mapping of frozen data. Two are equal if they are written equally; beside any other mapping
    they compare as dicts do.

    >>> FrozenMapping(n=1) == {"n": 1.0}, FrozenMapping(n=1) == FrozenMapping(n=1.0)
    (True, False)
    """

    if TYPE_CHECKING:  # immutabledict names its own class

        def __new__(cls, *args: object, **kwargs: object) -> Self: ...

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, FrozenMapping):
            return super().__eq__(other)
        return _same(tuple(self.items()), tuple(other.items()))

    __hash__ = immutabledict.__hash__


def _same(one: Any, other: Any) -> bool:
    """Whether frozen values are written equally: those of the same type that are equal. Zero has a
    sign.
    """
    if one is other or type(one) is not type(other):
        return one is other
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and (
        type(one) is not float or math.copysign(1, one) == math.copysign(1, other)
    )


NOTHING = FrozenMapping()
"""No entries. The same object for all, which is fast to compare."""


def freeze(value: object) -> Any:
    """Plain data (mappings, lists, tuples, strings, bytes, numbers, booleans, None) made deeply
    immutable. Nesting and size are limited.

    >>> freeze({"a": [1, {"b": 2}]})
    FrozenMapping({'a': (1, FrozenMapping({'b': 2}))})
    """
    return _frozen(value, 1, count())


def thaw(value: object, leaf: Callable[[Any], Any] = lambda value: value) -> Any:
    """Frozen plain data as dicts and lists, with `leaf` applied to whatever is neither, nor text, a
    whole number, true, false or null.

    >>> thaw(freeze({"a": (1, 2)}))
    {'a': [1, 2]}
    """
    if isinstance(value, (tuple, list)):
        if _SURE.issuperset(map(type, value)):  # ids are many
            return [*value]
        return [
            (
                entry
                if type(entry) in _SURE
                else leaf(entry)
                if type(entry) is float
                else thaw(entry, leaf)
            )
            for entry in value
        ]
    if isinstance(value, Mapping):
        return dict(zip(value, thaw((*value.values(),), leaf), strict=True))
    return leaf(value)


_SURE = frozenset((int, str, bool, type(None)))
_PLAIN_TYPES = _SURE | {float}


_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (bytes, bytes.__bytes__),
    (int, int.__int__),
    (float, float.__float__),
)


def exact(value: object) -> Any:
    """A string, bytes or a number of a subclass as one of the plain type: a subclass may compare,
    hash or print as it likes. Anything else as it is.

    >>> import enum
    >>> class Word(str, enum.Enum):
    ...     YES = "yes"
    >>> exact(Word.YES), exact([1])
    ('yes', [1])
    """
    if type(value) in _PLAIN_TYPES:
        return value
    return next((plain(value) for kind, plain in _PLAIN if isinstance(value, kind)), value)


def plain_number(value: object) -> Any:
    """A number of numpy, torch and the like as Python's own. Anything else stays as it is.

    An array without dimensions is a number. One with dimensions is none, even of one value.

    >>> import enum
    >>> class Level(enum.IntEnum):
    ...     HIGH = 3
    >>> plain_number(Level.HIGH), plain_number("3")
    (3, '3')
    """
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, (int, float)):
        return exact(value)
    item = getattr(value, "item", None)
    if getattr(value, "ndim", None) != 0 or not callable(item):
        return value
    number = item()
    return number if type(number) in (int, float, bool) else value


def plain_id(value: object) -> Any:
    """A whole number that was read as a float as an integer: pandas makes floats of a column of
    whole numbers in which one is missing. From 2**53 on they are rounded, and stay as they are, as
    those of fewer bits do.

    >>> plain_id(2.0), plain_id("2.0"), plain_id(1.5), plain_id(2.0**53)
    (2, '2.0', 1.5, 9007199254740992.0)
    """
    number = plain_number(value)
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _ROUNDED
    return int(number) if whole else number


_ROUNDED = 2.0**53
"""From here on a float may stand for several whole numbers."""


def plain_list(value: object) -> Any:
    """An array or a series with one dimension as a list. Anything else stays as it is."""
    if isinstance(value, (list, tuple, str)) or getattr(value, "ndim", None) != 1:
        return value
    entries = getattr(value, "tolist", None)
    return entries() if callable(entries) else value


def _frozen(value: object, depth: int, seen: Iterator[int]) -> object:
    if type(value) in _SURE:
        return value
    if isinstance(value, (str, bytes, int, float)):
        return exact(value)
    if depth > NESTING:
        raise ValueError(f"plain data nested at most {NESTING} deep")
    if isinstance(value, Mapping):
        return (
            FrozenMapping(
                {
                    _key(key): _frozen(entry, depth + 1, seen)
                    for key, entry in _few(value.items(), seen)
                }
            )
            if len(value)
            else NOTHING
        )
    if isinstance(value, (list, tuple)):
        return tuple([_frozen(entry, depth + 1, seen) for entry in _few(value, seen)])
    plain = plain_list(plain_number(value))
    if plain is not value:
        return _frozen(plain, depth, seen)
    raise ValueError(
        "plain data (mappings, lists, strings, numbers, booleans, None), without"
        f" {type(value).__name__}"
    )


def _few(entries: Iterable[T], seen: Iterator[int]) -> Iterator[T]:
    for entry in entries:
        if next(seen) >= VALUES:
            raise ValueError(f"plain data with at most {VALUES} values")
        yield entry


def _key(key: object) -> str:
    if type(key) is str:
        return key
    if not isinstance(key, str):
        raise ValueError(f"mappings with string keys, without {printed(key)}")
    return str(exact(key))


class _Printer(reprlib.Repr):
    """Prints as `reprlib` does, but a dict's keys in their own order, and an object that cannot be
    printed as its class.
    """

    def repr_instance(self, x: object, level: int) -> str:
        return _shown_by(repr, x)

    def repr_dict(self, x: Mapping[object, object], level: int) -> str:
        if not x or level <= 0:
            return "{...}" if x else "{}"
        pairs = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in islice(x.items(), self.maxdict)
        ]
        return "{" + ", ".join([*pairs, "..."] if len(x) > self.maxdict else pairs) + "}"


SHOWN = 10
"""How many entries of a list or a mapping a message shows."""
_PRINTER = _Printer()
_PRINTER.maxlevel = 4
_PRINTER.maxlist = _PRINTER.maxtuple = _PRINTER.maxdict = _PRINTER.maxset = (
    _PRINTER.maxfrozenset
) = SHOWN
_PRINTER.maxstring = _PRINTER.maxother = _PRINTER.maxlong = 200


def printed(value: object) -> str:
    """The value as messages show it: short, whatever it is. Data that is nested deep, or holds
    itself, is shown in part.

    >>> loop = [1]
    >>> loop.append(loop)
    >>> printed({"a": 1}), printed(loop), printed(10**5000)
    ("{'a': 1}", '[1, [1, [1, [1, [...]]]]]', 'int of too many digits')
    """
    # Python prints no number of more than some thousand digits
    if isinstance(value, int) and value.bit_length() > 10_000:
        return f"{type(value).__name__} of too many digits"
    return _shown_by(_PRINTER.repr, value)


def _shown_by(shown: Callable[[Any], str], value: object) -> str:
    """`shown(value)`, or the name of the value's class where that raises."""
    # for messages alone, and a first request loads little
    from pipegen.core.errors import InvalidRequest
    from pipegen.core.foreign_calls import guard

    return guard(
        lambda: shown(value)[:200], lambda raised: InvalidRequest(raised.words), known=(Exception,)
    ).value_or(type(value).__name__)
