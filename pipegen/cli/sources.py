"""What IN is: a file of lines, a table, a text file, a folder, one question or stdin, each as
requests one at a time.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, TypeVar

from pipegen.cli.inputs import (
    Item,
    ReadSettings,
    UnreadLine,
    UnreadRow,
    csv_file_rows,
    from_folder,
    from_lines,
    items_of,
    one_question,
    reading_of,
    table_rows,
    text_rows,
    unread_lines,
    with_system,
)
from pipegen.cli.plugins import plugins_of
from pipegen.cli.run_flags import AskedFlags, InputFlags
from pipegen.cli.usage import Load, images_of, policy_of, reading, refuse, run_options
from pipegen.core.names import nearest
from pipegen.drivers.arguments import Admission
from pipegen.io.forms import TableError, form_of, open_bytes, refuse_address
from pipegen.io.jsonl import lines_of
from pipegen.io.tables import TARGETS, USER, Columns, Table, is_table, read_table
from pipegen.io.text_tables import (
    column_kinds,
    csv_count,
    csv_header,
    is_array,
    line_values,
    records_of,
    schema_of_kinds,
)
from pipegen.jobs.key_map import rows_in
from pipegen.media.folder import SUFFIXES, images_in
from pipegen.plugins import Plugin
from pipegen.records.option_records import GenerationOptions
from pipegen.records.requests import ImagePolicy, RequestPolicy

if TYPE_CHECKING:
    import pyarrow as pa


class Question(NamedTuple):
    """What is asked beside IN: of each image of a folder, or alone."""

    prompt: str | None = None
    system: str | None = None
    images: tuple[str, ...] = ()
    sidecar: str | None = None
    overwrite: bool = False
    """Whether sidecars are replaced."""


class RunSettings(NamedTuple):
    """What is asked, and of which model, as flags set it."""

    load: Load
    question: Question = Question()
    options: GenerationOptions | None = None
    images: ImagePolicy = ImagePolicy()
    policy: RequestPolicy = RequestPolicy()
    columns: Columns = Columns()
    """The columns that fields of requests are read from, where their names differ."""
    plugins: tuple[Plugin, ...] = ()
    """Attached to the engine, in this order."""

    @property
    def admission(self) -> Admission:
        return Admission(self.options, self.images, self.policy)


F = TypeVar("F", bound=AskedFlags)


def of_image(flags: F) -> F:
    """The flags, with an image as IN in the place of `--image`."""
    source = flags.source
    if source is None or Path(source).suffix.lower() not in SUFFIXES or not os.path.isfile(source):
        return flags
    if flags.prompt is None:
        refuse(f"{source} is an image: say what to ask of it", "--prompt")
    return replace(flags, source=None, image=[source, *(flags.image or ())])


def asked_of(flags: AskedFlags, load: Load, options: dict[str, object]) -> RunSettings:
    """What the flags set; of the options those that are flags."""
    return RunSettings(
        load,
        Question(
            flags.prompt,
            load.system if flags.system is None else flags.system,
            tuple(flags.image or ()),
        ),
        run_options(options, flags.options_file, load),
        images_in_source(flags, flags.source),
        policy_of(flags.limit or ()),
        columns_of(flags),
        plugins_of(flags.plugin or ()),
    )


Unread: TypeAlias = Iterator[tuple[UnreadLine, UnreadLine]] | Iterator[tuple[UnreadRow, UnreadRow]]
"""Rows that are not read as requests yet."""


class Source(NamedTuple):
    """An input that is open."""

    items: Iterator[Item]
    columns: Columns
    kinds: Callable[[], dict[str, str]]
    """The columns of the input and what they hold, where a file does not say it: the input is read
    once for it.
    """
    total: Callable[[], int | None] = lambda: None
    """How much there is to read, in the units of `Origin.read`: None where unknown."""
    rows: Callable[[], int | None] = lambda: None
    """How many requests there are: None where unknown. The input may be read once for it."""
    folder: Path | None = None
    """Where relative paths of images start."""
    table: Table | None = None
    unread: Callable[[], Unread] | None = None
    """Gives the input from its start, as rows that are not read as requests yet; None for an input
    that has none, or that may be read once only.
    """
    reading: str = ""
    """How rows are read: what requests depend on besides them."""
    stamp: str = ""
    """What tells whether the input is as it was, for a file."""

    def names(self) -> list[str]:
        """The columns of the input."""
        return list(self.table.schema.names) if self.table is not None else list(self.kinds())

    def schema(self) -> pa.Schema:
        """The columns of the input with their types."""
        return self.table.schema if self.table is not None else schema_of_kinds(self.kinds())


def images_in_source(flags: InputFlags, source: str | None) -> ImagePolicy:
    """The policy that the flags set for the images of IN."""
    images = images_of(flags.image_root, flags.allow_http, flags.allow_host or ())
    return within(images, source, flags.prompt)


def columns_of(flags: InputFlags) -> Columns:
    """The columns of `--map user=question,id=uid`; `metadata=seed` carries a column along that has
    another's name.
    """
    fields: dict[str, str] = {}
    metadata_columns: set[str] = set()
    for entry in (part for text in flags.columns or () for part in text.split(",")):
        field, equals, column = entry.partition("=")
        if not (field and equals and column):
            refuse(f"takes FIELD=COLUMN, such as user=question, not {entry!r}", "--map")
        if field not in TARGETS:
            refuse(
                f"{field!r} is no field of a request{nearest(field, TARGETS)}; one of"
                f" {', '.join(TARGETS)}",
                "--map",
            )
        if field in fields:
            refuse(f"says two columns for {field}", "--map")
        if field == "metadata":
            metadata_columns.add(column)
        else:
            fields[field] = column
    if USER in fields and (other_fields := fields.keys() & {"messages", "prompt"}):
        refuse(f"takes user or {min(other_fields)}, not both: each says what is asked", "--map")
    return Columns(fields, frozenset(metadata_columns), flags.drop_final_answer)


def open_source(
    source: str | None,
    question: Question,
    images: ImagePolicy,
    columns: Columns,
    stack: contextlib.ExitStack,
    flag: str = "IN",
    folder: Path | None = None,
) -> Source:
    """Open an input: a wrong one is bad usage, of that flag.

    folder: that of a job which may have read it before.
    """
    with reading(source, flag):
        stamp = None if source is None or not os.path.isfile(source) else stamp_of(source)
        row_count = None if stamp is None or folder is None else rows_in(folder, stamp)
        opened = _opened(source, question, images, columns, stack, row_count)
        opened = opened._replace(stamp=stamp or "")
    return opened._replace(items=with_system(opened.items, question.system))


def stamp_of(path: str | os.PathLike[str]) -> str:
    """A text that changes when a file changes: its size and the time of its last change. Raises
    `OSError`.
    """
    status = os.stat(path)
    return f"{status.st_size} {status.st_mtime_ns}"


def refuse_missing(source: str) -> NoReturn:
    """Refuse an input that is not there, or is an address."""
    with reading(source, "IN"):
        refuse_address(source)
    path = Path(source)
    beside = os.listdir(path.absolute().parent) if path.absolute().parent.is_dir() else []
    refuse(f"there is no file or folder {source}{nearest(path.name, beside)}", "IN")


def within(images: ImagePolicy, source: str | None, prompt: str | None = None) -> ImagePolicy:
    """The policy for images that are named in IN. Where no root is set, only files below its folder
    are read; of stdin or a pipe, below the working directory.

    Images that a flag names, and those of a folder of images, may be anywhere.
    """
    if images.root is not None or source is None or is_image_folder(source, prompt):
        return images
    pipe = source == "-" or (
        os.path.exists(source) and not os.path.isdir(source) and not os.path.isfile(source)
    )
    path = os.path.abspath("." if pipe else source)
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    # where it does not exist, IN cannot be read, and names no images
    return replace(images, root=folder) if os.path.isdir(folder) else images


def is_image_folder(source: str, prompt: str | None) -> bool:
    """Whether IN is a folder of images, each of which is asked the prompt; without a prompt, a
    folder that holds tables is none.
    """
    return os.path.isdir(source) and (prompt is not None or not is_table(source))


def _opened(
    source: str | None,
    question: Question,
    images: ImagePolicy,
    columns: Columns,
    stack: contextlib.ExitStack,
    read: int | None,
) -> Source:
    """The input; `read` is how many rows it has, where it was read to its end before."""
    image_folder = Path(os.path.abspath(images.root or "."))
    if source is None:
        names = ("prompt", "images") if question.images else ("messages",)
        kinds: dict[str, str] = dict.fromkeys(names, "string")
        return Source(
            one_question(question.prompt or "", question.images),
            columns,
            lambda: kinds,
            lambda: 1,
            lambda: 1,
            image_folder,
        )
    if source == "-":
        return Source(
            _requiring(from_lines(lines_of(sys.stdin.buffer), columns), columns, Path("stdin")),
            columns,
            partial(refuse, "a table as OUT takes a file as IN", "--out"),
        )
    refuse_address(source)
    path = Path(source)
    if is_image_folder(source, question.prompt):
        return _of_folder(path, question, columns)
    if is_table(path):
        table = read_table(path)
        columns.check(table.schema.names, path)
        rows = partial(
            table_rows, table, ReadSettings.of(columns, question.system, table.schema.names)
        )
        count = lambda: table.count  # noqa: E731
        reading = reading_of(columns, question.system)
        return _of_rows(rows, columns, reading, dict, count, count, image_folder, table)
    if form_of(path).kind in ("csv", "tsv"):
        return _of_csv(source, question, columns, image_folder, read)
    return _of_lines(path, question, columns, image_folder, stack, read)


def _of_folder(path: Path, question: Question, columns: Columns) -> Source:
    if next(images_in(path), None) is None:
        tables = "" if is_table(path) else " and no tables (.parquet, .arrow)"
        raise TableError(f"{path} holds no images ({', '.join(sorted(SUFFIXES))}){tables}")
    count = cache(lambda: _count(images_in(path)))
    rows = from_folder(path, question.prompt or "", question.sidecar, question.overwrite)
    return Source(rows, columns, lambda: {"image": "string"}, count, count)


def _of_rows(
    rows: Callable[[], Iterator[tuple[UnreadRow, UnreadRow]]],
    columns: Columns,
    reading: str,
    kinds: Callable[[], dict[str, str]],
    *more: Any,
) -> Source:
    """A file of rows that may be read again."""
    opened = Source(items_of(rows()), columns, kinds, *more)
    return opened._replace(unread=rows, reading=f"rows {reading}")


def _of_csv(
    source: str, question: Question, columns: Columns, image_folder: Path, read: int | None
) -> Source:
    names = csv_header(Path(source))
    columns.check(names, Path(source))
    count = cache(lambda: csv_count(source) if read is None else read)
    count()  # a file that is cut off is refused before anything is asked
    kinds = dict.fromkeys(names, "string")
    rows = partial(csv_file_rows, source, ReadSettings.of(columns, question.system, names))
    reading = f"{reading_of(columns, question.system)} of cells {names}"
    return _of_rows(rows, columns, reading, lambda: kinds, count, count, image_folder)


def _of_lines(
    path: Path,
    question: Question,
    columns: Columns,
    image_folder: Path,
    stack: contextlib.ExitStack,
    read: int | None,
) -> Source:
    """A file of text, or of JSON."""
    form = form_of(path)
    rows = cache(lambda: _records(path) if read is None else read)
    if form.packed or is_array(path):
        rows()  # a file that is cut off is refused before anything is asked
    stream = stack.enter_context(open_bytes(path))
    size = None if form.packed else os.fstat(stream.fileno()).st_size or None
    text = form.kind == "text"
    regular = path.is_file()
    if text:
        columns.check(["prompt"], path)
    elif regular:
        _require(columns, line_values(path), path)

    def unread() -> Unread:
        reopened = stack.enter_context(open_bytes(path))
        if text:
            return text_rows(reopened, columns, question.system)
        return unread_lines(records_of(path, reopened), columns, question.system)

    items = (
        items_of(text_rows(stream, columns, question.system))
        if text
        else from_lines(records_of(path, stream), columns)
    )
    return Source(
        items if text or regular else _requiring(items, columns, path),
        columns,
        lambda: {"prompt": "string"} if text else column_kinds(line_values(path)),
        lambda: size,
        rows,
        image_folder,
        None,
        unread if regular else None,
        reading_of(columns, question.system),
    )


def _require(columns: Columns, objects: Iterable[Mapping[str, object]], path: Path) -> None:
    """Raise `TableError` for a column that is named and that no row has, where there are rows."""
    names, mapped = dict[str, None](), columns.mapped
    for values in objects if mapped else ():
        names |= dict.fromkeys(values)
        if names.keys() >= mapped:
            return
    if names:
        columns.require(list(names), path)


def _requiring(items: Iterator[Item], columns: Columns, path: Path) -> Iterator[Item]:
    """The items. They are read once: `TableError` as in `_require` comes after the last."""
    names, mapped = dict[str, None](), columns.mapped
    for item in items:
        if not names.keys() >= mapped:
            names |= dict.fromkeys(item.origin.row.values)
        yield item
    _require(columns, [names] if names else [], path)


def _records(path: Path) -> int | None:
    """How many requests a regular file has: lines that are not blank, or items of an array."""
    if not path.is_file():
        return None
    with open_bytes(path) as stream:
        return _count(records_of(path, stream))


def _count(things: Iterable[object]) -> int:
    return sum(1 for _ in things)
