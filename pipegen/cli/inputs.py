"""Read requests one at a time: from the lines of a file, the rows of a table, or the images of a
folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from returns.result import Failure, Success

from pipegen.config.chat_file import with_system_message
from pipegen.core.errors import InvalidRequest
from pipegen.core.foreign_calls import guard_result
from pipegen.core.slots import Slot
from pipegen.io.arrow_values import python_rows
from pipegen.io.jsonl import (
    MAX_LINE_BYTES,
    Line,
    LineId,
    lines_of,
    request_from_row,
    values_of_line,
)
from pipegen.io.openai_batch import CHAT, endpoint_of, is_batch, request_from_batch
from pipegen.io.tables import Block, Columns, Table, TableRow
from pipegen.io.text_tables import csv_cells, csv_values
from pipegen.jobs.job_rows import UnreadRequest
from pipegen.media.folder import images_in
from pipegen.records.frozen import plain_id
from pipegen.records.messages import ImagePart, ImageSource, Message, TextPart
from pipegen.records.parse_request import unreadable
from pipegen.records.request_forms import without_final_answer
from pipegen.records.requests import GenerationRequest, VlmGenerationRequest


class Origin:
    """Where a request comes from, and so where its answer goes."""

    __slots__ = ("batch", "id", "read", "row", "sidecar")

    def __init__(
        self,
        id: LineId,
        read: int,
        sidecar: Path | None = None,
        batch: str | None = None,
        row: TableRow = TableRow(),  # noqa: B008 - it holds nothing
    ) -> None:
        self.id = id
        self.read = read
        """How much of the input is read with this request: bytes, or images."""
        self.sidecar = sidecar
        self.batch = batch
        """The endpoint that a line of a batch file names; the answer has that form too."""
        self.row = row
        """The row of the input as it was read."""


class Item(NamedTuple):
    """A request and its origin, which is its key in a run."""

    origin: Origin
    slot: Slot[GenerationRequest]


def from_lines(lines: Iterable[Line], columns: Columns) -> Iterator[Item]:
    """The requests of JSON Lines or of a JSON array, in pipegen's format or that of OpenAI batch
    files.
    """
    for line in lines:
        unread = Origin(str(line.number), line.end)
        yield _guarded(partial(_from_line, line, columns), f"{line.what} {line.number}", unread)


def _guarded(make: Callable[[], Slot[Item]], where: str, unread: Origin) -> Item:
    """The item, or one that failed, also with what foreign data made raise."""
    slot = guard_result(make, partial(unreadable, where))
    return slot.lash(lambda error: Success(Item(unread, Failure(error)))).unwrap()


class UnreadLine(Origin, UnreadRequest):
    """A line that is its own request and origin, and is parsed only where that is needed.

    If a job has recognised its bytes, its request is read no more; its id and its values are, where
    they are written.
    """

    __slots__ = ("_columns", "_line", "_system", "data")

    def __init__(self, line: Line, columns: Columns, system: str | None) -> None:
        self.read, self.sidecar = line.end, None
        self.data = None if line.data is None else line.data.strip(b" \t\r\n")
        self._line, self._columns, self._system = line, columns, system

    def __getattr__(self, name: str) -> Any:
        """What was not set yet: `id`, `batch` or `row`."""
        if name not in ("batch", "id", "row"):
            raise AttributeError(name)
        values = json.loads(self.data or b"")  # it was read strictly before
        if is_batch(values):
            self.request()
        else:
            row_id = plain_id(self._columns.request(values).get("id"))
            self.id = str(self._line.number) if row_id is None else row_id
            self.batch, self.row = None, TableRow(values)
        return getattr(self, name)

    def request(self) -> Slot[GenerationRequest]:
        """The request, and with it the line's id and values."""
        (item,) = with_system(from_lines([self._line], self._columns), self._system)
        self.id, self.batch, self.row = item.origin.id, item.origin.batch, item.origin.row
        return item.slot


def reading_of(columns: Columns, system: str | None) -> str:
    """How lines are read: what their requests depend on besides them."""
    drops = ["drops the answer"] if columns.drops_answer else []
    return repr([sorted(columns.fields.items()), sorted(columns.kept), system, *drops])


def unread_lines(
    lines: Iterable[Line], columns: Columns, system: str | None
) -> Iterator[tuple[UnreadLine, UnreadLine]]:
    """The lines of such a file, each as its own origin and request."""
    for line in lines:
        unread = UnreadLine(line, columns, system)
        yield unread, unread


