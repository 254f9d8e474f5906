"""Tables of rollouts: the caller's columns, such as a reward, before those of the rollout.

A table of rollouts has `ok` and `error`, as one of answers, and the fields of `Rollout`; images are
`{"bytes", "path"}`, as `datasets` shows them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO

from pipegen.core.slots import Slot
from pipegen.engines.extras import need
from pipegen.io.table_out import AnswerTable, Write, written_to
from pipegen.io.tables import Columns
from pipegen.records.rollouts import Rollout

if TYPE_CHECKING:
    import pyarrow as pa


def rollouts_out(
    stream: BinaryIO, schema: pa.Schema, columns: Columns, *, form: str
) -> AbstractContextManager[Write]:
    """A function that writes a row of a table of rollouts, `.parquet` or `.arrow`. `schema` is that
    of the caller's columns. The file is whole when the block is left.

    Raises `TypeError` for a slot of anything else.
    """
    need("pyarrow", "data", "a table of rollouts")
    table = _RolloutTable(schema, columns, None, model="", brief=False, form=form)
    return written_to(table, stream)


class _RolloutTable(AnswerTable):
    kind = Rollout

    def _answer(self, slot: Slot[Any]) -> tuple[tuple[Any, ...], int]:
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
