"""The values of Arrow as Python's: as they are stored, or as rows have them.

Python has no type for some times: nanoseconds, years after 9999, time zones that it does not know.
Such a value is the whole number that Arrow stores, which Arrow takes back; or text, where it is to
be read. Text that is not UTF-8 is its bytes.

Rows have what a value says, where Arrow stores it in another form:

| in Arrow | in a row |
| --- | --- |
| JSON text of the type `arrow.json`, wherever it stands | the value |
| a map with text for keys | a dict |
| a period of pandas, such as a month | text: `2026-01` |
| null in a struct of a tool's schema, or of a call | no key: the struct has the keys of all rows |
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from numbers import Integral, Number
from types import NoneType
from typing import TYPE_CHECKING, Any

from pipegen.io.jsonl import readable
from pipegen.records import strict_json
from pipegen.records.frozen import plain_number, thaw

if TYPE_CHECKING:
    import pyarrow as pa


_OF_TOOLS = frozenset(
    ("tools", "parameters", "arguments", "json_schema", "tool_calls", "function_call")
)
"""Columns and fields below which a null of a struct is no value."""
Change = Callable[[Any], Any]


def python_rows(
    batch: pa.RecordBatch, *, text: bool = False, asked: bool = False
) -> list[dict[str, object]]:
    """The rows of a batch. With `text`, times that Python has no type for are text. Rows that are
    `asked` have no nulls of a struct at all.
    """
    names = batch.schema.names
    columns = [
        _changed(python_values(column, text=text), _change(field, asked))
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _changed(values: list[object], change: Change | None) -> list[Any]:
    if change is None or (
        change is _whole  # which changes nothing; types are looked at much faster than values
        and all(issubclass(kind, (Integral, NoneType)) for kind in {*map(type, values)})
    ):
        return values
    return [None if value is None else change(value) for value in values]


def _change(field: pa.Field, dense: bool) -> Change | None:
    """What makes the value in a row of one that Arrow stores; None where they are the same.

    dense: whether nulls of a struct are left out.
    """
    import pyarrow as pa

    kind = field.type
    dense = dense or field.name in _OF_TOOLS
    stored = _stored_as(field)
    if stored == "arrow.json":
        return _from_json
    if stored == "pandas.period":
        period = _periods(field)
        return None if period is None else lambda number: str(period(number))
    if isinstance(kind, pa.BaseExtensionType):
        return _change(field.with_type(kind.storage_type), dense)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _change(field.with_type(kind.value_type), dense)
    if pa.types.is_map(kind):
        key, item = (_change(entry, dense) for entry in (kind.key_field, kind.item_field))
        return functools.partial(_mapping, key, item)
    return _within(kind, functools.partial(_change, dense=dense), dense=dense)


def _within(
    kind: pa.DataType, change_of: Callable[[pa.Field], Change | None], *, dense: bool = False
) -> Change | None:
    """What changes the values within those of a struct or of a list; None where nothing is."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        inner = {entry.name: change_of(entry) for entry in kind}
        return functools.partial(_struct, inner, dense) if dense or any(inner.values()) else None
    if not _is_list(kind):
        return None
    entries = change_of(kind.value_field.with_name(""))
    return None if entries is None else functools.partial(_in_list, entries)


LISTS_AS_TEXT = b"PARQUET:pipegen:lists"
"""What a field of text says in whose column lists stand; it is not written."""


def holds_lists(field: pa.Field) -> bool:
    """Whether a row of the column may be a list."""
    return (
        _is_list(field.type)
        or _stored_as(field) == "arrow.json"
        or LISTS_AS_TEXT in (field.metadata or {})
    )


def _is_list(kind: pa.DataType) -> bool:
    return hasattr(kind, "value_field")


def _stored_as(field: pa.Field) -> str:
    """The name of the extension that the values are of; one that Arrow does not know, such as
    pandas' without pandas, stands in the field.
    """
    name = getattr(field.type, "extension_name", None)
    if name is None:
        name = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    return str(name)


