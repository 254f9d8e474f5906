"""Strict records: frozen, slotted, keyword-only, checked at construction.

`@record` makes a class such a record. The annotation of a field holds its check and its help:
`Annotated[int | None, integer(low=1), "Seats."]`. A check returns the value (perhaps made
immutable), or raises `ValueError` with what it takes. A value that is the field's default is not
checked.

>>> @record
... class Room:
...     seats: Annotated[int, integer(low=1), "How many may sit."] = 4
>>> help_of(Room)["seats"]
'How many may sit.'
>>> Room(seats=0)
Traceback (most recent call last):
...
pipegen.core.names.InvalidField: Room.seats takes a whole number of at least 1, not 0
>>> Room(seat=2)
Traceback (most recent call last):
...
pipegen.records.fields.UnknownField: Room has no field 'seat'; did you mean 'seats'?
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_origin,
    get_type_hints,
)

from pipegen.core.functional import without_none
from pipegen.core.names import InvalidField, nearest
from pipegen.records.frozen import exact, freeze, plain_list, plain_number, printed

C = TypeVar("C")
T = TypeVar("T")
Check = Callable[[Any], object]
CheckT = TypeVar("CheckT", bound=Check)


JsonSchema: TypeAlias = dict[str, Any]
"""A JSON Schema: nested plain data."""


class FieldRow(NamedTuple):
    """What files have of a field, beside its name, its type and its help."""

    brief: bool | None = None
    """Whether brief lines have it, where it holds something. Where no field of a record says so,
    they have all that do not say no.
    """
    name: str = ""
    """Its name in lines and tables, where that is another one."""
    source: str = ""
    """The attribute that is written, where that is another one."""
    column: str = ""
    """The group of a table's columns that has it: `answer`, `usage` (one column with all of them),
    `more`, `run`, or `ids` and `scores`, which brief tables have not. Where no field of a record
    says so, tables have all of them.
    """
    omit: bool = False
    """Whether lines leave it out where it is empty."""
    written: bool = True
    """Whether lines have it at all."""


BRIEF, UNWRITTEN = FieldRow(brief=True), FieldRow(written=False)


def with_schema(check: CheckT, schema: Mapping[str, object]) -> CheckT:
    """The check with the JSON Schema of its values attached.

    >>> schema_of(with_schema(lambda value: value, {"type": "null"}))
    {'type': 'null'}
    """
    check.schema = without_none(schema)  # type: ignore[attr-defined]  # read by schema_of
    return check


def schema_of(check: Check) -> JsonSchema:
    """The JSON Schema of what a check takes; empty (anything) if it has none.

    >>> schema_of(integer(low=1))
    {'type': 'integer', 'minimum': 1}
    """
    return dict(getattr(check, "schema", {}))


def integer(low: int | None = None, high: int | None = None) -> Callable[[object], int]:
    """A whole number within bounds, of numpy or torch too; not a bool."""
    expected = (
        "a whole number"
        + (f" of at least {low}" if low is not None else "")
        + (f" and at most {high}" if high is not None else "")
    )

    def check(value: object) -> int:
        value = plain_number(value)
        if (
            type(value) is not int
            or (low is not None and value < low)
            or (high is not None and value > high)
        ):
            raise ValueError(expected)
        return value

    return with_schema(check, {"type": "integer", "minimum": low, "maximum": high})


def number(
    low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf
) -> Callable[[object], float]:
    """A finite number with `low <= value <= high` and `value > above`, as a float; not a bool.
    Numbers of numpy and torch are numbers.
    """
    bound = f"above {above:g}" if above > -math.inf else f"of at least {low:g}"
    expected = f"a number {bound}" + (f" and at most {high:g}" if high < math.inf else "")

    def check(value: Any) -> float:
        value = plain_number(value)
        if type(value) not in (int, float) or not (
            low <= value <= high and above < value and abs(value) <= sys.float_info.max
        ):
            raise ValueError(expected)
        return float(value)

    lowest = (
        {"exclusiveMinimum": above}
        if above > -math.inf
        else {"minimum": low}
        if low > -math.inf
        else {}
    )
    return with_schema(
        check, {"type": "number", **lowest, "maximum": high if high < math.inf else None}
    )


def boolean(value: object) -> bool:
    """True or False, also as numpy and torch have them; nothing else."""
    value = plain_number(value)
    if type(value) is not bool:
        raise ValueError("True or False")
    return value


def string(value: object) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def instance(kind: type) -> Check:
    """A check for values of this type."""

    def check(value: object) -> object:
        if not isinstance(value, kind):
            raise ValueError(f"a {kind.__name__}")
        return value

    return check


def non_empty_string(value: object) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("a string that is not empty")
    return str(exact(value))


def one_of(*choices: str) -> Callable[[object], str]:
    """One of these words, in any case; the result is in lower case."""

    def check(value: object) -> str:
        if isinstance(value, str) and value.lower() in choices:
            return value.lower()
        raise ValueError(
            "one of "
            + ", ".join(map(repr, choices))
            + (nearest(value, choices) if isinstance(value, str) else "")
        )

    return with_schema(check, {"enum": list(choices)})


def path(value: object) -> str:
    """A path or a name, as a string that is not empty; `os.PathLike` is converted."""
    result = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(result, str) or not result:
        raise ValueError("a path or a name")
    return str(exact(result))


def tuple_of(item: Callable[[Any], T]) -> Callable[[object], tuple[T, ...]]:
    """A tuple or list whose items all pass `item`; not a string. So is an array with one dimension.
    The error names the position of a bad item.
    """

    def check(value: object) -> tuple[T, ...]:
        value = plain_list(value)
        if not isinstance(value, (tuple, list)):
            raise ValueError("a tuple or a list")
        result = []
        for position, entry in enumerate(value):
            try:
                result.append(item(entry))
            except ValueError as refusal:
                raise ValueError(f"{refusal} at position {position}") from None
        return tuple(result)

    return with_schema(check, {"type": "array", "items": schema_of(item)})


_ids = tuple_of(integer(low=0))


def token_ids(value: object) -> tuple[int, ...]:
    """Token ids. Fast where all is well: a prompt may have a hundred thousand."""
    value = plain_list(value)
    if (
        isinstance(value, (tuple, list))
        and value
        and set(map(type, value)) == {int}
        and min(value) >= 0
    ):
        return tuple(value)
    return _ids(value)


with_schema(token_ids, schema_of(_ids))


def mapping(value: object) -> Any:
    """A mapping of plain data, deeply frozen."""
    if not isinstance(value, Mapping):
        raise ValueError("a mapping")
    return freeze(value)


for _check, _schema in (
    (boolean, {"type": "boolean"}),
    (non_empty_string, {"type": "string", "minLength": 1}),
    (path, {"type": "string", "minLength": 1}),
    (mapping, {"type": "object"}),
):
    with_schema(_check, _schema)


class UnknownField(InvalidField, TypeError):
    """A record was given a field that it does not have."""


@functools.cache
def metadata_of(cls: type) -> Mapping[str, tuple[object, ...]]:
    """What the annotation of each field holds beside its type: the check, the help, and what other
    readers of the record look for.
    """
    hints = get_type_hints(cls, include_extras=True)
    return {
        f.name: hints[f.name].__metadata__ if get_origin(hints[f.name]) is Annotated else ()
        for f in dataclasses.fields(cls)
    }


def help_of(cls: type) -> Mapping[str, str]:
    """One line about each field of a record: the text in its annotation; empty if it has none."""
    return {
        name: next((extra for extra in extras if isinstance(extra, str)), "")
        for name, extras in metadata_of(cls).items()
    }


@functools.cache
def _checks(cls: type) -> tuple[tuple[str, object, Check], ...]:
    extras = metadata_of(cls)
    return tuple(
        (f.name, f.default, check)
        for f in dataclasses.fields(cls)
        for check in extras[f.name]
        if callable(check)
    )


def checks_of(cls: type) -> Mapping[str, Check]:
    """The check of each field of a record that has one, by the field's name."""
    return {name: check for name, _, check in _checks(cls)}


