"""The checks for plugins find what they are for."""

from __future__ import annotations

from typing import Any

import pytest

from pipegen.plugins import Plugin, RowContext
from pipegen.testing.plugin_suite import check_hooks, check_plugin, check_trim, check_watch
from pipegen.testing.toy import ToyTokenizer


def watch(feed: Any, start: Any = lambda: 0) -> Plugin:
    return Plugin(name="p", start=start, feed=feed)


def fifth_character(state: list[str], text: str) -> Any:
    """Halts after the fifth character, and writes into its state."""
    halt = next((end for end in range(1, len(text) + 1) if len("".join(state)) + end == 5), None)
    state.append(text)
    return state, halt


SHARED: list[str] = []


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        (watch(lambda state, text: (state, len(text) if "}" in text else None)), "pieces of 1"),
        (watch(lambda state, text: (state, len(text) + 1)), "from 0 to 9"),
        (
            watch(lambda state, text: None),
            "plugin 'p': feed gave None, not the next state and how many characters are kept",
        ),
        (
            watch(lambda state, text: state),
            "plugin 'p': feed gave 0, not the next state and how many characters are kept",
        ),
        (
            watch(lambda state, text: (state, None, None)),
            r"plugin 'p': feed gave \(0, None, None\), not the next state",
        ),
        (watch(lambda state, text: (state, True)), "keeps True"),
        (watch(lambda state, text: (state, -1)), "keeps -1"),
        (watch(fifth_character, list), "must not change the state"),
        (watch(fifth_character, lambda: SHARED), "not at all when it comes in pieces"),
    ],
)
def test_a_watch_that_breaks_its_promise_is_found(plugin: Plugin, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_watch(plugin, "ab{c}} de")


def test_a_good_watch_passes() -> None:
    check_plugin(
        watch(
            lambda seen, text: (
                seen + len(text),
                5 - seen if seen + len(text) >= 5 > seen else None,
            )
        )
    )


@pytest.mark.parametrize("trim", [len, lambda text: None, str.encode])
def test_a_trim_that_gives_no_text_is_found(trim: Any) -> None:
    with pytest.raises(AssertionError, match="trim gives a string"):
        check_trim(Plugin(name="p", trim=trim), "abc")


def test_a_trim_that_remembers_is_found() -> None:
    seen: list[str] = []

    def numbered(text: str) -> str:
        seen.append(text)
        return text + str(len(seen))

    with pytest.raises(AssertionError, match="pure"):
        check_trim(Plugin(name="p", trim=numbered), "abc")


def test_a_trim_that_cannot_bear_a_text_is_found() -> None:
    with pytest.raises(IndexError):
        check_plugin(Plugin(name="p", trim=lambda text: text.split()[0]))


@pytest.mark.parametrize("hook", ["logits_processor", "stopping_criteria"])
def test_rows_that_share_a_hook_are_found(hook: str) -> None:
    context = RowContext(prompt_length=1, tokenizer=ToyTokenizer())
    made: dict[str, Any] = {hook: lambda context: print}
    with pytest.raises(AssertionError, match="the same object"):
        check_hooks(Plugin(name="p", **made), context)
    made = {hook: lambda context: object()}
    with pytest.raises(AssertionError, match="cannot be called"):
        check_hooks(Plugin(name="p", **made), context)
