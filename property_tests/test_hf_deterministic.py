"""A deterministic engine gives a row the same bits alone and beside any others; in any order and in
every dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("torch")

import pipegen as pg
from pipegen.testing.image_files import image_file

FEW = settings(max_examples=max(3, settings().max_examples // 12))
"""For laws of which each example runs a model several times."""
WORDS = "the a red dog cat runs over blue sky and counts one two three four tables of wood"
IMAGES = [image_file(width=width, height=height) for width, height in ((32, 32), (64, 40))]
DTYPES = ("bfloat16", "float16", "float32")


@functools.cache
def route(dtype: str) -> pg.Route:
    return pg.backends.hf("embedded", dtype=dtype, deterministic=True)


words = st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=30).map(" ".join)


@st.composite
def requests(choose: st.DrawFn) -> dict[str, Any]:
    """A prompt that may begin as others do, with options of its own."""
    begin = choose(st.sampled_from(["", " ".join([WORDS] * 3) + " "]))
    return {
        "prompt": begin + choose(words),
        "images": choose(st.lists(st.sampled_from(IMAGES), max_size=1)),
        "options": {
            "temperature": choose(st.sampled_from([0.0, 0.8, 1.5])),
            "seed": choose(st.integers(0, 99)),
            "samples": choose(st.sampled_from([1, 1, 3])),
            "max_new_tokens": choose(st.integers(1, 12)),
            "logprobs": True,
            "repetition_penalty": choose(st.sampled_from([1.0, 1.3])),
            "stop": {"ignore_eos": choose(st.booleans())},
        },
    }


batches = st.lists(requests(), min_size=2, max_size=5).flatmap(st.permutations)
Bits = tuple[Any, ...]


def bits(result: pg.GenerationResult) -> Bits:
    """The ids of each sample, and their log probabilities to the last bit."""
    return tuple(
        (sample.token_ids, [(one.logprob, one.margin) for one in sample.logprobs or ()])
        for sample in (result, *result.samples[1:])
    )


def run(dtype: str, batch: Sequence[Any]) -> list[Bits]:
    return [bits(slot.unwrap()) for slot in pg.run(route(dtype), batch)]


@pytest.mark.parametrize("dtype", DTYPES)
@FEW
@given(batch=batches)
def test_a_row_has_the_same_bits_alone_and_among_others(dtype: str, batch: list[Any]) -> None:
    together = run(dtype, batch)
    assert together == [run(dtype, [request])[0] for request in reversed(batch)][::-1]


@FEW
@given(batch=batches)
def test_a_stream_has_the_same_bits(batch: list[Any]) -> None:
    single = [{**one, "options": {**one["options"], "samples": 1}} for one in batch]
    done = [event for event in pg.stream(route("bfloat16"), single) if isinstance(event, pg.Done)]
    assert {event.index: bits(event.slot.unwrap()) for event in done} == dict(
        enumerate(run("bfloat16", single))
    )


@FEW
@given(batch=batches, second=words)
def test_a_turn_has_the_same_bits_as_its_conversation_alone(batch: list[Any], second: str) -> None:
    talks: Any = [
        {
            "messages": [{"role": "user", "content": one["prompt"]}],
            "turns": [second],
            "options": {**one["options"], "samples": 1},
        }
        for one in batch
    ]
    pipe = pg.turns(route("bfloat16"))
    together = [bits(slot.unwrap()) for slot in pg.run(pipe, talks)]
    assert together == [bits(pg.run(pipe, [talk])[0].unwrap()) for talk in talks]


@FEW
@given(batch=st.lists(st.tuples(requests(), words), min_size=2, max_size=6))
def test_scores_have_the_same_bits(batch: list[tuple[dict[str, Any], str]]) -> None:
    asked: Any = [{"prompt": one["prompt"], "continuation": more} for one, more in batch]
    together = [slot.unwrap().token_logprobs for slot in pg.score(route("bfloat16"), asked)]
    assert together == [
        pg.score(route("bfloat16"), [one])[0].unwrap().token_logprobs for one in asked
    ]
