"""The session of an engine that takes no rows while it works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from returns.result import Success
from support.calls import aanswers, aevents, events

import pipegen as pg
from pipegen.core.slots import Slot
from pipegen.engines.protocol import RowDone, TokensMade
from pipegen.engines.session import BatchSession, answers, open_session
from pipegen.records.results import Encoded, Prompt
from pipegen.records.scores import ScoreInput


class Plain:
    """A backend that only generates: each number and one more."""

    name = "plain"

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def generate(self, inputs: Sequence[int]) -> Sequence[Slot[int]]:
        self.calls.append([*inputs])
        return [Success(number + 1) for number in inputs]


class Talking(Plain):
    """It also tells of each row as it goes."""

    def stream(self, inputs: Sequence[int]) -> Iterator[Any]:
        for row, number in enumerate(inputs):
            yield TokensMade(row=row, token_ids=(number,))
        for row, number in enumerate(inputs):
            yield RowDone(row=row, slot=Success(number + 1))


def test_the_answers_are_those_of_one_call() -> None:
    backend = Plain()
    assert answers(backend, [3, 1, 2]) == [Success(4), Success(2), Success(3)]
    assert asyncio.run(aanswers(backend, [3, 1])) == [Success(4), Success(2)]
    assert backend.calls == [[3, 1, 2], [3, 1]]


def test_rows_that_are_added_later_are_another_call() -> None:
    backend = Plain()
    session = open_session(backend, lambda: None)
    assert session.step() == ()
    for number in (7, 9):
        session.add({number: number})
        assert session.step() == [RowDone(row=number, slot=Success(number + 1))]
    assert backend.calls == [[7], [9]]


def test_a_stream_is_read_only_where_tokens_are_wanted_and_by_the_numbers_of_the_rows() -> None:
    backend = Talking()
    assert answers(backend, [5]) == [Success(6)]
    told = [TokensMade(row=0, token_ids=(5,)), RowDone(row=0, slot=Success(6))]
    assert list(events(backend, [5])) == told

    async def awaited() -> list[Any]:
        return [event async for event in aevents(backend, [5])]

    assert asyncio.run(awaited()) == told
    assert backend.calls == [[5]]
    session = BatchSession(backend, tokens=True)
    session.add({8: 5})
    assert session.step() == (TokensMade(row=8, token_ids=(5,)),)
    session.close()


def test_what_an_awaited_call_raises_comes_with_its_step() -> None:
    class Broken(Plain):
        def generate(self, inputs: Sequence[int]) -> Sequence[Slot[int]]:
            raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        asyncio.run(aanswers(Broken(), [1]))


def test_an_engine_whose_rows_end_by_themselves_is_waited_for() -> None:
    class Later:
        """Its rows end in a thread, once they were asked for in vain."""

        side_by_side = 0

        def __init__(self, wake: Any) -> None:
            self.wake, self.told, self.asked = wake, list[RowDone](), False

        def add(self, inputs: Mapping[int, Any]) -> None:
            self.inputs = inputs

        def step(self) -> Sequence[Any]:
            if not self.asked:
                self.asked = True
                threading.Thread(target=self.end).start()
                return []
            return self.told

        def end(self) -> None:
            self.told = [
                RowDone(row=row, slot=Success(asked)) for row, asked in self.inputs.items()
            ]
            self.wake()

        def close(self) -> None:
            """Nothing runs."""

    class Fed(Plain):
        def open(self, wake: Any, **how: Any) -> Later:
            return Later(wake)

    assert answers(Fed(), [1, 2]) == [Success(1), Success(2)]


def test_rows_to_score_and_rows_to_generate_from_are_calls_of_their_own() -> None:
    class Scoring(Plain):
        def score(self, inputs: Sequence[Any]) -> Sequence[Slot[int]]:
            return [Success(row.continuation[0]) for row in inputs]

    encoded = Encoded(
        request=pg.TextGenerationRequest(prompt="a"),
        options=pg.GenerationOptions(),
        prompt=Prompt(token_ids=(1,), compact_token_ids=(1,)),
    )
    asked = ScoreInput(encoded=encoded, continuation=(5,))
    backend = Scoring()
    assert answers(backend, [asked, 1, asked, 2]) == [
        Success(5),
        Success(2),
        Success(5),
        Success(3),
    ]
    assert backend.calls == [[1, 2]]


def test_a_stream_that_was_read_to_its_end_tells_no_more_and_takes_rows_again() -> None:
    session = open_session(Talking(), lambda: None, tokens=True)
    for _ in range(2):
        session.add({7: 7})
        told = [*session.step(), *session.step()]
        assert [type(event) for event in told] == [TokensMade, RowDone]
        assert session.step() == ()


class Later:
    """A session whose rows end somewhere else: a step tells nothing until it has woken."""

    side_by_side = 0

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake, self._rows, self._steps = wake, dict[int, Any](), 0

    def add(self, inputs: Mapping[int, Any]) -> None:
        self._rows.update(inputs)

    def step(self) -> Sequence[RowDone]:
        self._steps += 1
        if self._steps == 1:
            self._wake()
            return ()
        return [RowDone(row=number, slot=Success(-value)) for number, value in self._rows.items()]

    def close(self) -> None:
        """Nothing is open."""


def test_answers_wait_for_a_session_that_ends_its_rows_somewhere_else() -> None:
    class Elsewhere(Plain):
        def open(self, wake: Callable[[], object], **how: Any) -> Later:
            return Later(wake)

    assert answers(Elsewhere(), [3, 1]) == [Success(-3), Success(-1)]
