"""One marker goes from the start of an answer."""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.plugins import strip_prefix
from pipegen.testing.fake import FakeEngine
from pipegen.testing.plugin_suite import AWKWARD_TEXTS, check_plugin

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


def test_it_keeps_the_contract_of_plugins_and_runs_on_every_engine() -> None:
    plugin = strip_prefix(MARKERS)
    check_plugin(plugin, [*AWKWARD_TEXTS, "Assistant: A cat."])
    assert plugin.needs == frozenset()


def test_what_the_model_wrote_stays_in_raw_text() -> None:
    route = pg.attach(pg.route(FakeEngine("Assistant: A cat.")), strip_prefix(MARKERS))
    result = pg.run(route, [{"prompt": "x"}])[0].unwrap()
    assert result.text == "A cat."
    assert result.raw_text.startswith("Assistant: A cat.")
