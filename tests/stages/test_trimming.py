"""The last stage: strip, plugins in their order, and every field of the result."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.errors import MalformedResponse, PluginFailed
from pipegen.ending.stop_state import Stripper
from pipegen.engines.plugin import Plugin
from pipegen.records.option_groups import DecodeOptions, StructuredOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import (
    Decoded,
    Encoded,
    Finish,
    GenerationResult,
    PreparedImage,
    Prompt,
    Raw,
    Thought,
    TokenLogprob,
    Turn,
)
from pipegen.stages.trimming import trim_row, with_thought
from pipegen.testing.fake import FakeEngine

IMAGE = PreparedImage(width=2, height=1, rgb=bytes(6), digest="abc", grid=(1, 2, 4), tokens=2)


def decoded(text: str, **options: Any) -> Decoded:
    prompt = Prompt(
        token_ids=(1, 2, 2),
        compact_token_ids=(1, 2),
        text="P",
        images=(IMAGE,),
        thinking="honoured",
    )
    encoded = Encoded(
        request=TextGenerationRequest(id="r7", prompt="P"),
        options=resolve(GenerationOptions(**options)),
        prompt=prompt,
        clipped_from=99,
    )
    raw = Raw(
        encoded=encoded,
        token_ids=(5, 6),
        logprobs=(TokenLogprob(token_id=5, logprob=-1.0), TokenLogprob(token_id=6, logprob=-2.0)),
    )
    return Decoded(
        raw=raw,
        text=text,
        raw_text=text + "!",
        text_ends=(1, 2),
        raw_ends=(1, 3),
        finish=Finish.STOP_STRING,
        stop="!",
    )


def appending(word: str) -> Plugin:
    return Plugin(name=word, trim=lambda text: f"{text}[{word}]")


def test_every_field_is_filled() -> None:
    row = decoded(" a ")
    assert trim_row(row, "hf").unwrap() == GenerationResult(
        id="r7",
        text=" a ",
        raw_text=" a !",
        prompt_text="P",
        prompt_token_ids=(1, 2, 2),
        token_ids=(5, 6),
        finish=Finish.STOP_STRING,
        stop="!",
        prompt_tokens=3,
        completion_tokens=2,
        logprobs=row.raw.logprobs,
        route="hf",
        thinking="honoured",
        image_grid_thw=((1, 2, 4),),
        image_digests=("abc",),
        options=row.raw.encoded.options,
        clipped_from=99,
        trimmed_by=("a stage",),  # its text is not known to be that of the ids
    )


def test_whitespace_goes_only_where_that_is_asked_and_never_from_raw_text() -> None:  # A10
    assert trim_row(decoded(" a\n"), "r").unwrap().text == " a\n"
    stripped = trim_row(decoded(" a\n", decode=DecodeOptions(strip_whitespace=True)), "r").unwrap()
    assert (stripped.text, stripped.raw_text) == ("a", " a\n!")


def test_first_strip_then_plugins_in_their_order() -> None:  # A11
    plugins = [
        appending("1"),
        Plugin(name="watches only", start=lambda: 0, feed=lambda state, text: (state, None)),
        appending("2"),
    ]
    assert (
        trim_row(decoded(" a ", decode=DecodeOptions(strip_whitespace=True)), "r", plugins)
        .unwrap()
        .text
        == "a[1][2]"
    )


@pytest.mark.parametrize(
    "kind",
    [
        *(ValueError, KeyError, IndexError, AttributeError, RuntimeError, MemoryError),
        *(RecursionError, re.error, StopIteration, type("Own", (Exception,), {})),
    ],
)
def test_a_plugin_that_raises_fails_its_row(kind: type[Exception]) -> None:  # A11
    def fail(text: str) -> str:
        raise kind("no")

    error = trim_row(
        decoded("a"), "r", [appending("1"), Plugin(name="bad", trim=fail), appending("2")]
    ).failure()
    assert isinstance(error, PluginFailed)
    assert error.plugin == "bad"
    assert kind.__name__ in error.message
    assert error.incident


@pytest.mark.parametrize("answer", [None, b"a", 1, ["a"]])
def test_a_plugin_that_gives_back_no_text_fails_its_row(answer: Any) -> None:  # A11
    error = trim_row(decoded("a"), "r", [Plugin(name="bad", trim=lambda text: answer)]).failure()
    assert isinstance(error, PluginFailed)
    assert (error.plugin, type(answer).__name__ in error.message) == ("bad", True)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_what_is_no_fault_of_the_plugin_comes_through(raised: type[BaseException]) -> None:
    def fail(text: str) -> str:
        raise raised

    with pytest.raises(raised):
        trim_row(decoded("a"), "r", [Plugin(name="p", trim=fail)])


def test_whitespace_in_the_middle_is_held_until_something_follows() -> None:
    stripper = Stripper()
    seen = [stripper.feed(piece) for piece in ("\n ", "", " a ", " ", "\n", "b\u00a0", "")]
    assert seen == ["", "", "a", "", "", "  \nb", ""]


def test_an_answer_without_its_form_fails_before_a_plugin_could_hide_it() -> None:
    form = StructuredOptions(choice=("yes", "no"))
    whole = dataclasses.replace(
        decoded("Perhaps", structured=form), stage_text="Perhaps", finish=Finish.EOS, stop=None
    )
    error = trim_row(whole, "x", (appending("yes"),)).failure()
    assert isinstance(error, MalformedResponse)
    assert (
        error.message
        == "the answer of x does not obey its request: 'Perhaps' is none of the 2 choices"
    )
    assert trim_row(decoded("ye", structured=form), "x").unwrap().text == "ye"  # a stop ended it
    assert trim_row(dataclasses.replace(whole, text="yes"), "x").unwrap().text == "yes"


def test_only_what_the_engine_wrote_has_to_have_the_form() -> None:
    """A stage of one's own may make of an answer what it wants."""
    options = {"structured": {"choice": ["yes", "no"]}}
    route = pg.route(FakeEngine("yes<|im_end|>"))
    for place in ("decode", "stop"):
        shouted = route.insert(
            pg.pure(
                "shout", lambda decoded: dataclasses.replace(decoded, text=decoded.text.upper())
            ),
            after=place,
        )
        assert pg.run(shouted, [{"prompt": "Hi"}], options)[0].unwrap().text == "YES"
    (wrong,) = pg.run(pg.route(FakeEngine("YES<|im_end|>")), [{"prompt": "Hi"}], options)
    assert isinstance(wrong.failure(), pg.MalformedResponse)


def test_an_answer_after_a_thought_has_the_prompt_before_the_thought() -> None:
    request = TextGenerationRequest(prompt="Hi")
    asked = Encoded(
        request=request,
        options=resolve(),
        prompt=Prompt(token_ids=(1, 2, 2), compact_token_ids=(1, 2)),
    )
    thought = Thought(asked=asked, token_ids=(72,), text="H", closed=True)
    turns = [Turn(request=request, compact_token_ids=ids) for ids in ((1, 2, 72), None)]
    made = [
        with_thought(
            GenerationResult(
                text="i",
                raw_text="i",
                finish=Finish.EOS,
                options=resolve(),
                token_ids=(73,),
                turn=turn,
            ),
            thought,
            FakeEngine("").tokenizer,
        )
        for turn in turns
    ]
    assert [result.prompt_token_ids for result in made] == [(1, 2, 2)] * 2
    assert [result.turn and result.turn.compact_token_ids for result in made] == [(1, 2), None]
