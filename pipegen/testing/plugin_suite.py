"""Checks of the contract of plugins, for your own tests.

    def test_my_plugin_keeps_the_contract() -> None:
        check_plugin(my_plugin(), texts=["what it should look at", *AWKWARD_TEXTS])

Each check raises `AssertionError`, which says what was expected and what was seen.

>>> from pipegen.engines.plugin import Plugin
>>> check_plugin(Plugin(name="shout", trim=str.upper))
>>> at_the_end = Plugin(
...     name="at_the_end",
...     start=lambda: None,
...     feed=lambda state, text: (state, len(text) if "b" in text else None),
... )
>>> check_plugin(at_the_end, texts=["abc"])
Traceback (most recent call last):
...
AssertionError: plugin 'at_the_end' halts 'abc' after 3 characters when it comes in one piece, after 2 characters when it comes in pieces of 1
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from pipegen.ending.plugin_state import not_fed
from pipegen.engines.plugin import Plugin, RowContext
from pipegen.testing.ask import expect
from pipegen.testing.toy import ToyTokenizer

__all__ = ["AWKWARD_TEXTS", "check_hooks", "check_plugin", "check_trim", "check_watch"]

AWKWARD_TEXTS = (
    "",
    " ",
    "\n\n",
    "plain words",
    "é 中文 👩‍👩‍👧 e\u0301 \ufffd",
    "\x00\x07 \ud800",
    '{"a": "}{"} tail',
    '{"a": "\\"}", "b": [1, {"c": "\\\\"}]} {"a": 1}',
    "}]}{[(",
    "<think>{</think><|im_end|>",
    "a" * 200,
)
"""Texts that a model may write: empty, blank, not ASCII, broken, and several kinds of JSON."""


def check_plugin(
    plugin: Plugin, texts: Iterable[str] = AWKWARD_TEXTS, *, context: RowContext | None = None
) -> None:
    """Run every check that applies to the plugin, on each of the texts. `context` is passed to its
    hooks.
    """
    for text in texts:
        check_watch(plugin, text)
        check_trim(plugin, text)
    check_hooks(plugin, context or RowContext(prompt_length=1, tokenizer=ToyTokenizer()))


def check_watch(plugin: Plugin, text: str) -> None:
    """`feed` halts at the same character however the text is cut into pieces, and does not change
    or share states.
    """
    if plugin.start is None or plugin.feed is None:
        return
    at_once = _halt(plugin, [text])
    for size in (1, 2, 3, 7, 50):
        seen = _halt(plugin, _pieces(text, size))
        message = (
            f"plugin {plugin.name!r} halts {text!r} {_after(at_once)} when it comes in one piece,"
            f" {_after(seen)} when it comes in pieces of {size}"
        )
        expect(seen == at_once, message)
    states = [plugin.start()]
    other = plugin.start()
    end = len(text) if at_once is None else at_once
    for char, reverse in zip(text[:end], text[::-1], strict=False):
        other, _ = _fed(plugin, other, reverse)
        states.append(_fed(plugin, states[-1], char)[0])
    for index, state in enumerate(states[:end]):  # later states were made from each of these
        seen = _halt(plugin, [text[index:]], state)
        seen = None if seen is None else index + seen
        message = (
            f"plugin {plugin.name!r} halts {text!r} {_after(at_once)} at first, {_after(seen)} when"
            " it is read again from an old state"
        )
        expect(
            seen == at_once,
            f"{message}: feed must not change the state that it is given, nor share it between"
            " rows",
        )


def check_trim(plugin: Plugin, text: str) -> None:
    """`trim` takes any text, returns a string, and is a pure function."""
    if plugin.trim is None:
        return
    trimmed: object = plugin.trim(text)
    expect(
        isinstance(trimmed, str),
        f"plugin {plugin.name!r} trims {text!r} to {type(trimmed).__name__}; trim gives a string",
    )
    expect(
        plugin.trim(text) == trimmed,
        f"plugin {plugin.name!r} trims {text!r} differently the second time; trim is a pure"
        " function",
    )


def check_hooks(plugin: Plugin, context: RowContext) -> None:
    """Each row gets its own callable objects."""
    for name, make in (
        ("logits_processor", plugin.logits_processor),
        ("stopping_criteria", plugin.stopping_criteria),
    ):
        if make is None:
            continue
        first, second = make(context), make(context)
        expect(
            callable(first),
            f"plugin {plugin.name!r}: {name} makes {type(first).__name__}, which cannot be called",
        )
        expect(
            first is not second,
            f"plugin {plugin.name!r}: {name} gives two rows the same object; rows would share"
            " state",
        )


def _pieces(text: str, size: int) -> list[str]:
    return [text[start:end] for start, end in pairwise([*range(0, len(text), size), len(text)])]


def _halt(plugin: Plugin, pieces: Iterable[str], *states: object) -> int | None:
    """After how many characters the plugin halts."""
    if plugin.start is None or plugin.feed is None:
        raise AssertionError("called only for plugins that watch")
    state, count = states[0] if states else plugin.start(), 0
    for piece in pieces:
        if not piece:
            continue  # an engine does not pass empty text
        state, length = _fed(plugin, state, piece)
        if length is not None:
            right = type(length) is int and 0 <= length <= len(piece)
            expect(
                right,
                f"plugin {plugin.name!r} keeps {length!r} characters of {piece!r}; feed gives None,"
                f" or a whole number from 0 to {len(piece)}",
            )
            return count + length
        count += len(piece)
    return None


def _fed(plugin: Plugin, state: object, piece: str) -> tuple[object, int | None]:
    answer: Any = plugin.feed(state, piece) if plugin.feed is not None else None
    expect(
        isinstance(answer, tuple) and len(answer) == 2, f"plugin {plugin.name!r}: {not_fed(answer)}"
    )
    return answer  # type: ignore[no-any-return]


def _after(length: int | None) -> str:
    return "not at all" if length is None else f"after {length} characters"
