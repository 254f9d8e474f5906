"""Requests and messages: what is taken, what is refused, and where."""

from __future__ import annotations

import io
import pathlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image

import pipegen as pg
from pipegen.core.names import InvalidField
from pipegen.core.slots import is_ok
from pipegen.io.forms import TableError
from pipegen.io.tables import Columns
from pipegen.records.fields import UnknownField
from pipegen.records.messages import (
    ImagePart,
    ImageSource,
    Message,
    TextPart,
    message_from,
    plain_messages,
)
from pipegen.records.parse_request import carried, request_from
from pipegen.records.requests import (
    GenerationRequest,
    ImagePolicy,
    ScoringRequest,
    TextGenerationRequest,
    VlmGenerationRequest,
)
from pipegen.testing.image_files import image_file

USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], "messages takes at least one message"),
        ("Hi", "messages takes a list"),
        ([USER, {"role": "owl", "content": "a"}], r"messages\[1\].role takes one of"),
        (
            [USER, USER, {"role": "user", "content": [{"type": "smell"}]}],
            r"messages\[2\].content\[0\].type takes",
        ),
        ([{"role": "user", "content": ["a"]}], r"messages\[0\].content\[0\] takes a mapping"),
        (
            [{"role": "user", "content": [{"type": "text", "text": 3}]}],
            r"messages\[0\].content\[0\].text takes a string",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"messages\[0\].content\[0\].image_url.url takes",
        ),
        (
            [{"role": "user", "content": [{"type": "image", "image": ""}]}],
            r"messages\[0\].content\[0\].image takes a path, .*, not ''",
        ),
        (
            [{"role": "user", "content": [{"type": "image", "image": 3}]}],
            r"messages\[0\].content\[0\].image takes a path",
        ),
        (
            [{"role": "user", "content": [{"type": "image", "base64": "AA"}]}],
            r"messages\[0\].content\[0\] takes its image as image, url, .* not as base64",
        ),
        (
            [{"role": "user", "content": [{"type": "image", "image": "a", "max_pixels": 9}]}],
            r"messages\[0\].content\[0\].max_pixels is not supported",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "a", "detail": "low"}}],
                }
            ],
            r"content\[0\].image_url.detail is not supported",
        ),
        *(
            (
                [{"role": "user", "content": [{"type": kind, kind: "a", other: "b"}]}],
                rf"messages\[0\].content\[0\] is .* '{kind}' and has {other} too, .* of its own",
            )
            for kind in ("text", "image", "image_url", "video", "video_url")
            for other in ("text", "image", "image_url", "video", "video_url")
            if kind != other
        ),
        ([{"role": "user", "content": None}], r"messages\[0\].content takes a string or a list"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content takes a string or a list"),
        ([{"role": "user", "content": "a", "name": object()}], r"messages\[0\] takes plain data"),
        (["Hi"], r"messages\[0\] takes a mapping"),
        ([{**USER, "images": ["a.png"]}], r"messages\[0\] has a key 'images', .* into content"),
        ([USER, {**USER, "audio": "a.wav"}], r"messages\[1\] has a key 'audio', .* no sound"),
        (
            [USER, {"role": "assistant", "content": "", "function_call": {"name": "get"}}, USER],
            r"messages\[1\] has a key 'function_call', .* tool_calls",
        ),
        (
            [USER, {"role": "assistant", "content": "", "tool_calls": {"name": "get"}}, USER],
            r"messages\[1\] takes tool_calls as a list of calls, not (dict|immutabledict)",
        ),
    ],
)
def test_a_bad_message_is_refused_and_its_place_named(messages: Any, place: str) -> None:  # T8
    with pytest.raises(InvalidField, match=place):
        GenerationRequest(messages=messages)
    slot = request_from({"messages": messages})
    assert type(slot.failure()).__name__ == "InvalidRequest"


def test_keys_of_a_part_that_say_nothing_are_none() -> None:  # tables fill them in for every part
    filled = {"type": "image", "image": None, "text": None, "max_pixels": None}
    words = {"type": "text", "text": "Hi", "image_url": {"url": None, "detail": None}}
    asked = {"type": "image_url", "image_url": {"url": "a.png", "detail": "auto"}, "text": ""}
    message = message_from({"role": "user", "content": [filled, asked, words]}, "messages[0]")
    asked_image = ImagePart(source=ImageSource(path="a.png"))
    assert message.content == (ImagePart(), asked_image, TextPart(text="Hi"))


