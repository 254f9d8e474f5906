"""Reasoning and answer are told apart, and reasoning that does not end is reported. One marker goes
from the start of an answer.
"""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.answer.split_thought import thinking_unfinished
from pipegen.plugins import Reasoning, reasoning_of, split_reasoning, strip_prefix
from pipegen.records.results import Finish
from pipegen.testing.fake import FakeEngine
from pipegen.testing.plugin_suite import AWKWARD_TEXTS, check_plugin


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>\na, b\n</think>\n\nc ", Reasoning("a, b", "c ", closed=True)),
        (" \n<think>a</think>c", Reasoning("a", "c", closed=True)),
        ("<think>\n\n</think>\n\nc", Reasoning("", "c", closed=True)),
        ("a</think>c", Reasoning("a", "c", closed=True)),
        ("</think>c", Reasoning("", "c", closed=True)),
        ("<think>a, b", Reasoning("a, b", "", closed=False)),
        ("<think>", Reasoning("", "", closed=False)),
        (" c ", Reasoning(None, " c ", closed=True)),
        ("", Reasoning(None, "", closed=True)),
        ("c <think>a</think> d", Reasoning(None, "c <think>a</think> d", closed=True)),
        ("c <think> d", Reasoning(None, "c <think> d", closed=True)),
        ("<think>a<think>b</think>c</think>d", Reasoning("a<think>b", "c</think>d", closed=True)),
        ("a</think>c <think>d", Reasoning("a", "c <think>d", closed=True)),
    ],
)
def test_a_text_has_two_parts(text: str, parts: Reasoning) -> None:
    assert reasoning_of(text) == parts
    trim = split_reasoning().trim
    assert trim is not None
    assert trim(text) == parts.answer


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a, b", Reasoning("a, b", "", closed=False)),
        ("a</think>c", Reasoning("a", "c", closed=True)),
        ("a <think> b</think>c", Reasoning("a <think> b", "c", closed=True)),
        ("<think>a</think>c", Reasoning("a", "c", closed=True)),
        ("", Reasoning("", "", closed=False)),
    ],
)
def test_the_prompt_may_have_opened_the_reasoning(text: str, parts: Reasoning) -> None:
    assert reasoning_of(text, opened=True) == parts
    trim = split_reasoning(opened=True).trim
    assert trim is not None
    assert trim(text) == parts.answer


def test_the_words_may_be_others() -> None:
    assert reasoning_of("[THINK]a[/THINK]c", "[THINK]", "[/THINK]") == Reasoning(
        "a", "c", closed=True
    )
    check_plugin(split_reasoning("[THINK]", "[/THINK]"), ["[THINK]a[/THINK]c"])


@pytest.mark.parametrize(
    ("open", "close"), [("", "</think>"), ("<think>", " "), ("|", "|"), (None, "</think>")]
)
def test_the_words_are_two_and_not_blank(open: Any, close: Any) -> None:
    with pytest.raises(pg.InvalidField, match="two different strings"):
        split_reasoning(open, close)


def test_splitting_reasoning_keeps_the_contract_of_plugins_and_runs_on_every_engine() -> None:
    check_plugin(split_reasoning(), [*AWKWARD_TEXTS, "<think>a</think>c"])
    assert split_reasoning().needs == frozenset()


def test_the_reasoning_of_a_result_is_in_its_raw_text() -> None:
    scripts = {"ends": "<think>\na\n</think>\n\nc", "does not": "<think>\na, b"}
    route = pg.attach(
        pg.route(FakeEngine(lambda encoded: scripts[encoded.request.prompt or ""])),
        split_reasoning(),
    )
    ends, other = (
        slot.unwrap() for slot in pg.run(route, [{"prompt": prompt} for prompt in scripts])
    )
    assert (ends.text, other.text) == ("c", "")
    assert (reasoning_of(ends.raw_text).reasoning, reasoning_of(ends.raw_text).closed) == (
        "a",
        True,
    )
    assert not reasoning_of(other.raw_text).closed


@pytest.mark.parametrize(
    ("text", "said", "unfinished"),
    [
        ("<think>a", {}, True),
        ("a", {"prompt": "Hi <think>\n"}, True),
        ("a</think>4", {"prompt": "Hi <think>\n"}, False),
        ("4", {}, False),
        (" ", {"reasoning": "a"}, True),
        ("4", {"reasoning": "a"}, False),
        ("", {"reasoning": ""}, False),
    ],
)
def test_it_is_known_whether_the_tokens_ran_out_before_the_answer(
    text: str, said: dict[str, Any], unfinished: bool
) -> None:
    assert thinking_unfinished(Finish.LENGTH, text, **said) is unfinished
    assert not thinking_unfinished(Finish.EOS, text, **said)


MARKERS = ("Assistant:", "assistant\n", "<|assistant|>", "<|assistant|>assistant\n", "\nA:")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Assistant: A cat.", "A cat."),
        ("\n Assistant:A cat. ", "A cat. "),
        ("<|assistant|>assistant\nA cat.", "A cat."),
        ("<|assistant|> assistant\nA cat.", "assistant\nA cat."),
        ("Assistant: Assistant: A cat.", "Assistant: A cat."),
        ("assistants help", "assistants help"),
        ("A: yes", "yes"),
        ("  A cat. Assistant:", "  A cat. Assistant:"),
        ("Assistant:", ""),
        ("", ""),
    ],
)
def test_one_leading_marker_is_removed_the_longest_that_is_there(text: str, answer: str) -> None:
    for markers in (MARKERS, MARKERS[::-1]):
        trim = strip_prefix(markers).trim
        assert trim is not None
        assert trim(text) == answer


@pytest.mark.parametrize("bad", ["Assistant:", [], [""], ["A:", " \n"], [1], None])
def test_markers_take_a_sequence_of_words(bad: Any) -> None:
    with pytest.raises(pg.InvalidField, match="at least one marker"):
        strip_prefix(bad)


def test_stripping_a_prefix_keeps_the_contract_of_plugins_and_runs_on_every_engine() -> None:
    plugin = strip_prefix(MARKERS)
    check_plugin(plugin, [*AWKWARD_TEXTS, "Assistant: A cat."])
    assert plugin.needs == frozenset()


def test_what_the_model_wrote_stays_in_raw_text() -> None:
    route = pg.attach(pg.route(FakeEngine("Assistant: A cat.")), strip_prefix(MARKERS))
    result = pg.run(route, [{"prompt": "x"}])[0].unwrap()
    assert result.text == "A cat."
    assert result.raw_text.startswith("Assistant: A cat.")
