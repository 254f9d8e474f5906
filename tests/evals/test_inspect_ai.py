"""inspect on pipegen: whole evaluations on the embedded model, and what becomes of each thing that
inspect may ask or be told.
"""

from __future__ import annotations

import asyncio
import base64
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("inspect_ai")

from inspect_ai import Task, eval as evaluate
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentAudio,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import includes
from inspect_ai.solver import generate
from inspect_ai.tool import ToolCall, ToolCallError, ToolInfo
from inspect_ai.util import json_schema
from returns.result import Failure

import pipegen as pg
from pipegen.evals.inspect_ai import PipegenAPI
from pipegen.testing.fake import FakeEngine
from pipegen.testing.image_files import image_file

pytestmark = pytest.mark.filterwarnings("default")  # inspect's own


def ask(api: Any, *messages: Any, tools: Any = (), choice: Any = "auto", **config: Any) -> Any:
    return asyncio.run(
        api.generate(
            list(messages) or [ChatMessageUser(content="Hi")],
            list(tools),
            choice,
            GenerateConfig(**config),
        )
    )


ADD = ToolInfo(name="add", description="Add two numbers.")
ENDED = "<|im_end|>"


def test_it_is_registered_by_an_entry_point() -> None:
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert project["project"]["entry-points"]["inspect_ai"] == {
        "pipegen": "pipegen.evals.inspect_ai"
    }
    assert isinstance(get_model("pipegen/embedded", memoize=False).api, PipegenAPI)


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("nope", "not 'nope'"),
        ("vlm", "did you mean 'vllm'"),
        ("load", "not 'load'"),
        ("", "not ''"),
        (7, "not 7"),
    ],
)
def test_a_backend_that_is_none_is_told_those_that_are(backend: Any, words: str) -> None:
    with pytest.raises(
        pg.InvalidField,
        match=r"-M backend takes one of hf, vllm, vllm_server, sglang_server, openai_server, not ",
    ) as refused:
        PipegenAPI("embedded", backend=backend)
    assert words in str(refused.value)


def test_an_evaluation_runs_and_its_samples_share_batches(tmp_path: Path) -> None:
    """Every sample's text is the one that pipegen gives to the same conversation; the model is
    called fewer times than if each sample were by itself.
    """
    passes: list[str] = []

    def counted(module: Any, *_: Any) -> None:
        if type(module).__name__.endswith("ForConditionalGeneration"):
            passes.append(type(module).__name__)

    samples = [
        Sample(input=f"What is {number} + 1?", target=str(number + 1)) for number in range(40)
    ]
    task = Task(dataset=MemoryDataset(samples), solver=generate(), scorer=includes())
    model = get_model(
        "pipegen/embedded", config=GenerateConfig(max_tokens=8, max_connections=40), memoize=False
    )
    with torch.nn.modules.module.register_module_forward_hook(counted):
        (log,) = evaluate(
            task, model=model, display="none", log_realtime=False, log_dir=str(tmp_path)
        )
    assert log.status == "success"
    with pg.backends.hf("embedded") as route:
        own = pg.run(
            route,
            [
                {
                    "messages": [{"role": "user", "content": sample.input}],
                    "options": {"max_new_tokens": 8},
                }
                for sample in samples
            ],
        )
    assert [sample.output.completion for sample in log.samples] == [
        slot.unwrap().text for slot in own
    ]
    assert 0 < len(passes) < 40  # by itself, each sample is at least one
    usage = log.stats.model_usage["pipegen/embedded"]
    assert usage.input_tokens == sum(slot.unwrap().prompt_tokens for slot in own)
    assert usage.output_tokens == sum(slot.unwrap().completion_tokens for slot in own)


def test_stop_reasons_are_told(api: Callable[..., Any]) -> None:
    assert ask(api(f"yes{ENDED}")).stop_reason == "stop"
    assert ask(api("yes and more"), stop_seqs=[" and"]).stop_reason == "stop"
    assert ask(api("yes and more"), max_tokens=3).stop_reason == "max_tokens"
    assert ask(api("yes"), max_tokens=30).stop_reason == "unknown"
    full = ask(api("x" * 99, context_length=80), max_tokens=99)
    assert full.stop_reason == "model_length"


@pytest.mark.parametrize(("text", "completion"), [("so far", "so far"), ("", "I cannot.")])
def test_a_refusal_of_the_server_is_a_stop_reason_and_no_error(
    text: str, completion: str, api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any, **__: Any) -> Any:
        return (Failure(pg.Refused("no", refusal="I cannot.", text=text)),)

    monkeypatch.setattr(pg, "arun", refused)
    output = ask(api("x"))
    assert (output.stop_reason, output.completion) == ("content_filter", completion)


def test_usage_counts_prompt_and_answer(api: Callable[..., Any]) -> None:
    usage = ask(api(f"yes{ENDED}")).usage
    assert usage.output_tokens == 4
    assert usage.total_tokens == usage.input_tokens + 4
    assert usage.input_tokens > 10


