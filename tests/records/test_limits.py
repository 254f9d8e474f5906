"""What a request may ask for: every limit, its words, and how it is raised."""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.fake import FakeEngine

HI = {"prompt": "Hi"}


def asked(request: Any, **policy: Any) -> pg.Slot[pg.GenerationResult]:
    """The slot of a request between two good ones, which are as they would be alone."""
    route = pg.route(FakeEngine("Hello<|im_end|>"))
    first, slot, last = pg.run(
        route, [HI, request, HI], policy=pg.RequestPolicy(**policy) if policy else None
    )
    assert first == last == pg.run(route, [HI])[0]
    return slot


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a_request_has_no_template_of_its_own_and_may_name_one_of_the_checkpoints() -> None:
    error = asked({**HI, "options": {"template": "{{ messages }}"}}).failure()
    assert isinstance(error, pg.InvalidRequest)
    assert "--template" in error.hint
    assert "of its own" not in str(asked({**HI, "options": {"template": "tool_use"}}))


LIMITS: dict[str, tuple[Any, str]] = {
    "max_samples": ({**HI, "options": {"samples": 2}}, "samples is 2; the limit is 1"),
    "max_messages": (
        {"messages": [user("a"), user("b")]},
        "the number of messages is 2; the limit is 1",
    ),
    "max_parts": (
        {"messages": [user([{"type": "text", "text": "a"}] * 2)]},
        "the number of content parts is 2; the limit is 1",
    ),
    "max_images": ({**HI, "images": [b"a", b"b"]}, "the number of images is 2; the limit is 1"),
    "max_stops": (
        {**HI, "options": {"stop": ["a"], "stop_token_ids": [1]}},
        "the number of stops is 2; the limit is 1",
    ),
    "max_prompt_bytes": ({"prompt": "ä"}, "the prompt's size in bytes is 2; the limit is 1"),
    "max_option_bytes": (
        {**HI, "options": {"stop": ["ab"]}},
        "the options' size in bytes is 2; the limit is 1",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_more_than_the_limit_fails_its_own_row_and_the_hint_names_the_setting(name: str) -> None:
    request, words = LIMITS[name]
    # all but one are numbers
    (slot,) = pg.run(pg.route(FakeEngine("x")), [request], policy=pg.RequestPolicy(**{name: 1}))  # type: ignore[arg-type]
    error = slot.failure()
    assert isinstance(error, pg.InvalidRequest)
    assert error.message == words
    assert f"RequestPolicy({name}=...)" in error.hint


@pytest.mark.parametrize("name", LIMITS)
def test_within_the_limit_it_is_answered(name: str) -> None:
    assert pg.is_ok(asked(LIMITS[name][0], **{name: 100}))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({**HI, "options": {"samples": 1_000_000_000}}, "samples is 1000000000; the limit is 1024"),
        (
            {**HI, "options": {"samples": 10**5000}},
            "samples is more than 30 digits long; the limit is 1024",
        ),
        (
            {**HI, "options": {"max_new_tokens": 10**12}},
            "max_new_tokens is 1000000000000; the limit is 2147483647",
        ),
        ({**HI, "options": {"top_k": 10**12}}, "top_k is 1000000000000"),
        ({**HI, "options": {"max_pixels": 10**12}}, "max_pixels is 1000000000000"),
        (
            {**HI, "options": {"stop_token_ids": [10**12]}},
            "the largest of stop_token_ids is 1000000000000",
        ),
        (
            {**HI, "options": {"choice": ["a"] * 10_001}},
            "the number of choices is 10001; the limit is 10000",
        ),
        (
            {**HI, "options": {"stop": {1: 2}}},
            "options: stop takes a mapping with names as keys, not 1",
        ),
        ({**HI, "options": pg.GenerationOptions}, "options takes GenerationOptions"),
        (
            {**HI, "options": {"json_schema": b"x"}},
            "json_schema takes a JSON Schema as a mapping or as JSON text, not b'x'",
        ),
        (
            {**HI, "options": {"json_schema": {"a": b"x"}}},
            "json_schema takes a JSON Schema as a mapping or as JSON text (JSON holds no bytes)",
        ),
        ({**HI, "images": 7}, "images takes a list of images, not 7"),
        ({**HI, "images": ""}, "images takes a list of images, not ''"),
        (
            {
                "messages": [
                    user("a"),
                    {"role": "assistant", "content": "", "tool_calls": "[" * 3 + "]" * 3},
                ],
                "tools": 7,
            },
            "tools takes a tuple or a list",
        ),
        ([], "a mapping or a request is wanted, not []"),
        (pg.Success(7), "a slot with a request is wanted, not one with int"),
        (pg.Failure("no"), "a slot with a GenerationError is wanted, not one with str"),
    ],
)
def test_what_ended_the_whole_run_fails_its_own_row_in_words(request_: Any, words: str) -> None:
    error = asked(request_).failure()
    assert isinstance(error, pg.InvalidRequest)
    assert words in error.message
    assert error.incident == ""


