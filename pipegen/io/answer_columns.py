"""The columns of an answer in a table, by the record's declaration: their types, and what a cell
has of a result.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

from returns.result import Success

from pipegen.core.errors import GenerationError
from pipegen.core.slots import Slot, is_ok
from pipegen.io.likeliest_column import likeliest_array, likeliest_type
from pipegen.records import strict_json
from pipegen.records.codec import Declared, declared, options_to_plain, without_null
from pipegen.records.messages import ImageSource
from pipegen.records.options import GenerationOptions
from pipegen.records.results import Finish, GenerationResult, TokenLogprob

if TYPE_CHECKING:
    import pyarrow as pa


_FLAT = [field for field in declared(GenerationResult) if field.row.column in ("answer", "usage")]
ERROR = ("type", "message", "hint")
CSV_COLUMNS = ("ok", *[field.key for field in _FLAT], *[f"error_{name}" for name in ERROR])


@functools.lru_cache(maxsize=64)  # most results of a run share theirs
def _options(options: GenerationOptions) -> str:
    return strict_json.dump(options_to_plain(options))


class Column(NamedTuple):
    """A column of a record's table."""

    name: str
    type: Any
    group: str
    of: Callable[[Any], Any] | None = None
    """Gives the value of a record; None where the table knows it."""
    array: Callable[[Sequence[Any]], pa.Array] | None = None
    """Makes the column of such values; None where Arrow does."""


@functools.cache
def columns_of(kind: Any, *, brief: bool) -> list[Column]:
    """The columns of a record's table, by its declaration."""
    import pyarrow as pa

    text, usage = pa.string(), [field for field in declared(kind) if field.row.column == "usage"]
    columns = [
        Column("ok", pa.bool_(), "answer"),
        Column("error", pa.struct([(name, text) for name in ERROR]), "error"),
    ]
    if usage:
        counts = pa.struct([(field.key, _type(field.hint)) for field in usage])
        values = [(field.key, value_of(field)) for field in usage]
        columns += [
            Column("usage", counts, "usage", lambda it: {key: of(it) for key, of in values}),
            Column("model", text, "run"),
            Column("tokens", pa.list_(text), "scores", _tokens),
        ]
        columns += [
            Column(f"{place}top_logprobs", likeliest_type(), "scores", of, likeliest_array)
            for place, of in _LIKELIEST
        ]
    marked = [field for field in declared(kind) if field.row.column not in ("", "usage")]
    columns += [
        Column(field.key, _type(field.hint), field.row.column or "more", value_of(field))
        for field in marked or declared(kind)[1:]  # without the id
    ]
    groups = ("answer", "usage", "error", "more", "run", *(() if brief else ("ids", "scores")))
    return sorted([c for c in columns if c.group in groups], key=lambda c: groups.index(c.group))


def answer_columns(*, brief: bool) -> pa.Schema:
    """The columns of an answer, and their types."""
    import pyarrow as pa

    return pa.schema([column[:2] for column in columns_of(GenerationResult, brief=brief)])


def _type(hint: Any) -> pa.DataType:
    """The type of a column for a field of this type."""
    import pyarrow as pa

    text, (item, *_) = pa.string(), (*get_args(hint), None)
    kinds: Mapping[Any, pa.DataType] = {
        int: pa.int32(),
        bool: pa.bool_(),
        float: pa.float64(),
        TokenLogprob: pa.float64(),
        GenerationResult: pa.struct(zip(_SAMPLE, (text, text, pa.int32()), strict=True)),
        ImageSource: pa.struct([("bytes", pa.binary()), ("path", text)]),
    }
    if get_origin(hint) is tuple and get_origin(item) is not Mapping:
        return pa.list_(_type(without_null(item)))
    return kinds.get(hint, text)


def value_of(field: Declared) -> Callable[[Any], Any]:
    """The function that gives the value of a record's field as a table has it."""
    get, cell = operator.attrgetter(field.row.source or field.name), _CELLS.get(field.hint)
    if field.key == "samples":
        return lambda result: [*map(_sample, result.completions)] if result.samples else None
    return get if cell is None else lambda record: cell(get(record))


def _json(value: Any) -> str | None:
    return strict_json.dump(strict_json.plain(value)) if value else None


def _tokens(result: GenerationResult) -> list[str | None] | None:
    return None if result.logprobs is None else [logprob.text for logprob in result.logprobs]


def _logprobs(logprobs: Sequence[TokenLogprob | None] | None) -> list[float | None] | None:
    if logprobs is None:
        return None
    return [None if logprob is None else logprob.logprob for logprob in logprobs]


_LIKELIEST: Sequence[tuple[str, Callable[[Any], Any]]] = (
    ("", operator.attrgetter("logprobs")),
    ("prompt_", operator.attrgetter("prompt_logprobs")),
)
_SAMPLE = ("text", "finish", "completion_tokens")


def _sample(slot: Slot[GenerationResult]) -> dict[str, Any]:
    if not is_ok(slot):
        values: tuple[Any, ...] = (None, type(slot.failure()).__name__, 0)
    else:
        result = slot.unwrap()
        values = (result.text, result.finish.value, result.completion_tokens)
    return dict(zip(_SAMPLE, values, strict=True))


_CELLS: Mapping[Any, Callable[[Any], Any]] = {
    object: lambda value: None if value is None else str(value),
    Finish: operator.attrgetter("value"),
    GenerationOptions: _options,
    tuple[Mapping[str, Any], ...]: _json,
    tuple[TokenLogprob, ...]: _logprobs,
    tuple[TokenLogprob | None, ...]: _logprobs,
    tuple[GenerationResult, ...]: lambda results: [*map(_sample, map(Success, results))] or None,
}
"""What columns have of values of these types."""


def error_cells(error: GenerationError) -> tuple[str, str, str]:
    return type(error).__name__, error.message, error.hint


def flat_cells(slot: Slot[GenerationResult]) -> tuple[Any, ...]:
    if not is_ok(slot):
        return ("false", *(None for _ in _FLAT), *error_cells(slot.failure()))
    result = slot.unwrap()
    return ("true", *[of(result) for of in _FLAT_VALUES], *(None for _ in ERROR))


_FLAT_VALUES = [value_of(field) for field in _FLAT]
