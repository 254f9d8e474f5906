"""The fields of a chat server's requests beside its backend: passed on, or refused with the nearest
name.
"""

from __future__ import annotations

from typing import Any

import pytest

from pipegen.backends.servers.dry import wire_requests
from pipegen.config import BackendConfig, chat_from
from pipegen.core.names import InvalidField
from pipegen.records.fields import UnknownField


def backend(**said: Any) -> BackendConfig:
    return chat_from({"backend": {"model": "m", **said}}).agents[0].backend


def sent(config: BackendConfig, **request: Any) -> Any:
    pytest.importorskip("aiohttp")
    with config.first(dry=True) as route:
        return wire_requests(route, [{"prompt": "Hi", **request}], config.options)[0].unwrap().body


SERVERS: dict[str, dict[str, Any]] = {
    "vllm": {"type": "vllm", "base_url": None},
    "sglang": {"type": "sglang"},
    "plain": {"type": "openai", "base_url": "http://h/v1"},
}


FIELDS = {
    "vllm": "cache_salt documents length_penalty min_tokens_to_think priority"
    " prompt_embeds reasoning_effort response_format return_token_ids structured_outputs"
    " thinking_token_budget tool_choice tools truncate_prompt_tokens use_beam_search",
    "sglang": "custom_params ebnf lora_path return_hidden_states stop_regex stream_reasoning"
    " thinking tool_choice watermark",
    "plain": "cache_prompt metadata modalities n_probs num_ctx prediction store"
    " top_a top_n_sigma typical_p user verbosity web_search_options",
}
"""Fields that servers have, some with names like those of options."""


@pytest.mark.parametrize(
    ("dialect", "name"), [(dialect, name) for dialect in FIELDS for name in FIELDS[dialect].split()]
)
def test_a_field_is_passed_on_as_it_is(dialect: str, name: str) -> None:
    value = {"a": [1, "b", {"c": None}]}
    config = backend(**SERVERS[dialect], **{name: value})
    assert sent(config)[name] == value
    assert backend(**SERVERS[dialect], **{name: None}).settings.extra_body == {}


def test_barred_words_of_a_chat_server_are_its_own_in_extra_body_and_refused_elsewhere() -> None:
    own = backend(**SERVERS["vllm"], extra_body={"bad_words": ["no"]}, logit_bias={"7": 1})
    assert sent(own)["bad_words"] == ["no"]
    assert sent(own)["logit_bias"] == {"7": 1.0}
    with backend(**SERVERS["vllm"], bad_words=["no"]).first(dry=True) as route:
        refusal = wire_requests(route, [{"prompt": "Hi"}], {"bad_words": ["no"]})[0].failure()
    assert refusal.option == "bad_words"
    assert "put the field into extra_body" in refusal.hint


@pytest.mark.parametrize(
    ("dialect", "said", "body"),
    [
        ("vllm", {"guided_json": {"enum": [1]}}, {"structured_outputs": {"json": '{"enum": [1]}'}}),
        ("vllm", {"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
        (
            "vllm",
            {"extra_body": {"guided_choice": ["a", "b"]}},
            {"structured_outputs": {"choice": ["a", "b"]}},
        ),
        (
            "vllm",
            {"guided_grammar": "root ::= x"},
            {"structured_outputs": {"grammar": "root ::= x"}},
        ),
        (
            "vllm",
            {
                "guided_grammar": "g",
                "guided_whitespace_pattern": " ",
                "extra_body": {"structured_outputs": {"disable_any_whitespace": True}},
            },
            {
                "structured_outputs": {
                    "grammar": "g",
                    "whitespace_pattern": " ",
                    "disable_any_whitespace": True,
                }
            },
        ),
        ("sglang", {"regex": "a+"}, {"regex": "a+"}),
        ("sglang", {"guided_choice": ["a.", "b"]}, {"regex": r"(a\.|b)"}),
        (
            "sglang",
            {"json_schema": {"b": 1, "a": 2}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"b": 1, "a": 2}, "strict": True},
                }
            },
        ),
        ("vllm", {"stop": "END"}, {"stop": ["END"]}),
        # which switches thinking by itself
        (
            "vllm",
            {"reasoning_effort": "high"},
            {"reasoning_effort": "high", "chat_template_kwargs": {}},
        ),
        (
            "sglang",
            {"reasoning_effort": "low", "enable_thinking": False},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
        ("vllm", {}, {"chat_template_kwargs": {"enable_thinking": False}}),
        (
            "vllm",
            {"length_penalty": 0.5, "extra_body": {"length_penalty": 0.5}},
            {"length_penalty": 0.5},
        ),
    ],
)
def test_fields_and_options_go_where_the_server_wants_them(
    dialect: str, said: dict[str, Any], body: dict[str, Any]
) -> None:
    got = sent(backend(**SERVERS[dialect], **said))
    assert {name: got.get(name) for name in body} == body
    assert not any(name.startswith("guided_") for name in got)


def test_tools_of_a_request_win_over_those_of_the_file() -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {}}}
        for name in ("of_file", "of_request")
    ]
    config = backend(type="vllm", base_url=None, tools=tools[:1])
    assert sent(config)["tools"] == tools[:1]
    assert sent(config, tools=tools[1:])["tools"] == tools[1:]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"type": "vllm", "base_url": None, "temprature": 1},
            r"temprature: .* did you mean 'temperature'\?; .* goes into extra_body",
        ),
        ({"type": "sglang", "max_tokns": 1}, r"max_tokns: .* did you mean 'max_tokens'\?; .*extra"),
        ({"type": "openai", "base_url": "http://h", "max_in_fligth": 1}, "did you mean 'max_in_f"),
        ({"type": "vllm", "base_url": None, "guided_jsn": {}}, r"did you mean 'guided_json'\?"),
        ({"type": "sglang", "guided_grammar": "a"}, "it is a field of vLLM's chat requests"),
        ({"type": "vllm", "length_penalty": 1}, "type 'vllm' takes no such key"),
        ({"type": "vllm_server", "cache_salt": 1}, "chat servers alone are passed other fields"),
        ({"type": "hf", "cache_salt": {}}, "type 'hf' takes no such key"),
        ({"type": "vllm", "base_url": None, "messages": []}, "pipegen sets this field itself"),
        ({"type": "sglang", "input_ids": [1]}, "pipegen sets this field itself"),
        (
            {"type": "vllm", "base_url": None, "extra_body": {"request_id": "a"}},
            r"extra_body\.request_id: pipegen sets this field itself",
        ),
        (
            {"type": "vllm", "base_url": None, "guided_decoding_backend": "outlines"},
            "its server settles it",
        ),
        (
            {"type": "vllm", "base_url": None, "priority": 1, "extra_body": {"priority": 2}},
            r"extra_body\.priority: priority is 2 here, and 1 elsewhere",
        ),
        ({"type": "sglang", "ebnf": object()}, "ebnf: takes plain data"),
        ({"type": "hf", "temprature": 1}, r"did you mean 'temperature'\?$"),
    ],
)
def test_what_a_server_does_not_take_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        backend(**said)
    if not {"messages", "input_ids", "extra_body", "ebnf"} & set(said):
        with pytest.raises(UnknownField):
            backend(**said)
