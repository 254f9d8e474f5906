"""What inspect expects of every provider, asked as inspect asks it: through its `Model`, its tool
loop and its log.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai import Task, eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageUser,
    ContentImage,
    ContentText,
    GenerateConfig,
    Model,
    ResponseSchema,
    get_model,
)
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolFunction, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

import pipegen as pg

# registers the provider, as its entry point does where pipegen is installed
import pipegen.evals.inspect_ai
from pipegen.testing.image_files import image_file

pytestmark = pytest.mark.filterwarnings("default")  # inspect's own
ENDED = "<|im_end|>"


def embedded(**config: Any) -> Model:
    return get_model(
        "pipegen/embedded", config=GenerateConfig(**config), memoize=False, dtype="float32"
    )


def asked(model: Model, said: Any = "Count from 1 to 9.", **more: Any) -> Any:
    return asyncio.run(model.generate(said, **more))


def test_generation_stops_at_its_end_its_limit_and_its_stop_strings() -> None:
    assert asked(embedded(max_tokens=200)).stop_reason == "stop"
    short = asked(embedded(max_tokens=3))
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 3)
    whole = asked(embedded(max_tokens=30)).completion
    stopped = asked(embedded(max_tokens=30, stop_seqs=[whole[6:9]]))
    assert (stopped.stop_reason, whole.startswith(stopped.completion), len(stopped.completion)) == (
        "stop",
        True,
        whole.index(whole[6:9]),
    )


def test_a_prompt_that_is_too_long_ends_with_model_length_and_does_not_raise() -> None:
    output = asked(embedded(), "word " * 30_000)
    assert output.stop_reason == "model_length"
    assert "limit" in output.completion


def test_choices_differ_by_their_seeds_and_repeat_with_one() -> None:
    first, again = (
        asked(embedded(max_tokens=24, num_choices=3, temperature=2.0, seed=4), "Tell me a story.")
        for _ in range(2)
    )
    texts = [choice.message.text for choice in first.choices]
    assert (len(texts), len(set(texts)) > 1) == (3, True)
    assert texts == [choice.message.text for choice in again.choices]


def test_log_probabilities_of_the_answer_are_named_and_have_their_alternatives() -> None:
    choice = asked(embedded(max_tokens=8, logprobs=True, top_logprobs=2)).choices[0]
    content = choice.logprobs.content
    assert "".join(one.token for one in content).startswith(choice.message.text)
    assert all(
        len(one.top_logprobs) == 2 and one.top_logprobs[0].logprob == pytest.approx(one.logprob)
        for one in content
    )
    assert choice.prompt_logprobs is None


def test_log_probabilities_of_the_prompt_are_given_where_they_are_asked_for() -> None:
    output = asked(embedded(max_tokens=1, prompt_logprobs=1), "The quick brown fox")
    content = output.choices[0].prompt_logprobs.content
    assert len(content) == output.usage.input_tokens - 1
    assert all(
        one.token and math.isfinite(one.logprob) and one.logprob <= 0 and len(one.top_logprobs) == 1
        for one in content
    )
    assert "quick" in "".join(one.token for one in content)


def test_tokens_are_counted_as_the_engine_counts_them() -> None:
    model = embedded(max_tokens=1)
    image = [ChatMessageUser(content=[ContentText(text="look"), ContentImage(image=_data_url())])]
    for said in ([ChatMessageUser(content="How many?")], image):
        assert asyncio.run(model.count_tokens(said)) == asked(model, said).usage.input_tokens
    assert asyncio.run(model.count_tokens("1, 2, 3,")) == len(
        pg.run(model.api.route, [{"prompt": "1, 2, 3,"}], {"max_new_tokens": 0})[0]
        .unwrap()
        .prompt_token_ids
    )


def test_an_answer_follows_its_schema() -> None:
    class Count(BaseModel):
        sure: bool
        word: Literal["one", "two"]

    schema = ResponseSchema(name="count", json_schema=json_schema(Count))
    Count.model_validate_json(asked(embedded(max_tokens=60, response_schema=schema)).completion)


@tool
def add() -> Any:
    async def execute(x: int, y: int) -> int:
        """Add two numbers.

        Args:
            x: First number.
            y: Second number.
        """
        return x + y

    return execute


@tool
def look() -> Any:
    async def execute() -> ContentImage:
        """Take a photograph."""
        return ContentImage(image=_data_url())

    return execute


@pytest.mark.parametrize("choice", ["any", ToolFunction(name="add")])
def test_a_tool_call_is_forced_by_its_form(choice: Any) -> None:
    """Even of a model that would not make one."""
    output = asked(embedded(max_tokens=60), tools=[add()], tool_choice=choice)
    (call,) = output.message.tool_calls
    assert (output.stop_reason, output.completion, call.function, call.parse_error) == (
        "tool_calls",
        "",
        "add",
        None,
    )
    assert {name: type(value) for name, value in call.arguments.items()} == {"x": int, "y": int}


def test_of_several_tools_the_named_one_is_called_and_none_that_is_not_there() -> None:
    output = asked(
        embedded(max_tokens=60), tools=[add(), look()], tool_choice=ToolFunction(name="look")
    )
    assert [call.function for call in output.message.tool_calls] == ["look"]
    either = asked(embedded(max_tokens=60), tools=[add(), look()], tool_choice="any")
    assert either.message.tool_calls[0].function in ("add", "look")
    from inspect_ai.tool import ToolInfo

    api = embedded().api
    with pytest.raises(pg.InvalidRequest, match="names none"):
        asyncio.run(
            api.generate(
                [ChatMessageUser(content="Hi")],
                [ToolInfo(name="add", description="")],
                ToolFunction(name="sub"),
                GenerateConfig(),
            )
        )


def test_tools_are_called_and_their_results_read(api: Callable[..., Any], tmp_path: Path) -> None:
    """A whole loop: the call, what the tool gives (a number, an image), and the answer that has
    seen it.
    """

    def script(encoded: Any) -> str:
        seen = encoded.prompt.text or ""
        if "pipegen saw" in seen or encoded.prompt.images:
            return f"done{ENDED}"
        call = (
            '{"name": "look", "arguments": {}}'
            if "photograph" in seen.split("<|im_start|>user")[-1]
            else '{"name": "add", "arguments": {"x": 1, "y": 1}}'
        )
        return (
            f"done with 2{ENDED}"
            if "<|im_start|>tool\n2" in seen
            else f"<tool_call>{call}</tool_call>{ENDED}"
        )

    model, made = embedded(), api(script, honours=pg.ENGINES["vllm"])
    model.api.route, model.api.engine = made.route, made.engine
    task = Task(
        dataset=[Sample(input="What is 1 + 1?"), Sample(input="Take a photograph.")],
        solver=[use_tools(add(), look()), generate()],
    )
    (log,) = evaluate(task, model=model, display="none", log_realtime=False, log_dir=str(tmp_path))
    assert log.status == "success"
    number, image = ([*sample.messages] for sample in log.samples)
    assert [message.role for message in number] == ["user", "assistant", "tool", "assistant"]
    assert (number[2].text, number[3].text) == ("2", "done with 2")
    assert image[-1].text == "done"
    assert any(len(inputs[0].prompt.images) == 1 for inputs in made.engine.calls)


def test_samples_that_wait_for_each_other_share_passes() -> None:
    """Twelve concurrent requests take fewer passes of the model than twelve one after another."""
    model, counts = embedded(max_tokens=8, max_connections=12), list[int]()

    async def together() -> None:
        await asyncio.gather(*(model.generate(f"What is {number} + 1?") for number in range(12)))

    async def in_turn() -> None:
        for number in range(12):
            await model.generate(f"What is {number} + 1?")

    for way in (together, in_turn):
        before = model.api.engine.work.steps
        asyncio.run(way())
        counts.append(model.api.engine.work.steps - before)
    assert counts[0] < counts[1] / 2


def _data_url() -> str:
    import base64

    return "data:image/png;base64," + base64.b64encode(image_file()).decode()
