"""The laws of options and records."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import given, strategies as st
from immutabledict import immutabledict

import pipegen as pg
from pipegen.records.options import flat_values, merge, options_from, resolve
from pipegen.testing import strategies
from pipegen.testing.fake import FakeEngine

checkpoints = st.fixed_dictionaries({}, optional={"do_sample": st.booleans(), "temperature": st.floats(0.1, 2), "top_k": st.integers(1, 50)}).map(immutabledict)


@given(strategies.generation_options(), checkpoints)
def test_resolving_says_everything_and_resolving_again_changes_nothing(options: pg.GenerationOptions, checkpoint: immutabledict[str, Any]) -> None:  # C8
    effective = resolve(options, checkpoint=checkpoint)
    unsaid = {name for name, value in flat_values(effective).items() if value is None}
    assert unsaid <= {name for name, value in flat_values(resolve()).items() if value is None}  # those that have no default
    assert unsaid.isdisjoint({"temperature", "max_new_tokens", "stop", "samples", "control_tokens"})
    assert resolve(effective, checkpoint=checkpoint) == effective
    assert resolve(effective, options) == effective


@given(strategies.generation_options())
def test_what_was_said_is_kept(options: pg.GenerationOptions) -> None:
    effective = flat_values(resolve(options))
    said = {name: value for name, value in flat_values(options).items() if value is not None and name != "use_generation_config"}
    assert {name: effective[name] for name in said} == said


def test_asking_for_the_likeliest_tokens_asks_for_logprobs() -> None:
    assert resolve(pg.GenerationOptions(top_logprobs=2)).logprobs is True
    assert resolve(pg.GenerationOptions(top_logprobs=2), pg.GenerationOptions(logprobs=False)).logprobs is True


@given(strategies.generation_options(), strategies.generation_options(), strategies.generation_options())
def test_merging_is_associative(a: pg.GenerationOptions, b: pg.GenerationOptions, c: pg.GenerationOptions) -> None:
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(strategies.generation_options())
def test_merging_is_idempotent_and_saying_nothing_is_neutral(a: pg.GenerationOptions) -> None:
    nothing = pg.GenerationOptions()
    assert merge(a, a) == a
    assert flat_values(merge(a, nothing) or nothing) == flat_values(merge(nothing, a) or nothing) == flat_values(a)


@given(strategies.generation_options())
def test_options_survive_plain_data(options: pg.GenerationOptions) -> None:
    said = {name: value for name, value in flat_values(options).items() if value is not None}
    assert flat_values(options_from(said)) == flat_values(options)


@given(strategies.requests() | strategies.results() | strategies.errors())
def test_records_survive_pickling_and_hash_by_value(record: Any) -> None:  # C4
    twin = pickle.loads(pickle.dumps(record))  # our own bytes
    assert twin == record
    assert hash(twin) == hash(record)
    assert repr(twin) == repr(record)


@given(st.lists(strategies.requests(), max_size=4))
def test_every_request_gets_one_slot_in_its_place(requests: list[pg.GenerationRequest]) -> None:
    engine = FakeEngine("END 0 ä<|im_end|>")
    slots = pg.run(pg.route(engine), requests)
    assert len(slots) == len(requests)
    for request, slot in zip(requests, slots, strict=True):
        if pg.is_ok(slot):
            assert slot.unwrap().id == request.id
            assert len(slot.unwrap().image_grid_thw) == len(request.sources)
        else:
            assert isinstance(slot.failure(), pg.GenerationError)
    assert len(engine.calls) <= 1


@given(strategies.errors(), st.lists(strategies.errors(), max_size=2), st.lists(strategies.errors(), max_size=2))
def test_histories_join(error: pg.GenerationError, first: list[Any], second: list[Any]) -> None:
    assert error.after(tuple(second)).after(tuple(first)) == error.after(tuple(first + second))
