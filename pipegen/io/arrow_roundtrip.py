"""Which types of Arrow's a file can hold. Libraries differ in it, so a column is written, read
back, and compared.

A type that a form does not have is written as a plainer one that holds the same values, such as the
strings of a dictionary. Where there is none, the column is refused: an interval or a union in
Parquet.
"""

from __future__ import annotations

import contextlib
import functools
import io
from typing import TYPE_CHECKING

from pipegen.io.arrow_values import python_values, types_in, with_inner
from pipegen.io.forms import TableError

if TYPE_CHECKING:
    import pyarrow as pa


OTHERWISE = "write .jsonl or .arrow, or leave the column out"


@functools.lru_cache(maxsize=1024)
def written_kind(name: str, kind: pa.DataType, form: str) -> pa.DataType:
    """The type that a column of a file of this form has: its own, or a plainer one of the same
    values. Raises `TableError` where there is none.
    """
    import pyarrow as pa

    # An Arrow file has one dictionary for a column; rows that are written in groups have several.
    for candidate in [_plain(kind, views=True)] if form == ".arrow" else [kind, _plain(kind)]:
        if is_held(pa.chunked_array([pa.nulls(1, candidate)]), form):
            return candidate
    raise TableError(
        f"the column {name!r} holds {kind}, which a {form} file cannot hold: {OTHERWISE}"
    )


def is_held(column: pa.ChunkedArray, form: str) -> bool:
    """Whether a file of this form gives back the values of a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, sink = pa.table({"x": column}), io.BytesIO()
    try:
        if form == ".parquet":
            pq.write_table(table, sink, compression="none")
            read_back = pq.read_table(pa.BufferReader(sink.getvalue())).column("x")
        else:
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            read_back = pa.ipc.open_file(sink.getvalue()).read_all().column("x")
    except (pa.ArrowException, OSError, ValueError):
        return False
    with contextlib.suppress(pa.ArrowException):
        read_back = read_back.cast(column.type)  # Parquet has no seconds, and stores milliseconds
    return read_back.equals(column) or _values(read_back) == _values(column)


def depends_on_values(kind: pa.DataType, form: str) -> bool:
    """Whether a file holds some values of the type, and others not: Parquet has no seconds, and
    stores milliseconds, of which 64 bits are fewer years.
    """
    import pyarrow as pa

    return form == ".parquet" and any(
        pa.types.is_date64(inner) or getattr(inner, "unit", "") == "s" for inner in types_in(kind)
    )


def _values(column: pa.ChunkedArray) -> str:
    """The values of a column, in a form in which what is not a number equals itself."""
    return repr([value for chunk in column.chunks for value in python_values(chunk)])


def _plain(kind: pa.DataType, *, views: bool = False) -> pa.DataType:
    """The type without dictionaries; and without views, fixed sizes and lengths of runs, unless
    these may stay.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(kind) or (pa.types.is_run_end_encoded(kind) and not views):
        return _plain(kind.value_type, views=views)
    kind = with_inner(kind, functools.partial(_plain, views=views))
    if views:
        return kind
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(kind.value_field)
    if pa.types.is_large_list_view(kind):
        return pa.large_list(kind.value_field)
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)
