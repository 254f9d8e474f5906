"""The order in which rows that wait are next: alike ones together, and none passed by for ever."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st
from support.models import encoded

import pipegen as pg
from pipegen.backends.request_queue import RequestQueue, beginning
from pipegen.records.option_records import GenerationOptions
from pipegen.records.parse_request import request_from
from pipegen.records.results import Encoded, PreparedImage, Prompt, ResolvedRequest


class Row(NamedTuple):
    number: int
    key: int
    source: object = None


def waiting_for(size: int, overdue: int) -> RequestQueue[Row]:
    return RequestQueue(
        size, overdue, key=lambda row: row.key, source=lambda row: row.source or row.number
    )


def numbers(waiting: RequestQueue[Row], count: int) -> list[int]:
    return [rows[0].number for rows in waiting.next(count)]


def test_a_row_is_not_passed_by_for_ever() -> None:
    waiting = waiting_for(size=6, overdue=3)
    waiting.add([Row(0, 9)])
    assert numbers(waiting, 1) == [0]
    for number in (1, 2):
        waiting.add([Row(number, 5 - number)])
    assert numbers(waiting, 2) == [2, 1]
    waiting.add([Row(3, 1)])
    assert numbers(waiting, 2) == [0, 3]  # the order goes on from there, and then begins anew
    waiting.take([0, 1])
    assert numbers(waiting, 9) == [2, 1]


def test_rows_that_come_later_wait_for_the_next_round() -> None:
    waiting = waiting_for(size=2, overdue=9)
    waiting.add([Row(0, 2), Row(1, 3)])
    assert numbers(waiting, 3) == [0, 1]
    waiting.add([Row(2, 1)])
    assert numbers(waiting, 3) == [0, 1]
    waiting.take([0])
    assert numbers(waiting, 3) == [2, 1]


@pytest.mark.parametrize("seed", range(20))
def test_every_row_waits_until_it_is_taken_once(seed: int) -> None:
    chance = random.Random(seed)
    waiting, taken = (
        waiting_for(size=chance.randint(1, 6), overdue=chance.randint(1, 6)),
        list[int](),
    )
    left = [
        Row(number, chance.randint(1, 4), chance.choice([None, "a", "b"])) for number in range(40)
    ]
    while left or waiting:
        new = [left.pop() for _ in range(min(len(left), chance.randint(0, 5)))]
        waiting.add(new)
        if chance.random() < 0.2:
            waiting.put_in_order()
        chosen = [
            (place, rows)
            for place, rows in enumerate(waiting.next(chance.randint(0, 6)))
            if chance.random() < 0.7
        ]
        waiting.take([place for place, _ in chosen])
        taken += [row.number for _, rows in chosen for row in rows]
    assert sorted(taken) == list(range(40))


def test_rows_that_are_done_are_pruned() -> None:
    waiting = waiting_for(size=4, overdue=10)
    waiting.add([Row(0, 3, "a"), Row(1, 3, "a"), Row(2, 5)])
    waiting.add([Row(3, 1), Row(4, 1)])
    waiting.prune(lambda row: row.number in (0, 4))
    assert sorted(row.number for row in waiting.rows) == [1, 2, 3]


@given(
    keys=st.lists(st.integers(0, 5), max_size=60),
    room=st.integers(1, 9),
    adds=st.lists(st.integers(1, 9), min_size=1, max_size=9),
)
def test_a_row_that_is_handed_over_in_rounds_waits_for_two_of_them_at_most(
    keys: list[int], room: int, adds: list[int]
) -> None:
    waiting, left, came, gone, held = (
        waiting_for(size=1, overdue=1),
        [Row(*pair) for pair in enumerate(keys)][::-1],
        dict[int, int](),
        list[int](),
        0,
    )
    while left or waiting:
        for _ in range(min(room - held, adds[len(gone) % len(adds)], len(left))):
            came[left[-1].number], held = len(gone), held + 1
            waiting.add([left.pop()])
        ((row,),) = waiting.next(1)
        waiting.take([0])
        assert len(gone) - came[row.number] < 2 * room
        gone.append(row.number)
        held -= 1
    assert sorted(gone) == list(range(len(keys)))


def image(digest: str) -> PreparedImage:
    return PreparedImage(width=2, height=2, rgb=b"\0" * 12, digest=digest, tokens=3)


def test_prompts_that_begin_alike_are_next_to_each_other_and_so_are_equal_images() -> None:
    asked = dict[str, Encoded]()
    for name, head, digest, tail in (
        ("a", 5, "x", 1),
        ("b", 4, "x", 1),
        ("c", 5, "y", 0),
        ("d", 5, "x", 0),
        ("e", 4, "y", 0),
    ):
        prompt = Prompt(
            token_ids=(head, 9, 9, 9, tail),
            compact_token_ids=(head, 9, tail),
            images=(image(digest),),
        )
        asked[name] = Encoded(
            request=pg.TextGenerationRequest(prompt="p"), options=GenerationOptions(), prompt=prompt
        )
    asked["f"], asked["g"] = encoded((4, 9, 9)), encoded((4, 9))
    seen = sorted(asked, key=lambda name: beginning(asked[name]))
    assert seen == ["g", "b", "e", "f", "d", "a", "c"]


def test_chats_are_ordered_by_their_texts_and_images() -> None:
    def of(**request: object) -> ResolvedRequest:
        return ResolvedRequest(request=request_from(request).unwrap(), options=GenerationOptions())

    def turn(*content: object) -> list[dict[str, object]]:
        parts = [
            (
                {"type": "text", "text": part}
                if isinstance(part, str)
                else {"type": "image", "image": part}
            )
            for part in content
        ]
        return [{"role": "system", "content": "S"}, {"role": "user", "content": parts}]

    asked = [
        of(messages=turn("b")),
        of(messages=turn(b"2", "a")),
        of(messages=turn("a", {"path": "x.png"})),
        of(messages=turn(b"1", "a")),
        of(prompt="T"),
        of(
            messages=[
                {"role": "assistant", "content": None, "tool_calls": []},
                {"role": "user", "content": "u"},
            ]
        ),
    ]
    assert sorted(range(6), key=lambda place: beginning(asked[place])) == [4, 5, 2, 0, 3, 1]
