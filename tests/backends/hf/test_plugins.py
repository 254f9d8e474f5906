"""Plugins with Hugging Face hooks: each row has its own, sees itself alone, and fails alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.calls import events as events_of
from support.models import encoded

from pipegen.core.errors import PluginFailed
from pipegen.core.slots import is_ok
from pipegen.engines.plugin import Plugin, RowContext
from pipegen.engines.protocol import RowDone
from pipegen.records.option_groups import StopOptions
from pipegen.records.results import Finish
from pipegen.stages.ending import decode_row

PROMPTS = [[60 + at, *range(70, 71 + 3 * at)] for at in range(8)]


def rows(**options: Any) -> list[Any]:
    return [
        encoded(prompt, **{"max_new_tokens": 8, "stop": StopOptions(ignore_eos=True), **options})
        for prompt in PROMPTS
    ]


class Once:
    """Lets no token be made twice by one row."""

    def __init__(self, context: RowContext) -> None:
        self.prompt_length = context.prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, input_ids[:, self.prompt_length :], -torch.inf)


def ids(engine: Any, inputs: list[Any]) -> list[tuple[int, ...]]:
    return [slot.unwrap().token_ids for slot in engine.generate(inputs)]


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
# K7
def test_a_processor_does_in_a_batch_what_it_does_alone(
    family: str, engine_of: Callable[[str], Any]
) -> None:
    engine = engine_of(family).with_plugin(Plugin(name="once", logits_processor=Once))
    together = ids(engine, rows(max_new_tokens=30))
    assert together == [ids(engine, [row])[0] for row in rows(max_new_tokens=30)]
    assert all(len(set(row)) == 30 for row in together)
    assert together != ids(engine_of(family), rows(max_new_tokens=30))


def test_hooks_see_their_row_without_padding_and_without_others(engine: Any) -> None:  # B1
    seen: list[tuple[str, int, tuple[int, ...]]] = []

    def watching(name: str) -> Callable[[RowContext], Any]:
        def make(context: RowContext) -> Any:
            def hook(input_ids: torch.Tensor, scores: torch.Tensor | None) -> Any:
                assert input_ids.shape[0] == 1
                seen.append((name, context.prompt_length, tuple(input_ids[0].tolist())))
                return scores if name == "processor" else torch.zeros(1, dtype=torch.bool)

            return hook

        return make

    watched = engine.with_plugin(
        Plugin(
            name="watching",
            logits_processor=watching("processor"),
            stopping_criteria=watching("criteria"),
        )
    )
    answers = ids(watched, rows())
    assert answers == ids(engine, rows())
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        whole = (*prompt, *answer)
        lengths = {
            "processor": range(len(prompt), len(whole)),
            "criteria": range(len(prompt) + 1, len(whole) + 1),
        }
        for name, expected in lengths.items():
            assert [ids for hook, length, ids in seen if (hook, length) == (name, len(prompt))] == [
                whole[:length] for length in expected
            ]


def halting(after: int) -> Plugin:
    """Halts a row of an odd prompt length once it has made `after` tokens."""

    def make(context: RowContext) -> Any:
        return lambda input_ids, scores: torch.tensor(
            [context.prompt_length % 2 == 1 and input_ids.shape[1] - context.prompt_length >= after]
        )

    return Plugin(name="halting", stopping_criteria=make)


@pytest.mark.parametrize("after", [1, 5, 8])
def test_a_stopping_criterion_halts_its_row_and_no_other(after: int, engine: Any) -> None:
    plain = ids(engine, rows())
    for at, slot in enumerate(engine.with_plugin(halting(after)).generate(rows())):
        raw, server_side_stops = slot.unwrap(), len(PROMPTS[at]) % 2 == 1
        assert raw.token_ids == plain[at][: after if server_side_stops else 8]
        assert raw.ended_by_plugin == ("halting" if server_side_stops else None)
        assert decode_row(raw, engine.tokenizer).unwrap().finish is (
            Finish.PLUGIN if server_side_stops else Finish.LENGTH
        )


def test_a_stopping_criterion_waits_for_min_new_tokens(engine: Any) -> None:  # A19
    lengths = [len(row) for row in ids(engine.with_plugin(halting(2)), rows(min_new_tokens=4))]
    assert lengths == [5 if len(prompt) % 2 else 8 for prompt in PROMPTS]


def test_a_watching_plugin_halts_the_engine_at_the_very_token(engine: Any) -> None:
    plain = ids(engine, rows(max_new_tokens=24))
    watch = Plugin(
        name="six",
        start=lambda: 0,
        feed=lambda seen, text: (seen + len(text), len(text) if seen + len(text) >= 6 else None),
    )
    for at, slot in enumerate(engine.with_plugin(watch).generate(rows(max_new_tokens=24))):
        read = decode_row(slot.unwrap(), engine.tokenizer).unwrap()
        assert read.raw.token_ids == plain[at][: len(read.raw.token_ids)]
        assert len(read.raw.token_ids) < 24
        assert (0, *read.text_ends)[-2] < 6 <= read.text_ends[-1]


def only_row(prompt_length: int, hook: Callable[..., Any]) -> Callable[[RowContext], Any]:
    return lambda context: (
        hook
        if context.prompt_length == prompt_length
        else lambda ids, scores: scores if scores is not None else torch.tensor([False])
    )


def raising(ids: torch.Tensor, scores: torch.Tensor | None) -> torch.Tensor:
    raise ValueError("no")


def make_nothing(context: RowContext) -> Any:
    if context.prompt_length == len(PROMPTS[2]):
        raise ValueError("no")
    return lambda ids, scores: scores


BROKEN = {
    "raises": Plugin(name="broken", logits_processor=only_row(len(PROMPTS[2]), raising)),
    "raises as a criterion": Plugin(
        name="broken", stopping_criteria=only_row(len(PROMPTS[2]), raising)
    ),
    "raises while it is made": Plugin(name="broken", logits_processor=make_nothing),
    "gives nothing": Plugin(
        name="broken", logits_processor=only_row(len(PROMPTS[2]), lambda ids, scores: None)
    ),
    "gives another shape": Plugin(
        name="broken", logits_processor=only_row(len(PROMPTS[2]), lambda ids, scores: scores[0])
    ),
    "leaves no token": Plugin(
        name="broken",
        logits_processor=only_row(len(PROMPTS[2]), lambda ids, scores: scores - torch.inf),
    ),
    "gives no numbers": Plugin(
        name="broken",
        logits_processor=only_row(len(PROMPTS[2]), lambda ids, scores: scores * torch.nan),
    ),
    "watches wrongly": Plugin(
        name="broken", start=lambda: None, feed=lambda state, text: (state, -1)
    ),
}


@pytest.mark.parametrize("plugin", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_plugin_fails_its_row_alone(
    plugin: Plugin, temperature: float, engine: Any
) -> None:
    inputs = rows(temperature=temperature, seed=1)
    plain = engine.generate(inputs)
    for at, slot in enumerate(engine.with_plugin(plugin).generate(inputs)):
        if at == 2 or plugin.feed is not None:
            error = slot.failure()
            assert isinstance(error, PluginFailed)
            assert error.plugin == "broken"
        else:
            assert slot == plain[at]


def test_a_row_that_fails_in_a_stream_is_done_once(engine: Any) -> None:
    for plugin in (BROKEN["raises"], BROKEN["raises while it is made"]):
        done = [
            event
            for event in events_of(engine.with_plugin(plugin), rows())
            if isinstance(event, RowDone)
        ]
        assert sorted(event.row for event in done) == list(range(8))
        assert [event.row for event in done if not is_ok(event.slot)] == [2]


def test_plugins_work_one_after_another_and_share_the_weights(engine: Any) -> None:
    def adding(context: RowContext) -> Any:
        return lambda ids, scores: scores.index_add(1, torch.tensor([300]), torch.tensor([[1e4]]))

    first = engine.with_plugin(Plugin(name="wants 300", logits_processor=adding))
    both = first.with_plugin(Plugin(name="once", logits_processor=Once))
    assert [plugin.name for plugin in both.plugins] == ["wants 300", "once"]
    assert engine.plugins == ()
    assert all(row == (300,) * 8 for row in ids(first, rows()))
    assert all(row[0] == 300 and row.count(300) == 1 for row in ids(both, rows()))
    assert both.computing.weights is engine.computing.weights


@pytest.mark.parametrize("hook", ["logits_processor", "stopping_criteria"])
def test_a_function_that_makes_no_hook_says_what_it_must_make(engine: Any, hook: str) -> None:
    plugin: Plugin = Plugin(name="none", **{hook: lambda _: None})  # type: ignore[arg-type]
    (slot,) = engine.with_plugin(plugin).generate(rows()[:1])
    assert isinstance(slot.failure(), PluginFailed)
    assert (
        "must return a LogitsProcessor or StoppingCriteria, not NoneType" in slot.failure().message
    )
