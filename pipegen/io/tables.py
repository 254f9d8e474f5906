"""Tables in: the rows of Parquet, Arrow, CSV and JSON Lines files as plain data, a few at a time.

A row is a request (see `request_from`): columns named as its fields are its fields, and all others are carried along to the output. `Columns` says which
columns have other names.

>>> Columns({"prompt": "question"}).request({"question": "Is it so?", "label": 1})
{'label': 1, 'prompt': 'Is it so?'}
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipegen.engines.extras import need
from pipegen.records.fields import nearest
from pipegen.records.requests import FIELDS, misplaced

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ARROW", "Columns", "PARQUET", "Row", "Table", "TableError", "is_table", "read_table", "tables_in", "without_nulls"]

PARQUET, ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
_ROWS, _BYTES = 1024, 8 * 2**20
"""The most rows, and bytes (about), that are read at a time."""
TARGETS = tuple(sorted({*FIELDS, "image"}))
_PROMPTS = ("messages", "prompt", "prompt_token_ids")


class TableError(ValueError):
    """A table cannot be read or written; the message says which file, and why."""


class Columns(NamedTuple):
    """Which columns of a table are the fields of a request, where their names differ: `{"prompt": "question"}`."""

    fields: Mapping[str, str] = {}
    """For a field of requests, its column."""
    kept: frozenset[str] = frozenset()
    """Columns that are carried along, though they have the name of a field or of an option."""

    def request(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row as the plain data of a request."""
        if not self.fields and not self.kept:
            return values
        aside = self._aside(values)
        named = {name: value for name, value in values.items() if name not in aside and name not in self.fields.values()}
        own = named.pop("metadata", None)
        metadata = {name: values[name] for name in aside if values[name] is not None}
        metadata |= own if isinstance(own, Mapping) else {} if own is None else {"metadata": own}
        named |= {field: values.get(column) for field, column in self.fields.items()}
        return {**named, **({"metadata": metadata} if metadata else {})}

    def column_of(self, field: str) -> str | None:
        """The column that a field is read from; None where none is, since it is carried along."""
        return self.fields.get(field, None if field in self.kept else field)

    def check(self, names: Sequence[str], path: Path) -> None:
        """Raise `TableError` unless a table with these columns holds requests."""
        listed = f"its columns are {', '.join(names)}"[:500] if names else "it has no columns"
        for column in (*self.fields.values(), *self.kept):
            if column not in names:
                raise TableError(f"{path} has no column {column!r}{nearest(column, names) or f': {listed}'}")
        if not any(self.column_of(field) in names for field in _PROMPTS):
            raise TableError(f"{path} has no column {' or '.join(_PROMPTS[:2])}; say which one it is: --map prompt=COLUMN. {listed[0].upper()}{listed[1:]}")
        for name in names:
            hint = None if name in TARGETS or name in self.kept or name in self.fields.values() else misplaced(name)
            if hint is not None:
                raise TableError(f"{path} has a column {name!r}{hint}. --map metadata={name} carries it along")

    def reads(self, names: Sequence[str]) -> list[str]:
        """Those of the columns that fields are read from."""
        aside = self._aside(dict.fromkeys(names))
        return [name for name in names if name not in aside and (name in TARGETS or name in self.fields.values())]

    def _aside(self, values: Mapping[str, Any]) -> list[str]:
        """Columns that would be fields, and are carried along: another column is the field, or they are wanted so."""
        taken = self.fields.values()
        return [name for name in values if name in self.kept or (name in self.fields and name not in taken)]


class Block:
    """Some rows of a table that were read together."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    @cached_property
    def bytes_a_row(self) -> float:
        """About how large a row is."""
        size: float = self.batch.nbytes / max(1, self.batch.num_rows)
        return size

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as Python values."""
        rows: list[dict[str, Any]] = _pythonic(self.batch).to_pylist()
        return rows


class Row:
    """One row of a table, with its values; those of Arrow are also where they were read, unchanged."""

    __slots__ = ("_values", "block", "index")

    def __init__(self, values: dict[str, Any] | None = None, block: Block | None = None, index: int = 0) -> None:
        self._values, self.block, self.index = values, block, index

    @property
    def values(self) -> dict[str, Any]:
        """Each column's value."""
        return self._values if self._values is not None else {} if self.block is None else self.block.rows[self.index]


