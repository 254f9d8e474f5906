"""`max_prompt_tokens` fails exactly the longer prompts; each sample is as it is alone; `imap_keyed`
gives each key its slot, in order.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Literal

from hypothesis import given, strategies as st

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.stages.gather_samples import derive_seed
from pipegen.testing.fake import FakeEngine

texts = st.lists(st.sampled_from(("a", "b ", "漢", "<|im_end|>", "\n")), max_size=8).map("".join)


def request_of(content: str, **options: Any) -> pg.GenerationRequest:
    return pg.TextGenerationRequest(
        messages=[{"role": "user", "content": content}], options=pg.GenerationOptions(**options)
    )


@given(st.lists(texts, max_size=6), st.integers(30, 90), st.sampled_from(("error", "clip")))
# T7
def test_a_limit_on_the_prompt_fails_exactly_those_that_break_it(
    contents: list[str], limit: int, on_overflow: Literal["error", "clip"]
) -> None:
    route = pg.route(FakeEngine("ok", context_length=1_000))
    requests = [request_of(content) for content in contents]
    tokens = [pg.count_tokens(route, request).unwrap() for request in requests]
    free = pg.run(route, requests, pg.GenerationOptions(on_overflow=on_overflow))
    bound = pg.run(
        route, requests, pg.GenerationOptions(on_overflow=on_overflow, max_prompt_tokens=limit)
    )
    for count, slot, unbound in zip(tokens, bound, free, strict=True):
        if count > limit:
            assert isinstance(error := slot.failure(), pg.PromptTooLong)
            assert (error.prompt_tokens, error.limit) == (count, limit)
        else:
            assert (
                dataclasses.replace(slot.unwrap(), options=unbound.unwrap().options)
                == unbound.unwrap()
            )


@given(st.integers(2, 5), st.integers(0, 99), st.sets(st.integers(0, 4)))
# B10
def test_each_sample_is_what_its_seed_gives_alone_and_only_when_all_fail_the_request_does(
    count: int, seed: int, lost: set[int]
) -> None:
    gone = {derive_seed(seed, sample) for sample in lost}

    def script(encoded: Encoded) -> Any:
        return (
            pg.BackendFailed(f"no {encoded.options.seed}", scope="row")
            if encoded.options.seed in gone
            else f"seed {encoded.options.seed}"
        )

    route = pg.route(FakeEngine(script))
    alone = pg.run(
        route, [request_of("Hi", seed=derive_seed(seed, sample)) for sample in range(count)]
    )
    (slot,) = pg.run(route, [request_of("Hi", seed=seed, samples=count)])
    if set(range(count)) <= lost:
        assert slot == alone[0]
    else:
        result = slot.unwrap()
        assert result.completions == alone
        assert result.samples == tuple(one.unwrap() for one in alone if pg.is_ok(one))
        # C8
        assert (
            pg.run(route, [dataclasses.replace(request_of("Hi"), options=result.options)])[0]
            == slot
        )


@given(st.lists(st.tuples(st.integers(0, 3), texts), max_size=9), st.integers(1, 4))
def test_keys_come_back_as_they_came_each_with_the_slot_of_its_request(
    asked: list[tuple[int, str]], in_flight: int
) -> None:
    def script(encoded: Encoded) -> Any:
        return (
            encoded.prompt.text
            if "漢" not in (encoded.prompt.text or "")
            else pg.BackendFailed("no", scope="row")
        )

    route = pg.route(FakeEngine(script))
    pairs: list[Any] = [
        (key, request_of(content) if content else {"messages": []}) for key, content in asked
    ]
    expected = list(
        zip(
            [key for key, _ in pairs], pg.run(route, [request for _, request in pairs]), strict=True
        )
    )

    async def collect() -> list[Any]:
        return [pair async for pair in pg.aimap_keyed(route, pairs, in_flight=in_flight)]

    assert list(pg.imap_keyed(route, pairs, in_flight=in_flight)) == expected
    assert asyncio.run(collect()) == expected
