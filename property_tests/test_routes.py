"""The laws of whole routes, over a scripted engine: limits of the caller's own."""

from __future__ import annotations

import dataclasses
from typing import Literal

from hypothesis import given, strategies as st

import pipegen as pg
from pipegen.testing.fake import FakeEngine

texts = st.lists(st.sampled_from(("a", "b ", "漢", "<|im_end|>", "\n")), max_size=8).map("".join)


def requests_of(contents: list[str]) -> list[pg.GenerationRequest]:
    return [pg.TextGenerationRequest(messages=[{"role": "user", "content": content}]) for content in contents]


@given(st.lists(texts, max_size=6), st.integers(30, 90), st.sampled_from(("error", "clip")))
def test_a_limit_on_the_prompt_fails_exactly_those_that_break_it(contents: list[str], limit: int, on_overflow: Literal["error", "clip"]) -> None:  # T7
    route = pg.route(FakeEngine("ok", context_length=1_000))
    requests = requests_of(contents)
    free = pg.run(route, requests, pg.GenerationOptions(on_overflow=on_overflow))
    bound = pg.run(route, requests, pg.GenerationOptions(on_overflow=on_overflow, max_prompt_tokens=limit))
    tokens = [pg.count_tokens(route, request).unwrap() for request in requests]
    for count, slot, unbound in zip(tokens, bound, free, strict=True):
        if count > limit:
            assert isinstance(error := slot.failure(), pg.PromptTooLong)
            assert (error.prompt_tokens, error.limit) == (count, limit)
        else:
            assert dataclasses.replace(slot.unwrap(), options=unbound.unwrap().options) == unbound.unwrap()
