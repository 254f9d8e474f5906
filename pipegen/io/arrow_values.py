"""The values of Arrow as Python's, none of them changed.

Python has no type for some times: nanoseconds, years after 9999, time zones that it does not know.
Such a value is the whole number that Arrow stores, which Arrow takes back; or text, where it is to
be read. Text that is not UTF-8 is its bytes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["holds_time", "python_rows", "python_values"]


def python_rows(batch: pa.RecordBatch, *, text: bool = False) -> list[dict[str, Any]]:
    """The rows of a batch. With `text`, times that Python has no type for are text."""
    names = batch.schema.names
    columns = [python_values(column, text=text) for column in batch.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def python_values(array: pa.Array, *, text: bool = False) -> list[Any]:
    """The values of an array."""
    import pyarrow as pa

    kind = array.type
    try:
        if _is_time(kind) and _in_nanoseconds(kind):
            array = array.cast(_in_microseconds(kind))  # raises where that changes a value
        if not _in_nanoseconds(array.type):
            values: list[Any] = array.to_pylist()
            return values
    except (pa.ArrowException, ValueError, OverflowError, KeyError):
        pass  # some value has no type in Python
    return [_value(scalar, text) for scalar in array]


def _is_time(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_temporal(kind) and not pa.types.is_interval(kind)


def holds_time(kind: pa.DataType, which: Callable[[Any], bool]) -> bool:
    """Whether a type is a time for which this holds, or is made of one."""
    import pyarrow as pa

    if _is_time(kind):
        return which(kind)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return holds_time(kind.value_type, which)
    if isinstance(kind, pa.BaseExtensionType):
        return holds_time(kind.storage_type, which)
    return any(holds_time(kind.field(index).type, which) for index in range(kind.num_fields))


def _in_nanoseconds(kind: pa.DataType) -> bool:
    return holds_time(kind, lambda time: getattr(time, "unit", "") == "ns")


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


def _time(count: int, kind: pa.DataType, text: bool) -> Any:
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
