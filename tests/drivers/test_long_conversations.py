"""The law of prefixes over conversations of ten turns, with text, tools and images, on the embedded
model and on a script that answers tool calls and any ids.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from support.talks import Talk, broken_prefixes, held, sampled

import pipegen as pg
from pipegen.testing.fake import FakeEngine

MANY = int(os.environ.get("PIPEGEN_CONVERSATIONS", "300"))
CALL = '[call]\n{"name": "get", "arguments": {"city": "rome"}}\n[/call]'
SAID = ("It is sunny.", "<think>\nhm\n</think>\n\nSo.", " \n", "Wait.\n" + CALL, f"{CALL}\n{CALL}")


@pytest.fixture(scope="module")
def embedded() -> Iterator[pg.Route]:
    with pg.backends.hf("embedded", dtype="float32") as route:
        yield route


def scripted(embedded: pg.Route) -> FakeEngine:
    """An engine with the embedded model's tokenizer and template, that answers words, tool calls,
    and any ids at all but images.
    """
    tokenizer: Any = embedded.engine.tokenizer
    control = tokenizer.control_tokens
    every = [number for number in range(tokenizer.vocab_size) if number != control["<|image_pad|>"]]

    def script(row: Any) -> list[int]:
        if row.options.structured is not None and row.options.structured.regex:
            return [*tokenizer.encode(CALL), control["<|im_end|>"]]
        draw = random.Random(str((row.prompt.compact_token_ids, row.options.seed)))
        ids = (
            [*tokenizer.encode(draw.choice(SAID))]
            if draw.random() < 0.7
            else draw.choices(every, k=draw.randrange(1, 12))
        )
        return [*ids, control["<|im_end|>"]] if draw.random() < 0.7 else ids

    renderer: Any = embedded.engine.renderer  # type: ignore[union-attr]
    engine = FakeEngine(script, tokenizer=tokenizer, renderer=renderer)
    engine.eos_token_ids = (control["<|im_end|>"],)
    return engine


def longer(draw: random.Random) -> dict[str, Any]:
    return {**sampled(draw), "max_new_tokens": 90, "stop": {}}


def check(talks: list[Talk], tokenizer: Any) -> None:
    """Each prompt begins with the ids before it, and new words make no control token: which there
    are depends on the form of the messages alone.
    """
    control = tokenizer.control_tokens
    media = {control["<|image_pad|>"], control["<|video_pad|>"]}
    for talk in talks:  # no conversation goes on after an answer that has drawn an image or a video
        assert talk.failure is None or media & {*talk.results[-1].token_ids}, talk.failure
    assert broken_prefixes(talks) == []
    made = defaultdict(set)
    known = {*control.values()} - media
    for talk in talks:
        for one, two in itertools.pairwise(talk.results):
            before = (*one.prompt_token_ids, *one.token_ids)
            assert two.turn is not None and two.turn.request.continues is not None
            count = two.turn.request.continues.messages
            new = (two.turn.request.messages or ())[count:]
            chat = two.options.chat
            form = (
                *((message.role, len(message.sources)) for message in new),
                one.token_ids[-1:] == (tokenizer.control_tokens["<|im_end|>"],),
                chat is not None and chat.enable_thinking,
            )
            added = two.prompt_token_ids[len(before) :]
            made[form].add(tuple(number for number in added if number in known))
    assert {form: ids for form, ids in made.items() if len(ids) > 1} == {}


@pytest.mark.parametrize("count", [40, pytest.param(MANY, marks=pytest.mark.slow)])
def test_scripted_conversations_begin_with_the_ids_before(count: int, embedded: pg.Route) -> None:
    engine = scripted(embedded)
    talks = held(pg.route(engine), "scripted", count, longer)
    check(talks, engine.tokenizer)
    assert sum(len(result.tool_calls) for talk in talks for result in talk.results) > count


@pytest.mark.parametrize("count", [6, pytest.param(MANY // 8, marks=pytest.mark.slow)])
def test_sampled_conversations_begin_with_the_ids_before(count: int, embedded: pg.Route) -> None:
    talks = held(embedded, "sampled", count, sampled)
    check(talks, embedded.engine.tokenizer)