def test_a_message_record_refuses_an_unknown_role() -> None:  # T8
    with pytest.raises(InvalidField, match="role takes one of"):
        Message(role="owl", content="a")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("temperature", "; it is an option, and goes into options"),
        ("stop", "; it is an option, and goes into options"),
        ("enable_thinking", "; it is an option, and goes into options"),
        ("chat", "; it is an option, and goes into options"),
        ("n", "; did you mean the option 'samples'? It goes into options"),
        ("max_tokens", "; did you mean the option 'max_new_tokens'? It goes into options"),
        ("promt", "; did you mean 'prompt'?"),
        ("zzz", ""),
    ],
)
def test_an_option_beside_the_prompt_is_sent_to_its_place(name: str, words: str) -> None:  # C1
    values: dict[str, Any] = {"prompt": "a", name: 1}
    for kind in (TextGenerationRequest, VlmGenerationRequest):
        with pytest.raises(UnknownField) as refused:
            kind(**values)
        assert str(refused.value) == f"{kind.__name__} has no field {name!r}{words}"
    if name in ("promt", "zzz"):  # in plain data these are entries of the caller's own
        assert request_from(values).unwrap().metadata == {name: 1}
    else:
        message = request_from(values).failure().message
        assert message.startswith(
            f"request: there is no field {name!r}{words}; put it into metadata"
        )


PATHS = [
    *(
        "options.n",
        "options.text",
        "options.adapter",
        "option.temperature",
        "options.tempreature",
        "Options.chat.trust",
    ),
    *("options[seed]", "options/top_p", "options:stop", "options__seed", "options_seed"),
    *("option-max_tokens", "opts.seed", "optoins.seed", "chat.enable_thinking", "stop.ignore_eos"),
]
SETTINGS = ["generation_config.temperature", "sampling_params[top_p]", "extra_body.min_p"]


@pytest.mark.parametrize("name", [*PATHS, *SETTINGS, "Adapter", " seed", "max-tokens", "lora"])
def test_an_option_under_a_path_or_in_other_letters_is_not_carried_along(name: str) -> None:
    message = request_from({"prompt": "a", name: "x"}).failure().message
    assert f"there is no field {name!r}" in message
    assert "options" in message
    assert request_from({"prompt": "a", "metadata": {name: "x"}}).unwrap().metadata == {name: "x"}


def test_a_path_may_be_of_any_length() -> None:
    name = "stop." * 3000
    assert request_from({"prompt": "a", name: 1}).unwrap().metadata == {name: 1}


@pytest.mark.parametrize("name", PATHS)
def test_a_column_that_is_a_path_into_options_is_refused(name: str) -> None:
    with pytest.raises(TableError, match="options go into options") as refused:
        Columns().check(["prompt", name], Path("x"))
    assert str(refused.value).endswith(f". --map metadata={name} carries it along")
    Columns({}, frozenset({name})).check(["prompt", name], Path("x"))


@pytest.mark.parametrize(
    "name",
    [
        *("option_a", "option_n", "options_count", "captions.text", "actions.seed", "stop.lat"),
        *("metadata.seed", "seed.variety", "n.trials", "temp.mean", "structured_text", "option"),
        *("options.A", "Option.1", "options[0]", "option__b", "options:12", "Temperature_C"),
    ],
)
def test_a_name_that_is_no_path_into_options_is_carried_along(name: str) -> None:
    assert request_from({"prompt": "a", name: "x"}).unwrap().metadata == {name: "x"}
    Columns().check(["prompt", name], Path("x"))


@pytest.mark.parametrize(
    "choices",
    [
        *(["a", "b"], {"A": "a", "B": "b"}, [{"key": "A", "value": "a"}], "A) a, B) b"),
        *('{"A": "a"}', '["a", "b"]', ("a",), {}.keys(), 7),
    ],
    ids=repr,
)
def test_choices_of_a_question_in_options_are_refused_with_their_place(choices: Any) -> None:
    message = request_from({"prompt": "Is it so?", "options": choices}).failure().message
    assert "into metadata if the model is not to see" in message
    row = Columns({}, frozenset({"options"})).request({"prompt": "a", "options": choices})
    assert request_from(row).unwrap().metadata == {"options": choices}


