"""A table of answers, from pairs of a row and its slot, as `imap_keyed` gives them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from itertools import chain, islice, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from returns.result import Result

from pipegen.core.slots import Slot
from pipegen.io.forms import ARROW, DELIMITERS, WRITTEN, TableError
from pipegen.io.table_out import AnswerTable, Write, array_of, arrow_out, csv_out
from pipegen.io.tables import Columns, TableRow
from pipegen.io.text_tables import column_kinds, schema_of_kinds
from pipegen.jobs.new_file import new_file
from pipegen.records.frozen import plain_id
from pipegen.records.results import GenerationResult
from pipegen.records.rollouts import Rollout

if TYPE_CHECKING:
    import pyarrow as pa


class _RolloutTable(AnswerTable):
    """A table of rollouts has `ok` and `error`, as one of answers, and the fields of `Rollout`; images
    are `{"bytes", "path"}`, as `datasets` shows them.
    """

    kind = Rollout

    def _answer(self, slot: Slot[object]) -> tuple[tuple[Any, ...], int]:
        values, size = super()._answer(slot)
        place = [column.name for column in self.answer_columns].index("images")
        images = values[place]
        if images is None:
            return values, size
        stored = [*map(self.stored, images)]
        sizes = [len(image["bytes"] or b"") for image in stored if image is not None]
        return (*values[:place], stored, *values[place + 1 :]), size + sum(sizes)

    def _size(self, result: Rollout) -> int:
        return 16 * len(result.token_ids)


_LOOKED_AT = 1000
"""Rows whose values say what the columns hold, where no schema is given."""


def write_table(
    path: str | os.PathLike[str],
    pairs: Iterable[tuple[Mapping[str, object], Slot[object]]],
    *,
    kind: type[GenerationResult | Rollout] = GenerationResult,
    schema: pa.Schema | None = None,
    columns: Mapping[str, str] | None = None,
    model: str = "",
    brief: bool = False,
) -> int:
    """Write rows with their answers to a Parquet, Arrow, CSV or TSV file, by its suffix, and give
    back how many. The file appears when it is whole.

    kind: what the slots hold, results or rollouts; a table of rollouts is .parquet or .arrow.
    schema: the columns of the rows and their types, such as `read_table(...).schema` or
    `dataset.features.arrow_schema`. By default, what fits the first 1,000 rows; later rows have to
    fit it too.
    columns: the columns that fields of requests were read from, where their names differ.
    brief: leave token ids and log probabilities out.

    Raises `TableError`, `TypeError` for what is no such pair, and `JournalError` where the file
    cannot be written.

    >>> import tempfile
    >>> from pipegen.core.errors import Timeout
    >>> from returns.result import Failure
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     count = write_table(
    ...         f"{folder}/out.csv",
    ...         [({"id": 7, "prompt": "Hi", "label": 1}, Failure(Timeout("slow")))],
    ...     )
    ...     print(count, Path(folder, "out.csv").read_text().splitlines()[1])
    1 7,Hi,1,false,,,,,,Timeout,slow,"send it again, or allow more time"
    """
    suffix = Path(path).suffix.lower()
    form = WRITTEN.get(suffix)
    if not form:
        raise TableError(
            f"{path} ends with {suffix or 'no suffix'}: a table is .parquet, .arrow, .csv or .tsv"
        )
    if kind is Rollout and form in DELIMITERS:
        raise TableError(f"{path}: a table of rollouts has lists, so it is .parquet or .arrow")
    names = Columns(columns or {})
    for field in () if schema is None or suffix not in ARROW else schema:
        array_of(field.name, [], field.type)  # Arrow makes no union of Python's values
    remaining_pairs = starmap(_checked, enumerate(pairs, 1))
    first = list(islice(remaining_pairs, _LOOKED_AT)) if schema is None else []
    kinds = column_kinds(row for row, _ in first)
    count = 0
    with new_file(Path(path)) as stream, contextlib.ExitStack() as stack:
        if form in DELIMITERS:
            header = list(kinds) if schema is None else schema.names
            write: Write = stack.enter_context(
                csv_out(stream, header, names, delimiter=DELIMITERS[form])
            )
        else:
            table_schema = schema_of_kinds(kinds) if schema is None else schema
            written: dict[str, Any] = {"form": form, "model": model, "brief": brief}
            if kind is Rollout:
                written |= {"model": "", "brief": False, "kind": _RolloutTable}
            write = stack.enter_context(arrow_out(stream, table_schema, names, **written))
        for count, (row, slot) in enumerate(chain(first, remaining_pairs), 1):
            values = {str(name): value for name, value in row.items()}
            late = values.keys() - kinds.keys()
            if late and schema is None:
                raise TableError(
                    f"row {count} has a column {min(late)!r}, which the first rows lack: give it to them"
                    " too, or set schema=, all columns with their types"
                )
            row_id = plain_id(values.get(names.column_of("id") or "id"))
            write(TableRow(values), str(count) if row_id is None else row_id, slot)
    return count


def _checked(number: int, entry: object) -> tuple[Mapping[str, Any], Slot[Any]]:
    """An entry of the pairs. Raises `TypeError` where it is none."""
    words = "it is"
    if isinstance(entry, (tuple, list)) and len(entry) == 2:
        row, slot = entry
        if isinstance(row, Mapping) and isinstance(slot, Result):
            return row, slot
        words, entry = ("its slot is", slot) if isinstance(row, Mapping) else ("its row is", row)
    raise TypeError(
        f"entry {number} is no pair of a row, a mapping, and its slot: {words} {entry!r:.80}; write_table takes"
        " pairs as imap_keyed gives them where the keys are the rows, and pg.Success(result) is"
        " the slot of a result"
    )
