"""The columns of an answer in a table, by the record's declaration: their types, and what a cell
has of a result. A cell of the likeliest tokens holds `token_ids` and `logprobs`, two lists with a
list for each token.
"""

from __future__ import annotations

import functools
import operator
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

from returns.result import Success

from pipegen.core.errors import GenerationError
from pipegen.core.slots import Slot, is_ok
from pipegen.records import strict_json
from pipegen.records.codec import Declared, declared, options_to_plain, without_null
from pipegen.records.messages import ImageSource
from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import Finish, GenerationResult, TokenLogprob

if TYPE_CHECKING:
    import pyarrow as pa


Tokens = Sequence[TokenLogprob | None] | None


def likeliest_type() -> pa.DataType:
    """The type of such a column."""
    import pyarrow as pa

    kinds = {"token_ids": pa.int32(), "logprobs": pa.float32()}
    return pa.struct([(name, pa.list_(pa.list_(kind))) for name, kind in kinds.items()])


@lru_cache(maxsize=64)  # of few distinct numbers
def _packers(size: int) -> tuple[Callable[..., bytes], Callable[..., bytes]]:
    return Struct(f"{size}i").pack, Struct(f"{size}f").pack


def likeliest_array(rows: Sequence[Tokens]) -> pa.Array:
    """The column of these rows; null where no place of a row has any. A token without any, as the
    first of a prompt, has empty lists.

    Arrow gets flat arrays: it would take ten times as long to read the pairs themselves.

    >>> token = TokenLogprob(token_id=7, logprob=-0.5, top=((7, -0.5), (8, -1.0)))
    >>> likeliest_array([(token,), None])[0].as_py()
    {'token_ids': [[7, 8]], 'logprobs': [[-0.5, -1.0]]}
    """
    import pyarrow as pa

    ids, values, count = list[bytes](), list[bytes](), 0
    add_ids, add_values = ids.append, values.append
    places, ends, none = array("i", [0]), array("i", [0]), list[bool]()
    for tokens in rows:
        before = count
        for token in tokens or ():
            if token is not None and (top := token.top):
                size = len(top)
                token_ids, logprobs = zip(*top)  # noqa: B905 - there is one iterable for each pair
                pack_ids, pack_values = _packers(size)
                add_ids(pack_ids(*token_ids))
                add_values(pack_values(*logprobs))
                count += size
            places.append(count)
        none.append(count == before)
        if none[-1]:
            del places[ends[-1] + 1 :]
        ends.append(len(places) - 1)
    kind = likeliest_type()

    def flat(numbers: bytes | array[int], of: pa.DataType) -> pa.Array:
        buffer = pa.py_buffer(numbers)
        return pa.Array.from_buffers(of, buffer.size // 4, [None, buffer])

    def nested(numbers: list[bytes], of: pa.DataType) -> pa.Array:
        numbers_of = of.value_type.value_type
        inner = pa.ListArray.from_arrays(
            flat(places, pa.int32()), flat(b"".join(numbers), numbers_of), type=of.value_type
        )
        return pa.ListArray.from_arrays(flat(ends, pa.int32()), inner, type=of)

    columns = [nested(ids, kind.field(0).type), nested(values, kind.field(1).type)]
    return pa.StructArray.from_arrays(columns, fields=[*kind], mask=pa.array(none, pa.bool_()))


def likeliest_size(tokens: Tokens) -> int:
    """The bytes of a cell, about."""
    return 8 * len(tokens[-1].top) * len(tokens) if tokens and tokens[-1] is not None else 0


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
def columns_of(kind: object, *, brief: bool) -> list[Column]:
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


def _type(hint: object) -> pa.DataType:
    """The type of a column for a field of this type."""
    import pyarrow as pa

    text, (item, *_) = pa.string(), (*get_args(hint), None)
    kinds: Mapping[object, pa.DataType] = {
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


def _json(value: object) -> str | None:
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


def logprobs_in(line: Mapping[str, Any], place: str) -> list[dict[str, object] | None]:
    """The log probabilities of a row, as a line has them: those of `_LIKELIEST` in this place."""
    top = line.get(f"{place}top_logprobs") or {"token_ids": (), "logprobs": ()}
    return [
        None
        if logprob is None
        else {
            "token_id": token_id,
            "logprob": logprob,
            "top": [*zip(ids, logprobs, strict=False)],
            "text": text,
        }
        for token_id, logprob, text, ids, logprobs in zip(
            line.get(f"{place}token_ids") or (),
            line[f"{place}logprobs"],
            chain((not place and line.get("tokens")) or (), repeat(None)),
            *(chain(top[name], repeat(())) for name in ("token_ids", "logprobs")),
            strict=False,
        )
    ]


_SAMPLE = ("text", "finish", "completion_tokens")


def _sample(slot: Slot[GenerationResult]) -> dict[str, object]:
    if not is_ok(slot):
        values: tuple[object, ...] = (None, type(slot.failure()).__name__, 0)
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


def flat_cells(slot: Slot[GenerationResult]) -> tuple[object, ...]:
    if not is_ok(slot):
        return ("false", *(None for _ in _FLAT), *error_cells(slot.failure()))
    result = slot.unwrap()
    return ("true", *[of(result) for of in _FLAT_VALUES], *(None for _ in ERROR))


_FLAT_VALUES = [value_of(field) for field in _FLAT]
