"""Rows of text files, one at a time: CSV, TSV, JSON Lines and JSON arrays. Their columns say no
types: these are found.

>>> import tempfile
>>> file = tempfile.NamedTemporaryFile(suffix=".csv")
>>> _ = file.write(b"id,prompt\\n7,Hi\\n8,\\n"), file.flush()
>>> [*csv_cells(file.name)]
[['id', 'prompt'], ['7', 'Hi'], ['8', '']]
>>> [line.data for line in items_of(io.BytesIO(b'[{"a": "],"}, [1, 2],\\n{}]'))]
[b'{"a": "],"}', b'[1, 2]', b'{}']
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from pipegen.core.distribution import need
from pipegen.core.slots import is_ok
from pipegen.io.arrow_values import LISTS_AS_TEXT
from pipegen.io.forms import TableError, form_of, open_bytes
from pipegen.io.jsonl import MAX_LINE_BYTES, Line, lines_of, values_of_line

if TYPE_CHECKING:
    import pyarrow as pa


_SPACE = b" \t\r\n"
_MARK = re.compile(rb'["\[\]{},]')
_STRING_MARK = re.compile(rb'["\\]')
_PIECE = 2**16


def records_of(path: str | os.PathLike[str], stream: BinaryIO) -> Iterator[Line]:
    """The lines of a file that `open_bytes` opened, or the items of its array. Raises `TableError`
    where an array is cut off.
    """
    return items_of(stream, name=str(path)) if is_array(path) else lines_of(stream)


def is_array(path: str | os.PathLike[str]) -> bool:
    """Whether the file is a JSON array, by its suffix and its first character. Raises `TableError`
    for a .json file that is neither that nor JSON Lines.
    """
    if form_of(path).kind != "json" or not os.path.isfile(path):
        return False
    with open_bytes(path) as stream:
        if _begins_array(stream):
            return True
    with open_bytes(path) as stream:
        first = next(lines_of(stream), None)
    # a line that is too long is a row that fails
    if first is not None and first.data is not None and not is_ok(values_of_line(first)):
        raise TableError(
            f'{path} is neither a JSON array, such as [{{"prompt": "Hi"}}, ...], nor JSON Lines,'
            " with an object on each line"
        )
    return False


def _begins_array(stream: BinaryIO) -> bool:
    """Whether the first character is a bracket, however long its line is."""
    head = stream.read(_PIECE).removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
    while not head and (piece := stream.read(_PIECE)):
        head = piece.lstrip(_SPACE)
    return head.startswith(b"[")


def items_of(
    stream: BinaryIO, limit: int = MAX_LINE_BYTES, name: str = "the file"
) -> Iterator[Line]:
    """The items of a JSON array, as they are written: whether each is JSON is not looked at. Items
    longer than `limit` bytes are not kept in memory.

    Raises `TableError` where the array does not end, or something comes after it.
    """
    pieces: list[bytes] = []
    number = size = 0
    ended = False
    end = _skip_bracket(stream)
    for text, mark in _cut(stream):
        end += len(text) + len(mark)
        if ended and (mark or text.strip(_SPACE)):
            raise TableError(f"{name} has something after the end of its array")
        size += len(text)
        pieces.append(text)
        if size > limit:
            pieces.clear()
        if not mark:
            continue
        data = b"".join(pieces).strip(_SPACE)
        if data or size > limit or number or mark == b",":  # an empty array has no item
            number += 1
            yield Line(number, None if size > limit else data, end, "item")
        pieces.clear()
        size, ended = 0, mark == b"]"
    if not ended:
        raise TableError(f"{name} is cut off: its array has no ] at the end")


def _skip_bracket(stream: BinaryIO) -> int:
    """Read up to the bracket that begins the array; how many bytes that were."""
    count = 1
    while (byte := stream.read(1)) != b"[" and byte:
        count += 1
    return count


def _cut(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """The text of an array behind its bracket, in pieces; with each the mark that ends its item, a
    comma or a bracket, or nothing where the item goes on.
    """
    depth, quoted, escaped = 0, False, False
    while piece := stream.read(_PIECE):
        start = position = 0
        while position < len(piece):
            if escaped:
                position, escaped = position + 1, False
                continue
            match = (_STRING_MARK if quoted else _MARK).search(piece, position)
            if match is None:
                break
            position, mark = match.end(), match[0]
            if mark == b'"':
                quoted = not quoted
            elif mark == b"\\":
                escaped = True
            elif mark in b"[{":
                depth += 1
            elif depth:
                depth -= mark != b","
            elif mark != b"}":
                yield piece[start : match.start()], mark
                start = position
        yield piece[start:], b""


_LONGEST_CELL = 256 * 2**20
_INT64 = 2**63
_EXACT = 2**53
"""The largest whole number up to which a double holds all."""


def csv_values(header: Sequence[str], cells: list[str]) -> dict[str, object] | str:
    """The values of a row by its cells; what is wrong where there are too many.

    >>> csv_values(["id", "prompt"], ["7"]), csv_values(["id"], ["7", "Hi"])
    ({'id': '7', 'prompt': None}, 'it has 2 cells, and the header has 1')
    """
    if len(cells) > len(header):
        return f"it has {len(cells)} cells, and the header has {len(header)}"
    padded = cells + [""] * (len(header) - len(cells))
    return dict(zip(header, [cell or None for cell in padded], strict=True))


def csv_count(path: str | os.PathLike[str]) -> int:
    """How many rows there are. Raises `TableError` where the file is no CSV."""
    return sum(1 for _ in csv_cells(path)) - 1


def csv_header(path: str | os.PathLike[str]) -> list[str]:
    """The names of the columns. Raises `TableError` where the file is no CSV."""
    return next(csv_cells(path))


def csv_cells(path: str | os.PathLike[str]) -> Iterator[list[str]]:
    """The header and the other lines that are not blank, as cells. Raises `TableError` where the
    file is no CSV.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    tabs = form_of(path).kind == "tsv"
    try:
        with (
            open_bytes(path) as packed,
            io.TextIOWrapper(packed, newline="", encoding="utf-8") as stream,
        ):
            first = next(stream, "").removeprefix("\ufeff")  # faster than to let utf-8-sig look
            text = chain([first], stream)
            reader = csv.reader(text, delimiter="\t" if tabs else ",", strict=True)
            lines = _told(reader, path)
            header = next(lines, [])
            twice = next((name for name in header if header.count(name) > 1), None)
            if not header or twice is not None:
                raise TableError(
                    f"{path} has " + ("no header" if twice is None else f"two columns {twice!r}")
                )
            yield header
            yield from filter(None, lines)
    except UnicodeDecodeError as refusal:
        raise TableError(f"{path} is no {'TSV' if tabs else 'CSV'} in UTF-8: {refusal}") from None