def _from_line(line: Line, columns: Columns) -> Slot[Item]:
    return values_of_line(line).map(partial(_item_of, line, columns))


def _item_of(line: Line, columns: Columns, values: dict[str, Any]) -> Item:
    if is_batch(values):
        asked = values
        if columns.drops_answer and isinstance(values["body"], Mapping):
            messages = {"messages": values["body"].get("messages")}
            body = {**values["body"], "messages": without_final_answer(messages)["messages"]}
            asked = {**values, "body": body}
        slot = request_from_batch(asked, f"{line.what} {line.number}")
        name = (
            values["custom_id"]
            if isinstance(values["custom_id"], str) and values["custom_id"]
            else str(line.number)
        )
        url = endpoint_of(values) or CHAT
        return Item(Origin(name, line.end, batch=url, row=TableRow(values)), slot)
    return _from_values(
        columns.request(values), line.number, line.what, Origin("", line.end, row=TableRow(values))
    )


def _from_values(values: Mapping[str, object], number: int, what: str, origin: Origin) -> Item:
    origin.id, slot = request_from_row(values, number, what)
    return Item(origin, slot)


class UnreadRow(Origin, UnreadRequest):
    """A row of plain values that is its own request and origin, as an `UnreadLine` is.

    values: those that the request is made of; or, in words, why they cannot be read.
    block, index: where the row is in a table of Arrow's.
    """

    __slots__ = ("_block", "_index", "_number", "_of", "_values", "data")

    sidecar = batch = None

    def __init__(
        self,
        number: int,
        read: int,
        values: dict[str, Any] | str,
        of: ReadSettings,
        block: Block | None = None,
        index: int = 0,
    ) -> None:
        self.read, self._number, self._values, self._of = read, number, values, of
        self._block, self._index = block, index
        self.data: Any = values
        if isinstance(values, str) or (of.images and of.has_images(values)):
            self.data = None

    def __getattr__(self, name: str) -> Any:
        """What was not set yet: `id` or `row`."""
        if name not in ("id", "row"):
            raise AttributeError(name)
        values: dict[str, Any] = {} if isinstance(self._values, str) else self._values
        if name == "row":
            self.row = TableRow(values if self._block is None else None, self._block, self._index)
        else:
            row_id = plain_id(self._of.columns.request(values).get("id"))
            self.id = str(self._number) if row_id is None else row_id
        return getattr(self, name)

    def request(self) -> Slot[GenerationRequest]:
        """The request, and with it the row's id."""
        what = self._of.what
        self.id, where = str(self._number), f"{what} {self._number}"
        values = self._values
        if isinstance(values, str):
            return Failure(InvalidRequest(f"{where}: {values}"))

        def make_item() -> Slot[Item]:
            fields = self._of.columns.request(values)
            return Success(_from_values(fields, self._number, what, self))

        (item,) = with_system(iter([_guarded(make_item, where, self)]), self._of.system)
        return item.slot


class UnreadCells(UnreadRow):
    """A row of CSV: its cells are what its request depends on, and become values only where that is
    needed.
    """

    __slots__ = ("_cells",)

    def __init__(self, number: int, cells: list[str], of: ReadSettings) -> None:
        self.read = self._number = number
        self._of, self._block, self._index, self._cells = of, None, 0, cells
        self.data = cells
        if of.images or len(cells) > len(of.names):
            values = self._values
            self.data = None if isinstance(values, str) or of.has_images(values) else cells

    def __getattr__(self, name: str) -> Any:
        if name != "_values":
            return super().__getattr__(name)
        self._values = csv_values(self._of.names, self._cells)
        return self._values


class ReadSettings(NamedTuple):
    """How rows are read: what their requests depend on besides them."""

    columns: Columns
    system: str | None
    what: str
    """What messages call a row."""
    names: tuple[str, ...] = ()
    """The columns of the rows."""
    images: tuple[str, ...] = ()
    """Columns of images: rows that have some are read, since their keys depend on the bytes."""

    @classmethod
    def of(cls, columns: Columns, system: str | None, names: Sequence[str]) -> ReadSettings:
        """That of rows with these columns."""
        images = {columns.column_of(field) for field in ("image", "images")}
        image_columns = tuple([name for name in names if name in images])
        return cls(columns, system, "row", tuple(names), image_columns)

    def has_images(self, values: Mapping[str, object]) -> bool:
        """Whether a row has images in a column of their own."""
        return any(values.get(name) is not None for name in self.images)


Unreads: TypeAlias = Iterator[tuple[UnreadRow, UnreadRow]]


