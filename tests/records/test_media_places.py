"""Tags in texts: where the images and videos beside messages go."""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.core.slots import is_ok
from pipegen.records.messages import Message, TextPart
from pipegen.records.parse_request import request_from

ONE, TWO = ["a.png"], ["a.png", "b.png"]


def content_of(message: Message) -> list[str]:
    if isinstance(message.content, str):
        return [message.content]
    return [
        part.text if isinstance(part, TextPart) else f"[{part.source and part.source.path}]"
        for part in message.content or ()
    ]


def contents(values: Any) -> list[list[str]]:
    request = request_from(values).unwrap()
    return [content_of(message) for message in (*(request.messages or ()), *request.turns)]


def says(*texts: Any) -> list[dict[str, Any]]:
    roles = ("user", "assistant", "user", "assistant")
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


@pytest.mark.parametrize(
    ("values", "placed"),
    [
        ({"prompt": "<image>What?", "images": ONE}, [["[a.png]", "What?"]]),
        ({"prompt": "What is <image>", "image": "a.png"}, [["What is ", "[a.png]"]]),
        (
            {"messages": says("Is <image>\n", "It is.", "And <image>?"), "images": TWO},
            [["Is ", "[a.png]", "\n"], ["It is."], ["And ", "[b.png]", "?"]],
        ),
        (
            {"messages": says("Is it?", "It is.", "And <image>?"), "images": ONE},
            [["Is it?"], ["It is."], ["And ", "[a.png]", "?"]],
        ),
        (
            {"messages": says([{"type": "text", "text": "a <image>"}]), "images": ONE},
            [["a ", "[a.png]"]],
        ),
        (
            {
                "messages": says([{"type": "image"}, {"type": "text", "text": "like <image>"}]),
                "images": TWO,
            },
            [["[a.png]", "like ", "[b.png]"]],
        ),
        (
            {"query": "<image><video>", "images": ONE, "videos": ["a.mp4"]},
            [["[a.png]", "[a.mp4]"]],
        ),
        (
            {"prompt": "in <video>: <image>", "images": ONE, "videos": ["a.mp4"]},
            [["in ", "[a.mp4]", ": ", "[a.png]"]],
        ),
        ({"prompt": "<image> and a video", "images": ONE, "videos": ["a.mp4"]}, [["[a.mp4]", "[a.png]", " and a video"]]),
        ({"turns": ["<image>?", "Why <image>?"], "images": TWO}, [["[a.png]", "?"], ["Why ", "[b.png]", "?"]]),
        (
            {
                "image": "a.png",
                "conversations": [{"from": "human", "value": "What?\n<image>"}],
            },
            [["What?\n", "[a.png]"]],
        ),
        (
            {"query": "<image>", "history": [["<image>", "A cat."]], "images": TWO},
            [["[a.png]"], ["A cat."], ["[b.png]"]],
        ),
    ],
)  # fmt: skip
def test_each_image_goes_where_its_tag_is(values: Any, placed: list[list[str]]) -> None:
    assert contents(values) == placed


@pytest.mark.parametrize(
    "values",
    [
        {"prompt": "<image> and <image>", "images": ONE},
        {"prompt": "<image>", "images": TWO},
        {"messages": says("<image>", "An <image>.", "And?"), "images": ONE},
        {
            "messages": says([{"type": "image"}, {"type": "text", "text": "<image>"}]),
            "images": ONE,
        },
        {"prompt": "<video> <video>", "videos": ["a.mp4"]},
    ],
)
def test_another_number_of_tags_is_refused(values: Any) -> None:
    kind = "video" if "videos" in values else "image"
    error = request_from(values).failure()
    assert isinstance(error, pg.InvalidRequest)
    assert f"<{kind}>" in error.message


def test_a_tag_without_images_is_text() -> None:
    assert contents({"messages": says("Write <image> in HTML")}) == [["Write <image> in HTML"]]
    parts = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "no <image>"}]
    assert contents({"messages": says(parts)}) == [["[a.png]", "no <image>"]]
    only_images = {"prompt": "a <video>", "images": ONE}
    assert contents(only_images) == [["[a.png]", "a <video>"]]


def test_a_later_turn_takes_tags_too() -> None:
    first = pg.VlmGenerationRequest(prompt="<image>?", images=ONE)
    assert content_of((first.messages or ())[0]) == ["[a.png]", "?"]
    again = pg.VlmGenerationRequest(messages=first.messages)
    assert again == first
    assert is_ok(request_from({"prompt": "plain <image> text"}))