def _from_json(value: object) -> object:
    """The value of a JSON text; what is none stays text."""
    try:
        return strict_json.load(value) if isinstance(value, str) else value
    except strict_json.NotStrict:
        return value


def _periods(field: pa.Field) -> Callable[[Any], Any] | None:
    """What makes a period of its number or its text; None without pandas, whose rule it is."""
    try:
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

        frequency = getattr(field.type, "freq", None) or json.loads(
            (field.metadata or {})[b"ARROW:extension:metadata"]
        ).get("freq")
        pd.Period(ordinal=0, freq=frequency)
    except (ImportError, KeyError, ValueError, AttributeError):
        return None
    return lambda value: (
        pd.Period(value, freq=frequency)
        if isinstance(value, str)
        else pd.Period(ordinal=value, freq=frequency)
    )


def _struct(inner: dict[str, Change | None], dense: bool, value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {
        name: entry if entry is None or (change := inner.get(name)) is None else change(entry)
        for name, entry in value.items()
        if entry is not None or not dense
    }


def _mapping(key: Change | None, item: Change | None, value: Any) -> object:
    """A map as a dict; as pairs where its keys are no texts, or one occurs twice."""
    names, entries = _changed([name for name, _ in value], key), [entry for _, entry in value]
    entries = _changed(entries, item)
    if all(isinstance(name, str) for name in names) and len({*names}) == len(names):
        return dict(zip(names, entries, strict=True))
    return [*zip(names, entries, strict=True)]


def python_values(array: pa.Array, *, text: bool = False) -> list[object]:
    """The values of an array, as Arrow stores them."""
    import pyarrow as pa

    kind = array.type
    try:
        if _is_time(kind) and _in_nanoseconds(kind):
            array = array.cast(_in_microseconds(kind))  # raises where that changes a value
        if not _in_nanoseconds(array.type):
            values: list[object] = array.to_pylist()
            return values
    except (pa.ArrowException, ValueError, OverflowError, KeyError):
        pass  # some value has no type in Python
    return [_value(scalar, text) for scalar in array]


def row_values(values: list[object], field: pa.Field) -> list[object]:
    """The values that Arrow stores in such a field as rows have them."""
    return _changed(values, _change(field, False))


def stored_values(values: list[object], field: pa.Field) -> list[object]:
    """The values of rows as Arrow stores them in such a field: JSON as its text.

    Raises `ValueError` for a fraction where whole numbers are stored: Arrow would cut it off.

    >>> import pyarrow as pa
    >>> stored_values(["Hi", [1], None], pa.field("content", pa.json_()))
    ['"Hi"', '[1]', None]
    """
    return _changed(values, _storing(field))


def _storing(field: pa.Field) -> Change | None:
    import pyarrow as pa

    kind = field.type
    if _stored_as(field) == "arrow.json":
        return lambda value: strict_json.dump(thaw(value, readable))
    if _stored_as(field) == "pandas.period":
        period = _periods(field)
        return None if period is None else lambda text: getattr(period(text), "ordinal", text)
    if pa.types.is_map(kind):
        sides = [_storing(kind.key_field), _storing(kind.item_field)]
        return functools.partial(_in_map, sides) if any(sides) else None
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _storing(field.with_type(kind.value_type))
    if pa.types.is_integer(kind) or _is_time(kind):
        return _whole
    return _within(kind, _storing)


def _whole(value: object) -> Any:
    number = plain_number(value)
    if not isinstance(number, Number) or isinstance(number, Integral) or number % 1 == 0:  # type: ignore[operator]  # no number has it declared
        return value
    raise ValueError(f"{value!r:.80} is no whole number")


def _in_map(sides: list[Change | None], value: Any) -> object:
    pairs = value.items() if isinstance(value, Mapping) else value
    return [*zip(*map(_changed, map(list, zip(*pairs, strict=True)), sides), strict=True)]


def _in_list(entries: Change, value: object) -> object:
    if not isinstance(value, Collection) or isinstance(value, (str, bytes, Mapping)):
        return value
    inner = [*value]
    changed = _changed(inner, entries)
    return value if changed is inner else changed


def without_extensions(kind: pa.DataType) -> pa.DataType:
    """The type in which Arrow stores such values, without extensions, wherever they stand."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return without_extensions(kind.storage_type)
    return with_inner(kind, without_extensions)


def with_inner(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A struct, map or list of other types, each of them changed. Any other type stays."""
    import pyarrow as pa

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(change(field.type))

    if pa.types.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(change(kind.key_type), inner(kind.item_field), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_field), kind.list_size)
    for fits, make in (
        (pa.types.is_list, pa.list_),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_list_view, pa.list_view),
        (pa.types.is_large_list_view, pa.large_list_view),
    ):
        if fits(kind):
            return make(inner(kind.value_field))
    return kind


