"""Tables out: one row for each slot, with the columns of the input before those of the answer.

The schema is fixed before the first row. Parquet and Arrow have nested columns, and images as
`datasets` shows them; CSV and TSV have flat ones. What a form cannot hold is refused before the
first row too.

| column | what it is |
| --- | --- |
| the input's | as they were; one that has the name of an answer's column gets `input_` before it |
| `ok` | whether there is an answer |
| `text`, `finish`, `stop` | the answer, and how it ended |
| `usage` | `prompt_tokens`, `completion_tokens` |
| `error` | `type`, `message`, `hint`, where there is no answer |
| `raw_text`, `reasoning`, `tool_calls`, `samples`, `rounds`, `transcript` | as in a result; tool calls and the transcript are JSON text |
| `model`, `route`, `options` | the model's name, the route's, and the effective options as JSON text |
| `prompt_token_ids`, `token_ids`, `forced` | unless they are left out |
| `tokens`, `logprobs`, `prompt_logprobs` | the same, where log probabilities were asked for |
| `top_logprobs`, `prompt_top_logprobs` | the likeliest tokens of each place, as `token_ids` and `logprobs`: a list for each token |
"""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO

from pipegen.core.distribution import need
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot, is_ok
from pipegen.io.answer_columns import (
    CSV_COLUMNS,
    ERROR,
    columns_of,
    error_cells,
    flat_cells,
    likeliest_size,
)
from pipegen.io.arrow_roundtrip import OTHERWISE, depends_on_values, is_held, written_kind
from pipegen.io.arrow_values import (
    holds_lists,
    python_values,
    row_values,
    stored_values,
    without_extensions,
)
from pipegen.io.forms import TableError
from pipegen.io.jsonl import LineId, readable
from pipegen.io.tables import Block, Columns, TableRow
from pipegen.records import strict_json
from pipegen.records.codec import word_of
from pipegen.records.frozen import thaw
from pipegen.records.messages import ImageSource
from pipegen.records.results import GenerationResult

if TYPE_CHECKING:
    import pyarrow as pa


GROUP_ROWS, GROUP_BYTES = 2000, 32 * 2**20
"""How many rows, and bytes (about), are written together."""
Write = Callable[[TableRow, LineId, Slot[Any]], None]
"""Writes one row: what it was made of, its id, and its slot."""
REFERENCES = "references"
"""The column of the answers that were left out of a row, where that is asked for."""


class TableOut:
    """What tables have in common: the columns of the input under their names in the output, and
    where images of it start.

    folder: where relative paths of images start.
    """

    def __init__(
        self,
        names: Sequence[str],
        columns: Columns,
        folder: str | os.PathLike[str] | None,
        *,
        answer: Sequence[str],
    ) -> None:
        self.columns, self.folder = columns, folder
        self.own_id = columns.column_of("id") == "id" and "id" in names
        used_names = {*answer, *(() if self.own_id else ("id",))}
        self.names: dict[str, str] = {}
        for name in names:
            column_name = name
            while column_name in used_names:
                column_name = f"input_{column_name}"
            used_names.add(column_name)
            self.names[name] = column_name
        self.images = {
            column
            for field in ("image", "images")
            if (column := columns.column_of(field)) is not None and column in names
        }

    def stored(self, value: object) -> dict[str, Any] | None:
        """An image as data sets store it: `{"bytes", "path"}`; None where it is none."""
        try:
            source = ImageSource.of(value)
        except InvalidField:
            return None
        if source.data is not None:
            return {
                "bytes": source.data,
                "path": value.get("path") if isinstance(value, Mapping) else None,
            }
        if source.path is not None:
            return {
                "bytes": None,
                "path": (
                    os.path.join(self.folder, source.path)
                    if self.folder is not None
                    else source.path
                ),
            }
        head, _, body = (source.url or "").partition(",")
        if head[:5].lower() == "data:" and head.endswith(";base64"):
            with contextlib.suppress(ValueError):
                return {"bytes": base64.b64decode(body), "path": None}
        return {"bytes": None, "path": source.url}

    def all_stored(self, value: object) -> list[Any] | None:
        """A column's value, one image or several, as a list of stored ones."""
        if isinstance(value, str) and value.startswith("["):
            with contextlib.suppress(strict_json.NotStrict):
                value = strict_json.load(value)
        return (
            None
            if value is None
            else [
                self.stored(image)
                for image in (value if isinstance(value, (list, tuple)) else [value])
            ]
        )