class Table:
    """A table to read. It is walked as often as is wanted, and gives a mapping for each row."""

    def __init__(self, paths: Sequence[Path], schema: pa.Schema, count: int) -> None:
        self.paths, self.schema, self.count = paths, schema, count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (row for block in self.blocks() for row in block.rows)

    def __len__(self) -> int:
        return self.count

    def blocks(self) -> Iterator[Block]:
        """The rows, some at a time. Raises `TableError` where the rest cannot be read."""
        import pyarrow as pa

        for path in self.paths:
            try:
                yield from map(Block, _parquet_batches(path) if path.suffix.lower() in PARQUET else _arrow_batches(path))
            except (OSError, pa.ArrowException) as refusal:
                raise TableError(f"{path} cannot be read: {_words(refusal)}") from refusal


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether the file, by its suffix, is Parquet or Arrow, or the folder holds such files."""
    path = Path(path)
    return bool(tables_in(path)) if path.is_dir() else path.suffix.lower() in (*PARQUET, *ARROW)


def tables_in(folder: Path) -> list[Path]:
    """The Parquet files of a folder and its subfolders, or else the Arrow files, in the order of their names; hidden ones are left out."""
    for kinds in (PARQUET, ARROW):
        found = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in kinds]
        found = [path for path in found if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)]
        if found:
            return found
    return []


def read_table(path: str | os.PathLike[str]) -> Table:
    """The rows of a Parquet or Arrow file, or of a folder of them, as mappings: requests for `imap`. Rows are read as they are asked for.

    Raises `TableError` where it is no such file, and `MissingExtra` without pyarrow.

    >>> read_table("requests.jsonl")
    Traceback (most recent call last):
    ...
    pipegen.io.tables.TableError: requests.jsonl is no Parquet or Arrow file, and no folder of them
    """
    path = Path(path)
    paths = tables_in(path) if path.is_dir() else [path]
    if not paths or not is_table(path):
        raise TableError(f"{path} is no Parquet or Arrow file, and no folder of them")
    need("pyarrow", "data", "reading tables")
    import pyarrow as pa

    try:
        facts = [_facts(one) for one in paths]
        schema = pa.unify_schemas([schema for schema, _ in facts])
    except (OSError, pa.ArrowException) as refusal:
        raise TableError(f"{path} cannot be read: {_words(refusal)}") from refusal
    return Table(paths, schema, sum(count for _, count in facts))


def without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    """A row without the nulls that Arrow fills into structs of several forms; a list keeps its own.

    >>> without_nulls({"messages": [{"role": "user", "content": "Hi", "name": None}]})
    {'messages': [{'role': 'user', 'content': 'Hi'}]}
    """
    return {name: _dense(value) if isinstance(value, (list, dict)) else value for name, value in values.items()}


def _dense(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _dense(entry) if isinstance(entry, (list, dict)) else entry for name, entry in value.items() if entry is not None}
    return [_dense(entry) if isinstance(entry, (list, dict)) else entry for entry in value]


def _words(refusal: Exception) -> str:
    message = refusal.strerror if isinstance(refusal, OSError) and refusal.strerror else str(refusal)
    message = re.sub(r"^.*Detail: \[errno \d+\] ", "", message)  # Arrow's words around the system's
    return message.splitlines()[0][:300] if message else type(refusal).__name__


def _facts(path: Path) -> tuple[pa.Schema, int]:
    import pyarrow.parquet as pq

    if path.suffix.lower() in PARQUET:
        with pq.ParquetFile(path) as file:
            return file.schema_arrow, file.metadata.num_rows
    batches = _arrow_batches(path)
    first = next(batches)  # an empty one with the schema
    return first.schema, sum(batch.num_rows for batch in batches)


def _parquet_batches(path: Path) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
        groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
        size = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
        yield from file.iter_batches(batch_size=max(1, min(_ROWS, int(_BYTES / max(1.0, size)))), use_threads=False)


def _arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """An empty batch with the schema, and then the rows of an Arrow file: of the file format, or of the stream format that `datasets` writes."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        try:
            file = pa.ipc.open_file(source)
            whole: Iterator[pa.RecordBatch] = (file.get_batch(place) for place in range(file.num_record_batches))
            schema = file.schema
        except pa.ArrowInvalid:
            source.seek(0)
            whole = stream = pa.ipc.open_stream(source)
            schema = stream.schema
        yield pa.RecordBatch.from_pylist([], schema=schema)
        for batch in whole:
            size = max(1, min(_ROWS, int(_BYTES * batch.num_rows / max(1, batch.nbytes))))
            yield from (batch.slice(start, size) for start in range(0, batch.num_rows, size))


def _pythonic(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with times that Python can hold: nanoseconds become microseconds."""
    import pyarrow as pa

    for place, field in enumerate(batch.schema):
        kind = field.type
        if not (pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind)) or kind.unit != "ns":
            continue
        coarse = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.time64("us") if pa.types.is_time64(kind) else pa.duration("us")
        batch = batch.set_column(place, field.name, batch.column(place).cast(coarse, safe=False))
    return batch
