"""Other people's forms of requests: what is read, what is refused, and what is carried along."""

from __future__ import annotations

import json
from typing import Any

import pytest

import pipegen as pg
from pipegen.records.messages import ImagePart, ImageSource, Message, TextPart
from pipegen.records.parse_request import request_from
from pipegen.records.request_forms import FORMS, REFUSED, without_final_answer
from pipegen.records.requests import GenerationRequest
from pipegen.testing.fake import FakeEngine

USER = {"role": "user", "content": "Hi"}
EARLIER = [["What is 2 + 2?", "4"], ["And 3 + 3?", "6"]]
TOLD = [("system", "Be brief."), ("user", "What is 2 + 2?"), ("assistant", "4")]


def turns_of(values: Any) -> list[tuple[str, Any]]:
    messages: tuple[Message, ...] = request_from(values).unwrap().messages or ()
    return [(message.role, message.content) for message in messages]


def prompt_of(values: Any) -> str:
    engine = FakeEngine("Yes.<|im_end|>")
    (slot,) = pg.run(pg.route(engine), [values])
    return slot.unwrap().prompt_text or ""


def test_a_system_key_is_what_the_model_sees_first() -> None:
    prompt = prompt_of({"messages": [USER], "system": "Be brief."})
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>")


@pytest.mark.parametrize(
    "history",
    [
        EARLIER,
        json.dumps(EARLIER),
        [
            {"role": role, "content": text}
            for pair in EARLIER
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ],
        [
            {"from": role, "value": text}
            for pair in EARLIER
            for role, text in zip(("human", "gpt"), pair, strict=True)
        ],
    ],
)
@pytest.mark.parametrize("words", [{"messages": [USER]}, {"query": "Hi"}, {"turns": ["Hi"]}])
def test_history_goes_before_what_is_asked(words: Any, history: Any) -> None:
    told = turns_of({**words, "system": "Be brief.", "history": history})
    assert told[:3] == TOLD
    assert told[3:] == [("user", "And 3 + 3?"), ("assistant", "6"), ("user", "Hi")]


def test_history_goes_behind_the_system_message_of_messages() -> None:
    messages = [{"role": "system", "content": "Be brief."}, USER]
    same = {"messages": messages, "history": EARLIER[:1], "system": "Be brief."}
    assert turns_of(same) == [*TOLD, ("user", "Hi")]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"messages": [{"role": "system", "content": "A"}, USER], "system": "B"},
            "two different texts",
        ),
        ({"prompt": "Hi", "system": "Be brief."}, "system goes before messages"),
        ({"prompt_token_ids": [1], "history": EARLIER}, "history goes before messages"),
        ({"messages": [USER], "system": {"text": "B"}}, "system takes a text"),
        ({"messages": [USER], "history": "before"}, "history, where it is text, takes JSON"),
        ({"messages": [USER], "history": [["a"]]}, "history[0] takes pairs"),
        ({"conversations": "[]"}, "conversations takes a list of turns"),
        ({"conversations": [{"from": "owl", "value": "a"}]}, "conversations[0].from takes one of"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "a"},
                    {"from": "tool_call", "value": "b"},
                ]
            },
            "conversations[1], where it is text, takes JSON",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(values: Any, words: str) -> None:
    message = request_from(values).failure().message
    assert words in message
    if words.startswith(("system", "history,")):
        assert message.endswith("or put it into metadata if the model is not to see it")


def test_what_says_nothing_is_as_if_it_were_not_there() -> None:
    filled: dict[str, Any] = {
        "system": "",
        "history": [],
        "audios": [],
        "documents": None,
        "functions": [],
    }
    assert turns_of({"messages": [USER], "tools": "", **filled}) == [("user", "Hi")]


@pytest.mark.parametrize(
    "name",
    [*REFUSED, "systemPrompt", "sytem", "audio_path", "ref_audios", "topK", "Temp", "numPredict"],
)
def test_a_key_that_the_model_should_see_or_obey_is_refused(name: str) -> None:
    message = request_from({"messages": [USER], name: 0.5}).failure().message
    assert f"there is no field {name!r}" in message
    assert "ut it into metadata if the model is not to see it" in message
    kept = request_from({"messages": [USER], "metadata": {name: 0.5}}).unwrap()
    assert kept.metadata == {name: 0.5}


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("system_prompt", "'system'"),
        ("instructions", "'system'"),
        ("documents", "template_kwargs"),
        ("functions", "'tools'"),
        ("prefill", "continue_final_message"),
        ("reasoning_effort", "template_kwargs"),
        ("temp", "'temperature'"),
        ("sampling_params", "options"),
    ],
)
def test_the_refusal_names_what_pipegen_calls_it(name: str, instead: str) -> None:
    assert instead in request_from({"messages": [USER], name: "x"}).failure().message


