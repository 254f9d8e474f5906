"""What only a running server can show: addresses and keys, refusals before sending, many requests
in flight, and cancellation that reaches it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from returns.result import Failure

import pipegen as pg
from pipegen.core.slots import is_ok
from pipegen.testing.ask import PROMPTS, answers, chat, greedy, same
from pipegen.testing.image_files import image_file

EMBEDDED = ("vllm-embedded", "sglang-embedded")
both = pytest.mark.parametrize("served", EMBEDDED, indirect=True)
LONG = pg.GenerationOptions(max_new_tokens=3000, stop=pg.StopOptions(ignore_eos=True))


@both
@pytest.mark.parametrize("form", ["", "/", "/v1", "/v1/"])
def test_an_address_is_taken_in_every_form(form: str, served: Any) -> None:  # H7
    with served.opened(base_url=served.url + form) as route:
        assert answers(pg.run(route, [chat("Hi")], greedy(max_new_tokens=2)))


@both
def test_a_wrong_key_is_refused_and_told_to_nobody(served: Any) -> None:  # H9
    for make in (served.opened, served.chat):
        with make(api_key="not-the-key-of-this-server") as route:
            slot = pg.run(route, [chat("Hi")], greedy(max_new_tokens=2))[0]
        assert isinstance(slot, Failure)
        assert "401" in slot.failure().message
        assert "not-the-key" not in repr(slot) + repr(route)


@both
def test_a_prompt_that_is_too_long_for_the_server_is_refused(served: Any) -> None:  # H4
    long = pg.TextGenerationRequest(prompt_token_ids=[5] * 5000)
    with served.opened() as route:
        slots = pg.run(
            route,
            [long, chat("Hi", greedy(max_new_tokens=5000)), chat("Hi", greedy(max_new_tokens=1))],
        )
        # SGLang has room for two tokens less than the context length
        limit = {"vllm": 4096, "sglang": 4094}[served.engine]
        assert [(type(slot.failure()), slot.failure().limit) for slot in slots[:2]] == [
            (pg.PromptTooLong, limit)
        ] * 2
        assert is_ok(slots[2])


@both
def test_what_could_end_a_server_is_refused_and_the_server_lives(served: Any) -> None:  # H10
    with served.opened() as route:
        pad = route.engine.tokenizer.special_tokens["<|image_pad|>"]
        size = route.engine.tokenizer.vocab_size
        bad: list[Any] = [{"prompt_token_ids": [1, size]}, {"prompt_token_ids": [1, pad, 2]}]
        for slot in pg.run(
            route, [pg.TextGenerationRequest(**said) for said in bad], greedy(max_new_tokens=1)
        ):
            assert isinstance(slot.failure(), pg.InvalidRequest)
        for said in ({"prompt_token_ids": []}, {"prompt_token_ids": [-1]}):
            with pytest.raises(pg.InvalidField):
                pg.TextGenerationRequest(**said)
        assert answers(pg.run(route, [chat("Hi")], greedy(max_new_tokens=1)))


@both
def test_hundreds_of_requests_come_back_in_order(served: Any) -> None:
    """Each row's length tells which request it answers."""
    lengths = list(itertools.islice(itertools.cycle((1, 2, 3, 5, 4)), 300))
    requests = [
        chat(PROMPTS[row % 3], greedy(max_new_tokens=length, stop=pg.StopOptions(ignore_eos=True)))
        for row, length in enumerate(lengths)
    ]
    with served.opened(max_in_flight=64) as route:
        alone = {
            text: (
                answers(
                    pg.run(
                        route,
                        [chat(text)],
                        greedy(max_new_tokens=5, stop=pg.StopOptions(ignore_eos=True)),
                    )
                )[0].token_ids
            )
            for text in PROMPTS
        }
        for row, result in enumerate(answers(pg.run(route, requests))):
            assert result.token_ids == alone[PROMPTS[row % 3]][: lengths[row]]


@both
def test_a_stream_that_is_left_ends_its_request_at_the_server(served: Any) -> None:  # H12
    with served.opened() as route:
        for event in pg.stream(route, [chat("Count."), chat("List.")], LONG):
            assert isinstance(event, pg.Delta)
            break
        served.wait_until(busy=False)


