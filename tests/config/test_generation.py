"""Options that stand beside a backend, in its template's variables or in its `extra_body`: one
value each, and no silence.
"""

from __future__ import annotations

from typing import Any

import pytest

from pipegen.config import BackendConfig, chat_from
from pipegen.core.names import InvalidField
from pipegen.records.options import flat_values


def backend(**said: Any) -> BackendConfig:
    return chat_from({"backend": {"model": "m", "base_url": None, **said}}).agents[0].backend


@pytest.mark.parametrize(
    ("field", "value", "option", "taken"),
    [
        *(("temperature", 0.7, "temperature", 0.7), ("max_tokens", 9, "max_new_tokens", 9)),
        *(("min_tokens", 2, "min_new_tokens", 2), ("n", 3, "samples", 3)),
        *(("top_k", 5, "top_k", 5), ("top_k", -1, "top_k", 0), ("stop", "END", "stop", ("END",))),
        ("stop", ["a", "b"], "stop", ("a", "b")),
        ("stop_token_ids", [7], "stop_token_ids", (7,)),
        ("repetition_penalty", 1.1, "repetition_penalty", 1.1),
        ("skip_special_tokens", False, "skip_special_tokens", False),
        ("enable_thinking", True, "enable_thinking", True),
    ],
)
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_option_in_extra_body_is_that_option(
    kind: str, field: str, value: Any, option: str, taken: Any
) -> None:
    extra = {field: value, "other": {"a": 1}}
    made = backend(type=kind, extra_body=extra)
    assert flat_values(made.options)[option] == taken
    assert made.settings.extra_body == {"other": {"a": 1}}
    assert extra == {field: value, "other": {"a": 1}}  # H8: the caller's own stays as it was
    # set twice, the same
    assert backend(type=kind, extra_body=extra, **{option: taken}).options == made.options


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"top_k": 50, "extra_body": {"top_k": 20}},
            r"extra_body\.top_k: top_k is 20 here, and 50 elsewhere",
        ),
        (
            {"max_tokens": 5, "extra_body": {"max_completion_tokens": 6}},
            r"extra_body\.max_completion_tokens: max_new_tokens is 6 here, and 5 elsewhere",
        ),
        (
            {"enable_thinking": False, "extra_body": {"enable_thinking": True}},
            r"extra_body\.enable_thinking: enable_thinking is True here, and False",
        ),
        ({"extra_body": {"temperature": -1}}, r"extra_body\.temperature: .*at least 0"),
        ({"extra_body": {"stream": False}}, r"extra_body\.stream: pipegen sets this field itself"),
        ({"extra_body": {"messages": []}}, r"extra_body\.messages: pipegen sets this field itself"),
        (
            {"extra_body": {"chat_template_kwargs": [1]}},
            r"extra_body\.chat_template_kwargs: takes a mapping",
        ),
        (
            {"extra_body": {"chat_template_kwargs": {"enable_thinking": "yes"}}},
            r"chat_template_kwargs\.enable_thinking: takes True or False, not 'yes'",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": 1}},
            r"chat_template_kwargs\.enable_thinking: takes True or False, not 1",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False},
            "enable_thinking is True here, and False elsewhere",
        ),
    ],
)
def test_contradictions_and_bad_values_are_refused_where_they_stand(
    said: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidField, match=words):
        backend(type="vllm", **said)


def test_a_null_takes_a_field_away_and_says_no_option() -> None:
    made = backend(
        type="openai",
        max_tokens=5,
        extra_body={"max_tokens": None, "max_completion_tokens": 5, "temperature": None},
    )
    assert made.options.max_new_tokens == 5
    assert made.options.temperature is None
    seen = made.settings.extra_body
    assert seen == {"max_tokens": None, "max_completion_tokens": 5, "temperature": None}


def test_the_extra_fields_of_a_plain_server_are_its_own() -> None:
    extra = {
        "top_k": 5,
        "enable_thinking": True,
        "chat_template_kwargs": {"enable_thinking": True},
        "reasoning_effort": "high",
    }
    made = backend(type="openai", base_url="https://h/v1", extra_body=extra)
    assert set(flat_values(made.options).values()) == {None}
    assert made.settings.extra_body == extra


@pytest.mark.parametrize(
    "said", [{"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
def test_a_plain_server_is_not_silently_left_thinking(said: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidField, match=r"enable_thinking: a plain server has no switch for thinking"
    ):
        backend(type="openai", base_url="https://h/v1", **said)
    assert (
        backend(type="openai", base_url="https://h/v1", dialect="vllm", **said).options.chat
        is not None
    )
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    assert (
        backend(type="openai", base_url="https://h/v1", extra_body=extra).settings.extra_body
        == extra
    )


@pytest.mark.parametrize("kind", ["vllm_server", "sglang_server"])
def test_a_server_asked_by_token_ids_takes_no_fields_of_a_chat(kind: str) -> None:
    assert backend(type=kind, extra_body={"sampling_params": {"a": 1}}).settings.extra_body == {
        "sampling_params": {"a": 1}
    }
    with pytest.raises(
        InvalidField, match=r"extra_body\.top_k: a server asked by token ids has no such field"
    ):
        backend(type=kind, extra_body={"top_k": 5})


@pytest.mark.parametrize("kind", ["vllm", "sglang", "hf"])
def test_the_engines_word_for_all_is_taken(kind: str) -> None:
    said = {"type": kind, "model": "m", "top_k": -1, **({"base_url": None} if kind != "hf" else {})}
    assert chat_from({"backend": said}).agents[0].backend.options.top_k == 0
    with pytest.raises(InvalidField, match=r"backend\.top_k"):
        chat_from({"backend": {**said, "top_k": -2}})