def test_a_misspelt_option_is_no_choice_of_a_question() -> None:
    for options in ({"temprature": 1}, {"seed": "x"}):
        message = request_from({"prompt": "a", "options": options}).failure().message
        assert message.startswith("request: options: ")
        assert "metadata" not in message


@pytest.mark.parametrize("name", ["option", "Options", "opts"])
def test_options_under_nearly_their_name_are_refused_as_json_text_too(name: str) -> None:
    for value in ({"adapter": "a"}, '{"adapter": "a"}'):
        error = request_from({"prompt": "a", name: value}).failure()
        assert error.message == f"request: there is no field {name!r}; did you mean 'options'?"
    assert name in Columns().reads(["prompt", name])  # so that its rows can be refused


@pytest.mark.parametrize(
    ("name", "value", "media"),
    [
        ("imagess", ["a.png"], "images"),
        ("image_path", "a.png", "images"),
        ("Image_URLs", ["https://host/a.png"], "images"),
        ("img", b"bytes", "images"),
        ("picture", {"bytes": b"bytes", "path": None}, "images"),
        ("vidoes", ["a.mp4"], "videos"),
        ("video_file", "a.mp4", "videos"),
    ],
)
def test_images_under_another_name_are_refused_where_the_request_has_none(
    name: str, value: Any, media: str
) -> None:
    """They would be carried along, and the model asked about what it cannot see."""
    error = request_from({"prompt": "What is it?", name: value}).failure()
    assert f"there is no field {name!r}; {media} go into {media}" in error.message
    seen = {"type": "image", "image": "b.png"}
    for values in (
        {"prompt": "Hi", "metadata": {name: value}},
        {"prompt": "Hi", "images": ["b.png"], name: value},
        {"messages": [{"role": "user", "content": [seen]}], name: value},
        {"prompt": "Hi", name: ""},
        {"prompt": "Hi", name: 7},
        {"prompt": "Hi", f"{name}_id": value},
        {"prompt": "Hi", f"{name}_caption": value},
    ):
        assert pg.is_ok(request_from(values)), values


@pytest.mark.parametrize(
    "given", ["Hi", "", "{not JSON", 5, {"role": "user", "content": "Hi"}], ids=str
)
def test_messages_of_another_form_are_told_theirs(given: Any) -> None:
    form = '[{"role": "user", "content": "..."}]'
    for kind in (GenerationRequest, TextGenerationRequest, VlmGenerationRequest):
        with pytest.raises(InvalidField) as refused:
            kind(messages=given)
        assert (
            f"messages takes a list of messages such as {form}, with prompt for a plain text, not "
            in str(refused.value)
        )
    message = request_from({"messages": given}).failure().message
    assert message.startswith(f"request: messages takes a list of messages such as {form}, ")
    assert "with prompt for a plain text, not" in message


def test_a_vision_request_may_have_no_image() -> None:
    for given in ({"prompt": "Hi"}, {"messages": [USER]}):
        request = VlmGenerationRequest(**given, images=[])  # type: ignore[arg-type]  # of two forms
        seen = (request.sources, request.prompt, request.messages is None)
        assert seen == ((), given.get("prompt"), "prompt" in given)


def test_images_for_a_text_request_are_sent_to_the_other_kind() -> None:
    values: dict[str, Any] = {"prompt": "a", "images": ["a.png"]}
    with pytest.raises(
        UnknownField,
        match="TextGenerationRequest has no field 'images'; images go into a VlmGenerationRequest",
    ):
        TextGenerationRequest(**values)


