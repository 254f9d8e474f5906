"""Work on threads: the answers in order, and no more at a time than there are workers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.functional import WORKERS, parallel
from pipegen.testing.fake import FakeEngine


def test_answers_come_in_the_order_of_the_items_whichever_is_ready_first() -> None:
    second_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0 and WORKERS > 1:
            assert second_is_done.wait(60)
        if item == 1:
            second_is_done.set()
        return item * 10

    assert parallel(work, range(9)) == [item * 10 for item in range(9)]


def test_no_more_threads_work_than_there_are_workers() -> None:
    names = set(parallel(lambda item: threading.current_thread().name, range(200)))
    assert 1 <= len(names) <= WORKERS


def test_what_the_work_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        parallel(lambda item: 1 // item, [1, 0, 2])


def test_nothing_and_a_single_item_take_no_thread() -> None:
    assert parallel(len, []) == []
    assert parallel(lambda item: threading.current_thread(), [1]) == [threading.current_thread()]


def test_each_image_of_a_batch_is_prepared_once_and_a_broken_one_fails_at_its_own_place() -> None:
    class Counting(FakeEngine):
        def prepare_image(self, source: Any, options: Any, index: int) -> Any:
            seen.append(source.data)
            return super().prepare_image(source, options, index)

    seen: list[bytes] = []
    requests = [
        pg.VlmGenerationRequest(prompt="x", images=[b"one", b"two"]),
        pg.VlmGenerationRequest(prompt="x", images=[b"two", b"one", b"broken"]),
        pg.VlmGenerationRequest(prompt="x", images=[b"broken"]),
    ]
    first, second, third = pg.run(pg.route(Counting("a")), requests)
    assert sorted(seen) == [b"broken", b"one", b"two"]
    assert pg.is_ok(first)
    assert [slot.failure().index for slot in (second, third)] == [2, 0]  # type: ignore[attr-defined]