def test_the_log_probabilities_are_those_of_the_tokens_that_were_drawn() -> None:
    api = PipegenAPI("embedded", dtype="float32")
    output = ask(api, temperature=1.5, seed=1, max_tokens=6, logprobs=True, top_logprobs=2)
    drawn = output.choices[0].logprobs.content
    with pg.backends.hf("embedded", dtype="float32") as route:
        options = {
            "temperature": 1.5,
            "seed": 1,
            "max_new_tokens": 6,
            "logprobs": True,
            "top_logprobs": 2,
        }
        own = pg.run(
            route, [{"messages": [{"role": "user", "content": "Hi"}], "options": options}]
        )[0].unwrap()
    assert [one.logprob for one in drawn] == pytest.approx(
        [one.logprob for one in own.logprobs or ()]
    )
    assert "".join(one.token for one in drawn) == own.raw_text
    assert all(len(one.top_logprobs) == 2 for one in drawn)
    assert ask(api, max_tokens=2).choices[0].logprobs is None


def test_several_choices_are_given(api: Callable[..., Any]) -> None:
    output = ask(api(f"yes{ENDED}"), num_choices=3, temperature=1.0)
    assert len(output.choices) == 3
    assert output.usage.output_tokens == 12


def test_every_setting_goes_into_the_options(api: Callable[..., Any]) -> None:
    made = api(f"yes{ENDED}")
    ask(
        made,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        logit_bias={5: -1.0},
        seed=7,
        stop_seqs=["x"],
        max_tokens=9,
    )
    options = made.engine.calls[0][0].options
    seen = (options.temperature, options.top_p, options.top_k, options.seed, options.max_new_tokens)
    assert seen == (0.5, 0.9, 3, 7, 9)
    assert options.logit_bias == {5: -1.0}
    assert (options.frequency_penalty, options.presence_penalty, options.stop.stop) == (
        0.1,
        0.2,
        ("x",),
    )


def test_a_schema_is_the_form_of_the_answer(api: Callable[..., Any]) -> None:
    schema = ResponseSchema(name="n", json_schema=json_schema(int))
    with pytest.raises(pg.UnsupportedOption, match="json_schema"):
        ask(api(f"1{ENDED}", honours=frozenset({"on_overflow"})), response_schema=schema)


@pytest.mark.parametrize(
    "asked",
    [
        {"best_of": 2},
        {"prompt_logprobs": 2},
        {"reasoning_effort": "low"},
        {"extra_body": {"a": 1}},
    ],
)
def test_what_no_engine_can_give_is_refused_by_name(
    asked: dict[str, Any], api: Callable[..., Any]
) -> None:
    with pytest.raises(pg.UnsupportedOption) as refused:
        ask(api("yes"), **asked)
    assert refused.value.option == next(iter(asked))


def test_tool_calls_are_read(api: Callable[..., Any]) -> None:
    text = (
        'Let me see. <tool_call>{"name": "add", "arguments": {"a":'
        ' 1}}</tool_call><tool_call>{"name": "add", "arguments": "{\\"a\\": 2}"}</tool_call>'
    )
    output = ask(api(text + ENDED), tools=[ADD])
    message = output.choices[0].message
    assert output.stop_reason == "tool_calls"
    assert [(call.function, call.arguments, call.parse_error) for call in message.tool_calls] == [
        ("add", {"a": 1}, None),
        ("add", {"a": 2}, None),
    ]
    assert len({call.id for call in message.tool_calls}) == 2
    assert message.text == "Let me see."
    assert ask(api(text + ENDED)).choices[0].message.tool_calls is None
    assert ask(api(text + ENDED), tools=[ADD], choice="none").choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    "said",
    [
        "no json",
        '{"arguments": {}}',
        '{"name": "add", "arguments": [1]}',
        '["add"]',
        '{"name": "add", "arguments": "{"}',
    ],
)
def test_a_tool_call_that_cannot_be_read_says_why(said: str, api: Callable[..., Any]) -> None:
    (call,) = (
        ask(api(f"<tool_call>{said}</tool_call>{ENDED}"), tools=[ADD]).choices[0].message.tool_calls
    )
    assert "cannot be read" in call.parse_error
    assert call.arguments == {}


def test_calls_and_reasoning_that_a_server_found_are_taken(api: Callable[..., Any]) -> None:
    result = pg.run(pg.route(FakeEngine(f"yes{ENDED}")), [{"prompt": "a"}])[0].unwrap()
    import dataclasses

    calls = (
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
    )
    output = api("")._output(
        dataclasses.replace(result, tool_calls=calls, reasoning="hm"), wants_tools=True
    )
    message = output.choices[0].message
    assert (message.tool_calls[0].id, message.tool_calls[0].arguments) == ("c1", {"a": 1})
    assert isinstance(message.content[0], ContentReasoning)
    assert (message.content[0].reasoning, message.text) == ("hm", "yes")