@pytest.mark.parametrize(
    "given", [{}, {"prompt": "a", "messages": [USER]}, {"prompt": "a", "prompt_token_ids": [1]}]
)
def test_a_request_takes_exactly_one_kind_of_prompt(given: Any) -> None:
    with pytest.raises(InvalidField, match="exactly one of"):
        TextGenerationRequest(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": 3}, "prompt takes a string"),
        ({"prompt_token_ids": []}, "at least one token id"),
        ({"prompt_token_ids": [-1]}, "at position 0"),
        ({"prompt": "a", "options": {"seed": 1}}, "takes GenerationOptions"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "use VlmGenerationRequest",
        ),
    ],
)
def test_a_text_request_refuses(given: Any, words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        TextGenerationRequest(**given)


def test_images_fill_the_empty_image_parts_in_order() -> None:
    content = [
        {"type": "image"},
        {"type": "text", "text": "or"},
        {"type": "image", "path": "given.png"},
        {"type": "image"},
    ]
    request = VlmGenerationRequest(
        messages=[{"role": "user", "content": content}], images=["a.png", "b.png"]
    )
    assert [source.path for source in request.sources] == ["a.png", "given.png", "b.png"]
    assert request.images == ()


def test_images_without_a_place_stand_before_the_first_user_text() -> None:
    request = VlmGenerationRequest(
        messages=[{"role": "system", "content": "s"}, USER], images=["a.png"]
    )
    assert request.messages is not None
    assert request.messages[1].content == (
        ImagePart(source=ImageSource(path="a.png")),
        TextPart(text="Hi"),
    )


def test_a_prompt_with_images_is_a_user_turn() -> None:
    assert VlmGenerationRequest(prompt="What?", images=["a.png"]) == VlmGenerationRequest(
        messages=[
            {
                "role": "user",
                "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What?"}],
            }
        ]
    )
    assert VlmGenerationRequest(prompt="What?").prompt == "What?"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "leave 1 image parts open, and images holds 0",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}], "images": ["a", "b"]},
            "leave 1 image parts open, and images holds 2",
        ),
        (
            {"messages": [{"role": "system", "content": "s"}], "images": ["a"]},
            "take a user message",
        ),
        ({"prompt_token_ids": [1], "images": ["a"]}, "not with prompt_token_ids"),
        ({"messages": [USER], "images": "a.png"}, "a list of images"),
    ],
)
def test_images_that_do_not_match_are_refused(given: Any, words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        VlmGenerationRequest(**given)


def test_images_can_be_exchanged_in_message_order() -> None:
    request = VlmGenerationRequest(
        messages=[
            USER,
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": [{"type": "image"}]},
        ],
        images=["a.png"],
    )
    loaded = request.with_sources((ImageSource(data=b"x"),))
    assert loaded.sources == (ImageSource(data=b"x"),)
    assert loaded.with_sources(request.sources) == request


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("a.png", {"path": "a.png"}),
        (pathlib.Path("a.png"), {"path": "a.png"}),
        ("https://h/a.png", {"url": "https://h/a.png"}),
        ("file:///a.png", {"url": "file:///a.png"}),
        ("data:image/png;base64,AA", {"url": "data:image/png;base64,AA"}),
        (bytearray(b"x"), {"data": b"x"}),
        (memoryview(b"x"), {"data": b"x"}),
    ],
)
def test_an_image_comes_from_what_callers_have(value: Any, field: dict[str, Any]) -> None:  # P8
    assert ImageSource.of(value) == ImageSource(**field)


def test_a_pil_image_is_kept_losslessly_and_upright() -> None:  # P8
    image = Image.new("RGB", (2, 1), "red")
    image.putpixel((1, 0), (0, 0, 255))
    image.getexif()[0x0112] = 6
    kept = Image.open(io.BytesIO(ImageSource.of(image).data or b""))
    seen = (kept.size, kept.getpixel((0, 0)), kept.getpixel((0, 1)))
    assert seen == ((1, 2), (255, 0, 0), (0, 0, 255))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_pil_image_whose_pixels_cannot_be_read_is_a_request_of_its_own_that_fails(
    kind: str,
) -> None:
    whole = io.BytesIO()
    Image.open(io.BytesIO(image_file(width=200, height=200))).convert("RGB").save(whole, kind)
    cut = Image.open(io.BytesIO(whole.getvalue()[: len(whole.getvalue()) // 2]))
    with pytest.raises(InvalidField, match="image: the PIL image cannot be read: OSError"):
        ImageSource.of(cut)
    slot = request_from(
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "image": cut}, {"type": "text", "text": "What?"}],
                }
            ]
        }
    )
    assert "messages[0].content[0].image: the PIL image cannot be read" in slot.failure().message


