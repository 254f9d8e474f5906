"""The Hugging Face engine: what chooses a row's tokens."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from support.models import encoded
from support.rows import PROMPTS, ids, raws, sampled

from pipegen.answer.barred import barred_in, spellings
from pipegen.engines.plugin import Plugin
from pipegen.records.option_groups import StopOptions


def test_a_seeded_row_does_not_depend_on_its_batch(engine: Any) -> None:  # B6
    rows = [sampled(at) for at in range(8)]
    together = ids(engine, rows)
    assert together == [ids(engine, [row])[0] for row in rows]
    assert ids(engine, rows[::-1]) == together[::-1]
    assert len(set(together)) == 8


def test_equal_prompts_differ_by_their_seeds_and_by_nothing_else(engine: Any) -> None:  # B6
    first, second, third = ids(engine, [sampled(0, seed=5), sampled(0, seed=6), sampled(0, seed=5)])
    assert first == third
    assert first != second


def test_each_token_takes_the_next_number_of_its_seeds_stream(engine: Any) -> None:
    flat = engine.with_plugin(
        Plugin(
            name="flat",
            logits_processor=lambda context: lambda ids, scores: torch.zeros_like(scores),
        )
    )
    numbers, size = random.Random(7), engine.computing.loaded().config.vocab_size
    inputs = [sampled(0, temperature=1.0, seed=7, stop=StopOptions(ignore_eos=True)), sampled(1)]
    assert ids(flat, inputs)[0] == tuple(int(numbers.random() * size) for _ in range(10))


def test_rows_without_a_seed_are_drawn_anew(engine: Any) -> None:
    assert len(set(ids(engine, [sampled(0, seed=None, max_new_tokens=20) for _ in range(4)]))) == 4


def test_every_row_gets_its_own_options(engine: Any) -> None:  # B8
    rows = [
        sampled(0, temperature=0.0, max_new_tokens=3),
        sampled(0, top_k=1, max_new_tokens=7),
        sampled(1, top_p=0.3, temperature=0.7, repetition_penalty=1.3),
        sampled(
            2, min_p=0.2, presence_penalty=1.0, frequency_penalty=0.5, stop=StopOptions(stop=("e",))
        ),
        sampled(3, no_repeat_ngram_size=2, min_new_tokens=4, logprobs=True),
        sampled(0, temperature=0.0, no_repeat_ngram_size=1, max_new_tokens=30),
    ]
    together = raws(engine, rows)
    assert [raw.token_ids for raw in together] == [ids(engine, [row])[0] for row in rows]
    assert together[0].token_ids == together[1].token_ids[:3]
    assert len({*PROMPTS[0], *together[5].token_ids}) == 3 + len(together[5].token_ids)
    seen = [raw.logprobs is not None for raw in together]
    assert seen == [False, False, False, False, True, False]


def test_the_margin_is_the_models_own_whatever_is_asked_and_drawn(engine: Any) -> None:
    shown = (
        raws(engine, [encoded(PROMPTS[0], max_new_tokens=6, logprobs=True, top_logprobs=2)])[
            0
        ].logprobs
        or ()
    )
    assert [one.margin for one in shown] == pytest.approx(
        [one.top[0][1] - one.top[1][1] for one in shown]
    )
    hidden = raws(engine, [encoded(PROMPTS[0], max_new_tokens=6, logprobs=True)])[0].logprobs or ()
    assert [(one.margin, one.top) for one in hidden] == [(one.margin, ()) for one in shown]
    drawn = (
        raws(engine, [sampled(0, logprobs=True, top_logprobs=3, repetition_penalty=1.5)])[
            0
        ].logprobs
        or ()
    )
    assert [one.margin for one in drawn] == pytest.approx(
        [one.top[0][1] - one.top[1][1] for one in drawn]
    )
    assert any(one.top[0][0] != one.token_id for one in drawn)


def test_a_barred_word_comes_in_no_spelling_whatever_is_beside_it(engine: Any) -> None:
    (free,) = ids(engine, [sampled(0)])
    tokenizer = engine.tokenizer
    words = tuple(
        word for token in free if tokenizer.encode(word := tokenizer.decode((token,))) == (token,)
    )
    barred = spellings(words, tokenizer)
    rows = [sampled(at, bad_words=words) for at in range(6)]
    together = ids(engine, [*rows, sampled(0)])
    assert together[-1] == free
    assert together[:-1] == [ids(engine, [row])[0] for row in rows]
    assert [barred_in(row, barred) for row in together[:-1]] == [None] * 6
    assert barred_in(free, barred) is not None


def test_a_spelling_of_several_tokens_bars_the_last_one_after_the_others_alone(
    engine: Any,
) -> None:
    pair = engine.tokenizer.encode("AB")
    options: dict[str, Any] = {"allowed_token_ids": pair, "temperature": 50.0}
    free = ids(engine, [sampled(at, **options) for at in range(8)])
    found = ids(engine, [sampled(at, **options, bad_words=("AB",)) for at in range(8)])
    assert any(barred_in(row, (pair,)) is not None for row in free)
    assert [barred_in(row, (pair,)) for row in found] == [None] * 8
    assert {token for row in found for token in row} == {*pair}


def test_biases_are_added_to_the_raw_logits_and_logprobs_stay_the_models_own(engine: Any) -> None:
    free, biased = raws(
        engine,
        [
            sampled(0, temperature=0.0, logprobs=True, top_logprobs=2),
            sampled(0, temperature=0.0, logprobs=True, top_logprobs=2, logit_bias={300: 100}),
        ],
    )
    assert set(biased.token_ids) == {300}
    assert biased.logprobs[0].top == free.logprobs[0].top
    assert biased.logprobs[0].logprob < free.logprobs[0].top[1][1]
    # 100 and a repetition penalty: added before it is divided
    (divided,) = ids(
        engine,
        [sampled(0, temperature=0.0, logit_bias={300: 100, 301: 60}, repetition_penalty=2.0)],
    )
    assert divided[:2] == (300, 301)


def test_a_row_whose_options_leave_no_token_says_so(engine: Any) -> None:
    word = engine.tokenizer.decode((70,))
    (slot,) = engine.generate([sampled(0, allowed_token_ids=(70,), bad_words=(word,))])
    error = slot.failure()
    assert error.option == "allowed_token_ids"
    assert "no token is left that allowed_token_ids and bad_words allow" in error.message


def test_a_bias_of_an_id_that_the_model_has_not_fails_its_row_alone(engine: Any) -> None:
    wrong, right = engine.generate([sampled(0, logit_bias={10**6: 1}), sampled(0)])
    assert "logit_bias holds id 1000000" in wrong.failure().message
    assert right.unwrap().token_ids
