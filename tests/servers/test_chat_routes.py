"""Chat routes on running servers: stops, logprobs, plugins, reasoning, tools and over-long prompts,
beside the Hugging Face engine in this process.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.slots import is_ok
from pipegen.engines.plugin import Plugin
from pipegen.testing.ask import PROMPTS, answers, chat, greedy
from pipegen.testing.parity import chat_requests

EMBEDDED = ("vllm-embedded", "sglang-embedded")
both = pytest.mark.parametrize("served", EMBEDDED, indirect=True)
THINKS = pg.ChatTemplateOptions(enable_thinking=True)
QUESTION = pg.TextGenerationRequest(
    messages=[{"role": "user", "content": "List the months of the year."}]
)


def streamed(
    route: pg.Route, requests: Sequence[Any], options: pg.GenerationOptions | None = None
) -> tuple[list[pg.GenerationResult], list[str], list[str]]:
    """The results of a stream in order, and the joined text and reasoning of each."""
    slots: dict[int, Any] = {}
    text, reasoning = [""] * len(requests), [""] * len(requests)
    for event in pg.stream(route, requests, options):
        if isinstance(event, pg.Done):
            slots[event.index] = event.slot
        elif isinstance(event, pg.Delta):
            text[event.index] += event.text
            reasoning[event.index] += event.reasoning
    return answers([slots[row] for row in range(len(requests))]), text, reasoning


STOPS = (
    pg.StopOptions(stop=("ar", "ch, A", "5", "\n")),
    pg.StopOptions(stop=("e", "er, ", "b"), stop_token_ids=(502,)),
    pg.StopOptions(stop=("never",)),
)


@both
@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_stops_cut_a_chat_where_they_cut_everywhere(
    stop: pg.StopOptions, served: Any, hf_of: Any
) -> None:
    requests = [
        *(chat(text) for text in PROMPTS),
        *chat_requests("stops", 20, pg.GenerationOptions()),
    ]
    options = greedy(stop=stop)
    wanted = answers(pg.run(hf_of(served.model), requests, options))
    with served.chat() as route:
        whole, (pieces, joined, _) = (
            answers(pg.run(route, requests, options)),
            streamed(route, requests, options),
        )
    for theirs, mine, piece, text in zip(wanted, whole, pieces, joined, strict=True):
        assert (mine.text, mine.finish, mine.stop) == (theirs.text, theirs.finish, theirs.stop)
        assert (piece.text, piece.finish, piece.stop) == (theirs.text, theirs.finish, theirs.stop)
        assert text == theirs.text


@both
def test_logprobs_of_a_chat_are_those_of_the_hf_engine(served: Any, hf_of: Any) -> None:  # A20
    options, requests = greedy(logprobs=True, top_logprobs=2), [chat(text) for text in PROMPTS]
    with served.chat() as route:
        found = answers(pg.run(route, requests, options))
        if served.engine == "vllm":
            assert [one.logprobs for one in streamed(route, requests, options)[0]] == [
                one.logprobs for one in found
            ]
        else:
            error = next(
                event.slot.failure()
                for event in pg.stream(route, requests[:1], options)
                if isinstance(event, pg.Done)
            )
            assert error.option == "logprobs"
    for mine, theirs in zip(
        found, answers(pg.run(hf_of(served.model), requests, options)), strict=True
    ):
        assert mine.token_ids == theirs.token_ids
        for one, other in zip(mine.logprobs or (), theirs.logprobs or (), strict=True):
            assert (one.token_id, [token for token, _ in one.top]) == (
                other.token_id,
                [token for token, _ in other.top],
            )
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def third_mark(seen: int, text: str) -> tuple[int, int | None]:
    for place, character in enumerate(text):
        seen += character in ",."
        if seen == 3:
            return seen, place + 1
    return seen, None


@both
@pytest.mark.parametrize("stop", [(), ("ch, A", "5"), (", A",)], ids=str)
def test_a_plugin_halts_a_chat_at_the_character_where_it_halts_everywhere(
    stop: tuple[str, ...], served: Any, hf_of: Any
) -> None:
    plugin = Plugin(name="third mark", start=lambda: 0, feed=third_mark)
    requests, options = [chat(text) for text in PROMPTS], greedy(stop=pg.StopOptions(stop=stop))
    wanted = answers(pg.run(pg.attach(hf_of(served.model), plugin), requests, options))
    with served.chat() as route:
        found = answers(pg.run(pg.attach(route, plugin), requests, options))
        served.wait_until(busy=False)  # what was halted is not generated on
    assert [(one.text, one.finish, one.stop) for one in found] == [
        (one.text, one.finish, one.stop) for one in wanted
    ]
    assert pg.Finish.PLUGIN in [one.finish for one in found]


@both
def test_reasoning_and_answer_are_two_fields(served: Any) -> None:  # H13
    with served.chat() as route:
        (whole,) = answers(pg.run(route, [QUESTION], greedy(max_new_tokens=60, chat=THINKS)))
        (piece,), (text,), (reasoning,) = streamed(
            route, [QUESTION], greedy(max_new_tokens=60, chat=THINKS)
        )
    assert (
        (whole.reasoning or "").strip()
        == "I make a list."
        == (piece.reasoning or "").strip()
        == reasoning.strip()
    )
    assert whole.text.startswith("January, February") or whole.text.strip().startswith(
        "January, February"
    )
    assert piece.text == whole.text == text
    assert (whole.finish, piece.finish) == (pg.Finish.EOS, pg.Finish.EOS)


@both
def test_a_row_that_ends_for_its_length_while_it_thinks_has_no_answer(served: Any) -> None:  # H13
    with served.chat() as route:
        (whole,) = answers(pg.run(route, [QUESTION], greedy(max_new_tokens=3, chat=THINKS)))
        (piece,), _, _ = streamed(route, [QUESTION], greedy(max_new_tokens=3, chat=THINKS))
    for found in (whole, piece):
        assert (found.text, found.finish, found.completion_tokens, found.clipped_from) == (
            "",
            pg.Finish.LENGTH,
            3,
            None,
        )
        assert found.reasoning


SEVEN = {
    "type": "object",
    "properties": {"n": {"type": "integer", "enum": [7]}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Count things",
        "parameters": SEVEN,
        "strict": True,
    },
}


@both
def test_tool_calls_are_collected_whole_and_from_a_stream(served: Any) -> None:
    request = dataclasses.replace(QUESTION, tools=[TOOL])
    forced = {"tool_choice": {"type": "function", "function": {"name": "count"}}}
    with served.chat(extra_body=forced) as route:
        (whole,) = answers(pg.run(route, [request], greedy(max_new_tokens=200)))
        (piece,), _, _ = streamed(route, [request], greedy(max_new_tokens=200))
    for found in (whole, piece):
        (call,) = found.tool_calls
        assert call["function"]["name"] == "count"
        assert json.loads(call["function"]["arguments"]) == {"n": 7}
        assert found.text == ""


@both
def test_an_over_long_chat_is_known_in_a_stream_too(served: Any) -> None:  # H5
    long, short = chat("months " * 4200), chat("Hi")
    with served.chat(retries=0) as route:
        slots = pg.run(route, [long, short], greedy(max_new_tokens=2))
        events = {
            event.index: event.slot
            for event in pg.stream(route, [long, short], greedy(max_new_tokens=2))
            if isinstance(event, pg.Done)
        }
    for error in (slots[0].failure(), events[0].failure()):
        assert isinstance(error, pg.PromptTooLong)
        assert error.limit == 4096
        assert error.prompt_tokens > 4096
    assert is_ok(slots[1])
    assert is_ok(events[1])


@both
@pytest.mark.parametrize("length", [4096, 5000])
# H5
def test_an_over_long_prompt_that_only_the_server_finds_is_the_same_error(
    length: int, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = pg.TextGenerationRequest(prompt_token_ids=[5] * length)
    with served.opened(retries=0) as route:
        monkeypatch.setattr(route.engine, "limit_of", lambda facts: None)
        slot = pg.run(route, [long], greedy(max_new_tokens=1))[0]
        told = next(
            event.slot
            for event in pg.stream(route, [long], greedy(max_new_tokens=1))
            if isinstance(event, pg.Done)
        )
        for error in (slot.failure(), told.failure()):
            assert isinstance(error, pg.PromptTooLong)
            assert (error.prompt_tokens, error.limit) == (length, 4096)
        assert is_ok(pg.run(route, [chat("Hi")], greedy(max_new_tokens=1))[0])


@both
def test_a_request_that_the_server_refuses_is_not_called_too_long(served: Any) -> None:  # H5
    with served.chat(retries=0, extra_body={"temperature": -1}) as route:
        error = pg.run(route, [chat("Hi")], greedy(max_new_tokens=1))[0].failure()
    assert isinstance(error, pg.InvalidRequest)
    assert "temperature" in error.message
