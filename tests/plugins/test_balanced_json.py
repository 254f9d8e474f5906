"""Halting where the JSON is complete (K5), directly and through an engine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import pipegen as pg
from pipegen.plugins import balanced_json
from pipegen.testing.fake import FakeEngine
from pipegen.testing.plugin_suite import AWKWARD_TEXTS, check_plugin


def kept_of(text: str, max_objects: int | None = None) -> str | None:
    plugin = balanced_json(max_objects)
    assert plugin.start is not None
    assert plugin.feed is not None
    _, kept = plugin.feed(plugin.start(), text)
    return None if kept is None else text[:kept]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"a": "}{"} tail', '{"a": "}{"}'),  # K5
        (r'{"a": "\"}"} tail', r'{"a": "\"}"}'),
        (r'{"a": "\\"} "}', r'{"a": "\\"}'),
        ('[{"a": 1}, {"a": 2}] tail', '[{"a": 1}, {"a": 2}]'),
        ("{}{}", "{}"),
        ('Sure, "this" it is:\n```json\n{"a": 1}\n```', 'Sure, "this" it is:\n```json\n{"a": 1}'),
        ("}]: no opener yet {", None),
        ('{"a": [1, 2}', None),
        ('{"a": [1, 2}} ]', '{"a": [1, 2}}'),
        ("no JSON at all", None),
        ('{"a": "never closed}', None),
    ],
)
def test_a_row_halts_right_after_the_outermost_value_closes(text: str, kept: str | None) -> None:
    assert kept_of(text) == kept


# K5
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"a": 1}\n{"b": {"c": 2}} tail', '{"a": 1}\n{"b": {"c": 2}}'),
        ('{"a": 1}, [2], {}', '{"a": 1}, [2]'),
        ('{"objects": [{"a": 1}, {"a": 2}, {"a": 3}]}', None),
    ],
)
def test_max_objects_counts_outermost_values(text: str, kept: str | None) -> None:
    assert kept_of(text, 2) == kept


@pytest.mark.parametrize("bad", [0, -1, True, 1.0, "2"])
def test_max_objects_takes_a_whole_number_of_at_least_one(bad: Any) -> None:
    with pytest.raises(pg.InvalidField, match="max_objects"):
        balanced_json(bad)


@pytest.mark.parametrize("max_objects", [None, 1, 2])
def test_it_keeps_the_contract_of_plugins(max_objects: int | None) -> None:
    check_plugin(
        balanced_json(max_objects), texts=[*AWKWARD_TEXTS, '{"a": [1, "]"]}\n\n{"b": "\\\\\\""} {}']
    )


def run_with(
    engine: FakeEngine, plugin: pg.Plugin, prompts: list[str], **options: Any
) -> list[pg.GenerationResult]:
    route = pg.attach(pg.route(engine), plugin)
    return [
        slot.unwrap()
        for slot in pg.run(
            route,
            [{"prompt": prompt} for prompt in prompts],
            pg.GenerationOptions(max_new_tokens=5_000, **options),
        )
    ]


# K5: rows are independent
def test_each_row_of_a_batch_halts_by_itself() -> None:
    scripts = {"one": '{"a": "}{"} tail', "two": "[[[", "three": "x {} y"}
    engine = FakeEngine(lambda encoded: scripts[encoded.request.prompt or ""])
    results = run_with(engine, balanced_json(), list(scripts))
    assert [result.text for result in results] == ['{"a": "}{"}', "[[[", "x {}"]
    seen = [result.finish for result in results]
    assert seen == [pg.Finish.PLUGIN, pg.Finish.ABORTED, pg.Finish.PLUGIN]
    assert [result.stop for result in results] == ["balanced_json", None, "balanced_json"]
    assert [result.completion_tokens for result in results] == [11, 3, 4]


# K5: rows are independent, also where their tokens come in turns
def test_rows_that_stream_side_by_side_halt_by_themselves() -> None:
    scripts = {"one": "{1} tail", "two": "[[[[[[["}
    engine = FakeEngine(
        lambda encoded: scripts[encoded.request.prompt or ""], server_side_stops=False
    )
    texts = dict.fromkeys(range(2), "")
    for event in pg.stream(
        pg.attach(pg.route(engine), balanced_json()), [{"prompt": name} for name in scripts]
    ):
        if isinstance(event, pg.Delta):
            texts[event.index] += event.text
    assert texts == {0: "{1}", 1: "[[[[[[["}


def test_an_engine_that_overshoots_gives_the_same_text() -> None:
    exact, late = (
        run_with(
            FakeEngine('{"a": 1} tail', server_side_stops=server_side_stops), balanced_json(), ["x"]
        )[0]
        for server_side_stops in (True, False)
    )
    assert (
        (exact.text, exact.finish, exact.token_ids)
        == (late.text, late.finish, late.token_ids)
        == ('{"a": 1}', pg.Finish.PLUGIN, exact.token_ids)
    )


def test_a_halt_within_min_new_tokens_is_not_made_up_for() -> None:
    result = run_with(
        FakeEngine('{} then {"a": 1} tail'), balanced_json(), ["x"], min_new_tokens=4
    )[0]
    assert (result.text, result.finish) == ('{} then {"a": 1}', pg.Finish.PLUGIN)


# K5: 4,096 tokens, no full re-decode
def test_the_cost_is_linear_in_the_output() -> None:
    text = '{"a": "' + "b" * 4_096
    shown: list[str] = []
    plugin = balanced_json()

    def counted(state: Any, new_text: str) -> Any:
        shown.append(new_text)
        assert plugin.feed is not None
        return plugin.feed(state, new_text)

    run_with(FakeEngine(text), dataclasses.replace(plugin, feed=counted), ["x"])
    # once by the engine, which halts by it, and once by the shared stages, which cut by it
    assert "".join(shown) in (text, 2 * text)


def test_it_runs_wherever_rows_can_be_watched() -> None:
    assert balanced_json().needs == {"watch"}
    with pytest.raises(pg.UnsupportedPlugin) as raised:
        pg.attach(pg.route(FakeEngine("x", honours=pg.ENGINES["hf"] - {"watch"})), balanced_json())
    refused = raised.value
    assert isinstance(refused, pg.UnsupportedPlugin)
