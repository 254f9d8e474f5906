"""Tables in: the rows of Parquet and Arrow files and of folders of them as plain data, a few at a
time.

A row is a request (see `request_from`): columns named as its fields are its fields, and all others
are carried along to the output. `Columns` says which columns have other names, and which one is the
text of a user's turn. Folders such as `lang=en` are columns too, as in Hive.

>>> Columns({"prompt": "beginning"}).request({"beginning": "It is so", "label": 1})
{'label': 1, 'prompt': 'It is so'}
>>> Columns({"user": "question"}).request({"question": "Is it so?", "label": 1})
{'label': 1, 'messages': [{'role': 'user', 'content': 'Is it so?'}]}
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from pipegen.core.distribution import need
from pipegen.core.names import nearest
from pipegen.io.arrow_values import python_rows, types_in
from pipegen.io.forms import ARROW, PARQUET, TableError, form_of, refuse_address
from pipegen.records.parse_request import carried, has_media
from pipegen.records.request_forms import KEYS, refused, without_final_answer
from pipegen.records.requests import FIELDS, holds_options, misplaced, unread_media

if TYPE_CHECKING:
    import pyarrow as pa


_ROWS, _BYTES = 1024, 8 * 2**20
"""The most rows, and bytes (about), that are read at a time."""
USER = "user"
"""In place of a field: the column holds the text of a user's turn."""
_READ = {*FIELDS, "image", "video", "objects", *KEYS}
TARGETS = tuple(sorted({*_READ, USER}))
"""What a column may be mapped to."""
_PROMPTS = (
    *("messages", "prompt", "prompt_token_ids", "turns"),
    *("conversations", "conversation", "query"),
)
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The name of a folder of rows that have no value for its column."""
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_ROWS_OF = {"csv": "CSV", "tsv": "TSV", "lines": "JSON Lines"}
"""Files of rows that are read alone, and not in a folder."""


class Columns(NamedTuple):
    """Which columns of a table are the fields of a request, where their names differ: `{"prompt":
    "beginning"}`. `{"user": "question"}` makes each question a user's turn, with the row's images.
    """

    fields: Mapping[str, str] = {}
    """For a field of requests, its column."""
    kept: frozenset[str] = frozenset()
    """Columns that are carried along, though they have the name of a field or of an option."""
    drops_answer: bool = False
    """Whether the answers that end a conversation are left out: see `without_final_answer`."""

    def request(self, values: Mapping[str, object]) -> Mapping[str, Any]:
        """The row as the plain data of a request."""
        if self.drops_answer:
            return without_final_answer(self._replace(drops_answer=False).request(values))
        if not self.fields and not self.kept:
            return values
        aside = self._aside(values)
        request_fields = {
            name: value
            for name, value in values.items()
            if name not in aside and name not in self.fields.values()
        }
        row_metadata = {"metadata": request_fields.pop("metadata", None)}
        metadata = carried(row_metadata, {name: values[name] for name in aside})
        request_fields |= {field: values.get(column) for field, column in self.fields.items()}
        text = request_fields.pop(USER, None) if USER in self.fields else None
        if text is not None and has_media(request_fields):
            request_fields["prompt"] = text  # beside images it is short for a user's turn
        elif text is not None:
            request_fields["messages"] = [{"role": "user", "content": text}]
        return {**request_fields, **({"metadata": metadata} if metadata else {})}

    def references(self, values: Mapping[str, object]) -> list[str] | None:
        """The answers that were left out of a row; None where none was."""
        metadata = self.request(values).get("metadata") if self.drops_answer else None
        return metadata.get("references") if isinstance(metadata, Mapping) else None

    def column_of(self, field: str) -> str | None:
        """The column that a field is read from; None where none is, since it is carried along."""
        return self.fields.get(field, None if field in self.kept else field)

    @property
    def mapped(self) -> set[str]:
        """The columns that are named."""
        return {*self.fields.values(), *self.kept}

    def require(self, names: Sequence[str], path: Path) -> None:
        """Raise `TableError` unless these columns have all that are named."""
        for column in (*self.fields.values(), *self.kept):
            if column not in names:
                raise TableError(
                    f"{path} has no column {column!r}"
                    f"{nearest(column, names) or f': {_listing(names)}'}"
                )

    def check(self, names: Sequence[str], path: Path) -> None:
        """Raise `TableError` unless a table with these columns holds requests."""
        self.require(names, path)
        listing = _listing(names)
        if USER not in self.fields and not any(
            self.column_of(field) in names for field in _PROMPTS
        ):
            raise TableError(
                f"{path} has no column {' or '.join(_PROMPTS[:2])}; say which one it is: --map"
                " user=COLUMN for questions, --map prompt=COLUMN for texts to continue."
                f" {listing[0].upper()}{listing[1:]}"
            )
        for name in names:
            hint = (
                None
                if name in _READ or name in self.kept or name in self.fields.values()
                else misplaced(name)
            )
            if hint is not None:
                raise TableError(
                    f"{path} has a column {name!r}{hint}. --map metadata={name} carries it along"
                )

    def reads(self, names: Sequence[str]) -> list[str]:
        """Those of the columns that fields are read from."""
        aside = self._aside(dict.fromkeys(names))
        return [
            name
            for name in names
            if name not in aside
            and (
                name in _READ
                or name in self.fields.values()
                # which a row may be refused for
                or refused(name) is not None
                or unread_media(name) is not None
                or holds_options(name)
            )
        ]

    def _aside(self, values: Mapping[str, object]) -> list[str]:
        """Columns that would be fields, and are carried along: another column is the field, or they
        are wanted so.
        """
        mapped_columns = self.fields.values()
        fields = {*self.fields, *(_PROMPTS[:2] if USER in self.fields else ())}
        return [
            name
            for name in values
            if name in self.kept or (name in fields and name not in mapped_columns)
        ]


def _listing(names: Sequence[str]) -> str:
    return f"its columns are {', '.join(names)}"[:500] if names else "it has no columns"


class Block:
    """Some rows of a table that were read together."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    @cached_property
    def bytes_a_row(self) -> float:
        """About how large a row is."""
        import pyarrow as pa

        try:
            size = int(self.batch.nbytes)
        except pa.ArrowException:  # older versions of pyarrow do not know the size of views
            size = len(repr(self.rows))
        return size / max(1, int(self.batch.num_rows))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as Python values, to be read: times that Python has no type for are text."""
        return python_rows(self.batch, text=True)

    @cached_property
    def asked(self) -> list[dict[str, Any]]:
        """The rows as requests are made of them, without the nulls that structs of several forms
        get.
        """
        return python_rows(self.batch, text=True, asked=True)


class TableRow:
    """One row of a table, with its values; those of Arrow are also where they were read,
    unchanged.
    """

    __slots__ = ("_values", "block", "index")

    def __init__(
        self, values: dict[str, Any] | None = None, block: Block | None = None, index: int = 0
    ) -> None:
        self._values, self.block, self.index = values, block, index

    @property
    def values(self) -> dict[str, Any]:
        """Each column's value."""
        return (
            self._values
            if self._values is not None
            else {}
            if self.block is None
            else self.block.rows[self.index]
        )


