"""The likeliest tokens of each place as Arrow has them: a cell holds `token_ids` and `logprobs`, two
lists with a list for each token.

>>> from pipegen.records.results import TokenLogprob
>>> token = TokenLogprob(token_id=7, logprob=-0.5, top=((7, -0.5), (8, -1.0)))
>>> likeliest_array([(token,), None])[0].as_py()
{'token_ids': [[7, 8]], 'logprobs': [[-0.5, -1.0]]}
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from pipegen.records.results import TokenLogprob

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
