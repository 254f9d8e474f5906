"""Edited routes: what no stage honours is refused before the call, and an early exit changes
nothing on the embedded model.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
from support.edits import disagreements

import pipegen as pg
from pipegen.engines.capabilities import ENGINES
from pipegen.records.results import Encoded, Prompt, Raw
from pipegen.testing.fake import FakeEngine

HALTS = pg.Plugin(
    name="halts",
    start=lambda: None,
    feed=lambda state, text: (state, text.index("b") + 1 if "b" in text else None),
)
TRIMS = pg.Plugin(name="trims", trim=str.strip)
EDITS: dict[str, Callable[[Any], Any]] = {
    "without stop": lambda pipe: pipe.remove("stop"),
    "without trim": lambda pipe: pipe.remove("trim"),
    "without fit": lambda pipe: pipe.remove("fit"),
    "own stop": lambda pipe: pipe.replace("stop", pg.pure("own stop", same)),
}


ORDER = ("resolve", "render", "tokenize", "fit", "call", "decode", "stop", "trim")


def same(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("edit", "options", "plugin", "words"),
    [
        ("without stop", {"stop": ["b"]}, None, "is what the stage stop does"),
        ("without trim", {"strip_whitespace": True}, None, "is what the stage trim does"),
        ("without fit", {"max_prompt_tokens": 1}, None, "is what the stage fit does"),
        ("without fit", {"on_overflow": "clip"}, None, "is what the stage fit does"),
        ("without stop", {}, HALTS, "watches the text, and the pipe has no stage stop"),
        ("own stop", {}, HALTS, "watches the text, and the pipe has no stage stop"),
        ("without trim", {}, TRIMS, "trims the text, and the pipe has no stage trim"),
    ],
)
def test_what_no_stage_of_the_pipe_honours_is_refused_before_the_call(
    edit: str, options: dict[str, Any], plugin: pg.Plugin | None, words: str
) -> None:
    route = pg.route(FakeEngine("ab"))
    pipe = EDITS[edit](route if plugin is None else pg.attach(route, plugin))
    (slot,) = pg.run(pipe, [{"prompt": "Hi"}], options)
    assert words in slot.failure().message
    assert isinstance(
        slot.failure(), pg.UnsupportedOption if plugin is None else pg.UnsupportedPlugin
    )
    assert pipe.parts[0].owns[0].calls == []


@pytest.mark.parametrize(("plugin", "stage"), [(HALTS, "stop"), (TRIMS, "trim")])
def test_a_plugin_that_only_the_called_engine_has_is_refused_before_the_call(
    plugin: pg.Plugin, stage: str
) -> None:
    plain = FakeEngine("ab")
    plugged: Any = pg.attach(pg.route(plain), plugin).engine
    stages: dict[str, Any] = {
        name: pg.call(plugged) if name == "call" else getattr(pg.stages, name)(plugged)
        for name in ORDER
    }
    stages[stage] = getattr(pg.stages, stage)(plain)

    def joined() -> Any:
        return functools.reduce(operator.rshift, stages.values())

    (slot,) = pg.run(joined(), [{"prompt": "Hi"}])
    assert isinstance(slot.failure(), pg.UnsupportedPlugin)
    assert f"the engine of the pipe's stage {stage} has no such plugin" in slot.failure().message
    assert plugged.calls == []
    stages[stage] = getattr(pg.stages, stage)(plugged)
    assert pg.is_ok(pg.run(joined(), [{"prompt": "Hi"}])[0])


STOPS, BOUNDED = {"stop": ["b"]}, pg.GenerationOptions(max_prompt_tokens=5)
STEERS = pg.Plugin(name="steers", logits_processor=same)


def steerable(text: str, name: str) -> FakeEngine:
    return FakeEngine(text, name=name, honours={*ENGINES["hf"]} - {"videos"})


def test_a_plugin_that_the_called_engine_lacks_is_refused_before_the_call() -> None:
    plain = steerable("ab", "plain")
    plugged: Any = pg.attach(pg.route(plain), STEERS).engine
    stages = [
        pg.call(plain) if name == "call" else getattr(pg.stages, name)(plugged) for name in ORDER
    ]
    pipe: Any = functools.reduce(operator.rshift, stages)
    (slot,) = pg.run(pipe, [{"prompt": "Hi"}])
    assert isinstance(slot.failure(), pg.UnsupportedPlugin)
    assert "'steers' works in the engine, and the one that is called has" in slot.failure().message
    assert plain.calls == []


def test_the_stages_of_one_call_honour_nothing_of_another() -> None:
    first, second = pg.route(steerable("ab", "first")), pg.route(steerable("ab", "second"))
    again: Any = pg.pure("again", lambda result: pg.GenerationRequest(prompt=result.text))
    bounded: Any = pg.pure(
        "again", lambda result: pg.GenerationRequest(prompt=result.text, options=BOUNDED)
    )
    assert pg.is_ok(
        pg.run(first >> again >> pg.attach(second, STEERS), [{"prompt": "Hi"}], STOPS)[0]
    )
    for pipe, options, option in (
        (first.remove("stop") >> again >> second, STOPS, "stop"),
        (first >> bounded >> second.remove("fit"), {}, "max_prompt_tokens"),
    ):
        error = pg.run(pipe, [{"prompt": "Hi"}], options)[0].failure()
        assert isinstance(error, pg.UnsupportedOption)
        assert error.option == option


def test_a_stage_that_keeps_the_text_leaves_the_early_exit() -> None:
    route = pg.route(FakeEngine("abc" * 100))
    for keeps, tokens in ((True, 2), (False, 300)):
        pipe = route.insert(pg.pure("looks", same, keeps_text=keeps), after="call")
        raws: list[Raw] = []

        def noted(raw: Raw, raws: list[Raw] = raws) -> Raw:
            raws.append(raw)
            return raw

        pipe = pipe.insert(pg.pure("notes", noted, keeps_text=True), after="call")
        (slot,) = pg.run(pipe, [{"prompt": "Hi"}], {"stop": ["b"], "max_new_tokens": 400})
        seen = (slot.unwrap().text, slot.unwrap().completion_tokens, slot.unwrap().stop)
        assert seen == ("a", 2, "b")
        assert [len(raw.token_ids) for raw in raws] == [tokens]


@pytest.mark.slow
def test_an_early_exit_changes_nothing_on_the_embedded_model() -> None:
    pytest.importorskip("torch")
    with pg.backends.hf("embedded") as route:
        assert disagreements(route) == []


@pytest.mark.parametrize("removed", ["", "fit"])
def test_a_prompt_that_a_stage_empties_fails_its_row_alone(removed: str) -> None:
    pytest.importorskip("torch")
    nothing = Prompt(token_ids=(), compact_token_ids=())

    def emptied(encoded: Encoded) -> Encoded:
        short = encoded.request.prompt == "Hi"
        return dataclasses.replace(encoded, prompt=nothing) if short else encoded

    with pg.backends.hf("embedded") as route:
        pipe = route.insert(pg.pure("emptied", emptied), after="fit")
        edited = pipe.remove(removed) if removed else pipe
        requests = [{"prompt": text} for text in ("A dog", "Hi", "A cat")]
        slots = pg.run(edited, requests, {"max_new_tokens": 3})
        plain = pg.run(route, requests, {"max_new_tokens": 3})
    assert slots[::2] == plain[::2]
    error = slots[1].failure()
    assert isinstance(error, pg.InvalidRequest)
    assert "the prompt is empty" in error.message
