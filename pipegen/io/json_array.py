"""Requests in JSON files: the lines of JSON Lines, or the items of an array, one at a time,
whatever the length of the file.

>>> import io
>>> [line.data for line in items_of(io.BytesIO(b'[{"a": "],"}, [1, 2],\\n{}]'))]
[b'{"a": "],"}', b'[1, 2]', b'{}']
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import BinaryIO

from pipegen.core.slots import is_ok
from pipegen.io.forms import TableError, form_of, open_bytes
from pipegen.io.jsonl import MAX_LINE_BYTES, Line, lines_of, values_of_line

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
        first = next(lines_of(stream), None)
    if first is None or (first.data or b"").lstrip(_SPACE).startswith(b"["):
        return first is not None
    if first.data is None:  # a line that is too long is a row that fails
        return False
    if not is_ok(values_of_line(first)):
        raise TableError(
            f'{path} is neither a JSON array, such as [{{"prompt": "Hi"}}, ...], nor JSON Lines,'
            " with an object on each line"
        )
    return False


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
