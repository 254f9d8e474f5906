"""Where a continuation begins, with real tokenizers: context and continuation are split where
lm-eval splits them.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from pairs import TOKENIZERS, tokenizer_of

import pipegen as pg
from pipegen.testing.fake import FakeEngine

CONTEXTS = (
    *(
        "Question: what is it?\nAnswer:",
        "2 + 3 =",
        "El niño ",
        "日本の首都は",
        "def f(x):\n    return",
    ),
    *("a\t", "x  ", "The cat sat on a\n\n", "👩‍🚀 is", "e\u0301"),
)
CONTINUATIONS = (
    *(
        " yes",
        "yes",
        " 5",
        "5",
        "\n",
        " 東京",
        "東京です",
        "s",
        "'s",
        "\u0301",
        " 👩‍🚀",
        "  two spaces",
    ),
    *(".", "x + 1", "\n\n\nB", "🚀"),
)


def split_by_lm_eval(raw: Any, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """As `TemplateLM._encode_pair` of lm-eval 0.4.13 does for causal models."""
    spaces = len(context) - len(context.rstrip())
    if spaces > 0:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    whole = raw.encode(context + continuation, add_special_tokens=False)
    own = raw.encode(context, add_special_tokens=False)
    return own, whole[len(own) :]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_continuation_is_split_off_where_lm_eval_splits_it_off(name: str) -> None:
    tokenizer, draw = tokenizer_of(name, False), random.Random(name)
    engine = FakeEngine("", eos_tokens=())
    # any tokenizer will do
    engine.tokenizer, engine.image_placeholder = tokenizer, None  # type: ignore[assignment]
    pairs = [(context, continuation) for context in CONTEXTS for continuation in CONTINUATIONS]
    pairs += [
        ("".join(draw.choices(CONTEXTS, k=3)), "".join(draw.choices(CONTINUATIONS, k=2)))
        for _ in range(100)
    ]
    slots = pg.score(
        pg.route(engine),
        [{"prompt": context, "continuation": continuation} for context, continuation in pairs],
    )
    scored = 0
    for (context, continuation), slot in zip(pairs, slots, strict=True):
        own, rest = split_by_lm_eval(tokenizer.raw, context, continuation)
        if not pg.is_ok(slot):
            assert "no token of its own" in slot.failure().message
            assert not rest
            continue
        assert (list(slot.unwrap().prompt_token_ids), list(slot.unwrap().token_ids)) == (own, rest)
        scored += 1
    assert scored > 200
