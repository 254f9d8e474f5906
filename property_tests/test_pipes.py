"""N slots in, N slots out, in order; a failed slot passes as the same object; an engine is called
once; joining and fallback are associative; sync and async agree; bugs raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st
from returns.result import Failure, Success

from pipegen.core.errors import (
    BackendFailed,
    CallFailed,
    ContractError,
    GenerationError,
    InvalidRequest,
    RateLimited,
    StageFailed,
    Timeout,
)
from pipegen.core.fallback import fallback
from pipegen.core.pipe import Pipe, call, each, identity, pure
from pipegen.core.slots import Batch, is_ok, live
from pipegen.drivers.batch import adrive
from pipegen.drivers.drive import drive

ERRORS = (InvalidRequest("bad"), Timeout("slow"), RateLimited("later"), BackendFailed("down"))
KINDS = tuple(type(error) for error in ERRORS)
NEUTRAL: Pipe[int, int] = identity()


class Scripted:
    """An engine over numbers: a pure function of each input, and a log of its calls."""

    def __init__(
        self, name: str, answer: Callable[[int], Any], whole: GenerationError | None = None
    ) -> None:
        self.name, self.answer, self.whole = name, answer, whole
        self.calls: list[tuple[int, ...]] = []

    def generate(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self.calls.append(tuple(inputs))
        if self.whole is not None:
            raise CallFailed(self.whole)
        return [self.answer(value) for value in inputs]


def answers(salt: int) -> Callable[[int], Any]:
    """A pure answer for each number: mostly a success, sometimes one of the errors."""

    def answer(value: int) -> Any:
        pick = (value * 7 + salt * 13) % 9
        return Failure(ERRORS[pick]) if pick < len(ERRORS) else Success(value + salt)

    return answer


slots = st.one_of(st.integers(0, 50).map(Success), st.sampled_from(ERRORS).map(Failure))
batches: st.SearchStrategy[Batch[int]] = st.lists(slots, max_size=8).map(tuple)
engines = st.builds(
    lambda salt, whole: Scripted(f"e{salt}", answers(salt), whole),
    st.integers(0, 20),
    st.none() | st.sampled_from(ERRORS),
)
whens = st.sets(st.sampled_from(KINDS)).map(tuple)


def outcome(batch: Batch[Any]) -> list[Any]:
    return [
        (
            slot.unwrap()
            if is_ok(slot)
            else ("failed", type(slot.failure()), slot.failure().message, slot.failure().earlier)
        )
        for slot in batch
    ]


@st.composite
def pipes(draw: st.DrawFn, depth: int = 2) -> Pipe[int, int]:
    """Any pipe that the constructors make."""
    kind = draw(
        st.sampled_from(
            ["each", "pure", "call", "identity"] + (["join", "fallback"] if depth else [])
        )
    )
    if kind == "join":
        return draw(pipes(depth=depth - 1)) >> draw(pipes(depth=depth - 1))
    if kind == "fallback":
        return fallback(
            draw(pipes(depth=depth - 1)), draw(pipes(depth=depth - 1)), when=draw(whens)
        )
    salt = draw(st.integers(0, 20))

    def add(n: int) -> int:
        return n + salt

    makers: dict[str, Callable[[], Pipe[Any, Any]]]
    makers = {
        "each": lambda: each("each", answers(salt)),
        "pure": lambda: pure("pure", add),
        "call": lambda: call(draw(engines)),
        "identity": identity,
    }
    return makers[kind]()


@given(pipes(), batches)
def test_length__as_many_slots_come_out_as_go_in(pipe: Pipe[int, int], batch: Batch[int]) -> None:
    assert len(drive(pipe, batch)) == len(batch)


@given(pipes(), batches)
def test_passthrough__a_failed_slot_stays_the_same_object(
    pipe: Pipe[int, int], batch: Batch[int]
) -> None:
    out = drive(pipe, batch)
    assert all(out[row] is slot for row, slot in enumerate(batch) if not is_ok(slot))


def live_rows(batch: Batch[Any]) -> list[int]:
    return [row for row, slot in enumerate(batch) if is_ok(slot)]


@given(engines, batches)
def test_one_call_with_exactly_the_live_inputs_and_none_when_all_failed(
    engine: Scripted, batch: Batch[int]
) -> None:
    drive(call(engine), batch)
    assert engine.calls == ([live(batch)] if live_rows(batch) else [])


@given(pipes(), batches, st.randoms(use_true_random=False))
def test_permutation__shuffled_requests_give_shuffled_slots(
    pipe: Pipe[int, int], batch: Batch[int], random: Any
) -> None:
    order = list(range(len(batch)))
    random.shuffle(order)
    shuffled = drive(pipe, tuple(batch[row] for row in order))
    assert outcome(shuffled) == [outcome(drive(pipe, batch))[row] for row in order]


@given(pipes(), batches, batches)
def test_split__a_batch_in_two_parts_gives_the_same_slots(
    pipe: Pipe[int, int], first: Batch[int], second: Batch[int]
) -> None:
    assert outcome(drive(pipe, first + second)) == outcome(drive(pipe, first)) + outcome(
        drive(pipe, second)
    )


@given(pipes(), batches)
def test_sync_equals_async(pipe: Pipe[int, int], batch: Batch[int]) -> None:
    assert outcome(asyncio.run(adrive(pipe, batch))) == outcome(drive(pipe, batch))


@given(pipes(1), pipes(1), pipes(1), batches)
def test_join_is_associative(
    a: Pipe[int, int], b: Pipe[int, int], c: Pipe[int, int], batch: Batch[int]
) -> None:
    left, right = (a >> b) >> c, a >> (b >> c)
    assert left.name == right.name
    assert outcome(drive(left, batch)) == outcome(drive(right, batch))


@given(pipes(), batches)
def test_identity_is_neutral_on_both_sides(pipe: Pipe[int, int], batch: Batch[int]) -> None:
    assert (NEUTRAL >> pipe).name == pipe.name == (pipe >> NEUTRAL).name
    assert (
        outcome(drive(NEUTRAL >> pipe, batch))
        == outcome(drive(pipe, batch))
        == outcome(drive(pipe >> NEUTRAL, batch))
    )


@given(pipes(1), pipes(1), pipes(1), whens, batches)
def test_fallback_is_associative(
    a: Pipe[int, int], b: Pipe[int, int], c: Pipe[int, int], when: Any, batch: Batch[int]
) -> None:
    left = fallback(fallback(a, b, when=when), c, when=when)
    right = fallback(a, fallback(b, c, when=when), when=when)
    assert outcome(drive(left, batch)) == outcome(drive(right, batch))


@given(pipes(), batches)
def test_a_fallback_that_never_qualifies_is_the_first_route_and_the_second_is_never_called(
    first: Pipe[int, int], batch: Batch[int]
) -> None:
    second = Scripted("second", answers(1))
    assert outcome(
        drive(fallback(first, call(second), when=lambda error: False), batch)
    ) == outcome(drive(first, batch))
    assert second.calls == []


@given(batches, whens)
def test_fallback_calls_the_second_route_once_with_exactly_the_slots_that_qualify(
    batch: Batch[int], when: Any
) -> None:
    first, second = Scripted("first", answers(3)), Scripted("second", answers(5))
    tried = drive(call(first), batch)
    again = tuple(
        batch[row].unwrap()
        for row in live_rows(batch)
        if not is_ok(tried[row]) and isinstance(tried[row].failure(), when)
    )
    drive(fallback(call(first), call(second), when=when), batch)
    assert second.calls == ([again] if again else [])


# K4
def test_both_routes_fail__the_last_error_keeps_its_type_and_the_first_is_its_history() -> None:
    first: Pipe[int, int] = each("a", lambda n: Failure(Timeout("first")))
    second: Pipe[int, int] = each("b", lambda n: Failure(RateLimited("second")))
    error = drive(fallback(first, second, when=Timeout), (Success(1),))[0].failure()
    assert isinstance(error, RateLimited)
    assert error.earlier == (Timeout("first"),)


@given(st.integers(0, 5), st.integers(1, 5))
def test_an_engine_that_gives_another_number_of_answers_is_a_bug_and_raises(
    given_back: int, asked: int
) -> None:
    class Miscounting(Scripted):
        def generate(self, inputs: Sequence[Any]) -> Sequence[Any]:
            return [Success(0)] * given_back

    batch: Batch[int] = tuple(Success(n) for n in range(asked))
    if given_back == asked:
        assert drive(call(Miscounting("m", answers(0))), batch) == tuple(Success(0) for _ in batch)
        return
    with pytest.raises(ContractError, match=f"{given_back} outputs for {asked} inputs"):
        drive(call(Miscounting("m", answers(0))), batch)


@given(st.sampled_from([KeyError("bug"), KeyboardInterrupt(), SystemExit(3), StopIteration(4)]))
def test_bugs_and_interrupts_of_an_engine_raise_and_never_become_failures(
    raised: BaseException,
) -> None:
    class Broken(Scripted):
        def generate(self, inputs: Sequence[Any]) -> Sequence[Any]:
            raise raised

    with pytest.raises(type(raised)):
        drive(call(Broken("broken", answers(0))), (Success(1),))


@given(batches.filter(live_rows))
def test_a_call_that_failed_as_a_whole_gives_every_live_slot_one_error(batch: Batch[int]) -> None:
    error = BackendFailed("engine died", backend="e", scope="batch", incident="i-1")
    out = drive(call(Scripted("e", answers(0), error)), batch)
    assert {id(out[row].failure()) for row in live_rows(batch)} == {id(error)}


def test_a_stage_raises_what_it_does_not_list_and_what_it_lists_becomes_a_failure() -> None:
    def stage(value: int) -> Any:
        raise KeyError(value)

    with pytest.raises(KeyError):
        drive(each("stage", stage), (Success(1),))
    error = drive(each("stage", stage, catch=(KeyError,)), (Success(1),))[0].failure()
    assert isinstance(error, StageFailed)
    assert (error.stage, error.message) == ("stage", "KeyError: 1")


def test_a_stage_that_returns_no_result_is_a_bug_and_raises() -> None:
    with pytest.raises(ContractError, match="not a Result"):
        drive(each("stage", lambda n: n), (Success(1),))