class TableFile(NamedTuple):
    """A file of a table."""

    path: Path
    schema: pa.Schema
    """The columns in the file."""
    rows: int
    folders: Mapping[str, str | None] = {}
    """The columns that the names of its folders say, such as `lang=en`."""


class Table:
    """A table to read. It is walked as often as is wanted, and gives a mapping for each row."""

    def __init__(self, parts: Sequence[TableFile], schema: pa.Schema) -> None:
        self.parts, self.schema = parts, schema
        self.folders = [schema.field(name) for name in _folders(parts)]
        """The columns that the names of folders give."""
        self.count = sum(part.rows for part in parts)
        """The number of rows."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (row for block in self.blocks() for row in python_rows(block.batch))

    def __len__(self) -> int:
        return self.count

    def blocks(self) -> Iterator[Block]:
        """The rows, some at a time. Raises `TableError` where the rest cannot be read."""
        import pyarrow as pa

        for part in self.parts:
            try:
                with _opened(part.path) as (_, _, batches):
                    yield from (Block(self._with_folders(batch, part)) for batch in batches)
            except (OSError, pa.ArrowException) as refusal:
                raise TableError(f"{part.path} cannot be read: {_words(refusal)}") from refusal

    def _with_folders(self, batch: pa.RecordBatch, part: TableFile) -> pa.RecordBatch:
        import pyarrow as pa

        if not self.folders:
            return batch
        columns = list(batch.columns)
        for field in self.folders:
            text = part.folders.get(field.name)
            columns.append(
                pa.array(
                    [None if text is None else int(text) if pa.types.is_int64(field.type) else text]
                    * batch.num_rows,
                    field.type,
                )
            )
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*batch.schema, *self.folders]))


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether the file, by its suffix, is Parquet or Arrow, or the folder holds such files."""
    path = Path(path)
    return bool(tables_in(path)) if path.is_dir() else path.suffix.lower() in (*PARQUET, *ARROW)