def types_in(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The type, and those that it is made of."""
    import pyarrow as pa

    yield kind
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        yield from types_in(kind.value_type)
    elif isinstance(kind, pa.BaseExtensionType):
        yield from types_in(kind.storage_type)
    else:
        for index in range(kind.num_fields):
            yield from types_in(kind.field(index).type)


def _is_time(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_temporal(kind) and not pa.types.is_interval(kind)


def _in_nanoseconds(kind: pa.DataType) -> bool:
    return any(getattr(inner, "unit", "") == "ns" for inner in types_in(kind))


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if getattr(kind, "unit", "") != "ns":
        return kind
    return (
        pa.timestamp("us", kind.tz)
        if pa.types.is_timestamp(kind)
        else pa.time64("us")
        if pa.types.is_time64(kind)
        else pa.duration("us")
    )


def _value(scalar: pa.Scalar, text: bool) -> Any:
    import pyarrow as pa

    kind = scalar.type
    if not scalar.is_valid:
        return None
    if _is_time(kind):
        return _time(scalar.value, kind, text)
    if pa.types.is_struct(kind):
        return {
            kind.field(index).name: _value(scalar[index], text) for index in range(kind.num_fields)
        }
    if pa.types.is_map(kind):
        return [(_value(entry[0], text), _value(entry[1], text)) for entry in scalar.values]
    if isinstance(scalar, pa.ListScalar):  # every kind of list
        return [_value(entry, text) for entry in scalar.values]
    if pa.types.is_dictionary(kind) or pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        return _value(scalar.value, text)
    if isinstance(kind, pa.BaseExtensionType) and _in_nanoseconds(kind):
        return _value(scalar.value, text)
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes()


def _time(count: int, kind: pa.DataType, text: bool) -> object:
    """A time that Arrow stores as this number."""
    import pyarrow as pa

    nanoseconds = count % 1000 if _in_nanoseconds(kind) else 0
    try:
        value = pa.scalar(
            count // 1000 if _in_nanoseconds(kind) else count, _in_microseconds(kind)
        ).as_py()
    except (pa.ArrowException, ValueError, OverflowError, KeyError):
        value = None
    if value is not None and not nanoseconds:
        return value
    if not text:
        return count
    unit = getattr(kind, "unit", "days" if pa.types.is_date32(kind) else "ms")
    return (
        _long_text(value, nanoseconds)
        if value is not None
        else f"{count} {unit}{'' if pa.types.is_duration(kind) else ' since 1970-01-01'}"
    )


def _long_text(value: Any, nanoseconds: int) -> str:
    """A time with three digits more than Python's types have.

    >>> (
    ...     _long_text(dt.datetime(2026, 1, 2), 7),
    ...     _long_text(dt.time(1), 7),
    ...     _long_text(dt.timedelta(0), 7),
    ... )
    ('2026-01-02 00:00:00.000000007', '01:00:00.000000007', '0:00:00.000000007')
    """
    digits = f"{nanoseconds:03}"
    if isinstance(value, dt.datetime):
        words = value.isoformat(" ", "microseconds")
        return words[:26] + digits + words[26:]  # before the zone
    if isinstance(value, dt.time):
        return value.isoformat("microseconds") + digits
    return f"{value}{'' if value.microseconds else '.000000'}{digits}"
