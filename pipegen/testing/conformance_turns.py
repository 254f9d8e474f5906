"""Conformance checks of conversations: the ids of the turns before are taken as they are, and their
images stay in sight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pipegen.core.errors import TemplateFailed
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import GenerationResult
from pipegen.testing.ask import (
    answers,
    error_of,
    expect,
    expect_same,
    greedy,
    honours,
    needs,
    to_all,
)
from pipegen.testing.conformance_prompts import with_several_images

WORDS = "And then?"
ANSWER = "One, two, three"


def turns_go_on_with_the_ids_before(route: Route) -> None:
    """A prompt begins with the ids of the turns before, and its ids alone give the same answer. Of
    a server that is sent messages the result says that it is not exact.
    """
    turns = [to_all(route, greedy(max_new_tokens=8))]
    for _ in range(2):
        after = _after(route, turns[-1])
        if after is None:
            return
        turns.append(after)
    exact = honours(route, "token_ids")
    for earlier, later in (pair for both in pairwise(turns) for pair in zip(*both, strict=True)):
        expect(later.exact is exact, f"exact: the result of a next turn says {later.exact}")
        before = (*earlier.prompt_token_ids, *earlier.token_ids)
        expect(
            not exact or later.prompt_token_ids[: len(before)] == before,
            "token_ids: a prompt does not begin with the ids of the turns before",
        )
    if exact:
        by_ids = [
            TextGenerationRequest(prompt_token_ids=result.prompt_token_ids) for result in turns[-1]
        ]
        expect_same(
            turns[-1],
            answers(run(route, by_ids, greedy(max_new_tokens=8))),
            "token_ids: a next turn gives something else than its prompt's ids",
        )


@needs("token_ids")
def answers_of_earlier_turns_are_not_encoded_again(route: Route) -> None:
    """An earlier answer in other tokens is another prompt, though its text is the same: one of
    single characters, with a control token as plain text. Log probabilities tell: an engine that
    gives none is not judged.
    """
    read = {"prompt_logprobs": True} if honours(route, "prompt_logprobs") else {}
    if not read and not honours(route, "logprobs"):
        return
    tokenizer: Any = route.engine.tokenizer
    image = getattr(route.engine, "image_placeholder", None)
    ends = route.engine.eos_token_ids
    token = next(
        (
            text
            for text, token_id in tokenizer.special_tokens.items()
            if text != image and token_id not in ends
        ),
        "",
    )
    plain = [tokenizer.encode_plain(part, first=False) for part in (*ANSWER, *token)]
    ways = (
        (*tokenizer.encode_plain(ANSWER, first=False), *tokenizer.encode(token)),
        tuple(token_id for ids in plain for token_id in ids),
    )
    texts = {tokenizer.decode(ids) for ids in ways}
    if len(texts) > 1 or ways[0] == ways[1]:  # this tokenizer has one way to write it
        return
    first, text = to_all(route, greedy(max_new_tokens=1)), texts.pop()
    seen = []
    for ids in ways:
        results = [dataclasses.replace(result, token_ids=ids, raw_text=text) for result in first]
        after = _after(route, results, **read)
        if after is None:
            return
        places = [result.prompt_tokens + len(ids) for result in first]
        seen.append([_shown(*pair) for pair in zip(after, places, strict=True)])
    expect(
        seen[0] != seen[1],
        "token_ids: an answer of an earlier turn is encoded again: in other tokens of the same text"
        " it makes no difference",
    )


@needs("images", "token_ids")
def images_of_earlier_turns_stay_in_sight(route: Route) -> None:
    """Conversations whose ids are the same, and whose images are not, get other answers, or at
    least other logprobs.
    """
    first = answers(run(route, with_several_images(), greedy(max_new_tokens=8)))
    ids, text = first[0].token_ids, first[0].raw_text
    results = [dataclasses.replace(result, token_ids=ids, raw_text=text) for result in first]
    after = _after(route, results)
    if after is None:
        return
    expect(
        all(
            (earlier.image_grid_thw, earlier.image_digests)
            == (later.image_grid_thw, later.image_digests)
            for earlier, later in zip(first, after, strict=True)
        ),
        "images: a next turn has not the images of the turn before",
    )
    expect(
        any(_shown(result) != _shown(after[0]) for result in after),
        f"images: {len(after)} conversations with different images get the same next answer",
    )


def _after(
    route: Route, turns: Sequence[GenerationResult], **more: object
) -> list[GenerationResult] | None:
    """The next turns; None where the model's template has none."""
    logprobs = True if honours(route, "logprobs") else None
    options = greedy(max_new_tokens=8, logprobs=logprobs, **more)
    slots = run(route, [result.then(WORDS) for result in turns], options)
    if any(isinstance(error_of(slot), TemplateFailed) for slot in slots):
        return None
    return answers(slots)


def _shown(result: GenerationResult, start: int = 0) -> tuple[object, ...]:
    """What was generated, how likely it was, and how likely the prompt was from this place on."""
    likely = (*(result.prompt_logprobs or ())[start:], *(result.logprobs or ()))
    return result.text, result.token_ids, [round(token.logprob, 3) for token in likely if token]


CHECKS = (
    turns_go_on_with_the_ids_before,
    answers_of_earlier_turns_are_not_encoded_again,
    images_of_earlier_turns_stay_in_sight,
)
