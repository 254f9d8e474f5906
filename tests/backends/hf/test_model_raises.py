"""A model whose code raises for a row fails that row alone, wherever it is among others."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.models import encoded

from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.core.slots import is_ok
from pipegen.engines.session import answers
from pipegen.records.option_groups import StopOptions
from pipegen.records.scores import ScoreInput

ON = StopOptions(ignore_eos=True)
BAD = 99
"""The token for which the model raises."""


def raises_for_bad(error: Exception) -> Any:
    """A hook that raises as the model's own code does."""

    def embed(module: Any, given: Any) -> None:
        if (given[0] == BAD).any():
            raise error

    return embed


@pytest.fixture
def embedding(engine: Any) -> Any:
    return engine.computing.loaded().get_input_embeddings()


def rows(*bad: int, count: int = 8) -> list[Any]:
    return [
        encoded([60 + at, BAD if at in bad else 70, *range(80, 84 + at)], max_new_tokens=6, stop=ON)
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        *(((3,), error) for error in (RuntimeError("a"), ValueError("b"), AttributeError("c"))),
        ((0, 7), ValueError("b")),
        ((0, 1, 2, 3, 4, 5, 6, 7), RuntimeError("a")),
    ],
    ids=str,
)
def test_the_row_fails_alone_and_the_others_get_what_they_get_without_it(
    bad: tuple[int, ...],
    error: Exception,
    engine: Any,
    embedding: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    right = engine.generate(rows())
    with embedding.register_forward_pre_hook(raises_for_bad(error)):
        slots = engine.generate(rows(*bad))
    for at, slot in enumerate(slots):
        if at not in bad:
            assert slot.unwrap().token_ids == right[at].unwrap().token_ids
            continue
        failed = slot.failure()
        assert isinstance(failed, BackendFailed)
        assert (failed.scope, failed.backend) == ("row", "hf")
        assert "the model's code raises for this row" in failed.message
        assert str(error) in failed.message
    records = [record for record in caplog.records if record.exc_info]
    assert len(records) == len(bad)  # the traceback of each, and of no whole pass
    assert all(record.exc_info[1] is error for record in records if record.exc_info)


def test_a_row_that_raises_in_the_middle_of_its_answer_keeps_no_other_from_going_on(
    engine: Any, embedding: Any
) -> None:
    right = engine.generate(rows())
    second = right[2].unwrap().token_ids[1]
    assert all(second not in row.prompt.token_ids for row in rows())

    def embed(module: Any, given: Any) -> None:
        if (given[0] == second).any():
            raise RuntimeError("of this token")

    bad = {at for at, slot in enumerate(right) if second in slot.unwrap().token_ids[:-1]}
    with embedding.register_forward_pre_hook(embed):
        slots = engine.generate(rows())
    assert {at for at, slot in enumerate(slots) if not is_ok(slot)} == bad
    for at in {*range(8)} - bad:
        assert slots[at].unwrap().token_ids == right[at].unwrap().token_ids


def test_the_good_rows_are_read_again_a_few_times_at_most(engine: Any, embedding: Any) -> None:
    """To find one bad row of 8 takes as many passes that fail as halving takes."""
    failed = 0

    def embed(module: Any, given: Any) -> None:
        nonlocal failed
        if (given[0] == BAD).any():
            failed += 1
            raise ValueError("no")

    with embedding.register_forward_pre_hook(embed):
        engine.generate(rows(5))
    assert failed <= 1 + math.log2(8)
    assert engine.computing.shared._schedule is None  # nothing waits any more


def test_a_row_that_is_scored_fails_alone(engine: Any, embedding: Any) -> None:
    given = [([60, 61, 62], [70, 71]), ([60, BAD, 62], [70, 71]), ([63, 64], [72])]
    asked = [
        ScoreInput(encoded=encoded(context), continuation=tuple(continuation))
        for context, continuation in given
    ]
    with_70 = [[70 if token == BAD else token for token in context] for context, _ in given]
    right = answers(
        engine,
        [
            ScoreInput(encoded=encoded(context), continuation=row.continuation)
            for context, row in zip(with_70, asked, strict=True)
        ],
    )
    with embedding.register_forward_pre_hook(raises_for_bad(NotImplementedError("no"))):
        slots = answers(engine, asked)
    assert [is_ok(slot) for slot in slots] == [True, False, True]
    assert "the model's code raises for this row: " in slots[1].failure().message
    for at in (0, 2):
        assert slots[at].unwrap().logprobs == pytest.approx(right[at].unwrap().logprobs, abs=1e-5)


def test_any_other_exception_of_the_code_in_between_is_a_bug_and_raises(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.hf import running_batch

    def bug(*_: Any) -> None:
        raise ValueError("a bug of pipegen")

    assert is_ok(engine.generate(rows(count=1))[0])
    monkeypatch.setattr(running_batch.RunningBatch, "step", bug)
    with pytest.raises(ValueError, match="a bug of pipegen"):
        engine.generate(rows(count=2))


def test_an_accelerator_that_fails_fails_the_call(engine: Any, embedding: Any) -> None:
    error = RuntimeError("CUDA error: device-side assert triggered")
    with (
        embedding.register_forward_pre_hook(raises_for_bad(error)),
        pytest.raises(CallFailed, match="device-side assert"),
    ):
        engine.generate(rows(1))