@both
def test_a_cancelled_call_ends_its_requests_at_the_server(served: Any) -> None:  # H12
    async def cancelled() -> set[str]:
        with served.opened() as route:
            work = asyncio.create_task(pg.arun(route, [chat("Count."), chat("List.")], LONG))
            await asyncio.to_thread(served.wait_until, busy=True)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        return {task.get_name() for task in asyncio.all_tasks()} - {
            asyncio.current_task().get_name()
        }  # type: ignore[union-attr]

    assert asyncio.run(cancelled()) == set()
    served.wait_until(busy=False)


@both
def test_samples_are_as_many_as_asked(served: Any) -> None:  # H11
    with served.opened() as route:
        result = answers(
            pg.run(
                route,
                [chat("Hi")],
                pg.GenerationOptions(samples=2, temperature=1.0, max_new_tokens=4),
            )
        )[0]
        assert len(result.samples) == 2


@both
def test_logprobs_are_those_of_the_hf_engine(served: Any, hf_of: Any) -> None:  # A20
    options = greedy(logprobs=True, top_logprobs=2, max_new_tokens=6)
    with served.opened() as route:
        (found,), (wanted,) = (
            answers(pg.run(route, [chat("Hi")], options)),
            answers(pg.run(hf_of(served.model), [chat("Hi")], options)),
        )
    assert same(found, wanted)
    for one, other in zip(found.logprobs or (), wanted.logprobs or (), strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


@both
@pytest.mark.parametrize(
    ("width", "height"), [(64, 64), (33, 130), (300, 40), (640, 480), (1000, 30), (17, 19)]
)
@pytest.mark.parametrize(
    "budget",
    [{}, {"min_pixels": 9216, "max_pixels": 12544}, {"min_pixels": 12544, "max_pixels": 16384}],
    ids=json.dumps,
)
# P1
def test_an_image_has_the_same_grid_and_prompt_everywhere(
    width: int, height: int, budget: dict[str, int], served: Any, hf_of: Any
) -> None:
    request = pg.VlmGenerationRequest(
        prompt="What do you see?", images=[image_file(width=width, height=height)]
    )
    options = greedy(max_new_tokens=4, preprocess=pg.VlmPreprocessOptions(**budget))
    with served.opened() as route:
        found, wanted = (
            pg.run(route, [request], options)[0],
            pg.run(hf_of(served.model), [request], options)[0],
        )
    if not is_ok(wanted):  # a strip that is too narrow
        assert type(found.failure()) is type(wanted.failure())
        return
    one, other = found.unwrap(), wanted.unwrap()
    seen = (one.image_grid_thw, one.prompt_token_ids, one.text)
    assert seen == (other.image_grid_thw, other.prompt_token_ids, other.text)


# The checkpoint's own processor, which the servers use, enlarges to 9216 pixels.
SMALL = [
    {"max_pixels": 4096},
    {"max_pixels": 2048},
    {"min_pixels": 65536, "max_pixels": 90000},
    {"do_resize": False},
]


@pytest.mark.parametrize("served", ["vllm-embedded"], indirect=True)
@pytest.mark.parametrize("budget", SMALL, ids=json.dumps)
# P1
def test_vllm_keeps_a_budget_that_is_not_the_checkpoints_own(
    budget: dict[str, Any], served: Any, hf_of: Any
) -> None:
    options = greedy(max_new_tokens=12, preprocess=pg.VlmPreprocessOptions(**budget))
    sizes = [(64, 64)], [(64, 64), (320, 160)]
    requests = [
        pg.VlmGenerationRequest(
            prompt="Compare.",
            images=[image_file(width=width, height=height) for width, height in some],
        )
        for some in sizes
    ]
    with served.opened() as route:
        found, streamed = (
            pg.run(route, requests, options),
            [
                event.slot
                for event in pg.stream(route, requests, options)
                if isinstance(event, pg.Done)
            ],
        )
        for one, two, other in zip(
            answers(found),
            answers(streamed),
            answers(pg.run(hf_of(served.model), requests, options)),
            strict=True,
        ):
            assert same(one, other)
            assert same(two, other)


@pytest.mark.parametrize("served", ["sglang-embedded"], indirect=True)
def test_a_budget_that_the_server_would_not_keep_is_refused(served: Any) -> None:  # P1
    request = pg.VlmGenerationRequest(
        prompt="What do you see?", images=[image_file(width=64, height=64)]
    )
    with served.opened() as route:
        error = pg.run(
            route,
            [request],
            greedy(max_new_tokens=4, preprocess=pg.VlmPreprocessOptions(max_pixels=4096)),
        )[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == "max_pixels"