def arrow_out(
    stream: BinaryIO,
    schema: pa.Schema,
    columns: Columns,
    *,
    form: str,
    model: str,
    brief: bool = False,
    folder: str | os.PathLike[str] | None = None,
    kind: type[AnswerTable] | None = None,
) -> contextlib.AbstractContextManager[Write]:
    """A function that writes a row of a `.parquet` or `.arrow` file. `schema` is that of the input.
    The file is whole when the block is left.

    Raises `TableError` for a column or a value that the form does not take, and `OSError` as the
    stream does.
    """
    need("pyarrow", "data", f"a {form} file")
    table = (kind or AnswerTable)(schema, columns, folder, model=model, brief=brief, form=form)
    return _written_to(table, stream)


@contextlib.contextmanager
def _written_to(table: AnswerTable, stream: BinaryIO) -> Iterator[Write]:
    """A function that writes a row of the table, into a file of its form."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any
    if table.form == ".parquet":
        dictionaries: Any = table.dictionaries()  # which is annotated as bool
        writer = pq.ParquetWriter(
            stream, table.schema, compression="zstd", use_dictionary=dictionaries
        )
    else:
        writer = pa.ipc.new_file(stream, table.schema)

    def write_rows() -> None:
        try:
            writer.write_table(table.taken())
        except pa.ArrowException as refusal:
            raise TableError(
                f"a value cannot be written: {str(refusal).splitlines()[0]:.200}"
            ) from None

    def write(table_row: TableRow, name: LineId, slot: Slot[GenerationResult]) -> None:
        if table.add(table_row, name, slot):
            write_rows()

    try:
        yield write
        if table.rows:
            write_rows()
    except BaseException:
        # report what raised, not what follows from it
        with contextlib.suppress(OSError, pa.ArrowException):
            writer.close()
        raise
    writer.close()


class AnswerTable(TableOut):
    """Rows with their answers that become one table of Arrow's, and its schema. Rows without an id
    have their number for one where they are `numbered`.

    form: that of the file which is written, `.parquet` or `.arrow`; empty where none is. Raises
    `TableError` for a column that it cannot hold.
    """

    kind: Any = GenerationResult
    """The record of the rows."""

    def __init__(
        self,
        schema: pa.Schema,
        columns: Columns,
        folder: str | os.PathLike[str] | None,
        *,
        model: str,
        brief: bool,
        numbered: bool = True,
        form: str = "",
    ) -> None:
        import pyarrow as pa

        self.brief = brief
        self.answer_columns = columns_of(self.kind, brief=brief)
        answer = pa.schema([column[:2] for column in self.answer_columns])
        known = {"ok": True, "error": None, "model": model}
        self._values_of = [c.of or partial(known.get, c.name) for c in self.answer_columns]
        if columns.drops_answer:
            answer = answer.append(pa.field(REFERENCES, pa.list_(pa.string())))
        super().__init__(schema.names, columns, folder, answer=answer.names)
        self.model, self.numbered, self.form = model, numbered, form
        self.rows: list[TableRow] = []
        self.ids: list[LineId] = []
        self.answers: list[tuple[object, ...]] = []
        self.bytes = 0.0
        self.input = schema.remove_metadata()
        self._image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        fields = [self._field(field) for field in self.input]
        self._adds_id = numbered and not self.own_id
        fields = [pa.field("id", pa.string()), *fields] if self._adds_id else fields
        self.schema = pa.schema([*fields, *answer])
        self.schema = self.schema.with_metadata(self._metadata(schema))

    def _answer(self, slot: Slot[object]) -> tuple[tuple[Any, ...], int]:
        """The values of the answer's columns, and their bytes, about."""
        if not is_ok(slot):
            failure: dict[str, object] = {"ok": False, "model": self.model}
            failure["error"] = dict(zip(ERROR, error_cells(slot.failure()), strict=True))
            return tuple([failure.get(column.name) for column in self.answer_columns]), 0
        record = slot.unwrap()
        if not isinstance(record, self.kind):
            raise TypeError(
                f"a table of {word_of(self.kind)}s takes slots of them, not of {type(record).__name__}"
            )
        return tuple([of(record) for of in self._values_of]), self._size(record)

    def _size(self, result: Any) -> int:
        size = 2 * len(result.text)
        if self.brief:
            return size
        likeliest = (result.logprobs, result.prompt_logprobs)
        return size + 8 * len(result.token_ids) + sum(map(likeliest_size, likeliest))

    def _field(self, field: pa.Field) -> pa.Field:
        import pyarrow as pa

        name = self.names[field.name]
        if field.name not in self.images:
            metadata = {
                key: value
                for key, value in (field.metadata or {}).items()
                if not key.startswith(b"PARQUET:")
            }
            return pa.field(
                name,
                written_kind(field.name, field.type, self.form) if self.form else field.type,
                metadata=metadata,
            )
        one = self.columns.column_of("images") != field.name and not holds_lists(field)
        return pa.field(name, self._image if one else pa.list_(self._image))

    def _metadata(self, schema: pa.Schema) -> dict[bytes, bytes] | None:
        """What makes `datasets` show the images, and what it knew of the input's columns."""
        import pyarrow as pa

        features: dict[str, object] = {}
        # no JSON, or not of this form
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            input_features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
            features = {
                self.names[name]: feature
                for name, feature in input_features.items()
                if name in self.names
            }
        image = {"_type": "Image"}
        for column in map(self.names.__getitem__, self.images):
            several = pa.types.is_list(self.schema.field(column).type)
            features[column] = {"feature": image, "_type": "List"} if several else image
        if not features:
            return None
        return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}

    def add(self, table_row: TableRow, name: LineId, slot: Slot[object]) -> bool:
        """Keep a row; whether there are enough to be written."""
        values, size = self._answer(slot)
        if self.columns.drops_answer:
            values = (*values, self.columns.references(table_row.values))
        self.rows.append(table_row)
        self.ids.append(name)
        self.answers.append(values)
        if table_row.block is not None:
            self.bytes += table_row.block.bytes_a_row
        else:
            self.bytes += sum(
                len(value) for value in table_row.values.values() if isinstance(value, (str, bytes))
            )
        self.bytes += size
        return len(self.rows) >= GROUP_ROWS or self.bytes >= GROUP_BYTES

    def dictionaries(self) -> list[str]:
        """The columns of Parquet that are written with dictionaries: not those of numbers that
        hardly repeat, of which dictionaries take most of the time.
        """
        import pyarrow.parquet as pq

        pq.ParquetWriter(empty := io.BytesIO(), self.schema).close()
        columns = pq.ParquetFile(empty).schema
        plain = {column.name for column in self.answer_columns if column.array is not None}
        paths = [columns.column(place).path for place in range(len(columns))]
        return [path for path in paths if path.partition(".")[0] not in plain]

    def taken(self) -> pa.Table:
        """The rows as a table; they are let go of."""
        import pyarrow as pa

        columns = [array_of("id", list(map(str, self.ids)), pa.string())] if self._adds_id else []
        columns += self._inputs()
        answer = self.schema.names[len(columns) :]
        arrays = {column.name: column.array for column in self.answer_columns}
        columns += [
            make(values)
            if (make := arrays.get(name)) is not None
            else array_of(name, values, self.schema.field(name).type)
            for name, values in zip(answer, zip(*self.answers, strict=True), strict=True)
        ]
        table = pa.Table.from_arrays(columns, schema=self.schema)
        self.rows, self.ids, self.answers, self.bytes = [], [], [], 0.0
        return table

    def _inputs(self) -> list[pa.ChunkedArray]:
        """The input's columns: those of Arrow as they were read."""
        # rows that were read together
        runs = [
            (block, list(rows)) for block, rows in groupby(self.rows, key=lambda row: row.block)
        ]
        columns = {field.name: self._column(field, runs) for field in self.input}
        if self.own_id and self.numbered:
            columns["id"] = self._named(columns["id"])
        return [*columns.values()]

    def _named(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The input's ids; a row that has none has its number for one, as elsewhere."""
        import pyarrow as pa

        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        text = kind in (pa.string(), pa.large_string(), pa.string_view())
        number = int if pa.types.is_integer(kind) else float
        if not column.null_count or not (text or number is int or pa.types.is_floating(kind)):
            return column
        ids = [
            (str if text else number)(name) if own_id is None else own_id
            for own_id, name in zip(column.to_pylist(), self.ids, strict=True)
        ]
        return pa.chunked_array([array_of("id", ids, column.type)])

    def _column(
        self, field: pa.Field, runs: Sequence[tuple[Block | None, Sequence[TableRow]]]
    ) -> pa.ChunkedArray:
        import pyarrow as pa

        kind = self.schema.field(self.names[field.name]).type
        of_images = field.name in self.images
        chunks: list[pa.Array] = []
        for block, rows in runs:
            if block is None:
                values = [row.values.get(field.name) for row in rows]
                values = values if of_images else _stored(values, field)
            elif field.name not in block.batch.schema.names:
                values = [None] * len(rows)
            else:
                pieces = _pieces(block.batch.column(field.name), [row.index for row in rows])
                if pieces[0].type == kind and not (of_images and any(map(_by_path, pieces))):
                    chunks += pieces
                    continue
                # a cast of Arrow's would lose values: it makes empty lists of some list views
                values = [value for piece in pieces for value in python_values(piece)]
                values = row_values(values, field) if of_images else values
            if of_images:
                values = [self.all_stored(value) for value in values]
                if not pa.types.is_list(kind):
                    values = [_only(field.name, value) for value in values]
            chunks.append(array_of(field.name, values, kind))
        return pa.chunked_array(chunks, type=kind)

    def check(self, blocks: Iterable[Block]) -> None:
        """Raise `TableError` where a value would not be written as it is. The first block is tried,
        and of columns that depend on each value all are.
        """
        carried = [field for field in self.input if field.name not in self.images]
        for block in blocks:
            rows = [TableRow(None, block, index) for index in range(block.batch.num_rows)]
            for field in carried:
                if field.name in block.batch.schema.names and not is_held(
                    self._column(field, [(block, rows)]), self.form
                ):
                    raise TableError(
                        f"the column {field.name!r} holds {field.type}, and a {self.form} file"
                        f" would not hold its values as they are: {OTHERWISE}"
                    )
            carried = [field for field in carried if depends_on_values(field.type, self.form)]
            if not carried:
                return


def _pieces(column: pa.Array, indexes: Sequence[int]) -> list[pa.Array]:
    """The values at these places, as slices: not every type of Arrow's can be gathered in another
    way.
    """
    # in places that follow each other, index and place differ by the same
    runs = groupby(enumerate(indexes), key=lambda item: item[1] - item[0])
    slices = [[index for _, index in run] for _, run in runs]
    return [column.slice(run[0], len(run)) for run in slices]


def _only(column: str, images: list[object] | None) -> Any:
    """The image of a row; None where it has none."""
    if images and len(images) > 1:
        raise TableError(
            f"the column {column!r} is one of single images, and a row holds {len(images)}: --map"
            f" images={column} makes it one of several"
        )
    return images[0] if images else None


def _by_path(images: Any) -> bool:
    """Whether some of a column's stored images have no bytes: their paths may be relative ones."""
    import pyarrow as pa

    return bool(
        (images.flatten() if pa.types.is_list(images.type) else images).field("bytes").null_count
    )


def _stored(values: list[Any], field: pa.Field) -> list[object]:
    try:
        return stored_values(values, field)
    except (ArithmeticError, TypeError, ValueError) as refusal:  # of what is no number or no list
        raise TableError(
            f"the column {field.name!r} holds {field.type}, and a value does not fit: {refusal};"
            " give the column another type (schema=)"
        ) from None


def array_of(name: str, values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Python's values as a column of this type. Raises `TableError`, which names the column, where
    one does not fit, or the type takes none.
    """
    import pyarrow as pa

    if pa.types.is_string(kind) and not all(
        value is None or type(value) is str for value in values
    ):
        values = [
            value if value is None or isinstance(value, str) else _as_text(value)
            for value in values
        ]
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # half of a character
        return array_of(name, _whole(values), kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as refusal:
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            return _cast(values, kind)
        raise TableError(
            f"the column {name!r} holds {kind}, and a value does not fit:"
            f" {str(refusal).splitlines()[0]:.200}"
        ) from None


def _whole(value: object) -> Any:
    """The value with ? for each half of a character."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_whole(name): _whole(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        # an entry of a map is a tuple
        return (tuple if isinstance(value, tuple) else list)(map(_whole, value))
    return value


def _cast(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Values in a type that is made of another one. Raises as Arrow does."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values).cast(kind.storage_type))
    if (stored := without_extensions(kind)) != kind:
        return pa.array(values, stored).cast(kind)
    raise TypeError(f"{kind} is made of no other type")


def _as_text(value: object) -> str:
    """A value as CSV has it: text as it is, and anything else as JSON."""
    plain = thaw(value, readable)
    return plain if isinstance(plain, str) else strict_json.dump(plain)


class _Lines:
    """Lines of a CSV writer, which end with a line feed. The writer's own end of a line has both
    characters that readers take for one: so it quotes a value that holds either.
    """

    end = "\r\n"

    def __init__(self, text_file: io.TextIOBase) -> None:
        self._file = text_file

    def write(self, text: str) -> int:
        return self._file.write(text.removesuffix(self.end) + "\n")


@contextlib.contextmanager
def csv_out(
    stream: BinaryIO,
    names: Sequence[str],
    columns: Columns,
    folder: str | os.PathLike[str] | None = None,
    *,
    delimiter: str = ",",
) -> Iterator[Write]:
    """As `arrow_out`, for CSV, or TSV by its delimiter, with `CSV_COLUMNS` alone of the answer. Nested
    values are JSON text, an image is its path, and of several samples the first counts.
    """
    dropped = (REFERENCES,) if columns.drops_answer else ()
    answer = (*CSV_COLUMNS, *dropped)
    table = TableOut(names, columns, folder, answer=answer)
    text = io.TextIOWrapper(
        stream, encoding="utf-8", errors="replace", newline="", write_through=True
    )
    lines = csv.writer(_Lines(text), delimiter=delimiter, lineterminator=_Lines.end)
    lines.writerow([*(() if table.own_id else ("id",)), *table.names.values(), *answer])

    def cell(column: str, value: object) -> object:
        if column in table.images:
            paths = [image and image["path"] for image in table.all_stored(value) or ()]
            value = paths if len(paths) > 1 else paths[0] if paths else None
        if isinstance(value, (list, tuple, Mapping)):
            return _as_text(value)
        return (
            str(value).lower()
            if isinstance(value, bool)
            else None
            if value is None
            else readable(value)
        )

    def write(table_row: TableRow, name: LineId, slot: Slot[GenerationResult]) -> None:
        cells = [cell(column, table_row.values.get(column)) for column in table.names]
        if table.own_id and table_row.values.get("id") is None:
            cells[list(table.names).index("id")] = name
        references = [cell("", columns.references(table_row.values)) for _ in dropped]
        lines.writerow([*(() if table.own_id else (name,)), *cells, *flat_cells(slot), *references])

    try:
        yield write
    finally:
        text.detach()