def taken_instead(refusal: ValueError, shown: str) -> str:
    """What a check takes, and what it was given; the nearest name, which some checks know, comes
    last.
    """
    expected, also, near = str(refusal).partition("; did you mean ")
    return f"takes {expected}, not {shown}{also}{near}"


def _checked(self: object, name: str, value: object, check: Check) -> object:
    try:
        return check(value)
    except InvalidField:  # of a nested record, with its own message
        raise
    except ValueError as refusal:
        from pipegen.records.secret import masked  # which is made of records

        raise InvalidField(
            f"{type(self).__name__}.{name}"
            f" {taken_instead(refusal, printed(masked({name: value})[name]))}"
        ) from None


def _init_of(kind: Any, plain_init: Callable[..., None]) -> Callable[..., None]:
    """The `__init__` of a record: one function without a loop, as `dataclasses` makes one, since
    several records are made for each row.
    """
    fields = dataclasses.fields(kind)
    given_fields = [f for f in fields if f.init]
    names = [f.name for f in given_fields]
    hint: Callable[[str], str] = getattr(kind, "_hint_for", lambda name: nearest(name, names))

    def refuse(self: object, values: dict[str, object], unknown: dict[str, object]) -> None:
        for name in unknown:
            raise UnknownField(f"{type(self).__name__} has no field {name!r}{hint(name)}")
        given = {name: value for name, value in values.items() if value is not dataclasses.MISSING}
        plain_init(self, **given)  # it says what is missing

    space: dict[str, Any] = {"_checked": _checked, "_missing": dataclasses.MISSING}
    space["_refuse"] = refuse
    takes = [f"{f.name}=_default_{f.name}" for f in given_fields if f.kw_only]
    first = [f"{f.name}=_default_{f.name}" for f in given_fields if not f.kw_only]
    needed = [f.name for f in given_fields if f.default is dataclasses.MISSING]
    wrong = " or ".join(["_unknown", *[f"{name} is _missing" for name in needed]])
    values = ", ".join([f"{name!r}: {name}" for name in names])
    lines = [f"if {wrong}:", f" _refuse(self, {{{values}}}, _unknown)"]
    for place, (name, _, check) in enumerate(_checks(kind)):
        space[f"_check_{place}"] = check
        lines += [f"if {name} is not _default_{name}:"]
        lines += [f" {name} = _checked(self, {name!r}, {name}, _check_{place})"]
    for f in fields:
        space[f"_default_{f.name}"], space[f"_set_{f.name}"] = (
            f.default,
            getattr(kind, f.name).__set__,
        )
        lines += [f"_set_{f.name}(self, {f.name if f.init else f'_default_{f.name}'})"]
    if hasattr(kind, "check_all"):  # looked up then: a subclass may have its own
        lines += ["self.check_all()"]
    head = f"def init({', '.join(['self, /', *first, *(['*', *takes] if takes else [])])}, **_unknown):"
    exec("\n ".join([head, *lines]), space)  # noqa: S102 - of the names of fields
    return functools.wraps(plain_init)(space["init"])


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,)
)
def record(cls: type[C]) -> type[C]:
    """A frozen, slotted, keyword-only dataclass whose fields are checked at construction.

    A method `check_all(self)` may compare fields; it runs after the checks of single fields. A
    static method `_hint_for(name)` may give the hint for an unknown field in place of the nearest
    name. `dataclasses.field(kw_only=False)` is a field that may also be given by position; one with
    `init=False` has its default in every record that is made, and in every copy. A class
    with `__slots__ = ()` holds fields that several records inherit. Raises `InvalidField` for a bad
    value and `UnknownField` for an unknown field.
    """
    result: Any = dataclasses.dataclass(
        frozen=True, slots="__slots__" not in vars(cls), kw_only=True
    )(cls)
    plain_init = result.__init__

    @functools.wraps(plain_init)
    def init(self: object, /, *args: object, **values: object) -> None:
        """At the first one: what its annotations name is there by then."""
        result.__init__ = _init_of(result, plain_init)
        result.__init__(self, *args, **values)

    result.__init__ = init
    return result  # type: ignore[no-any-return]


