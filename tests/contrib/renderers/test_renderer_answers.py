"""Answers that prove nothing are refused with their place; those that do are read however they are
written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipegen.contrib.renderers import (
    MalformedGenerateResponseError,
    SGLangBackend,
)

Asked = Callable[..., dict[str, Any]]
Stubs = Any


ENTRIES: list[tuple[Any, str]] = [
    ({"token_id": 7}, r"logprob of generated token 0 \(id 7\) is None, not a number"),
    (
        {"token_id": 7, "logprob": None},
        r"logprob of generated token 0 \(id 7\) is None, not a number",
    ),
    ({"token_id": 7, "logprob": "-0.1"}, r"is '-0.1', not a number"),
    ({"token_id": 7, "logprob": True}, r"is True, not a number"),
    ({"token_id": 7, "logprob": float("nan")}, r"is nan, not a number"),
    ({"token_id": 7, "logprob": float("-inf")}, r"is -inf, not a number"),
    (
        {"token_id": 7, "logprob": 10**400},
        r"logprob of generated token 0 \(id 7\) is 10000*, not a number",
    ),
    ({"token_id": 7, "logprob": -9999.0}, r"is -9999.0, not a number"),
    (
        {"token_id": 8, "logprob": -0.1},
        r"generated token 0 is reported for id 8, and the token has id 7",
    ),
    (
        {"token": "token_id:8", "logprob": -0.1},
        r"generated token 0 is reported for id 8, and the token has id 7",
    ),
    ({"logprob": -0.1}, r"generated token 0 is reported for id None"),
    (None, r"there is no logprob of generated token 0"),
]


@pytest.mark.parametrize(("entry", "words"), ENTRIES)
# H3
def test_a_logprob_of_vllm_that_proves_nothing_is_refused(
    stubs: Stubs, asked: Asked, entry: Any, words: str
) -> None:
    second = {"token_id": 8, "logprob": -0.2}
    renderer = stubs.Renderer()
    with pytest.raises(MalformedGenerateResponseError, match=words):
        asked(stubs.Client(stubs.vllm({"logprobs": {"content": [entry, second]}})), renderer)
    assert renderer.parsed == []


@pytest.mark.parametrize("value", [None, "-0.1", True, float("nan"), float("inf"), -9999.0])
# H3
def test_a_logprob_of_sglang_that_proves_nothing_is_refused(
    stubs: Stubs, asked: Asked, value: Any
) -> None:
    with pytest.raises(
        MalformedGenerateResponseError,
        match=r"logprob of generated token 1 \(id 8\) is .*, not a number",
    ):
        asked(
            stubs.Client(stubs.sglang(output_token_logprobs=[[-0.1, 7, None], [value, 8, None]])),
            backend=SGLangBackend(),
        )


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"logprobs": None}, r"there is no logprob of generated token 0 \(id 7\)"),
        ({"logprobs": {"content": 5}}, "there is no logprob of generated token 0"),
        (
            {"logprobs": {"content": [{"token_id": 7, "logprob": -0.1}]}},
            r"there is no logprob of generated token 1 \(id 8\)",
        ),
        (
            {"logprobs": {"content": [{"token_id": 7, "logprob": -0.1}] * 3}},
            "has logprobs of 3 tokens, and generated 2",
        ),
        ({"token_ids": [7, True]}, r"choices\[0\]\.token_ids\[1\] is True, not a token id"),
    ],
)
def test_a_choice_that_proves_nothing_is_refused(
    stubs: Stubs, asked: Asked, choice: Any, words: str
) -> None:
    with pytest.raises(MalformedGenerateResponseError, match=words):
        asked(stubs.Client(stubs.vllm(choice)))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"choices": []}, "choices must be a list of 1"),
        ({}, "choices must be a list of 1"),
        (b'{"choices": [', r"the answer \(13 bytes\) is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_an_answer_that_is_none_is_refused(
    stubs: Stubs, asked: Asked, answer: Any, words: str
) -> None:
    with pytest.raises(MalformedGenerateResponseError, match=words):
        asked(stubs.Client(answer))


def test_a_logprob_of_zero_is_one(stubs: Stubs, asked: Asked) -> None:  # H3
    entries = [{"token": "token_id:7", "logprob": 0.0}, {"token_id": 8, "logprob": 0}]
    assert asked(stubs.Client(stubs.vllm({"logprobs": {"content": entries}})))[
        "completion_logprobs"
    ] == [0.0, 0.0]


EXPERTS = {"data": "AQI=", "shape": [2, 1, 1]}


@pytest.mark.parametrize(
    ("written", "experts"),
    [
        ({"separators": (",", ":")}, EXPERTS),
        ({"indent": 2}, EXPERTS),
        ({}, dict(reversed(EXPERTS.items()))),
    ],
    ids=["compact", "spaced", "reordered"],
)
# H11
def test_routed_experts_are_read_however_they_are_written(
    stubs: Stubs, asked: Asked, written: dict[str, Any], experts: Any
) -> None:
    raw = json.dumps(stubs.vllm({"routed_experts": experts}), **written)
    kept = asked(stubs.Client(raw.encode()))["routed_experts"]
    assert (kept["shape"], kept["data"].tobytes()) == ([2, 1, 1], b"AQI=")


def test_two_completions_are_two_with_each_its_experts(stubs: Stubs, asked: Asked) -> None:  # H11
    second = stubs.choice(
        index=1,
        token_ids=[7],
        logprobs={"content": [{"token_id": 7, "logprob": -0.5}]},
        routed_experts=EXPERTS,
    )
    answer = {"choices": [second, stubs.choice()]}
    result = asked(stubs.Client(answer), sampling_params={"n": 2})
    assert [one["completion_ids"] for one in result["completions"]] == [[7, 8], [7]]
    assert result["completions"][1]["routed_experts"]["data"].tobytes() == b"AQI="
    assert result["completion_ids"] == [7, 8]
    pair = asked(
        stubs.Client([stubs.sglang(), stubs.sglang(routed_experts="AQI=")]),
        sampling_params={"n": 2},
        backend=SGLangBackend(),
    )
    assert [one["routed_experts"] for one in pair["completions"]] == [None, "AQI="]
