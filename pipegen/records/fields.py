"""Strict records: frozen, slotted, keyword-only, checked at construction.

`@record` makes a class such a record. A field says what it takes in its annotation, and what it is for: `Annotated[int | None, whole(low=1), "Seats."]`. A
check gets the value and returns it (perhaps made immutable), or raises `ValueError` with the words for what it takes; `None` passes unchecked where it is
the default.

>>> @record
... class Room:
...     seats: Annotated[int, whole(low=1), "How many may sit."] = 4
>>> help_of(Room)["seats"]
'How many may sit.'
>>> Room(seats=0)
Traceback (most recent call last):
...
pipegen.records.fields.InvalidField: Room.seats takes a whole number of at least 1, not 0
>>> Room(seat=2)
Traceback (most recent call last):
...
pipegen.records.fields.UnknownField: Room has no field 'seat'; did you mean 'seats'?
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, dataclass_transform, get_origin, get_type_hints

from pipegen.records.checks import Check, boolean, freeze, mapping, nearest, one_of, path, printed, real, schema_of, text, tuple_of, whole, with_schema
from pipegen.records.secret import masked

__all__ = [
    "Check",
    "InvalidField",
    "UnknownField",
    "altered",
    "boolean",
    "checks_of",
    "freeze",
    "help_of",
    "mapping",
    "metadata_of",
    "nearest",
    "one_of",
    "path",
    "printed",
    "real",
    "record",
    "schema_of",
    "text",
    "tuple_of",
    "whole",
    "with_schema",
]

C = TypeVar("C")


class InvalidField(ValueError):
    """A record was given a value that its field does not take."""


class UnknownField(InvalidField, TypeError):
    """A record was given a field that it does not have."""


@functools.cache
def metadata_of(cls: type) -> Mapping[str, tuple[Any, ...]]:
    """What stands beside the type of each field of a record: its check, its help, and what else the record's readers look for."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name].__metadata__ if get_origin(hints[f.name]) is Annotated else () for f in dataclasses.fields(cls)}


def help_of(cls: type) -> Mapping[str, str]:
    """One line about each field of a record: the text in its annotation; empty where it has none."""
    return {name: next((extra for extra in extras if isinstance(extra, str)), "") for name, extras in metadata_of(cls).items()}


@functools.cache
def _checks(cls: type) -> tuple[tuple[str, Any, Check], ...]:
    extras = metadata_of(cls)
    return tuple((f.name, f.default, check) for f in dataclasses.fields(cls) for check in extras[f.name] if callable(check))


def checks_of(cls: type) -> Mapping[str, Check]:
    """The check of each field of a record that has one, by the field's name."""
    return {name: check for name, _, check in _checks(cls)}


def _run_check(self: Any, name: str, value: Any, check: Check) -> None:
    try:
        kept = check(value)
    except InvalidField:  # a nested record has already said what is wrong, and where
        raise
    except ValueError as refusal:
        words, also, near = str(refusal).partition("; did you mean ")
        raise InvalidField(f"{type(self).__name__}.{name} takes {words}, not {printed(masked({name: value})[name])}{also}{near}") from None
    if kept is not value:
        object.__setattr__(self, name, kept)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[C]) -> type[C]:
    """A frozen, slotted, keyword-only dataclass whose fields are checked at construction.

    `dataclasses.field(kw_only=False)` is a field that may also be given by position. A class with `__slots__ = ()` holds fields that several records take by
    inheritance.

    A method `check_all(self)` may compare fields with each other; it runs after the single checks. A static method `_hint_for(name)` may say more of an
    unknown field than the nearest one.
    Raises `InvalidField` for a bad value and `UnknownField`, which names the nearest field, for an unknown one.
    """
    made: Any = dataclasses.dataclass(frozen=True, slots="__slots__" not in vars(cls), kw_only=True)(cls)
    names = frozenset(f.name for f in dataclasses.fields(made))
    plain_init, check_all = made.__init__, getattr(made, "check_all", None)
    hint: Callable[[str], str] = getattr(made, "_hint_for", lambda name: nearest(name, names))

    @functools.wraps(plain_init)
    def init(self: Any, *args: Any, **values: Any) -> None:
        try:
            plain_init(self, *args, **values)
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
