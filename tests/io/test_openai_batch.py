"""OpenAI batch files: what is read, what is written, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from returns.result import Failure, Success

import pipegen as pg
from pipegen.core.slots import is_ok
from pipegen.io.openai_batch import batch_line, is_batch, request_from_batch
from pipegen.records.options import resolve

MESSAGES = [{"role": "user", "content": "Hi"}]


def line(url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": url, "body": body}


def test_a_chat_line_becomes_a_request_with_options_by_either_name() -> None:
    body: dict[str, Any] = {
        "model": "any",
        "max_tokens": 5,
        "n": 2,
        "stop": "END",
        "top_k": 3,
        "chat_template_kwargs": {"enable_thinking": True, "x": 1},
        "stream": False,
    }
    request = request_from_batch(
        line(messages=MESSAGES, tools=[{"type": "function"}], temperature=None, **body), "line 1"
    ).unwrap()
    assert (request.id, request.tools) == ("a", ({"type": "function"},))
    options = request.options
    assert options is not None
    assert options.stop is not None
    assert options.chat is not None
    assert (
        options.max_new_tokens,
        options.samples,
        options.stop.stop,
        options.top_k,
        options.temperature,
    ) == (5, 2, ("END",), 3, None)
    assert (options.chat.enable_thinking, options.chat.template_kwargs) == (True, {"x": 1})


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        {"type": "json_object"},
    ],
)
def test_a_response_format_is_structured_output(form: dict[str, Any]) -> None:
    options = (
        request_from_batch(line(messages=MESSAGES, response_format=form), "line 1").unwrap().options
    )
    assert options is not None
    assert options.structured is not None
    assert options.structured.json_schema == '{"type": "object"}'
    assert is_ok(
        request_from_batch(line(messages=MESSAGES, response_format={"type": "text"}), "line 1")
    )


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("required", "required"),
        ({"type": "function", "function": {"name": "add"}}, "add"),
        ("none", "none"),  # which the template refuses: a model that sees tools may call them
    ],
)
def test_a_tool_choice_is_the_option_of_that_name(choice: object, forced: str) -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    values = line(messages=MESSAGES, tools=tools, tool_choice=choice)
    options = request_from_batch(values, "line 1").unwrap().options
    assert options is not None
    assert options.structured is not None
    assert options.structured.tool_choice == forced


def test_a_tool_choice_of_none_without_tools_asks_for_nothing() -> None:
    request = request_from_batch(line(messages=MESSAGES, tool_choice="none"), "line 1").unwrap()
    assert request.options == pg.GenerationOptions()


@pytest.mark.parametrize("name", ["chat/completions", "completions"])
def test_an_endpoint_may_be_named_without_its_version(name: str) -> None:
    words = {"messages": MESSAGES} if name.startswith("chat") else {"prompt": "Once"}
    assert request_from_batch(line(f"/{name}", **words), "line 1") == request_from_batch(
        line(f"/v1/{name}", **words), "line 1"
    )


def test_a_completions_line_takes_text_or_ids() -> None:
    made = request_from_batch(line("/v1/completions", prompt="Once", logprobs=2), "line 1").unwrap()
    assert made.prompt == "Once"
    assert made.options is not None
    assert (made.options.logprobs, made.options.top_logprobs) == (True, 2)
    assert request_from_batch(
        line("/v1/completions", prompt=[1, 2]), "line 1"
    ).unwrap().prompt_token_ids == (1, 2)


def test_a_list_of_one_prompt_is_that_prompt() -> None:
    for prompt in ("Once", [1, 2]):
        assert request_from_batch(line("/v1/completions", prompt=[prompt]), "line 1") == (
            request_from_batch(line("/v1/completions", prompt=prompt), "line 1")
        )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (line("/v1/completions", prompt=["a", "b"]), "body.prompt takes one prompt, not 2"),
        (line("/v1/completions", prompt=[["a"]]), "prompt_token_ids takes a whole number"),
        (line("/v1/embeddings"), "url takes '/v1/chat/completions' or"),
        (
            {**line(messages=MESSAGES), "methd": "POST"},
            "no field 'methd' in a batch file's line; did you mean 'method'",
        ),
        ({**line(messages=MESSAGES), "method": "GET"}, "the method POST"),
        ({**line(), "custom_id": ""}, "a custom_id that is not empty"),
        ({**line(), "body": []}, "a body that is an object"),
        (line(messages=MESSAGES, stream=True), "body.stream=True is not supported here"),
        (
            line(messages=MESSAGES, tool_choice={"type": "function"}),
            "tool_choice takes a string",
        ),
        *(
            (line(messages=MESSAGES, tool_choice=no), "tool_choice takes a string")
            for no in ("", {})
        ),
        (
            line(messages=MESSAGES, structured_outputs={"grammar": "g"}),
            "body.structured_outputs takes one of json",
        ),
        (line(messages=MESSAGES, top_k=-2), "top_k takes a whole number of at least 0"),
        (
            line(messages=MESSAGES, temprature=1),
            "body.temprature is not supported here; did you mean 'temperature'",
        ),
        (
            line(messages=MESSAGES, response_format={"type": "structural_tag"}),
            "body.response_format takes the type 'text', 'json_object' or 'json_schema' here",
        ),
        (
            # the schema in the place of its wrapper
            line(
                messages=MESSAGES,
                response_format={"type": "json_schema", "json_schema": {"type": "object"}},
            ),
            (
                "body.response_format takes the type 'text', 'json_object' or 'json_schema' here, the"
                " last with its schema, not"
            ),
        ),
        (
            line(
                messages=MESSAGES,
                response_format={"type": "json_object"},
                structured_outputs={"json": {"type": "array"}},
            ),
            "body.response_format contradicts another name of json_schema",
        ),
        (
            line(messages=MESSAGES, response_format={"type": "json_object"}, tool_choice="f"),
            "takes one of json_schema, regex, choice and tool_choice",
        ),
        (
            line(messages=MESSAGES, max_tokens=1, max_completion_tokens=2),
            "contradicts another name of max_new_tokens",
        ),
        (
            line(messages=MESSAGES, max_tokens=-1),
            "max_new_tokens takes a whole number of at least 0",
        ),
        (line(messages=[]), "messages takes at least one message"),
        (line(), "takes exactly one of messages"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(values: dict[str, Any], words: str) -> None:
    assert is_batch(values)
    failure = request_from_batch(values, "line 7").failure()
    assert isinstance(failure, pg.InvalidRequest)
    assert failure.message.startswith("line 7: ")
    assert words in failure.message


def result(**said: Any) -> pg.GenerationResult:
    options = resolve(pg.GenerationOptions())
    return pg.GenerationResult(
        **{
            "text": "Hello",
            "raw_text": "Hello",
            "finish": pg.Finish.EOS,
            "options": options,
            "prompt_tokens": 3,
            "completion_tokens": 2,
            **said,
        }
    )


def test_an_answer_is_a_chat_completion() -> None:
    made = batch_line(Success(result()), "a", "m", clock=lambda: 5.0)
    assert (made["custom_id"], made["error"], made["response"]["status_code"]) == ("a", None, 200)
    body = made["response"]["body"]
    assert (body["object"], body["model"], body["created"]) == ("chat.completion", "m", 5)
    (choice,) = body["choices"]
    message = choice.pop("message")
    assert choice == {"index": 0, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert {name: value for name, value in message.items() if value is not None} == {
        "role": "assistant",
        "content": "Hello",
    }
    # vLLM writes them, and readers may look there
    assert set(message) > {"refusal", "annotations", "audio", "function_call", "reasoning"}
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": None,
    }


def test_all_samples_are_choices_and_logprobs_name_their_tokens() -> None:
    noted = (
        pg.TokenLogprob(
            token_id=7,
            logprob=-0.5,
            top=((7, -0.5), (8, -1.0)),
            text="é",
            top_texts=("é", "\ufffd"),
        ),
    )
    one = result(finish=pg.Finish.LENGTH, logprobs=noted)
    made = batch_line(
        Success(
            dataclasses.replace(
                one, samples=(one, result(text="Bye", stop="END", finish=pg.Finish.STOP_STRING))
            )
        ),
        "a",
        "m",
    )
    first, second = made["response"]["body"]["choices"]
    seen = (first["finish_reason"], second["finish_reason"], second["stop_reason"], second["index"])
    assert seen == ("length", "stop", "END", 1)
    assert first["logprobs"]["content"][0]["top_logprobs"] == [
        {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
        {"token": "\ufffd", "logprob": -1.0, "bytes": None},
    ]
    assert made["response"]["body"]["usage"]["completion_tokens"] == 4


def test_a_completion_is_text() -> None:
    body = batch_line(Success(result()), "a", "m", "/v1/completions")["response"]["body"]
    seen = (body["object"], body["choices"][0]["text"], body["choices"][0]["logprobs"])
    assert seen == ("text_completion", "Hello", None)


def test_the_logprobs_of_a_completion_have_its_form() -> None:
    spelt = pg.TokenLogprob(
        token_id=7, logprob=-0.5, top=((7, -0.5), (8, -1.0)), text="Hi", top_texts=("Hi", "Ho")
    )
    # the second as a chat server says it
    noted = (spelt, pg.TokenLogprob(token_id=7, logprob=-0.5, top=((7, -0.5), (8, -1.0))))
    body = batch_line(Success(result(logprobs=noted)), "a", "m", "/v1/completions")["response"][
        "body"
    ]
    said = body["choices"][0]["logprobs"]
    seen = (said["tokens"], said["token_logprobs"], said["text_offset"])
    assert seen == (["Hi", "token_id:7"], [-0.5, -0.5], [0, 2])
    assert said["top_logprobs"] == [
        {"Hi": -0.5, "Ho": -1.0},
        {"token_id:7": -0.5, "token_id:8": -1.0},
    ]


def test_a_sample_that_failed_leaves_the_others_their_numbers() -> None:
    made = batch_line(
        Success(
            dataclasses.replace(
                result(), samples=(result(),), failed_samples=((0, pg.Timeout("x")),)
            )
        ),
        "a",
        "m",
    )
    assert [choice["index"] for choice in made["response"]["body"]["choices"]] == [1]


@pytest.mark.parametrize(
    "body",
    [
        *(
            {name: False}
            for name in (
                "echo",
                "include_stop_str_in_output",
                "use_beam_search",
                "return_token_ids",
                "add_special_tokens",
            )
        ),
        {
            "parallel_tool_calls": True,
            "include_reasoning": True,
            "tool_choice": "auto",
            "logit_bias": {},
            "bad_words": [],
            "length_penalty": 1.0,
        },
        {
            "service_tier": "auto",
            "request_id": "r",
            "priority": 1,
            "cache_salt": "s",
            "prompt_cache_key": "k",
            "user": "u",
            "modalities": ["text"],
        },
        {"top_k": -1},
    ],
)
def test_fields_that_ask_for_nothing_special_are_taken(body: dict[str, Any]) -> None:
    assert is_ok(request_from_batch(line(messages=MESSAGES, **body), "line 1"))


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"json": {"type": "object"}}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["a", "b"]}, "choice"),
    ],
)
def test_vllms_structured_outputs_are_the_form_of_the_answer(
    form: dict[str, Any], field: str
) -> None:
    options = (
        request_from_batch(line(messages=MESSAGES, structured_outputs=form), "line 1")
        .unwrap()
        .options
    )
    assert options is not None
    assert getattr(options.structured, field)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (pg.InvalidRequest("x"), 400),
        (pg.RateLimited("x"), 429),
        (pg.Timeout("x"), 504),
        (pg.BackendFailed("x", incident="1"), 500),
    ],
)
def test_a_failure_has_the_status_of_its_kind(error: pg.GenerationError, status: int) -> None:
    made = batch_line(Failure(error), "a", "m")
    assert made["response"]["status_code"] == status
    assert made["response"]["body"] is None
    assert (made["error"]["code"], made["error"]["message"]) == (type(error).__name__, "x")
    assert made["error"]["error"]["code"] == status


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("functions", "'tools'"),
        ("instructions", "'system'"),
        ("documents", "template_kwargs"),
        ("reasoning_effort", 'it goes into the body, as {"template_kwargs": {"reasoning_effort"'),
        ("stop_words", "the option 'stop'? It goes into the body"),
        ("max_tokns", "did you mean 'max_tokens'?"),
    ],
)
def test_a_field_of_other_programs_is_refused_with_what_pipegen_calls_it(
    name: str, instead: str
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], name: ["a"]}
    values = {"custom_id": "a", "url": "/v1/chat/completions", "body": body}
    error = request_from_batch(values, "line 1").failure()
    assert error.message.startswith(f"line 1: body.{name} is not supported here")
    assert instead in error.message


def test_a_line_without_method_and_url_is_of_a_chat() -> None:
    values = {"custom_id": "a", "body": {"messages": MESSAGES, "max_tokens": 5}}
    assert request_from_batch(values, "line 1") == request_from_batch(
        line(messages=MESSAGES, max_tokens=5), "line 1"
    )
    assert is_ok(request_from_batch(values, "line 1"))