@pytest.mark.parametrize(
    ("request_", "size"),
    [
        ({"prompt_token_ids": [1] * 10}, 40),
        ({**HI, "tools": [{"a": "x" * 50}]}, 53),
        (
            {
                "messages": [
                    user("a"),
                    {"role": "assistant", "content": None, "note": "\ud800" * 20},
                ]
            },
            65,
        ),
        ({"messages": [user([{"type": "text", "text": "ä" * 20}])]}, 40),
    ],
)
def test_all_text_of_the_prompt_counts(request_: Any, size: int) -> None:
    assert (
        asked(request_, max_prompt_bytes=30).failure().message
        == f"the prompt's size in bytes is {size}; the limit is 30"
    )


def nested(levels: int, held: Any = "x") -> Any:
    for _ in range(levels):
        held = [held]
    return held


def shared(levels: int) -> Any:
    value: Any = ["x"]
    for _ in range(levels):
        value = [value, value]
    return value


def cyclic() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (nested(900), "nested at most 64 deep"),
        (cyclic(), "nested at most 64 deep"),
        (shared(40), "at most 200000 values"),
    ],
)
@pytest.mark.parametrize("where", ["tools", "tool_calls", "template_kwargs", "json_schema"])
def test_data_that_is_nested_too_deep_or_too_large_fails_its_own_row(
    where: str, data: Any, words: str
) -> None:
    requests: dict[str, Any] = {
        "tools": {**HI, "tools": [{"a": data}]},
        "tool_calls": {
            "messages": [
                user("a"),
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"arguments": data}}],
                },
            ]
        },
        "template_kwargs": {**HI, "options": {"template_kwargs": {"a": data}}},
        "json_schema": {**HI, "options": {"json_schema": {"a": data}}},
    }
    error = asked(requests[where]).failure()
    assert isinstance(error, pg.InvalidRequest)
    assert words in error.message


def test_images_of_another_library_are_refused_in_words() -> None:
    numpy = pytest.importorskip("numpy")
    assert (
        "images takes a list of images, not ndarray; PIL.Image.fromarray(array) makes a PIL image"
        in asked({**HI, "images": numpy.array([[1, 2]])}).failure().message
    )


def test_a_request_that_raises_when_it_is_looked_at_is_an_incident(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Raising(dict[str, Any]):
        def items(self) -> Any:
            raise LookupError("no")

    error = asked(Raising(HI)).failure()
    assert isinstance(error, pg.InvalidRequest)
    assert error.message == "request: it cannot be read: LookupError: no"
    assert error.incident in caplog.text


def test_a_policy_is_checked() -> None:
    with pytest.raises(TypeError, match="policy is a RequestPolicy, not dict"):
        pg.run(pg.route(FakeEngine("x")), [], policy={})  # type: ignore[arg-type]
    with pytest.raises(pg.InvalidField, match="max_samples takes a whole number of at least 1"):
        pg.RequestPolicy(max_samples=0)