def test_whatever_pil_raises_is_said_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise AssertionError("bug")

    monkeypatch.setattr(Image.Image, "save", bug)
    with pytest.raises(
        InvalidField, match="image: the PIL image cannot be read: AssertionError: bug"
    ):
        ImageSource.of(Image.new("RGB", (2, 1)))


def test_a_source_has_exactly_one_origin_and_prints_no_bytes() -> None:
    with pytest.raises(InvalidField, match="exactly one"):
        ImageSource(path="a", data=b"b")
    assert repr(ImageSource(data=b"abc")) == "ImageSource(data=<3 bytes>)"
    assert len(repr(ImageSource(url="data:" + "x" * 1000))) < 120


def test_messages_become_plain_dicts_again_with_their_extras() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": {"a": [1]}}}
    given = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "r"}], "tool_call_id": "1"},
    ]
    assert plain_messages([message_from(message, "m") for message in given]) == given


def test_requests_pickle_and_hash() -> None:  # C4
    request = VlmGenerationRequest(
        id="7", prompt="What?", images=[b"x"], tools=({"type": "function"},)
    )
    assert pickle.loads(pickle.dumps(request)) == request  # our own bytes
    assert hash(request) == hash(pickle.loads(pickle.dumps(request)))


def test_plain_data_becomes_the_right_kind_of_request() -> None:
    assert isinstance(request_from({"prompt": "a", "images": []}).unwrap(), TextGenerationRequest)
    assert isinstance(request_from({"prompt": "a", "images": ["b"]}).unwrap(), VlmGenerationRequest)
    parts = [{"type": "image_url", "image_url": {"url": "https://h/a.png"}}]
    assert isinstance(
        request_from({"messages": [{"role": "user", "content": parts}]}).unwrap(),
        VlmGenerationRequest,
    )
    assert is_ok(request_from({"id": "1", "prompt": "a", "options": {"seed": 3}}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"promt": "a"}, "did you mean 'prompt'"),
        ({"prompt": "a", "option": {"stop": ["b"]}}, "did you mean 'options'"),
        ({"prompt": "a", "Options": {"temperature": 1.0}}, "did you mean 'options'"),
        ({"prompt": "a", "options": {"seed": "x"}}, "seed takes"),
        ({"prompt": "a", "options": 3}, "options takes"),
        ({"prompt": "a", "id": True}, "id takes a string that is not empty"),
        (
            {"prompt": "a", "temprature": 3},
            (
                "there is no field 'temprature'; did you mean the option 'temperature'? It goes"
                " into options"
            ),
        ),
        ({"messages": "Hi"}, "messages, where it is text, takes JSON: Expecting value at column 1"),
        ({"prompt": "a", "image": "a.png", "images": ["b.png"]}, "takes image or images, not both"),
        (
            {"prompt": "a", "image": {"bytes": None, "path": None}},
            "images[0] takes bytes or a path in its mapping",
        ),
    ],
)
def test_bad_plain_data_fails_in_its_slot_with_the_place(given: Any, words: str) -> None:  # C1
    error = request_from(given, where="line 4").failure()
    assert error.message.startswith("line 4: ")
    assert words in error.message


def test_plain_data_may_hold_messages_that_are_records() -> None:
    message = Message(
        role="user",
        content=(ImagePart(source=ImageSource(path="a.png")), TextPart(text="What is it?")),
    )
    request = request_from({"messages": [message]}).unwrap()
    assert isinstance(request, VlmGenerationRequest)
    assert request.messages == (message,)


def test_an_image_policy_is_strict() -> None:
    with pytest.raises(UnknownField, match="did you mean 'allow_http'"):
        ImagePolicy(alow_http=True)  # type: ignore[call-arg]
    with pytest.raises(InvalidField, match="timeout"):
        ImagePolicy(timeout=0)