def tables_in(folder: Path) -> list[Path]:
    """The Parquet and Arrow files of a folder and its subfolders, in the order of their names;
    hidden ones are left out.
    """
    return [path for path in _files_in(folder) if path.suffix.lower() in (*PARQUET, *ARROW)]


def _files_in(folder: Path) -> Iterator[Path]:
    return (
        path
        for path in sorted(folder.rglob("*"))
        if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    )


def read_table(path: str | os.PathLike[str]) -> Table:
    """The rows of a Parquet or Arrow file, or of a folder of them, as mappings: requests for
    `imap`. Rows are read as they are asked for.

    JSON in a column is its value, a map with text for keys a dict, a period of pandas text. A struct
    of tools has no key that is null.

    Subfolders such as `lang=en` are a column `lang`: of whole numbers where all its values are,
    else of text. A time that Python has no type for, such as one in nanoseconds, is the whole
    number that Arrow stores.

    Raises `TableError` where it is no such file, and `MissingExtra` without pyarrow.

    >>> read_table("asked.csv")
    Traceback (most recent call last):
    ...
    pipegen.io.forms.TableError: asked.csv is no Parquet or Arrow file (.parquet, .pq, .arrow, .feather, .ipc), and no folder of them; csv.DictReader reads CSV
    """
    refuse_address(path)
    path = Path(path)
    paths = tables_in(path) if path.is_dir() else [path]
    if not paths or not is_table(path):
        raise TableError(
            f"{path} is no Parquet or Arrow file ({', '.join((*PARQUET, *ARROW))}), and no folder"
            " of them; csv.DictReader reads CSV"
        )
    need("pyarrow", "data", "reading tables")
    import pyarrow as pa

    if path.is_dir():
        _refuse_others(path)
    try:
        parts = [_part(file, path) for file in paths]
        schema = pa.unify_schemas([part.schema for part in parts])
    except (OSError, pa.ArrowException) as refusal:
        raise TableError(f"{path} cannot be read: {_words(refusal)}") from refusal
    return Table(parts, _with_columns(schema, parts))


def _refuse_others(folder: Path) -> None:
    """Raise `TableError` for a folder that holds rows of another form too: they would be left
    out.
    """
    for path in _files_in(folder):
        with contextlib.suppress(TableError):  # no file of rows
            kind = form_of(path).kind
            if kind in _ROWS_OF and path.suffix and path.is_file():
                break
    else:
        return
    raise TableError(
        f"{folder} holds tables, and {path.relative_to(folder)}, which is {_ROWS_OF[kind]}: give a"
        " folder of Parquet and Arrow files alone, or one file"
    )