def test_reasoning_is_told_apart(api: Callable[..., Any]) -> None:
    message = ask(api(f"<think>two and two</think>4{ENDED}")).choices[0].message
    assert [part.type for part in message.content] == ["reasoning", "text"]
    assert (message.content[0].reasoning, message.text) == ("two and two", "4")


def test_the_whole_conversation_is_rendered(api: Callable[..., Any]) -> None:
    made = api(f"yes{ENDED}")
    ask(
        made,
        ChatMessageSystem(content="Be brief."),
        ChatMessageUser(content=[ContentText(text="What is "), ContentText(text="1 + 1?")]),
        ChatMessageAssistant(
            content=[ContentReasoning(reasoning="hm"), ContentText(text="Let me add.")],
            tool_calls=[ToolCall("c1", "add", {"a": 1})],
        ),
        ChatMessageTool(content="2", tool_call_id="c1", function="add"),
        ChatMessageTool(
            content="late",
            tool_call_id="c2",
            function="add",
            error=ToolCallError("timeout", "too slow"),
        ),
        tools=[ADD],
    )
    request = made.engine.calls[0][0].request
    seen = [message.role for message in request.messages]
    assert seen == ["system", "user", "assistant", "tool", "tool"]
    assert request.messages[2].extras["reasoning_content"] == "hm"
    assert request.messages[2].extras["tool_calls"][0]["function"] == {
        "name": "add",
        "arguments": {"a": 1},
    }
    assert request.messages[3].extras == {"tool_call_id": "c1", "name": "add"}
    assert request.messages[4].content == "Error: too slow\nlate"
    assert request.tools[0]["function"]["name"] == "add"


def test_images_are_taken_from_files_and_data_urls(api: Callable[..., Any], tmp_path: Path) -> None:
    made = api(f"yes{ENDED}")
    (tmp_path / "a.png").write_bytes(image_file())
    url = "data:image/png;base64," + base64.b64encode(image_file()).decode()
    ask(
        made,
        ChatMessageUser(
            content=[
                ContentText(text="look"),
                ContentImage(image=str(tmp_path / "a.png")),
                ContentImage(image=url),
            ]
        ),
    )
    assert len(made.engine.calls[0][0].prompt.images) == 2


def test_other_media_are_refused(api: Callable[..., Any]) -> None:
    with pytest.raises(pg.UnsupportedMultimodal, match="audio"):
        ask(api("yes"), ChatMessageUser(content=[ContentAudio(audio="a.wav", format="wav")]))


def test_a_request_that_fails_raises_its_own_error_and_says_whether_to_retry(
    api: Callable[..., Any],
) -> None:
    made = api(lambda encoded: pg.RateLimited("slow down"))
    with pytest.raises(pg.RateLimited) as failed:
        ask(made)
    assert made.should_retry(failed.value)
    assert not made.should_retry(pg.InvalidRequest("no"))
    assert not made.should_retry(ValueError("no"))


def test_one_sample_that_fails_fails_alone(api: Callable[..., Any]) -> None:
    made = api(
        lambda encoded: (
            pg.InvalidRequest("no")
            if encoded.prompt.text and "bad" in encoded.prompt.text
            else f"yes{ENDED}"
        )
    )

    async def several() -> list[Any]:
        asked = [
            made.generate([ChatMessageUser(content=said)], [], "auto", GenerateConfig())
            for said in ("a", "bad", "c")
        ]
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second, third = asyncio.run(several())
    assert (first.completion, third.completion) == ("yes", "yes")
    assert isinstance(second, pg.InvalidRequest)


def test_a_bug_comes_through_and_the_next_request_works(api: Callable[..., Any]) -> None:
    made = api(f"yes{ENDED}", answers=5)
    with pytest.raises(pg.ContractError):
        ask(made)
    made.engine.answers = None
    assert ask(made).completion == "yes"


def test_a_cancelled_sample_leaves_the_others_alone() -> None:
    made = PipegenAPI("embedded")

    async def one_leaves() -> Any:
        leaving, staying = (
            asyncio.ensure_future(
                made.generate(
                    [ChatMessageUser(content=word)], [], "auto", GenerateConfig(max_tokens=8)
                )
            )
            for word in ("a", "b")
        )
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying, leaving.cancelled()

    answer, cancelled = asyncio.run(one_leaves())
    assert cancelled
    assert answer.choices
    made.close()


def test_the_settings_of_the_engine_are_given_as_model_arguments() -> None:
    api = PipegenAPI("embedded", backend="hf", batch_size=8, enable_thinking=True)
    assert api.max_connections() == 32
    assert (
        api._request([SimpleNamespace(role="user", content="Hi")], [], "auto", GenerateConfig())[
            "options"
        ]["enable_thinking"]
        is True
    )
    served = PipegenAPI("embedded", "http://localhost:1", "key", backend="vllm_server")
    assert "localhost:1" in repr(served.engine)
    assert api.max_tokens() == 2048
    assert api.connection_key() != served.connection_key()
    api.close()
