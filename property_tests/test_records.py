"""Plain data, pickles and tables give back the options and records that were written; resolving
twice changes nothing; merging is associative.
"""

from __future__ import annotations

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from immutabledict import immutabledict

import pipegen as pg
from pipegen.io.text_tables import column_kinds
from pipegen.records.codec import error_from
from pipegen.records.frozen import freeze, thaw
from pipegen.records.options import flat_values, merge, options_from, resolve
from pipegen.records.requests import FIELDS, misplaced
from pipegen.template.thinking import thinks_apart
from pipegen.testing import strategies
from pipegen.testing.fake import FakeEngine

checkpoints = st.fixed_dictionaries(
    {},
    optional={
        "do_sample": st.booleans(),
        "temperature": st.floats(0.1, 2),
        "top_k": st.integers(1, 50),
    },
).map(immutabledict)


@given(strategies.generation_options(), checkpoints)
# C8
def test_resolving_says_everything_and_resolving_again_changes_nothing(
    options: pg.GenerationOptions, checkpoint: immutabledict[str, Any]
) -> None:
    effective = resolve(options, checkpoint=checkpoint)
    unsaid = {name for name, value in flat_values(effective).items() if value is None}
    # those that have no default
    assert unsaid <= {name for name, value in flat_values(resolve()).items() if value is None}
    assert unsaid.isdisjoint({"temperature", "max_new_tokens", "stop", "samples", "control_tokens"})
    assert resolve(effective, checkpoint=checkpoint) == effective
    assert resolve(effective, options) == effective


@given(strategies.generation_options())
def test_what_was_set_is_kept(options: pg.GenerationOptions) -> None:
    effective = flat_values(resolve(options))
    said = {
        name: value
        for name, value in flat_values(options).items()
        if value is not None and name != "use_generation_config"
    }
    assert {name: effective[name] for name in said} == said


def test_asking_for_the_likeliest_tokens_asks_for_logprobs() -> None:
    assert resolve(pg.GenerationOptions(top_logprobs=2)).logprobs is True
    assert (
        resolve(pg.GenerationOptions(top_logprobs=2), pg.GenerationOptions(logprobs=False)).logprobs
        is True
    )


@given(
    strategies.generation_options(),
    strategies.generation_options(),
    strategies.generation_options(),
)
def test_merging_is_associative(
    a: pg.GenerationOptions, b: pg.GenerationOptions, c: pg.GenerationOptions
) -> None:
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(strategies.generation_options())
def test_merging_is_idempotent_and_saying_nothing_is_neutral(a: pg.GenerationOptions) -> None:
    nothing = pg.GenerationOptions()
    assert merge(a, a) == a
    assert (
        flat_values(merge(a, nothing) or nothing)
        == flat_values(merge(nothing, a) or nothing)
        == flat_values(a)
    )


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


@given(strategies.errors())
def test_an_error_is_read_back_from_its_json(error: pg.GenerationError) -> None:
    plain = pg.error_to_plain(error)
    assert error_from(json.loads(json.dumps(plain, allow_nan=False))) == error
    assert plain["type"] == type(error).__name__


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
    # A thought with a limit, or before a form, may take a call of its own; and a row whose prompt is
    # scored first is one call behind the others.
    options = [request.options for request in requests if request.options is not None]
    thinks, scored = any(map(thinks_apart, options)), any(one.prompt_logprobs for one in options)
    assert len(engine.calls) <= 1 + thinks + (thinks and scored)


@given(
    strategies.errors(),
    st.lists(strategies.errors(), max_size=2),
    st.lists(strategies.errors(), max_size=2),
)
def test_histories_join(error: pg.GenerationError, first: list[Any], second: list[Any]) -> None:
    assert error.after(tuple(second)).after(tuple(first)) == error.after(tuple(first + second))


OWN = st.text("abcdefghij_", min_size=1, max_size=8).filter(
    lambda name: misplaced(name) is None and name not in (*FIELDS, "image")
)
# JSON text has no infinity: there it is its name
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FINITE | st.text(max_size=5),
    st.lists,
    max_leaves=4,
)


@given(
    st.dictionaries(OWN, VALUES, max_size=4),
    st.sampled_from([{"prompt": "Hi"}, {"messages": [{"role": "user", "content": "Hi"}]}]),
)
def test_what_is_no_field_is_carried_along_and_changes_nothing(
    own: dict[str, Any], asked: dict[str, Any]
) -> None:
    request = pg.request_from({**own, **asked}).unwrap()
    assert request.metadata == own
    assert request == pg.request_from(asked).unwrap()


@given(st.lists(st.dictionaries(OWN, VALUES, max_size=3), min_size=1, max_size=5))
def test_a_table_gives_back_the_columns_that_it_was_given(rows: list[dict[str, Any]]) -> None:
    """Columns of one plain type come back as they were; others as JSON text."""
    pytest.importorskip("pyarrow")
    failed: Any = pg.Failure(pg.Timeout("slow"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "out.parquet")
        pg.write_table(path, [({"prompt": "Hi", **row}, failed) for row in rows])
        made = list(pg.read_table(path))
    kinds = column_kinds(rows)
    for before, row in zip(rows, made, strict=True):
        for name, value in before.items():
            text = kinds[name] in ("string", "lists") and not isinstance(value, (str, type(None)))
            assert (json.loads(row[name]) if text else row[name]) == value


NEAR = st.recursive(
    st.sampled_from([0, 0.0, -0.0, False, 1, 1.0, True, None, "1", ""]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(NEAR, NEAR)
def test_frozen_data_are_equal_if_they_are_written_equally(one: Any, other: Any) -> None:
    first, second = freeze({"n": one}), freeze({"n": other})
    assert (first == second) == (json.dumps(one) == json.dumps(other))
    assert first != second or hash(first) == hash(second)
    assert thaw(first) == {"n": one}