def unchecked_replace(original: C, **values: object) -> C:
    """`dataclasses.replace` for values that other records have checked already: nothing is checked
    again. It may set a field that has `init=False`. Raises `TypeError` for a field that the record
    does not have.

    >>> @record
    ... class Room:
    ...     seats: Annotated[int, integer(low=1)] = 4
    >>> unchecked_replace(Room(), seats=7)
    Room(seats=7)
    """
    kind: object = type(original)
    result: C = _copy_of(kind)(original, **values)
    return result


@functools.cache
def _copy_of(kind: Any) -> Callable[..., Any]:
    """The function that copies such a record, without a loop, as `_init_of` does."""
    space: dict[str, Any] = {"_kind": kind, "_new": object.__new__, "_missing": dataclasses.MISSING}
    lines = ["copy = _new(_kind)"]
    for f in dataclasses.fields(kind):
        space[f"_set_{f.name}"] = getattr(kind, f.name).__set__
        space[f"_default_{f.name}"] = f.default
        kept = f"_it.{f.name}" if f.init else f"_default_{f.name}"
        lines += [f"_set_{f.name}(copy, {kept} if {f.name} is _missing else {f.name})"]
    takes = ", ".join(f"{name}=_missing" for name in _names(kind))
    head = f"def copied(_it, /, *, {takes}):"
    exec("\n ".join([head, *lines, "return copy"]), space)  # noqa: S102 - of the names of fields
    copied: Callable[..., Any] = space["copied"]
    return copied


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))


def names_of(record: object) -> tuple[str, ...]:
    """The names of a record's fields.

    >>> @record
    ... class Room:
    ...     seats: int = 4
    >>> names_of(Room())
    ('seats',)
    """
    kind: object = type(record)
    return _names(kind)