def _part(path: Path, top: Path) -> TableFile:
    import pyarrow as pa

    with _opened(path) as (schema, rows, batches):
        twice = _twice(schema.names) or _twice_within(pa.struct(schema))
        if twice is not None:
            raise TableError(f"{path} has two columns {twice!r}: give them different names")
        count = sum(batch.num_rows for batch in batches) if rows is None else rows
    pairs = [folder.partition("=") for folder in path.relative_to(top).parent.parts]
    folders = {
        unquote(name): None if value == _NO_VALUE else unquote(value)
        for name, equals, value in pairs
        if name and equals
    }
    for name in folders:
        if name in schema.names:
            raise TableError(
                f"{path} has a column {name!r}, and is in a folder {name}=...: rename one of them"
            )
    return TableFile(path, schema, count, folders)


def _folders(parts: Sequence[TableFile]) -> dict[str, None]:
    """The columns that the names of folders give."""
    return dict.fromkeys(name for part in parts for name in part.folders)


def _with_columns(schema: pa.Schema, parts: Sequence[TableFile]) -> pa.Schema:
    """The schema with the columns that names of folders say."""
    import pyarrow as pa

    for name in _folders(parts):
        if name in schema.names:
            raise TableError(
                f"a file has a column {name!r}, and others are in folders {name}=...: rename one of"
                " them"
            )
        texts = [part.folders[name] for part in parts if part.folders.get(name) is not None]
        is_whole = bool(texts) and all(_WHOLE.fullmatch(text or "") for text in texts)
        schema = schema.append(pa.field(name, pa.int64() if is_whole else pa.string()))
    return schema


def _twice(names: Iterable[str]) -> str | None:
    """A name that occurs twice."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _twice_within(kind: pa.DataType) -> str | None:
    """A name that occurs twice in one struct."""
    import pyarrow as pa

    structs = filter(pa.types.is_struct, types_in(kind))
    return next(filter(None, (_twice(field.name for field in struct) for struct in structs)), None)


def _words(refusal: Exception) -> str:
    message = (
        refusal.strerror if isinstance(refusal, OSError) and refusal.strerror else str(refusal)
    )
    message = re.sub(r"^.*Detail: \[errno \d+\] ", "", message)  # Arrow's words around the system's
    return message.splitlines()[0][:300] if message else type(refusal).__name__


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[pa.Schema, int | None, Iterator[pa.RecordBatch]]]:
    """The columns of a file, how many rows it has, where it says so, and the rows, a few at a
    time.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix.lower() in PARQUET:
        with pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False, **_extensions()) as file:
            yield file.schema_arrow, file.metadata.num_rows, _parquet_batches(file)
        return
    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_file(source)
            schema, batches = (
                reader.schema,
                (reader.get_batch(index) for index in range(reader.num_record_batches)),
            )
        except pa.ArrowInvalid:  # the stream format, which `datasets` writes
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            schema, batches = stream.schema, iter(stream)
        yield schema, None, _cut(batches)


@functools.cache
def _extensions() -> dict[str, bool]:
    """What lets Parquet's JSON be read as such, where this pyarrow has a switch for it."""
    import pyarrow.parquet as pq

    switch = "arrow_extensions_enabled"
    has = switch in inspect.signature(pq.ParquetFile.__init__).parameters
    return {switch: True} if has else {}


def _parquet_batches(file: Any) -> Iterator[pa.RecordBatch]:
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    size = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    yield from file.iter_batches(
        batch_size=max(1, min(_ROWS, int(_BYTES / max(1.0, size)))), use_threads=False
    )


def _cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        size = max(
            1, min(_ROWS, int(_BYTES * batch.num_rows / max(1, batch.get_total_buffer_size())))
        )
        yield from (batch.slice(start, size) for start in range(0, batch.num_rows, size))
