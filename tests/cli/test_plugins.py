"""`pipegen generate --plugin`: plugins by name, with arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer

import pipegen as pg
from pipegen.cli.plugins import makers, plugins_of
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine('{"a": 1} {"a": 2} {"a": 3}', honours=pg.ENGINES["hf"])


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("balanced_json",), '{"a": 1}'),
        (("balanced_json:max_objects=2",), '{"a": 1} {"a": 2}'),
        (("balanced_json:max_objects=2", 'strip_prefix:markers=["{\\"a\\": 1}"]'), '{"a": 2}'),
        (("strip_prefix:markers={",), '"a": 1} {"a": 2} {"a": 3}'),
        (("split_reasoning:open=<a>,close=: 2}",), '{"a": 3}'),
        ((), '{"a": 1} {"a": 2} {"a": 3}'),
    ],
)
def test_plugins_are_attached_in_their_order(
    command: Command, jsonl: Any, flags: tuple[str, ...], text: str
) -> None:
    ran = command(
        "generate",
        jsonl({"prompt": "Hi"}),
        "--model",
        "m",
        *(word for flag in flags for word in ("--plugin", flag)),
    )
    assert (ran.code, [line["text"] for line in ran.out]) == (0, [text]), ran.err


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("balancd_json", r"takes one of .*, not 'balancd_json'; did you mean 'balanced_json'\?"),
        ("hf_hooks", "takes one of"),
        ("Plugin", "takes one of"),
        (
            "balanced_json:max_object=2",
            r"balanced_json takes max_objects, not 'max_object'; did you mean 'max_objects'\?",
        ),
        ("balanced_json:max_objects=none", "balanced_json: .*whole number"),
        ("balanced_json:max_objects", r"arguments are written balanced_json:ARGUMENT=VALUE"),
        ("balanced_json:max_objects=1,max_objects=2", "max_objects is given twice"),
        ("strip_prefix", "strip_prefix: .*markers"),
        ('strip_prefix:markers=["a",1]', "strip_prefix: "),
    ],
)
def test_a_bad_plugin_is_bad_usage(flag: str, words: str) -> None:
    with pytest.raises(typer.BadParameter, match=words):
        plugins_of([flag])


def test_an_engine_that_cannot_take_it_is_refused_before_it_is_called(
    command: Command, jsonl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = FakeEngine("x", name="deaf", honours=pg.ENGINES["hf"] - {"watch"})
    monkeypatch.setattr("pipegen.cli.generate.open_routes", lambda load: pg.route(deaf))
    ran = command("generate", jsonl({"prompt": "Hi"}), "--model", "m", "--plugin", "balanced_json")
    assert (ran.code, ran.out, deaf.calls) == (2, [], [])
    assert "needs watch, which deaf does not offer" in ran.err


def test_of_two_engines_each_takes_it_or_the_flag_is_refused(
    command: Command, jsonl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FakeEngine(
        lambda encoded: (
            pg.Timeout("slow") if "b" in (encoded.prompt.text or "") else 'first {"a": 1} more'
        )
    )
    deaf = FakeEngine("x", name="deaf", honours=pg.ENGINES["hf"] - {"watch"})
    for second, code in ((FakeEngine('second {"b": 2} more', name="second"), 0), (deaf, 2)):
        both = pg.fallback(pg.route(first), pg.route(second), when=pg.Timeout)
        monkeypatch.setattr("pipegen.cli.generate.open_routes", lambda load, both=both: both)
        ran = command(
            *("generate", jsonl({"prompt": "a"}, {"prompt": "b"}), "--model", "m"),
            *("--plugin", "balanced_json"),
        )
        assert ran.code == code, ran.err
        assert [line["text"] for line in ran.out] == (
            [] if code else ['first {"a": 1}', 'second {"b": 2}']
        )
    assert "which deaf does not offer" in ran.err


def test_every_plugin_that_ships_is_there_but_the_one_that_takes_objects() -> None:
    made = {name for name in pg.plugins.__all__ if name.islower()} - {
        "hf_hooks",
        "reasoning_of",
        "thinking_unfinished",
    }
    assert set(makers()) == made
