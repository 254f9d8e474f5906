"""Each token of a text is predicted once; continuations begin where they should."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from returns.result import Success

pytest.importorskip("transformers")
pytest.importorskip("torch")

from support.small_tokenizers import (
    chatml_tokenizer,
    instruct_tokenizer,
    turns_tokenizer,
    unigram_tokenizer,
)

import pipegen as pg
from pipegen.backends.checkpoint.tokenizers import HFTokenizer
from pipegen.core.slots import is_ok
from pipegen.drivers.scoring import rolling
from pipegen.engines.model import token_model
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import ScoringRequest
from pipegen.records.results import ResolvedRequest
from pipegen.stages.joining import join_row
from pipegen.stages.rendering import render_row
from pipegen.testing.fake import FakeEngine, ToyRenderer
from pipegen.testing.prompts import harmless_texts

FAMILIES: dict[str, Callable[[], Any]] = {
    "chatml": chatml_tokenizer,
    "instruct": instruct_tokenizer,
    "turns": turns_tokenizer,
    "unigram": unigram_tokenizer,
}
EMBEDDED = pg.backends.hf("embedded", dtype="float32")
texts = st.one_of(harmless_texts(()), st.text("ab c\n.,'é", max_size=12))


def as_lm_eval_splits(raw: Any, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """The rule of lm-eval (`TemplateLM._encode_pair`), in words of our own."""
    kept = context.rstrip()
    moved = context[len(kept) :] + continuation
    whole, alone = raw(kept + moved)["input_ids"], raw(kept)["input_ids"]
    return alone, whole[len(alone) :]


@pytest.mark.slow
@pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES)
@given(context=texts, continuation=texts.filter(bool))
@example(context="The answer is ", continuation="yes")
@example(context="a", continuation=" b")
def test_a_continuation_begins_where_lm_eval_says(
    make: Callable[[], Any], context: str, continuation: str
) -> None:
    raw = make()
    tokenizer: Any = HFTokenizer(raw)
    engine = FakeEngine("", tokenizer=tokenizer, eos_tokens=())
    engine.image_placeholder = None
    first = raw("a")["input_ids"][:1] == [raw.bos_token_id]
    job = ResolvedRequest(
        request=ScoringRequest(prompt=context, continuation=continuation),
        options=resolve(GenerationOptions()),
    )
    rendered = render_row(
        job, tokenizer, ToyRenderer(), bos_token=raw.bos_token if first else ""
    ).unwrap()
    made = join_row(rendered, token_model(engine, engine.capabilities))
    before, own = as_lm_eval_splits(raw, context, continuation)
    if not before or not own:
        assert not is_ok(made)
    else:
        assert made.map(
            lambda pair: (list(pair.encoded.prompt.token_ids), list(pair.continuation))
        ) == Success((before, own))
        kept = context.rstrip()
        whole = raw(kept + context[len(kept) :] + continuation)["input_ids"]
        assert made.unwrap().joined is (raw.decode(before + own) != raw.decode(whole))


@given(count=st.integers(0, 40), size=st.integers(1, 12))
def test_windows_predict_each_token_once_and_keep_to_their_size(count: int, size: int) -> None:
    ids = tuple(range(1, count + 1))
    windows = [*rolling(ids, 0, size)]
    assert tuple(token for _, own in windows for token in own) == ids
    assert all(len(before) + len(own) <= size + 1 and before for before, own in windows)
    for before, own in windows:
        assert before[-1] == own[0] - 1


ASCII = st.text("abc .", min_size=1, max_size=12)


@given(text=ASCII, window=st.integers(1, 8))
def test_the_log_probability_of_a_text_is_that_of_its_tokens_in_any_window(
    text: str, window: int
) -> None:
    """The toy model's log probability of a token depends on the token alone."""
    (slot,) = pg.perplexity(pg.route(FakeEngine("")), [text], window=window)
    found = slot.unwrap()
    assert found.logprob == pytest.approx(math.fsum(-1 - ord(letter) / 1000 for letter in text))
    assert (found.tokens, found.windows) == (len(text), -(-len(text) // window))


@given(pairs=st.lists(st.tuples(st.just("") | ASCII, ASCII), max_size=4))
def test_each_continuation_is_scored_in_its_place_and_an_empty_context_refused(
    pairs: list[tuple[str, str]],
) -> None:
    """White space at the end of a context is a part of the continuation, so that a context of
    nothing else is empty.
    """
    pipe = pg.scoring(pg.route(FakeEngine("")))
    rows: list[Any] = [{"prompt": before, "continuation": text} for before, text in pairs]
    slots = pg.run(pipe, rows)
    assert slots == pg.score(pg.route(FakeEngine("")), rows)
    for (before, text), slot in zip(pairs, slots, strict=True):
        context = before.rstrip()
        assert is_ok(slot) is bool(context)
        if context:
            assert len(slot.unwrap().token_ids) == len(before) - len(context) + len(text)
            assert slot.unwrap().logprob == pytest.approx(
                math.fsum(-1 - token_id / 1000 for token_id in slot.unwrap().token_ids)
            )


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    context=st.lists(st.integers(10, 150), min_size=1, max_size=40),
    continuation=st.lists(st.integers(10, 150), min_size=1, max_size=12),
    some=st.booleans(),
)
def test_the_log_probabilities_of_a_prompt_add_up_to_the_score_of_its_end(
    context: list[int], continuation: list[int], some: bool
) -> None:
    """Whatever is generated after it, and however the prompt and its end are read."""
    options = {
        "max_new_tokens": 2 if some else 0,
        "prompt_logprobs": True,
        "temperature": 0.5,
        "seed": 1,
    }
    noted = (
        pg.run(EMBEDDED, [{"prompt_token_ids": [*context, *continuation]}], options)[0]
        .unwrap()
        .prompt_logprobs
        or ()
    )
    scored = pg.score(EMBEDDED, [{"prompt_token_ids": context, "continuation": continuation}])[
        0
    ].unwrap()
    own = [one.logprob for one in noted[len(context) :] if one is not None]
    assert noted[0] is None
    assert math.fsum(own) == pytest.approx(scored.logprob, abs=1e-4 * len(continuation))
    assert own == pytest.approx(scored.token_logprobs, abs=1e-4)