@pytest.mark.parametrize(
    "name", ["label", "document", "instruction", "function", "response", "completion", "tempo"]
)
def test_any_other_key_is_carried_along(name: str) -> None:
    request = request_from({"messages": [USER], name: "x"}).unwrap()
    assert request.metadata == {name: "x"}


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("tool_definitions", "'tools'"),
        ("repeat_penalty", "'repetition_penalty'"),
        ("num_predict", "'max_new_tokens'"),
        ("response_schema", "'json_schema'"),
        ("reasoning_budget", "'max_thinking_tokens'"),
        ("mm_processor_kwargs", "max_pixels"),
        ("guided_decoding", "options"),
        ("input_audio", "no sound"),
    ],
)
def test_what_engines_obey_is_not_carried_along(name: str, instead: str) -> None:
    assert instead in request_from({"messages": [USER], name: "x"}).failure().message


def test_a_value_that_asks_for_what_happens_anyway_is_carried_along() -> None:
    neutral = {"num_beams": 1, "length_penalty": 1.0, "use_beam_search": False}
    assert request_from({"messages": [USER], **neutral}).unwrap().metadata == neutral


BOXES = {"ref": ["the cat"], "bbox": [[1, 2, 30, 40]]}
FIND = "Where is <ref-object>?"


@pytest.mark.parametrize(
    "words",
    [
        {"messages": [{"role": "user", "content": FIND}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": FIND}]}]},
        {"query": "What is in <bbox>?"},
        {"prompt": FIND},
        {"turns": [FIND]},
        {"query": "And now?", "history": [[FIND, "There."]]},
        {"conversations": [{"from": "human", "value": FIND}]},
    ],
)
def test_objects_whose_places_are_in_the_text_are_refused(words: Any) -> None:
    message = request_from({**words, "objects": BOXES}).failure().message
    assert "write the objects into the text" in message
    assert message.endswith("or put it into metadata if the model is not to see it")
    kept = request_from({**words, "metadata": {"objects": BOXES}}).unwrap()
    assert kept.metadata == {"objects": BOXES}


@pytest.mark.parametrize("objects", [BOXES, {"bbox": [[1, 2, 3, 4]], "category": [5]}, None])
def test_objects_without_a_place_in_the_text_are_the_row_s_own(objects: Any) -> None:
    request = request_from({"query": "Where is the cat?", "objects": objects}).unwrap()
    assert request.metadata == {"objects": objects}
    assert turns_of({"query": FIND, "objects": None}) == [("user", FIND)]


@pytest.mark.parametrize("images", [["a.png", "b.png"], '["a.png", "b.png"]', ("a.png", "b.png")])
@pytest.mark.parametrize("name", ["image", "images"])
def test_one_column_holds_one_image_or_several(name: str, images: Any) -> None:
    row = {"conversations": [{"from": "human", "value": "Is <image> <image>?"}], name: images}
    sources = request_from(row).unwrap().sources
    assert [source.path for source in sources] == ["a.png", "b.png"]
    tagged = [{"from": "human", "value": "<image>?"}]
    one = request_from({"conversations": tagged, name: "[a.png]"}).unwrap()
    assert [source.path for source in one.sources] == ["[a.png]"]


ASKED = [{"role": "user", "content": "What is 2 + 2?"}]
CALL = {"name": "add", "arguments": {"a": 2, "b": 2}}
SAME = [
    {"messages": ASKED},
    {"prompt": ASKED, "completion": [{"role": "assistant", "content": "4"}]},
    {"query": "What is 2 + 2?", "response": "4"},
    {"conversations": [{"from": "human", "value": "What is 2 + 2?"}]},
    {"conversations": json.dumps([{"from": "human", "value": "What is 2 + 2?"}])},
    {"conversations": ASKED},
    {"conversation": [{"human": "What is 2 + 2?"}]},
]


@pytest.mark.parametrize("values", SAME)
def test_each_form_asks_the_same(values: Any) -> None:
    assert prompt_of(values) == prompt_of(SAME[0])
    assert request_from(values).unwrap().metadata.keys() <= {"response", "completion"}


@pytest.mark.parametrize("key", ["conversations", "messages"])
def test_calls_and_their_results_are_read(key: str) -> None:
    names = ("from", "value") if key == "conversations" else ("role", "content")
    user = "human" if key == "conversations" else "user"
    texts = [
        (user, "What is 2 + 2?"),
        ("function_call", json.dumps(CALL)),
        ("tool_call", json.dumps(CALL)),
        ("observation", "4"),
    ]
    values = {key: [dict(zip(names, text, strict=True)) for text in texts]}
    request: GenerationRequest = request_from(values).unwrap()
    roles = [message.role for message in request.messages or ()]
    assert roles == ["user", "assistant", "tool"]
    calls = (request.messages or ())[1].extras["tool_calls"]
    assert [call["function"] for call in calls] == [CALL, CALL]


def test_the_words_of_a_row_are_those_of_its_first_form() -> None:
    values = {"messages": [USER], "conversations": [{"from": "human", "value": "Other"}]}
    assert turns_of(values) == [("user", "Hi")]
    assert request_from(values).unwrap().metadata.keys() == {"conversations"}


@pytest.mark.parametrize("name", ["messages", "prompt", "prompt_token_ids", "turns"])
@pytest.mark.parametrize(
    "words",
    [
        {"messages": [USER]},
        {"turns": ["Hi"]},
        {"query": "Hi"},
        {"conversations": [{"from": "human", "value": "Hi"}]},
        {"conversations": [], "query": "Hi"},
    ],
    ids=str,
)
def test_words_that_are_empty_are_none_where_there_are_others(
    name: str, words: dict[str, Any]
) -> None:
    """As tables fill them in."""
    for empty in ("", "[]") if name == "prompt" else ([], "[]", ()):
        assert turns_of({name: empty, **words}) == [("user", "Hi")]
        assert turns_of({**words, name: words.get(name, empty)}) == [("user", "Hi")]


@pytest.mark.parametrize(
    "words",
    [{"query": "Hi"}, {"conversations": [{"from": "human", "value": "Hi"}]}, {"messages": [USER]}],
    ids=str,
)
def test_turns_go_on_with_the_words_of_any_form(words: dict[str, Any]) -> None:
    request: GenerationRequest = request_from({**words, "turns": ["Why?"]}).unwrap()
    assert [message.content for message in request.messages or ()] == ["Hi"]
    assert [message.content for message in request.turns] == ["Why?"]
    assert not request.metadata


@pytest.mark.parametrize("words", [{"query": "Why?"}, {"prompt": "Why?"}], ids=str)
@pytest.mark.parametrize(
    "history", [[["<image>What?", "A cat."]], '[["<image>What?", "A cat."]]'], ids=str
)
def test_a_tag_of_the_history_is_the_place_of_an_image(words: Any, history: Any) -> None:
    row = {**words, "images": ["a.png"], "history": history}
    asked = [content for role, content in turns_of(row) if role == "user"]
    image = ImagePart(source=ImageSource(path="a.png"))
    assert asked == [(image, TextPart(text="What?")), "Why?"]


def test_every_form_of_the_table_is_read() -> None:
    names = ["OpenAI chat", "OpenAI batch", "ms-swift", "LLaVA", "ShareGPT", "TRL"]
    assert [form.name for form in FORMS] == names


@pytest.mark.parametrize(
    ("values", "references"),
    [
        ({"messages": [USER, {"role": "assistant", "content": "4"}]}, ["4"]),
        (
            {
                "conversations": [
                    {"from": "human", "value": "Hi"},
                    {"from": "gpt", "value": "4"},
                    {"from": "gpt", "value": "5"},
                ]
            },
            ["4", "5"],
        ),
        ({"conversation": [{"human": "Hi", "assistant": "4"}]}, ["4"]),
        ({"prompt": [USER, {"role": "assistant", "content": "4"}]}, ["4"]),
        ({"messages": json.dumps([USER, {"role": "assistant", "content": "4"}])}, ["4"]),
    ],
)
def test_the_answers_that_end_a_row_are_its_references(values: Any, references: list[str]) -> None:
    assert turns_of(without_final_answer(values)) == [("user", "Hi")]
    kept = without_final_answer({**values, "metadata": {"page": 7}})["metadata"]
    assert kept == {"page": 7, "references": references}


def test_a_prompt_that_is_text_is_no_conversation_with_or_without_its_answer() -> None:
    """Whatever it holds: the model continues it."""
    answered = [USER, {"role": "assistant", "content": "4"}]
    for messages in (answered, answered[:1]):
        row = {"prompt": json.dumps(messages)}
        assert without_final_answer(row) == row
        assert request_from(row).unwrap().prompt == row["prompt"]


def test_an_answer_with_calls_is_kept_whole() -> None:
    answer = {"role": "assistant", "content": "", "tool_calls": [{"function": CALL}]}
    kept = without_final_answer({"messages": [USER, answer]})["metadata"]["references"]
    assert [json.loads(text) for text in kept] == [answer]


@pytest.mark.parametrize(
    "values",
    [
        {"messages": [USER]},
        {"messages": "no JSON"},
        {"prompt": "Hi"},
        {"messages": [{"role": "assistant", "content": "alone"}]},
        {"label": 1},
    ],
)
def test_a_row_that_ends_with_no_answer_is_as_it_was(values: Any) -> None:
    assert without_final_answer(values) == values


def test_a_request_that_ends_with_an_answer_is_refused_on_every_route() -> None:
    messages = [USER, {"role": "assistant", "content": "Hello"}]
    engine = FakeEngine("Yes.<|im_end|>")
    continued = pg.GenerationOptions(chat=pg.ChatTemplateOptions(continue_final_message=True))
    closed = pg.GenerationOptions(chat=pg.ChatTemplateOptions(add_generation_prompt=False))
    record = pg.TextGenerationRequest(messages=messages)
    for request in ({"messages": messages}, record):
        (slot,) = pg.run(pg.route(engine), [request])
        assert "continue_final_message" in slot.failure().hint
        for options in (continued, closed):
            (slot,) = pg.run(pg.route(engine), [request], options)
            assert slot.unwrap().text == "Yes."
    (scored,) = pg.score(pg.route(engine), [{"messages": messages, "continuation": "a"}])
    assert isinstance(scored.failure(), pg.InvalidRequest)


def test_conversations_of_arrays_are_read_as_of_lists() -> None:
    numpy = pytest.importorskip("numpy")

    def arrays(value: Any) -> Any:
        """As pandas reads a table: each list is an array."""
        if isinstance(value, dict):
            return {key: arrays(entry) for key, entry in value.items()}
        if not isinstance(value, list):
            return value
        array = numpy.empty(len(value), dtype=object)
        array[:] = [arrays(entry) for entry in value]
        return array

    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, USER]
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes."}]
    for values in (
        {"prompt": talk, "data_source": "verl"},
        {"messages": talk},
        {"messages": [{"role": "human", "content": "Hi"}]},
        {"conversations": [*turns, turns[0]]},
        {"messages": [USER], "history": EARLIER},
    ):
        request = request_from(arrays(values)).unwrap()
        assert request.messages == request_from(values).unwrap().messages
        assert without_final_answer(arrays({"prompt": [*talk, turns[1]]}))["metadata"] == {
            "references": ["Yes."]
        }


@pytest.mark.parametrize("name", ["arguments", "parameters"])
def test_the_arguments_of_a_call_have_either_name(name: str) -> None:
    call = {"from": "function_call", "value": json.dumps({"name": "f", name: {"a": 1}})}
    turns = [{"from": "human", "value": "Hi"}, call, {"from": "observation", "value": "2"}]
    messages = request_from({"conversations": turns}).unwrap().messages or ()
    assert messages[1].extras["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_the_words_of_a_refusal_are_not_lost() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "No."}
    error = request_from({"messages": [USER, refused, USER]}).failure()
    assert "messages[1] has a key 'refusal'" in error.message
    assert "give it as content" in error.message
    answered = {"role": "assistant", "content": "Yes.", "refusal": None}
    assert turns_of({"messages": [USER, answered]})[1] == ("assistant", "Yes.")


def test_the_roles_of_langchain_are_known() -> None:
    talk = [{"role": "human", "content": "Hi"}, {"role": "ai", "content": "Yes."}]
    assert turns_of({"messages": talk}) == [("user", "Hi"), ("assistant", "Yes.")]
