"""What is handed to actors: blocks of the rows that are to be asked."""

from __future__ import annotations

from returns.result import Failure, Success

import pipegen as pg
from pipegen.jobs.ray_actors import BLOCK_BYTES, BLOCK_ROWS, blocks_of
from pipegen.jobs.rows import Row


def row(number: int, size: int = 0) -> Row[int]:
    images = [pg.ImageSource(data=bytes(size))] if size else []
    request = (
        pg.VlmGenerationRequest(prompt="x", images=images)
        if images
        else pg.TextGenerationRequest(prompt="x")
    )
    return Row(number, Success(request), f"{number:032x}", None)


def test_blocks_hold_the_rows_in_order_and_are_bounded() -> None:
    blocks = list(blocks_of(iter([row(number) for number in range(2 * BLOCK_ROWS + 3)])))
    assert [len(block) for block in blocks] == [BLOCK_ROWS, BLOCK_ROWS, 3]
    assert [key for block in blocks for key, _ in block] == [
        f"{number:032x}" for number in range(2 * BLOCK_ROWS + 3)
    ]
    large = list(blocks_of(iter([row(number, BLOCK_BYTES // 2) for number in range(5)])))
    assert [len(block) for block in large] == [2, 2, 1]


def test_rows_that_are_finished_or_have_no_key_are_not_handed_out() -> None:
    finished = row(1)._replace(kept=Failure(pg.BadImage(0)))
    broken = Row(2, Failure(pg.InvalidRequest("broken")), None, None)
    assert [
        [key for key, _ in block] for block in blocks_of(iter([row(0), finished, broken, row(3)]))
    ] == [[f"{0:032x}", f"{3:032x}"]]


def test_the_input_is_taken_as_it_is_needed() -> None:
    taken: list[int] = []

    def rows() -> object:
        for number in range(1000):
            taken.append(number)
            yield row(number)

    next(blocks_of(rows()))  # type: ignore[arg-type]
    assert len(taken) == BLOCK_ROWS