def test_a_row_of_a_data_set_is_a_request() -> None:
    """Whole numbers as ids, JSON text, an image as data sets store it, columns of the caller's own,
    and what tables fill in.
    """
    row = {
        "id": 7,
        "messages": '[{"role": "user", "content": "Hi"}]',
        "image": {"bytes": b"x", "path": "a.png"},
        "tools": None,
        "label": 3,
        "choices": ["a", "b"],
        "when": None,
    }
    request = request_from(row).unwrap()
    assert (request.id, [source.data for source in request.sources]) == ("7", [b"x"])
    assert request.metadata == {"label": 3, "choices": ["a", "b"], "when": None}
    by_path = request_from(
        {"prompt": "What?", "images": [{"bytes": None, "path": "a.png"}, "b.png"]}
    ).unwrap()
    assert [source.path for source in by_path.sources] == ["a.png", "b.png"]
    assert [
        source.path
        for source in request_from({"prompt": "a", "images": '["a.png", "b.png"]'}).unwrap().sources
    ] == ["a.png", "b.png"]
    assert [
        source.path
        for source in request_from({"prompt": "a", "images": "[1.png]"}).unwrap().sources
    ] == ["[1.png]"]
    filled = request_from(
        {"messages": [{"role": "user", "content": "Hi", "tool_calls": None, "name": None}]}
    ).unwrap()
    assert filled.messages == (Message(role="user", content="Hi"),)


@pytest.mark.parametrize(
    ("values", "metadata"),
    [
        ({"label": 1, "metadata": {"label": 2}}, {"input_label": 1, "label": 2}),
        ({"label": 1, "metadata": {"label": 1}}, {"label": 1}),
        ({"label": None, "metadata": {"label": 1}}, {"label": 1}),
        ({"label": 1, "metadata": {"label": True}}, {"input_label": 1, "label": True}),
        (
            {"label": 1, "input_label": 3, "metadata": {"label": 2}},
            {"input_input_label": 1, "input_label": 3, "label": 2},
        ),
    ],
    ids=str,
)
def test_two_values_of_one_name_are_both_carried(
    values: dict[str, Any], metadata: dict[str, Any]
) -> None:
    assert request_from({"prompt": "a", **values}).unwrap().metadata == metadata
    assert carried(values) == metadata


def test_metadata_is_carried_and_changes_nothing() -> None:
    one, other = (
        TextGenerationRequest(prompt="a", metadata={"label": [1]}),
        TextGenerationRequest(prompt="a"),
    )
    assert one == other
    assert hash(one) == hash(other)
    assert one.metadata == {"label": [1]}
    assert request_from({"prompt": "a", "metadata": {"x": 1}, "y": 2}).unwrap().metadata == {
        "x": 1,
        "y": 2,
    }
    assert request_from({"prompt": "a", "metadata": "words"}).unwrap().metadata == {
        "metadata": "words"
    }
    assert request_from({"prompt": "a", "metadata": "words", "y": 2}).unwrap().metadata == {
        "metadata": "words",
        "y": 2,
    }
    with pytest.raises(InvalidField, match="metadata takes a mapping with string keys"):
        TextGenerationRequest(prompt="a", metadata={1: 2})  # type: ignore[dict-item]


@pytest.mark.parametrize("continuation", [[], 3, None])
def test_a_continuation_is_a_text_or_token_ids_and_not_empty(continuation: Any) -> None:
    with pytest.raises(InvalidField, match="takes a text or token ids, at least one"):
        ScoringRequest(prompt="a", continuation=continuation)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pg.TextGenerationRequest(turns="Hi"), "a list of the user's messages"),
        (lambda: pg.TextGenerationRequest(prompt="Hi", turns=["Ho"]), "have no next turn"),
        (
            lambda: pg.VlmGenerationRequest(
                messages=[{"role": "user", "content": [{"type": "image"}]}],
                images=[b"one"],
                turns=[{"role": "user", "content": [{"type": "image"}]}],
            ),
            "turns name their images and videos themselves",
        ),
        (
            lambda: cast(Any, pg.ScoringRequest)(
                messages=[{"role": "user", "content": "Hi"}], turns=["Ho"], continuation=" Yes"
            ),
            "ScoringRequest takes no turns",
        ),
    ],
    ids=["no list", "a plain prompt", "an image that is empty", "a score"],
)
def test_turns_that_cannot_be_asked_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        make()
