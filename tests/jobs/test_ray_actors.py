"""What is handed to actors: blocks of the rows that are to be asked, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from returns.result import Failure, Success
from support.fake_ray import Died, replaced_ray

import pipegen as pg
from pipegen.cli.outputs import Tally
from pipegen.cli.progress_line import Meter
from pipegen.jobs.job_rows import JobRow
from pipegen.jobs.ray import Counts
from pipegen.jobs.ray_actors import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    LOOKS,
    PLACED_BLOCKS,
    Actors,
    NoReplica,
    Placed,
    blocks_of,
)
from pipegen.records.requests import ImagePolicy
from pipegen.testing.fake import FakeEngine


def row(number: int, size: int = 0) -> JobRow[int]:
    images = [pg.ImageSource(data=bytes(size))] if size else []
    request = (
        pg.VlmGenerationRequest(prompt="x", images=images)
        if images
        else pg.TextGenerationRequest(prompt="x")
    )
    return JobRow(number, Success(request), f"{number:032x}", None)


def keys(blocks: Iterator[Placed]) -> list[list[int]]:
    """The numbers of the rows of each block."""
    return [[int(key, 16) for key, _ in block] for _, block in blocks]


def test_blocks_hold_the_rows_in_order_and_are_bounded() -> None:
    blocks = keys(blocks_of(iter([row(number) for number in range(2 * BLOCK_ROWS + 3)])))
    assert [len(block) for block in blocks] == [BLOCK_ROWS, BLOCK_ROWS, 3]
    assert list(chain.from_iterable(blocks)) == list(range(2 * BLOCK_ROWS + 3))
    large = keys(blocks_of(iter([row(number, BLOCK_BYTES // 2) for number in range(5)])))
    assert [len(block) for block in large] == [2, 2, 1]


def test_rows_that_are_finished_or_have_no_key_are_not_handed_out() -> None:
    finished = row(1)._replace(kept=lambda: Failure(pg.BadImage(0)))
    broken = JobRow(2, Failure(pg.InvalidRequest("broken")), None, None)
    assert keys(blocks_of(iter([row(0), finished, broken, row(3)]))) == [[0, 3]]


def test_the_input_is_taken_as_it_is_needed() -> None:
    taken: list[int] = []

    def rows() -> Iterator[JobRow[int]]:
        for number in range(1000):
            taken.append(number)
            yield row(number)

    next(blocks_of(rows()))
    assert len(taken) == BLOCK_ROWS


def test_a_row_among_finished_ones_does_not_wait_for_a_whole_block() -> None:
    finished = [
        row(number)._replace(kept=lambda: Failure(pg.BadImage(0))) for number in range(3 * LOOKS)
    ]
    rows = [row(0), *finished[1:-1], row(3 * LOOKS)]
    assert keys(blocks_of(iter(rows))) == [[0], [], [3 * LOOKS]]


def talks(count: int, branches: int, *, image: bool = False) -> list[list[JobRow[Any]]]:
    """Next turns of so many conversations: so many of each."""
    route = pg.route(FakeEngine("Yes.<|im_end|>"))
    made: list[list[JobRow[Any]]] = []
    for talk in range(count):
        first = {"id": f"{talk}", "messages": [{"role": "user", "content": f"Is {talk} even?"}]}
        result = pg.run(route, [first])[0].unwrap()
        made.append([])
        for branch in range(branches):
            request = result.then(f"And {branch}?")
            made[-1].append(
                JobRow(talk, Success(request), f"{talk * branches + branch:032x}", None)
            )
    return made


def test_the_next_turns_of_a_conversation_are_for_one_replica() -> None:
    made = talks(20, 3)
    rows = [of[branch] for branch in range(3) for of in made]  # one after another
    first = row(1000)
    of_talk: dict[int, set[int | None]] = {}
    blocks = list(blocks_of(iter([first, *rows]), replicas=4))
    for place, block in blocks:
        for key, _ in block:
            of_talk.setdefault(int(key, 16) // 3, set()).add(place)
    assert all(len(places) == 1 for places in of_talk.values())
    assert of_talk.pop(1000 // 3) == {None}  # a first turn is for any replica
    assert {place for places in of_talk.values() for place in places} == {1, 2, 3, 4}
    # as shards have them
    (one,) = blocks_of(iter(rows[:1]), replicas=4)
    request: Any = rows[0].request.unwrap()
    assert list(pg.shard([request], one[0] or 0, 4)) == [request]


def test_begun_blocks_together_are_bounded_in_bytes() -> None:
    def large(request: Any) -> Any:
        image = pg.ImageSource(data=bytes(BLOCK_BYTES // 2))
        content = (pg.ImagePart(source=image), pg.TextPart(text="What?"))
        last = pg.Message(role="user", content=content)
        return pg.VlmGenerationRequest(
            messages=(*request.messages[:-1], last), continues=request.continues
        )

    rows = [JobRow(0, of[0].request.map(large), of[0].key, None) for of in talks(8, 1)]
    taken = 0

    def counted() -> Iterator[JobRow[Any]]:
        nonlocal taken
        for one in rows:
            taken += 1
            yield one

    given = 0
    for _, block in blocks_of(counted(), replicas=1000, images=ImagePolicy()):
        given += len(block)
        assert taken - given <= 1
    assert given == 8


class Stub:
    """An actor that notes its rows; those whose number is in `broken` raise."""

    made: list[Stub]
    room = BLOCK_ROWS
    broken: set[int]

    def __init__(self, *given: Any) -> None:
        self.made.append(self)
        self.number, self.rows = len(self.made), list[int]()

    def ready(self) -> int:
        return self.room

    def answer(self, block: Any) -> Counts[Tally]:
        if self.number in self.broken:
            raise Died(f"actor {self.number}")
        self.rows += [int(key, 16) for key, _ in block]
        return Counts({block[0][0]: Tally(succeeded=len(block))})

    def seen(self) -> Counts[Tally]:
        return Counts({})

    def close(self, grace: float) -> Counts[Tally]:
        return Counts({})


@pytest.fixture
def stub() -> type[Stub]:
    class Own(Stub):
        made, broken = [], set()

    return Own


def answered(monkeypatch: pytest.MonkeyPatch, stub: Any, blocks: Any, replicas: int = 2) -> Any:
    """The rows that each actor was handed, and how many were counted."""
    tally = Tally()
    actors = actors_of(monkeypatch, stub, replicas, [])
    for counts in [*actors.counts(iter(blocks)), Counts(actors.partial)]:
        for block in counts.blocks.values():
            tally.add(block)
    actors.close()
    return [one.rows for one in stub.made], tally.succeeded


def actors_of(
    monkeypatch: pytest.MonkeyPatch, stub: Any, replicas: int, told: list[str]
) -> Actors[Tally]:
    replaced_ray(monkeypatch, stub)
    made: Any = None
    given = (made, None, Path(), {}, Tally, lambda: Meter(Tally()))
    return Actors(*given, replicas=replicas, gpus=0, tell=told.append)


def test_the_turns_of_one_conversation_are_answered_on_one_replica(
    monkeypatch: pytest.MonkeyPatch, stub: type[Stub]
) -> None:
    rows = [one for of in zip(*talks(30, 6), strict=True) for one in of]
    blocks = blocks_of(iter(rows), most=2, replicas=2)
    (first, second), count = answered(monkeypatch, stub, blocks)
    assert count == len(rows) == len(first) + len(second)
    assert {number // 6 for number in first} & {number // 6 for number in second} == set()
    assert min(len(first), len(second)) > 0


def block(*numbers: int) -> Any:
    return [(f"{number:032x}", row(number).request.unwrap()) for number in numbers]


def test_rows_of_a_replica_that_cannot_go_on_are_answered_by_the_others(
    monkeypatch: pytest.MonkeyPatch, stub: type[Stub]
) -> None:
    stub.broken = {1}
    blocks = [(number % 2 + 1, block(number)) for number in range(200)]
    (first, second), count = answered(monkeypatch, stub, blocks)
    assert (first, sorted(second), count) == ([], list(range(200)), 200)


@pytest.mark.parametrize("broken", [{1}, {1, 2}])
def test_a_replica_that_cannot_go_on_is_told_once_another_has_answered(
    monkeypatch: pytest.MonkeyPatch, stub: type[Stub], broken: set[int]
) -> None:
    stub.broken, told = broken, list[str]()
    blocks = iter([(number % 2 + 1, block(number)) for number in range(20)])
    actors = actors_of(monkeypatch, stub, 2, told)
    if len(broken) == 1:
        list(actors.counts(blocks))
        assert told == ["replica 1 cannot go on: actor 1; 1 go on"]
        return
    with pytest.raises(NoReplica, match=r"actor 1; actor 2|actor 2; actor 1") as raised:
        list(actors.counts(blocks))
    assert (raised.value.answered, told) == (False, [])


def test_the_input_is_read_while_all_replicas_are_full(
    monkeypatch: pytest.MonkeyPatch, stub: type[Stub]
) -> None:
    """So rows that are finished are counted early; no more than `PLACED_BLOCKS` wait."""
    stub.room, ended = 1, Event()
    monkeypatch.setattr(stub, "ready", lambda self: ended.wait(60) and 1)
    taken: list[int] = []

    def blocks() -> Iterator[Placed]:
        for number in range(4 * PLACED_BLOCKS):
            taken.append(number)
            if len(taken) == PLACED_BLOCKS:
                ended.set()
            yield None, block(number)

    (rows,), count = answered(monkeypatch, stub, blocks(), 1)
    assert (sorted(rows), count) == (list(range(4 * PLACED_BLOCKS)), 4 * PLACED_BLOCKS)


def test_no_replica_waits_for_one_that_has_all_the_conversations(
    monkeypatch: pytest.MonkeyPatch, stub: type[Stub]
) -> None:
    blocks = [(1, block(number)) for number in range(8 * PLACED_BLOCKS)]
    monkeypatch.setattr(stub, "room", 1)
    (first, second), count = answered(monkeypatch, stub, blocks)
    assert sorted(first + second) == list(range(8 * PLACED_BLOCKS))
    assert count == 8 * PLACED_BLOCKS
    assert len(second) > 0


def test_the_input_may_have_nothing_for_a_while(
    monkeypatch: pytest.MonkeyPatch, stub: type[Stub]
) -> None:
    blocks = [*[(None, [])] * 50, (None, block(1)), (None, []), (2, block(2))]
    rows, count = answered(monkeypatch, stub, blocks)
    assert (sorted(chain.from_iterable(rows)), count) == ([1, 2], 2)
