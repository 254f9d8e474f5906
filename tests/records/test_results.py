"""Records: what a model may be loaded with, and what is printed of an image."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.records.fields import record
from pipegen.records.messages import message_from
from pipegen.records.results import ChatOutput, PreparedImage, TokenLogprob, closest_choice
from pipegen.testing.fake import FakeEngine


@pytest.mark.parametrize(("given", "kept"), [("VLM", "vlm"), ("Auto", "auto"), ("text", "text")])
def test_the_variant_is_taken_in_any_case(given: str, kept: str) -> None:  # C3
    assert pg.ModelLoadConfig(model="m", variant=given).variant == kept  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", ["vision", "", 3, None])
def test_any_other_variant_is_refused(variant: object) -> None:  # C3
    with pytest.raises(pg.InvalidField, match="variant takes one of 'auto', 'text', 'vlm'"):
        pg.ModelLoadConfig(model="m", variant=variant)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("auto", "auto"),
        ("bf16", "bfloat16"),
        ("bfloat16", "bfloat16"),
        ("float32", "float32"),
        ("FP16", "float16"),
    ],
)
def test_a_dtype_is_taken_by_its_names(given: str, kept: str) -> None:  # C7
    assert pg.ModelLoadConfig(model="m", dtype=given).dtype == kept


def test_any_other_dtype_is_refused() -> None:  # C7
    with pytest.raises(pg.InvalidField, match="dtype takes one of 'auto'"):
        pg.ModelLoadConfig(model="m", dtype="nn")


def test_remote_code_is_off_and_a_model_has_a_name() -> None:
    assert pg.ModelLoadConfig(model="m").trust_remote_code is False
    with pytest.raises(pg.InvalidField, match="model takes a path or a name"):
        pg.ModelLoadConfig(model="")


def test_an_image_prints_no_pixels() -> None:
    image = PreparedImage(
        width=2, height=1, rgb=bytes(6), digest="0123456789abcdef", grid=(1, 2, 2)
    )
    assert repr(image) == "PreparedImage(2x1, 0123456789ab, grid=(1, 2, 2), tokens=1)"
    assert pickle.loads(pickle.dumps(image)) == image


def test_parts_that_are_records_already_are_kept() -> None:
    parts = (pg.TextPart(text="a"), pg.ImagePart())
    assert message_from({"role": "user", "content": parts}, "m").content == parts


def test_a_nested_record_may_be_given_as_a_mapping() -> None:
    assert pg.GenerationOptions(decode={"strip_whitespace": True}).decode == pg.DecodeOptions(
        strip_whitespace=True
    )  # type: ignore[arg-type]
    with pytest.raises(pg.UnknownField, match="did you mean 'strip_whitespace'"):
        pg.GenerationOptions(decode={"strip_whitespaces": True})  # type: ignore[arg-type]


def test_records_take_keywords_only() -> None:
    @record
    class Room:
        seats: int

    with pytest.raises(TypeError):
        Room(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_a_field_that_must_be_given_is_missed_by_its_name() -> None:
    with pytest.raises(TypeError, match="model"):
        pg.ModelLoadConfig()  # type: ignore[call-arg]


def test_the_closest_choice_is_known_only_where_every_margin_is() -> None:
    near, far = (
        TokenLogprob(token_id=1, logprob=-1.0, margin=0.5),
        TokenLogprob(token_id=1, logprob=-1.0, margin=2.0),
    )
    by_top = TokenLogprob(token_id=9, logprob=-5.0, top=((1, -0.5), (2, -0.75)))
    unknown = TokenLogprob(token_id=1, logprob=-1.0, top=((1, -1.0),))
    assert closest_choice((far, near)) == 0.5
    assert closest_choice((far, near, by_top)) == 0.25
    assert closest_choice((near, unknown)) is None
    assert closest_choice(()) is None
    assert closest_choice(None) is None


def test_an_answer_is_appended_to_the_messages_as_it_is() -> None:
    call = {"id": "call1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    options = pg.GenerationOptions()
    bare = pg.GenerationResult(
        text="Yes.", raw_text="Yes.<|im_end|>", finish=pg.Finish.EOS, options=options
    )
    full = pg.GenerationResult(
        text="Yes.",
        raw_text="",
        finish=pg.Finish.EOS,
        options=options,
        reasoning="Well.",
        tool_calls=(call,),
    )
    assert bare.message == {"role": "assistant", "content": "Yes."}
    assert full.message == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Well.",
        "tool_calls": [call],
    }
    request = pg.TextGenerationRequest(
        messages=[{"role": "user", "content": "Is it?"}, full.message]
    )
    assert (request.messages or ())[1].extras["tool_calls"][0]["id"] == "call1"


@pytest.mark.parametrize("wrong", [b"x", 3])
@pytest.mark.parametrize(
    ("after", "field"),
    [
        ("render", "Rendered.text"),
        ("stop", "Decoded.text"),
        ("stop", "Decoded.raw_text"),
        ("trim", "GenerationResult.text"),
    ],
)
def test_a_stage_that_makes_a_text_something_else_is_named_and_fails_its_row_alone_in_a_job(
    after: str, field: str, wrong: Any, tmp_path: Path
) -> None:
    """Bytes would end the whole job, at each start, where the result is written."""

    def spoilt(row: Any) -> Any:
        is_bad = "bad" in row.text
        return dataclasses.replace(row, **{field.split(".")[1]: wrong}) if is_bad else row

    engine = FakeEngine(lambda row: f"{row.prompt.text}<|im_end|>")
    pipe = pg.route(engine).insert(pg.pure("spoilt", spoilt), after=after)
    requests = [{"prompt": "good"}, {"prompt": "bad"}]
    with pytest.raises(pg.InvalidField, match=f"{field} takes a string") as raised:
        pg.run(pipe, requests)
    assert "'spoilt'" in raised.value.__notes__[0]
    with pg.job(pipe, requests, tmp_path / "job") as running:
        good, bad = running
    assert good.unwrap().text == "good"
    assert isinstance(bad.failure(), pg.StageFailed)
    assert "spoilt" in str(bad.failure())


@pytest.mark.parametrize("field", ["text", "raw_text"])
@pytest.mark.parametrize("wrong", [None, b"x"])
def test_what_a_chat_server_answered_is_a_string(field: str, wrong: Any) -> None:
    asked = pg.stages.resolve(FakeEngine("a")).apply(
        (pg.Success(pg.TextGenerationRequest(prompt="x")),)
    )
    answer = ChatOutput(
        resolved=asked[0].unwrap(), text="a", raw_text="a", finish=pg.Finish.EOS, usage={}
    )
    with pytest.raises(pg.InvalidField, match=rf"ChatOutput\.{field} takes a string"):
        dataclasses.replace(answer, **{field: wrong})
