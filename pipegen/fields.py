"""Strict records: frozen, slotted, keyword-only, checked at construction.

`@record` makes a class such a record. A field says what it takes in its annotation: `Annotated[int | None, whole(low=1)]`. A check gets the value
and returns it (perhaps made immutable), or raises `ValueError` with the words for what it takes; `None` passes unchecked where it is the default.

>>> @record
... class Room:
...     seats: Annotated[int, whole(low=1)] = 4
>>> Room(seats=0)
Traceback (most recent call last):
...
pipegen.fields.InvalidField: Room.seats takes a whole number of at least 1, not 0
>>> Room(seat=2)
Traceback (most recent call last):
...
pipegen.fields.UnknownField: Room has no field 'seat'; did you mean 'seats'?
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from immutabledict import immutabledict

__all__ = [
    "InvalidField",
    "UnknownField",
    "altered",
    "boolean",
    "checks_of",
    "freeze",
    "mapping",
    "nearest",
    "one_of",
    "real",
    "record",
    "schema_of",
    "text",
    "tuple_of",
    "whole",
    "with_schema",
]

C = TypeVar("C")
_NOTHING: immutabledict[str, Any] = immutabledict()
Check = Callable[[Any], Any]


class InvalidField(ValueError):
    """A record was given a value that its field does not take."""


class UnknownField(InvalidField, TypeError):
    """A record was given a field that it does not have."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word, or nothing.

    >>> nearest("temprature", ["temperature", "top_p"])
    "; did you mean 'temperature'?"
    """
    import difflib

    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


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
        if type(value) not in (int, float) or not math.isfinite(value) or not (low <= value <= high and value > above):
            raise ValueError(words)
        return float(value)

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
    """Plain data made deeply immutable: mappings, lists, tuples, strings, bytes, numbers, booleans and None.

    >>> freeze({"a": [1, {"b": 2}]})
    immutabledict({'a': (1, immutabledict({'b': 2}))})
    """
    if value is None or isinstance(value, (str, bytes, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return immutabledict({_key(key): freeze(entry) for key, entry in value.items()}) if value else _NOTHING
    if isinstance(value, (list, tuple)):
        return tuple(freeze(entry) for entry in value)
    raise ValueError(f"plain data (mappings, lists, strings, numbers, booleans, None), without {type(value).__name__}")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"mappings with string keys, without {key!r}")
    return key


def mapping(value: Any) -> Any:
    """A mapping of plain data, deeply frozen."""
    if not isinstance(value, Mapping):
        raise ValueError("a mapping")
    return freeze(value)


for _check, _schema in ((boolean, {"type": "boolean"}), (text, {"type": "string", "minLength": 1}), (mapping, {"type": "object"})):
    with_schema(_check, _schema)


def _checks_in(hint: Any) -> list[Check]:
    if get_origin(hint) is Annotated:
        return [extra for extra in hint.__metadata__ if callable(extra)] + _checks_in(hint.__origin__)
    return [check for part in get_args(hint) for check in _checks_in(part)] if get_origin(hint) is not None else []


@functools.cache
def _checks(cls: type) -> tuple[tuple[str, Any, Check], ...]:
    hints = get_type_hints(cls, include_extras=True)
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(cls)
    return tuple((f.name, f.default, check) for f in fields for check in (_checks_in(hints[f.name]) if get_origin(hints[f.name]) is Annotated else []))


def checks_of(cls: type) -> Mapping[str, Check]:
    """The check of each field of a record that has one, by the field's name."""
    return {name: check for name, _, check in _checks(cls)}


def _run_check(self: Any, name: str, value: Any, check: Check) -> None:
    try:
        kept = check(value)
    except InvalidField:  # a nested record has already said what is wrong, and where
        raise
    except ValueError as refusal:
        raise InvalidField(f"{type(self).__name__}.{name} takes {refusal}, not {value!r:.200}") from None
    if kept is not value:
        object.__setattr__(self, name, kept)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[C]) -> type[C]:
    """A frozen, slotted, keyword-only dataclass whose fields are checked at construction.

    A method `check_all(self)` may compare fields with each other; it runs after the single checks. A static method `_hint_for(name)` may say more of an
    unknown field than the nearest one.
    Raises `InvalidField` for a bad value and `UnknownField`, which names the nearest field, for an unknown one.
    """
    made: Any = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
    names = frozenset(f.name for f in dataclasses.fields(made))
    plain_init, check_all = made.__init__, getattr(made, "check_all", None)
    hint: Callable[[str], str] = getattr(made, "_hint_for", lambda name: nearest(name, names))

    @functools.wraps(plain_init)
    def init(self: Any, **values: Any) -> None:
        try:
            plain_init(self, **values)
        except TypeError:
            for name in values:
                if name not in names:
                    raise UnknownField(f"{made.__name__} has no field {name!r}{hint(name)}") from None
            raise
        for name, default, check in _checks(made):
            value = getattr(self, name)
            if value is not default:  # which needs no check: None, or a value that passes
                _run_check(self, name, value, check)
        if check_all is not None:
            check_all(self)

    made.__init__ = init
    return made  # type: ignore[no-any-return]


def altered(original: C, **values: Any) -> C:
    """`dataclasses.replace` for values that other records have checked already: nothing is checked again.

    >>> @record
    ... class Room:
    ...     seats: Annotated[int, whole(low=1)] = 4
    >>> altered(Room(), seats=7)
    Room(seats=7)
    """
    kind: Any = type(original)
    made = object.__new__(kind)
    for name in _names(kind):
        object.__setattr__(made, name, values[name] if name in values else getattr(original, name))
    return made  # type: ignore[no-any-return]


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))
