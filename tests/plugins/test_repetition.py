"""A caption that loops is halted, and the loop trimmed to one occurrence."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import pipegen as pg
from pipegen.plugins import halt_on_repetition
from pipegen.testing.fake import FakeEngine
from pipegen.testing.plugin_suite import AWKWARD_TEXTS, check_plugin

SENTENCE = "The cat sits on the mat by the door. "


def outcome(text: str, plugin: pg.Plugin | None = None) -> tuple[str, str] | None:
    """What the watch keeps of the text, and what the trim leaves of that; None where nothing is
    halted.
    """
    plugin = plugin or halt_on_repetition()
    assert plugin.start is not None
    assert plugin.feed is not None
    assert plugin.trim is not None
    _, kept = plugin.feed(plugin.start(), text)
    return None if kept is None else (text[:kept], plugin.trim(text[:kept]))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I see a house. " + SENTENCE * 20, "I see a house. The cat sits on the mat by the door."),
        (SENTENCE * 20, SENTENCE.rstrip()),
        ("\n " + SENTENCE * 20, "\n " + SENTENCE.rstrip()),
        ("A dog and a cat" + " and a dog" * 40, "A dog and a cat and a dog"),
        ("一只猫坐在垫子上。" * 40, "一只猫坐在垫子上。"),
        ("A bus" + "!" * 300, "A bus!"),
        ('["cat", "dog", ' + '"car", ' * 60, '["cat", "dog", "car",'),
        ("é👍 " * 100, "é👍"),
        ("word " * 5 + "x" * 300, "word word word word word x"),
    ],
)
def test_a_loop_is_halted_and_one_occurrence_stays(text: str, answer: str) -> None:
    found = outcome(text)
    assert found is not None
    kept, trimmed = found
    assert trimmed == answer
    assert 200 <= len(kept) < len(text)


@pytest.mark.parametrize(
    "text",
    [
        "ha " * 5,
        "no, no, no, no",
        SENTENCE * 3,
        "[" + "0, " * 1_000 + "0]",
        "[" + "[0.0, 1.0], " * 500,
        "| a | b |\n|" + "-" * 1_000 + "|" + " " * 1_000 + "\n" * 1_000,
        "x" * 199,
        "".join(f"{number} bottles of beer on the wall, " for number in range(200)),
    ],
)
def test_what_is_alike_by_right_is_left_alone(text: str) -> None:
    assert outcome(text) is None
    trim = halt_on_repetition().trim
    assert trim is not None
    assert trim(text) == text


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"ngram": 3, "count": 3, "min_length": 1}, "abcabcabc"),
        ({"ngram": 3, "count": 2, "min_length": 1}, "abcabc"),
        ({"ngram": 3, "count": 2, "min_length": 11}, "abcabcabcab"),
        ({"ngram": 2, "count": 2, "min_length": 1}, None),
        ({"ngram": 6, "count": 4, "min_length": 1}, "abcabcabcabc"),
    ],
)
def test_ngram_count_and_min_length_say_what_a_loop_is(
    settings: dict[str, int], kept: str | None
) -> None:
    found = outcome("abc" * 8, halt_on_repetition(**settings))
    assert (found and found[0]) == kept
    assert (found and found[1]) == (kept and "abc")


def test_white_space_never_completes_a_loop_so_stripping_makes_no_difference() -> None:
    plugin = halt_on_repetition(ngram=10, count=3, min_length=1)
    assert plugin.trim is not None
    text = "a b " * 3 + "a"
    assert outcome("a b " * 5, plugin) == ("a b a b a b a", "a b")
    assert outcome(" \n" + "a b " * 5, plugin) == (" \na b a b a b a", " \na b")
    assert plugin.trim(text + " \n") == plugin.trim(text) == "a b"


def test_a_trim_leaves_nothing_to_trim() -> None:
    trim = halt_on_repetition(ngram=20, count=2, min_length=1).trim
    assert trim is not None
    assert trim("aab" * 2) == "aab"
    assert trim("x" + "abb" * 4) == "xab"  # abb, then b


@pytest.mark.parametrize(
    "settings", [{"ngram": 0}, {"count": 1}, {"min_length": 0}, {"count": 2.0}, {"ngram": True}]
)
def test_the_settings_are_whole_numbers(settings: dict[str, Any]) -> None:
    with pytest.raises(pg.InvalidField, match=next(iter(settings))):
        halt_on_repetition(**settings)


def test_it_keeps_the_contract_of_plugins() -> None:
    texts = [*AWKWARD_TEXTS, "so it is " * 9, " \n a" * 9, "the end. the end. the end"]
    check_plugin(halt_on_repetition(), texts)
    check_plugin(halt_on_repetition(ngram=12, count=2, min_length=1), texts)


def test_a_row_of_an_engine_ends_there_whether_its_text_is_stripped_or_not() -> None:
    scripts = {"loops": " A house. " + SENTENCE * 20, "does not": "A house."}
    route = pg.attach(
        pg.route(FakeEngine(lambda encoded: scripts[encoded.request.prompt or ""])),
        halt_on_repetition(),
    )
    for strip in (False, True):
        options = pg.GenerationOptions(
            max_new_tokens=2_000, decode=pg.DecodeOptions(strip_whitespace=strip)
        )
        loops, other = (
            slot.unwrap()
            for slot in pg.run(route, [{"prompt": prompt} for prompt in scripts], options)
        )
        seen = (loops.text.strip(), loops.finish, loops.stop)
        assert seen == ("A house. " + SENTENCE.strip(), pg.Finish.PLUGIN, "halt_on_repetition")
        assert (other.text, loops.completion_tokens < 250) == ("A house.", True)


# cost
def test_the_cost_of_a_character_does_not_grow_with_the_text() -> None:
    plugin = halt_on_repetition()
    states: list[str] = []

    def counted(state: Any, new_text: str) -> Any:
        assert plugin.feed is not None
        states.append(state)
        return plugin.feed(state, new_text)

    text = "".join(f"Car {number} is new. " for number in range(300))
    route = pg.attach(pg.route(FakeEngine(text)), dataclasses.replace(plugin, feed=counted))
    assert (
        pg.run(route, [{"prompt": "x"}], pg.GenerationOptions(max_new_tokens=8_000))[0]
        .unwrap()
        .text
        == text
    )
    assert max(map(len, states)) == 1_600
