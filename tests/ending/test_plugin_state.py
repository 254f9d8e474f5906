"""Watching: what a plugin does wrong fails its own row, in words that its author can use (A11)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from pipegen.core.errors import PluginFailed
from pipegen.ending.plugin_state import Halt, PluginStates
from pipegen.engines.plugin import Plugin


class Fed(NamedTuple):
    state: int
    kept: int | None


def states_of(answer: Any) -> PluginStates:
    return PluginStates((Plugin(name="p", start=lambda: 0, feed=lambda state, text: answer),))


@pytest.mark.parametrize(
    "answer",
    [None, 0, "ab", (), (0,), (0, None, None), [0, None], {"state": 0, "kept": 1}],
    ids=repr,
)
def test_what_is_no_state_and_number_is_said(answer: Any) -> None:
    failed = states_of(answer).feed("text")
    assert isinstance(failed, PluginFailed)
    assert (failed.plugin, failed.message) == (
        "p",
        f"plugin 'p': feed gave {answer!r}, not the next state and how many characters are kept",
    )


@pytest.mark.parametrize("kept", [-1, 5, True, 1.0, "1"])
def test_no_more_is_kept_than_was_fed(kept: Any) -> None:
    failed = states_of((0, kept)).feed("text")
    assert isinstance(failed, PluginFailed)
    assert (failed.plugin, failed.message) == (
        "p",
        f"plugin 'p' kept {kept!r}; feed takes None or 0 to 4 characters of the new text",
    )


@pytest.mark.parametrize(
    ("answer", "halt"),
    [
        ((0, None), None),
        ((0, 0), Halt("p", 0)),
        ((None, 4), Halt("p", 4)),
        (Fed(0, 2), Halt("p", 2)),
    ],
)
def test_what_is_right_is_taken(answer: Any, halt: Halt | None) -> None:
    assert states_of(answer).feed("text") == halt


def test_empty_text_is_not_shown_and_no_state_is_made_for_it() -> None:
    assert (
        PluginStates(
            (Plugin(name="p", start=lambda: 1 // 0, feed=lambda state, text: (state, None)),)
        ).feed("")
        is None
    )


def test_a_state_is_made_once_and_handed_on() -> None:
    made: list[str] = []
    plugins = [
        Plugin(
            name=name,
            start=lambda name=name: made.append(name) or name,
            feed=lambda seen, text: (seen + text, None),
        )
        for name in "ab"
    ]  # type: ignore[func-returns-value, misc]
    halting = Plugin(
        name="c",
        start=lambda: "",
        feed=lambda seen, text: (seen + text, 1 if (seen + text).endswith("xyz") else None),
    )
    states = PluginStates((*plugins, halting))
    assert [states.feed(piece) for piece in ("x", "y", "z")] == [None, None, Halt("c", 1)]
    assert made == ["a", "b"]


@pytest.mark.parametrize("where", ["start", "feed"])
def test_what_a_plugin_raises_is_named(where: str) -> None:
    def broken(*arguments: Any) -> Any:
        raise KeyError("gone")

    hooks: dict[str, Any] = {
        "start": lambda: 0,
        "feed": lambda state, text: (state, None),
        where: broken,
    }
    assert PluginStates((Plugin(name="p", **hooks),)).feed("text") == PluginFailed(
        "plugin 'p' raised KeyError: 'gone'", plugin="p"
    )


def test_a_plugin_that_only_trims_does_not_watch() -> None:
    assert not PluginStates((Plugin(name="p", trim=str.upper),))
    assert PluginStates((Plugin(name="p", trim=str.upper),)).feed("text") is None


def test_of_failure_and_halt_the_failure_counts_and_of_two_halts_the_first() -> None:
    def halt(name: str, kept: Any) -> Plugin:
        return Plugin(name=name, start=lambda: 0, feed=lambda state, text: (state, kept))

    assert PluginStates((halt("a", 2), halt("b", 1))).feed("text") == Halt("a", 2)
    failed = PluginStates((halt("a", 2), halt("b", 9))).feed("text")
    assert isinstance(failed, PluginFailed)
    assert failed.plugin == "b"


def test_what_a_plugin_raises_is_in_the_log_under_its_incident() -> None:
    def feed(state: object, text: str) -> Any:
        raise ValueError("no")

    failed = PluginStates((Plugin(name="p", start=lambda: None, feed=feed),)).feed("text")
    assert isinstance(failed, PluginFailed)
    assert failed.incident
