"""Rows come and go: who rides with whom, what is read once, what a pass is given, and that no pass
holds a row that needs none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.calls import events as events_of
from support.models import encoded

from pipegen.backends.hf import scheduler as schedule
from pipegen.backends.hf.cache_argument import cache_argument
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.engines.protocol import RowDone, TokensMade
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.option_groups import StopOptions
from pipegen.records.results import Encoded

ON = StopOptions(ignore_eos=True)


def row(length: int, count: int, first: int = 60, **options: Any) -> Encoded:
    return encoded(range(first, first + length), max_new_tokens=count, stop=ON, **options)


@pytest.fixture
def of_size(folder_of: Callable[[str], Any]) -> Callable[..., HFEngine]:
    """A new engine that lets so many rows ride together."""
    return lambda size, family="qwen3": HFEngine(
        ModelLoadConfig(model=str(folder_of(family)), dtype="float32", batch_size=size)
    )


def passes(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Watch the model: what each pass was given."""
    model, seen = engine.computing.loaded(), []
    plain = model.forward

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs)
        return plain(*args, **kwargs)

    monkeypatch.setattr(model, "forward", forward)
    return seen


def shapes(seen: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    return [tuple(given["input_ids"].shape) for given in seen]


def test_a_waiting_row_takes_the_place_of_one_that_is_done(
    of_size: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_size(2)
    seen = passes(engine, monkeypatch)
    engine.generate([row(3, 2), row(3, 3, 70), row(3, 6, 80), row(3, 2, 90)])
    # the longest answers first: 6 and 3; then 2 and 2, read in one pass, each in the place of the
    # one before
    assert shapes(seen) == [(2, 3), (2, 1), (2, 1), (2, 3), (2, 1), (2, 1), (1, 1)]


def test_no_pass_holds_a_row_that_needs_none(of_size: Callable[..., HFEngine]) -> None:
    engine = of_size(3)
    counts = [1, 9, 2, 2, 14, 3, 1, 5, 8]
    engine.generate([row(2 + at, count) for at, count in enumerate(counts)])
    work = engine.work
    assert work.row_steps == work.needed_row_steps == sum(counts) - len(counts)
    assert work.steps >= -(-work.row_steps // 3)
    assert work.prompt_tokens == sum(range(2, 2 + len(counts)))
    assert work.padded_tokens >= work.prompt_tokens


def test_what_was_worked_is_told_by_value(of_size: Callable[..., HFEngine]) -> None:
    engine = of_size(2)
    before = engine.work
    engine.generate([row(3, 2)])
    assert (before.row_steps, engine.work.row_steps) == (0, 1)


def test_a_row_that_ends_with_its_first_token_takes_no_place(
    of_size: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_size(2)
    seen = passes(engine, monkeypatch)
    engine.generate([row(2, 1), row(3, 1), row(4, 1), row(5, 1)])
    assert all(shape[1] > 1 for shape in shapes(seen))


def test_one_prompt_of_many_rows_is_read_once(
    of_size: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_size(2)
    inputs = [row(5, 2 + at, temperature=1.5, seed=at) for at in range(7)]
    alone = [engine.generate([one])[0] for one in inputs]
    seen = passes(engine, monkeypatch)
    assert engine.generate(inputs) == alone
    assert [shape for shape in shapes(seen) if shape[1] > 1] == [(1, 5)]


def test_rows_of_one_length_get_no_mask_and_others_do(
    of_size: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_size(2)
    seen = passes(engine, monkeypatch)
    engine.generate([row(4, 6), row(4, 3, 70), row(4, 3, 80)])
    masks = [given.get("attention_mask") for given in seen if given["input_ids"].shape == (2, 1)]
    assert [mask is None for mask in masks] == [True, True, False, False]
    lengths = [mask.sum(-1).tolist() for mask in masks[2:]]
    assert lengths == [[7, 5], [8, 6]]


def test_columns_that_no_row_needs_any_more_are_cut_off(
    of_size: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_size(2)
    seen = passes(engine, monkeypatch)
    engine.generate([row(40, 6), row(4, 9)])
    name = cache_argument(type(engine.computing.loaded()))
    widths = [given[name].get_seq_length() for given in seen]
    assert max(widths) == 45
    assert widths[-1] == 12


def test_prompts_that_wait_are_read_ahead_in_one_pass(
    of_size: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_size(8)
    seen = passes(engine, monkeypatch)
    engine.generate([row(3, 4 + at, 60 + at) for at in range(14)])
    assert [shape for shape in shapes(seen) if shape[1] > 1] == [(8, 3), (6, 3)]


def test_prompts_of_unlike_lengths_are_read_apart(
    of_size: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_size(4)
    seen = passes(engine, monkeypatch)
    engine.generate([row(300, 2, 3), row(290, 2, 5), row(5, 2), row(4, 2)])
    assert [shape for shape in shapes(seen) if shape[1] > 1] == [(2, 300), (2, 5)]


@pytest.mark.parametrize("family", ["lfm2", "qwen3_next", "falcon_h1"])
def test_states_take_no_padding(
    family: str, of_size: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_size(4, family)
    seen = passes(engine, monkeypatch)
    engine.generate([row(6, 3), row(6, 2, 70), row(4, 5), row(3, 2)])
    assert sorted(shape for shape in shapes(seen) if shape[1] > 1) == [(1, 3), (1, 4), (2, 6)]
    assert engine.work.row_steps == engine.work.needed_row_steps == 8


def test_rows_beyond_the_room_wait(
    of_size: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_size(8)
    monkeypatch.setattr(schedule, "max_cached_tokens", lambda cache, tokens, device: 24)
    inputs = [row(6, 4, 60 + at) for at in range(20)]
    alone = [engine.generate([one])[0] for one in inputs]
    seen = passes(engine, monkeypatch)
    assert engine.generate(inputs) == alone
    # what the first eight hold tells what the others may
    assert [shape[0] for shape in shapes(seen) if shape[1] == 1] == [8] * 3 + [4] * 9


def test_room_that_was_too_little_may_be_enough_later(
    of_size: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_size(8)
    seen = passes(engine, monkeypatch)
    engine.computing.traits.max_tokens = 12
    for most in (2, 4, 8):  # twice the room at each call
        seen.clear()
        engine.generate([row(6, 2, 60 + at) for at in range(8)])
        assert max(shape[0] for shape in shapes(seen)) == most


def test_a_stream_tells_of_a_row_as_soon_as_it_ends(of_size: Callable[..., HFEngine]) -> None:
    engine = of_size(2)
    told = [
        (type(event) is RowDone, event.row)
        for event in events_of(engine, [row(3, 2), row(3, 9, 70), row(3, 2, 80)])
    ]
    assert (
        told.index((True, 0))
        < told.index((False, 2))
        < told.index((True, 2))
        < told.index((True, 1))
    )
    assert len([1 for done, at in told if not done and at == 1]) == 9


def test_a_call_in_the_middle_of_a_stream_disturbs_neither(
    of_size: Callable[..., HFEngine],
) -> None:
    engine = of_size(2)
    inputs = [row(3 + at, 4 + at, 60 + at) for at in range(5)]
    expected = engine.generate(inputs)
    events = events_of(engine, inputs)
    made = [next(events) for _ in range(6)]
    assert engine.generate(inputs) == expected
    made += events
    assert {event.row: event.slot for event in made if isinstance(event, RowDone)} == dict(
        enumerate(expected)
    )
    assert sum(isinstance(event, TokensMade) for event in made) == sum(
        len(slot.unwrap().token_ids) for slot in expected
    )


def test_the_logits_of_a_whole_prompt_are_not_kept() -> None:
    from pipegen.backends.hf.running_batch import _last

    outputs = type("Outputs", (), {"logits": torch.zeros(2, 50, 7)})
    assert _last(outputs, torch.zeros(1)).untyped_storage().nbytes() == 2 * 7 * 4