def table_rows(table: Table, reading: ReadSettings) -> Unreads:
    """The rows of a table of Arrow's. Only the columns that fields are read from become Python
    values.
    """
    number = 0
    columns = reading.columns.reads(table.schema.names)
    for block in table.blocks():
        names = [name for name in columns if name in block.batch.schema.names]
        for index, values in enumerate(python_rows(block.batch.select(names), asked=True)):
            number += 1
            row = UnreadRow(number, number, values, reading, block, index)
            yield row, row


def csv_file_rows(path: str, reading: ReadSettings) -> Unreads:
    """The rows of a CSV or TSV file."""
    lines = csv_cells(path)
    next(lines)  # the header
    for number, cells in enumerate(lines, 1):
        row = UnreadCells(number, cells, reading)
        yield row, row


def text_rows(stream: BinaryIO, columns: Columns, system: str | None) -> Unreads:
    """The lines of a text file that are not blank: each is a row with a prompt alone."""
    reading = ReadSettings(columns, system, "line")
    for line in lines_of(stream):
        try:
            values: Any = (
                f"longer than {MAX_LINE_BYTES} bytes"
                if line.data is None
                else {"prompt": line.data.decode().rstrip("\r\n")}
            )
        except UnicodeDecodeError as refusal:
            values = f"not UTF-8: {refusal.reason}"
        row = UnreadRow(line.number, line.end, values, reading)
        yield row, row


def items_of(rows: Iterable[tuple[UnreadRow, UnreadRow]]) -> Iterator[Item]:
    """The rows as requests."""
    return (Item(row, row.request()) for row, _ in rows)


def one_question(prompt: str, images: Sequence[str]) -> Iterator[Item]:
    """One question to the model, with images or without, as a user's turn. Its row asks the same:
    a `prompt` is a user's turn with images alone.
    """
    content: Any = (
        [*({"type": "image", "image": image} for image in images), {"type": "text", "text": prompt}]
        if images
        else prompt
    )
    messages = {"messages": [{"role": "user", "content": content}]}
    _, slot = request_from_row(messages, 1, "request")
    row = TableRow({"prompt": prompt, "images": list(images)} if images else messages)
    yield Item(Origin("1", 1, row=row), slot)


def with_system(items: Iterator[Item], system: str | None) -> Iterator[Item]:
    """The items with a system message first in each request, unless it has one.

    >>> hi = Item(
    ...     Origin("1", 0), Success(GenerationRequest(messages=[{"role": "user", "content": "Hi"}]))
    ... )
    >>> next(with_system(iter([hi]), "Be brief.")).slot.unwrap().messages[0].content
    'Be brief.'
    """
    return (
        items
        if system is None
        else (
            item._replace(slot=item.slot.bind(partial(with_system_message, system)))
            for item in items
        )
    )


def from_folder(folder: Path, prompt: str, sidecar: str | None, overwrite: bool) -> Iterator[Item]:
    """One request for each image of a folder, with the image's path within the folder as its id.

    An image whose sidecar exists already, or belongs to an image before it, fails.
    """
    folder_sidecars: tuple[Path, dict[Path, Path]] = (folder, {})
    for number, image in enumerate(images_in(folder), 1):
        beside = None if sidecar is None else image.with_suffix(f".{sidecar}")
        request: Slot[GenerationRequest] = Success(_request(folder, image, prompt))
        if beside is not None:
            if folder_sidecars[0] != image.parent:
                folder_sidecars = (image.parent, {})
            first_image = folder_sidecars[1].setdefault(beside, image)
            if first_image != image:
                request = Failure(
                    InvalidRequest(
                        f"{beside.name} is the sidecar of {first_image.name} already",
                        hint="give the images different names",
                    )
                )
            elif not overwrite and (exists := sidecar_exists(beside)) is not None:
                request = Failure(exists)
        yield Item(
            Origin(
                image.relative_to(folder).as_posix(),
                number,
                beside,
                row=TableRow({"image": os.path.abspath(image)}),
            ),
            request,
        )


def sidecar_exists(file: Path | None) -> InvalidRequest | None:
    """Why a sidecar is not written, where there is one already."""
    if file is None or not os.path.lexists(file):
        return None
    return InvalidRequest(f"the sidecar {file.name} exists already", hint="--overwrite replaces it")


def _request(folder: Path, image: Path, prompt: str) -> GenerationRequest:
    question = Message(
        role="user",
        content=(ImagePart(source=ImageSource(path=os.path.abspath(image))), TextPart(text=prompt)),
    )
    return VlmGenerationRequest(id=image.relative_to(folder).as_posix(), messages=(question,))