def _told(reader: Any, path: str | os.PathLike[str]) -> Iterator[list[str]]:
    """The lines of a CSV reader. Raises `TableError` for one that is none, with its number: a quote
    that is not closed would take the rows behind it along.
    """
    try:
        yield from reader
    except csv.Error as refusal:
        advice = (
            "a cell that begins with a quote ends with one, and a quote within it is written twice"
        )
        raise TableError(f"{path}, up to line {reader.line_num}: {refusal}; {advice}") from None


def line_values(path: str | os.PathLike[str]) -> Iterator[dict[str, object]]:
    """The objects of a file of JSON Lines, or of a JSON array; none for a line that holds another
    thing.
    """
    with open_bytes(path) as stream:
        for line in records_of(path, stream):
            yield values_of_line(line).value_or({})


def column_kinds(rows: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """What the columns of rows hold that say no types: bool, int64, double, string or lists. What
    is nested, mixed or too large is JSON text, a string too; so are lists, among other values too.

    >>> column_kinds([{"a": 1, "b": True, "c": [1]}, {"a": 2.5, "b": None, "d": "x"}])
    {'a': 'double', 'b': 'bool', 'c': 'lists', 'd': 'string'}
    """
    kinds: dict[str, set[type | str]] = {}
    for row in rows:
        for name, value in row.items():
            value_kinds = kinds.setdefault(str(name), set())
            if value is not None:
                value_kinds.add(_kind_of(value))
    return {
        name: _KINDS.get(frozenset(value_kinds), "lists" if list in value_kinds else "string")
        for name, value_kinds in kinds.items()
    }


def _kind_of(value: object) -> type | str:
    """The type of a value; of a whole number also whether a double holds it."""
    if type(value) is not int or -_EXACT <= value <= _EXACT:
        return type(value)
    return "long" if -_INT64 <= value < _INT64 else str


_KINDS: Mapping[frozenset[type | str], str] = {
    frozenset({bool}): "bool",
    **dict.fromkeys((frozenset({int}), frozenset({"long"}), frozenset({int, "long"})), "int64"),
    **dict.fromkeys((frozenset({float}), frozenset({int, float})), "double"),
}


def schema_of_kinds(kinds: Mapping[str, str]) -> pa.Schema:
    """The schema of such columns."""
    need("pyarrow", "data", "a Parquet file")
    import pyarrow as pa

    types = {"bool": pa.bool_(), "int64": pa.int64(), "double": pa.float64()}
    return pa.schema(
        [
            pa.field(
                name,
                types.get(kind, pa.string()),
                metadata={LISTS_AS_TEXT: b""} if kind == "lists" else None,
            )
            for name, kind in kinds.items()
        ]
    )
