"""Tables of rollouts: the caller's columns, such as a reward, before those of the rollout.

A table of rollouts has `ok` and `error`, as one of answers, and the fields of `Rollout`; images are
`{"bytes", "path"}`, as `datasets` shows them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO

from pipegen.core.slots import Slot, is_ok
from pipegen.engines.extras import need
from pipegen.io.table_out import AnswerTable, Write, written_to
from pipegen.io.tables import Columns
from pipegen.records.rollouts import Rollout

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["rollouts_out"]


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
    def _answer_columns(self) -> pa.Schema:
        import pyarrow as pa

        text, count = pa.string(), pa.int32()
        return pa.schema(
            [
                ("ok", pa.bool_()),
                ("error", pa.struct([("type", text), ("message", text), ("hint", text)])),
                ("prompt_token_ids", pa.list_(count)),
                ("token_ids", pa.list_(count)),
                ("mask", pa.list_(pa.bool_())),
                ("logprobs", pa.list_(pa.float64())),
                ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", text)]))),
                ("image_digests", pa.list_(text)),
                ("image_grid_thw", pa.list_(pa.list_(count))),
            ]
        )

    def _answer(self, slot: Slot[Any]) -> tuple[tuple[Any, ...], int]:
        if not is_ok(slot):
            failure = slot.failure()
            error = {
                "type": type(failure).__name__,
                "message": failure.message,
                "hint": failure.hint,
            }
            return (False, error, *(None,) * 7), 0
        rollout = slot.unwrap()
        if not isinstance(rollout, Rollout):
            raise TypeError(
                f"a table of rollouts takes slots of them, not of {type(rollout).__name__}"
            )
        images = None if rollout.images is None else [*map(self.stored, rollout.images)]
        sizes = [len(image["bytes"] or b"") for image in images or () if image is not None]
        values = (
            True,
            None,
            rollout.prompt_token_ids,
            rollout.token_ids,
            rollout.mask,
            rollout.logprobs,
            images,
            rollout.image_digests,
            rollout.image_grid_thw,
        )
        return values, 16 * len(rollout.token_ids) + sum(sizes)
