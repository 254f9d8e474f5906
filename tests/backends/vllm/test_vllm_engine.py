"""The vLLM engine over a stand-in: what it says to vLLM, whose tokens are whose, and what becomes
of failures. The real vLLM has tests/engines.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from returns.result import Failure
from support.calls import aanswers, aevents, events as events_of
from support.models import encoded, write_model

import pipegen as pg
from pipegen.backends.checkpoint.adapters import largest_rank
from pipegen.backends.vllm import vllm_engine
from pipegen.backends.vllm.vllm_engine import VLLMEngine
from pipegen.backends.vllm.vllm_sampling import sampling_params
from pipegen.core.distribution import MissingExtra, install_hint
from pipegen.core.errors import CallFailed
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import RowDone, TokensMade
from pipegen.records.fields import UnknownField
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.testing.image_files import image_file


def engine(**settings: Any) -> VLLMEngine:
    return VLLMEngine(pg.ModelLoadConfig(model="embedded", backend="vllm", **settings))


def made(slots: Any) -> list[tuple[int, ...]]:
    return [slot.unwrap().token_ids for slot in slots]


def test_without_vllm_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(
        MissingExtra,
        match=re.escape(f"the vLLM engine needs the package vllm: {install_hint('vllm')}"),
    ):
        pg.backends.vllm("embedded")


def test_tokens_of_prompts_are_counted_and_those_that_vllm_had(started: list[Any]) -> None:
    vllm = engine()
    vllm.generate(
        [encoded([8, 20, 10], max_new_tokens=1), encoded([8, 9, 10, 11], max_new_tokens=2)]
    )
    assert (vllm.prompt_work.prompt_tokens, vllm.prompt_work.shared_tokens) == (2, 5)


def test_an_argument_that_vllm_does_not_have_is_refused_with_the_nearest(
    started: list[Any],
) -> None:
    with pytest.raises(
        UnknownField,
        match=(
            "has no engine argument 'gpu_memory_utilisation'; did you mean 'gpu_memory_utilization'"
        ),
    ):
        pg.backends.vllm("embedded", engine_kwargs={"gpu_memory_utilisation": 0.5})
    # an older vLLM, which the stand-in is
    with pytest.raises(UnknownField, match="'kv_cache_memory_bytes'"):
        pg.backends.vllm("embedded", kv_cache_memory_bytes=1)
    assert started == []


@pytest.mark.parametrize(
    "settings",
    [
        {"engine_kwargs": {"generation_config": "auto"}},
        {"device": "cpu"},
        {"attn_implementation": "eager"},
        {"image_memory_bytes": 0},
        {"compile": True},
    ],
)
def test_settings_without_a_meaning_for_vllm_are_refused(
    settings: dict[str, Any], started: list[Any]
) -> None:
    with pytest.raises(pg.InvalidField):
        engine(**settings)


def test_everything_that_decides_about_the_output_is_said(started: list[Any]) -> None:
    running = engine(
        batch_size=3,
        revision="main",
        engine_kwargs={"gpu_memory_utilization": 0.5, "limit_mm_per_prompt": {"image": 2}},
    )
    assert running.capabilities.max_images == 2
    assert not started
    running.generate([encoded([10], max_new_tokens=1)])
    payload = started[0].arguments
    seen = (payload.generation_config, payload.logprobs_mode, payload.dtype, payload.max_num_seqs)
    assert seen == ("vllm", "raw_logprobs", "float32", 3)
    assert (
        payload.revision,
        payload.tokenizer_revision,
        payload.gpu_memory_utilization,
        payload.limit_mm_per_prompt,
    ) == ("main", "main", 0.5, {"image": 2})


def test_the_type_of_the_cache_is_vllms_own_unless_it_is_set(started: list[Any]) -> None:
    for settings in ({}, {"kv_cache_dtype": "fp8"}):
        with pg.backends.vllm("embedded", **settings) as route:
            route.engine.generate([encoded([10], max_new_tokens=1)])
    assert [getattr(one.arguments, "kv_cache_dtype", None) for one in started] == [None, "fp8"]
    with pytest.raises(pg.InvalidField, match="kv_cache_dtype takes a string"):
        pg.backends.vllm("embedded", kv_cache_dtype=8)  # type: ignore[arg-type]


def adapter(folder: Path, modules: tuple[str, ...] = ("q_proj",), **config: Any) -> str:
    """An adapter for both layers of a tiny model."""
    from safetensors.torch import save_file

    folder.mkdir()
    names = [
        f"base_model.model.model.layers.{layer}.self_attn.{module}"
        for layer in (0, 1)
        for module in modules
    ]
    rank = largest_rank(config)
    sizes = {"A": (rank, 48), "B": (64, rank)}
    save_file(
        {
            f"{name}.lora_{half}.weight": torch.ones(size)
            for name in names
            for half, size in sizes.items()
        },
        folder / "adapter_model.safetensors",
    )
    (folder / "adapter_config.json").write_text(
        json.dumps({"target_modules": ["q_proj"], **config})
    )
    return str(folder)


@pytest.mark.parametrize(
    ("config", "room"),
    [({"r": 20}, 32), ({"r": 4, "rank_pattern": {"q_proj": 60}}, 64), ({"r": 1024}, 1024), ({}, 8)],
)
def test_an_adapter_is_loaded_and_asked_for(
    config: dict[str, Any], room: int, started: list[Any], tmp_path: Path
) -> None:
    one = adapter(tmp_path / "adapter", **config)
    load = pg.ModelLoadConfig(
        model=str(write_model(tmp_path / "model")), backend="vllm", adapter=one
    )
    VLLMEngine(load).generate([encoded([10], max_new_tokens=1)])
    assert (started[0].arguments.enable_lora, started[0].arguments.max_lora_rank) == (True, room)
    assert started[0].more == [{"lora_request": (one, 1, one)}]


def test_an_adapter_that_is_not_the_models_starts_nothing(
    started: list[Any], tmp_path: Path
) -> None:
    load = pg.ModelLoadConfig(
        model=str(write_model(tmp_path / "model")),
        backend="vllm",
        adapter=adapter(tmp_path / "adapter", ("q_proj", "odd")),
    )
    with pytest.raises(CallFailed) as failed:
        VLLMEngine(load).generate([encoded([10], max_new_tokens=1)])
    assert (
        "matches the model in part: the model has no module for 4 of its weights"
        in failed.value.error.message
    )
    assert started == []


def test_no_inputs_start_nothing(started: list[Any]) -> None:  # B3
    assert engine().generate([]) == []
    assert started == []


def test_rows_end_where_pipegen_says_and_vllm_hears_of_it(started: list[Any]) -> None:  # A5, A17
    running = engine()
    ids = running.tokenizer.encode("a")
    stop = running.tokenizer.decode((ids[-1] + 3,))
    rows = running.generate(
        [encoded(ids, max_new_tokens=9, stop=(stop,)), encoded(ids, max_new_tokens=5)]
    )
    assert made(rows) == [
        tuple(range(ids[-1] + 1, ids[-1] + 4)),
        tuple(range(ids[-1] + 1, ids[-1] + 6)),
    ]
    assert len(started[0].aborted) == 1
    assert started[0].live == {}


def test_calls_that_run_side_by_side_get_their_own_tokens(started: list[Any]) -> None:
    running = engine()
    first = events_of(running, [encoded([10], max_new_tokens=4)])
    assert next(first) == TokensMade(row=0, token_ids=(11,), text=",")
    assert made(running.generate([encoded([20], max_new_tokens=2)])) == [(21, 22)]
    rest = list(first)
    assert [event.token_ids for event in rest if isinstance(event, TokensMade)] == [
        (12,),
        (13,),
        (14,),
    ]
    assert isinstance(rest[-1], RowDone)
    assert len(started) == 1


def test_a_row_that_vllm_refuses_fails_alone(started: list[Any]) -> None:
    slots = engine().generate(
        [
            encoded([10], max_new_tokens=1),
            encoded([7], max_new_tokens=1),
            encoded([20], max_new_tokens=1),
        ]
    )
    assert [isinstance(slot, Failure) for slot in slots] == [False, True, False]
    assert "no sevens" in slots[1].failure().message


@pytest.mark.parametrize("temperature", [0.001, 3.0])
def test_a_value_that_vllm_would_change_or_refuse_is_refused(
    temperature: float, started: list[Any]
) -> None:
    error = (
        engine().generate([encoded([10], max_new_tokens=1, temperature=temperature)])[0].failure()
    )
    assert isinstance(error, pg.UnsupportedOption)


FORMS: dict[str, Any] = {"json_schema": {"enum": [1]}, "regex": "a+", "choice": ("a", "b")}


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("json_schema", {"json": '{"enum": [1]}'}),
        ("regex", {"regex": "a+"}),
        ("choice", {"choice": ["a", "b"]}),
    ],
)
def test_the_form_of_the_answer_is_written_as_vllm_takes_it(
    name: str, payload: Any, started: list[Any]
) -> None:
    form = sys.modules["vllm.sampling_params"].__dict__["StructuredOutputsParams"]
    params = sampling_params(encoded([10], structured={name: FORMS[name]}).options, ())
    assert params.structured_outputs == form(**payload)
    assert not hasattr(sampling_params(encoded([10]).options, ()), "structured_outputs")
    own = sampling_params(
        encoded([10], structured={name: FORMS[name]}).options, (), grammar="start: x"
    )
    assert own.structured_outputs == form(grammar="start: x")


@pytest.mark.parametrize(
    ("payload", "settings", "taken"),
    [
        ({}, {"backend": "guidance"}, True),
        (
            {"structured_outputs_config": {"enable_in_reasoning": True}},
            {"backend": "guidance", "enable_in_reasoning": True},
            True,
        ),
        ({"structured_outputs_config": {"backend": "xgrammar"}}, {"backend": "xgrammar"}, False),
        ({"structured_outputs_config": {"backend": "auto"}}, {"backend": "auto"}, False),
    ],
)
def test_forms_are_given_as_grammars_where_no_other_library_is_named(
    payload: dict[str, Any],
    settings: dict[str, Any],
    taken: bool,
    started: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("llguidance")
    running = engine(engine_kwargs=payload)
    asked: list[Any] = []
    plain = vllm_engine.sampling_params
    monkeypatch.setattr(
        vllm_engine,
        "sampling_params",
        lambda *args, **more: asked.append(more["grammar"]) or plain(*args, **more),
    )
    slots = running.generate([encoded([10], max_new_tokens=1, structured={"choice": ("a", "b")})])
    assert pg.is_ok(slots[0])
    assert started[0].arguments.structured_outputs_config == settings
    ends = " | ".join(f"<[{number}]>" for number in running.eos_token_ids)
    assert asked == [f'start: form ({ends})\nform: TEXT\nTEXT: "a" | "b"\n' if taken else None]


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "("},
        {"json_schema": {"not": {}}},
        {"json_schema": {"type": "no"}},
        {"json_schema": {"type": "integer", "minimum": 2**63}},
        {"choice": ("e\u0301", "a")},  # the tokenizer composes it
    ],
)
def test_a_form_that_cannot_be_compiled_fails_its_slot_and_starts_nothing(
    form: Any, started: list[Any]
) -> None:
    pytest.importorskip("llguidance")
    bad = encoded([10], max_new_tokens=1, structured=form)
    (slot,) = engine().generate([bad])
    assert isinstance(slot.failure(), pg.UnsupportedOption)
    assert slot.failure().option in form
    assert asyncio.run(aanswers(engine(), [bad])) == [slot]
    assert started == []
    both = engine().generate([bad, encoded([10], max_new_tokens=1)])
    assert [pg.is_ok(one) for one in both] == [False, True]


@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("min_new_tokens", {"min_new_tokens": 1}),
        ("ignore_eos", {"stop": pg.StopOptions(ignore_eos=True)}),
    ],
)
def test_what_would_break_the_form_of_the_answer_is_refused(
    option: str, more: dict[str, Any], started: list[Any]
) -> None:
    slots = engine().generate(
        [
            encoded([10], max_new_tokens=1, structured={"regex": "a+"}, **more),
            encoded([10], max_new_tokens=1, **more),
        ]
    )
    assert isinstance(slots[0].failure(), pg.UnsupportedOption)
    assert slots[0].failure().option == option
    assert pg.is_ok(slots[1])


@pytest.mark.parametrize(("text", "fine"), [("yes", True), ("ye", False), ("", False)])
def test_an_answer_that_vllm_ends_before_it_has_its_form_fails(
    text: str, fine: bool, started: list[Any]
) -> None:
    pytest.importorskip("llguidance")
    running = engine()
    (row,) = running._rows(
        [(0, encoded([10], max_new_tokens=20, structured={"choice": ("yes", "no")}))], text=False
    )
    row.take([*running.tokenizer.encode(text), running.eos_token_ids[0]])
    slot = row.slot()
    assert pg.is_ok(slot) is fine
    if not fine:
        assert slot.failure().option == "choice"
        assert "ended the answer before it had its form" in slot.failure().message


def test_what_does_not_fit_the_running_engine_is_too_long(started: list[Any]) -> None:  # T7
    error = engine().generate([encoded([10], max_new_tokens=64)])[0].failure()
    assert error == pg.PromptTooLong(1, 64, message=error.message)


def test_another_prompt_than_pipegens_is_found_out(started: list[Any]) -> None:
    running = engine()
    running.generate([encoded([10], max_new_tokens=1)])
    started[0].prompt_ids = [10, 10]
    error = running.generate([encoded([10], max_new_tokens=1)])[0].failure()
    assert isinstance(error, pg.MalformedResponse)
    assert "a prompt of 2 tokens, which has 1 for pipegen" in error.message


@pytest.mark.parametrize(
    ("ends", "kind"),
    [("length", pg.MalformedResponse), ("error", pg.BackendFailed), ("abort", None)],
)
def test_a_row_that_vllm_ends_by_itself_is_no_result_like_others(
    ends: str, kind: Any, started: list[Any]
) -> None:
    running = engine()
    running.generate([encoded([10], max_new_tokens=1)])
    started[0].ends = ends
    slot = running.generate([encoded([10], max_new_tokens=5)])[0]
    if kind is None:
        assert (slot.unwrap().aborted, slot.unwrap().token_ids) == (True, (11,))
    else:
        assert isinstance(slot.failure(), kind)


def test_logprobs_are_those_of_the_generated_tokens_best_first(started: list[Any]) -> None:
    raw = (
        engine()
        .generate([encoded([10], max_new_tokens=2, logprobs=True, top_logprobs=2)])[0]
        .unwrap()
    )
    assert raw.logprobs is not None
    assert [entry.token_id for entry in raw.logprobs] == [11, 12]
    assert raw.logprobs[0].top == ((1, -0.25), (11, -0.5))


@pytest.mark.parametrize(
    ("most", "asked", "margin"), [(None, 2, 0.25), (-1, 2, 0.25), (1, 1, None), (0, 0, None)]
)
def test_two_candidates_are_asked_for_the_margin_where_vllm_gives_so_many(
    most: int | None, asked: int, margin: float | None, started: list[Any]
) -> None:
    arguments = {} if most is None else {"max_logprobs": most}
    raw = (
        engine(engine_kwargs=arguments)
        .generate([encoded([10], max_new_tokens=2, logprobs=True)])[0]
        .unwrap()
    )
    assert [(one.top, one.margin) for one in raw.logprobs or ()] == [((), margin)] * 2
    assert started[0].asked == [asked]


def test_an_engine_that_died_fails_the_call_and_another_one_starts(started: list[Any]) -> None:
    running = engine()
    running.generate([encoded([10], max_new_tokens=1)])
    waiting = events_of(running, [encoded([10], max_new_tokens=4)])
    next(waiting)
    started[0].dies = True
    with pytest.raises(CallFailed) as failed:
        running.generate([encoded([10], max_new_tokens=1)])
    with pytest.raises(CallFailed) as also:
        next(waiting)
    assert failed.value.error == also.value.error
    assert started[0].stopped
    assert made(running.generate([encoded([10], max_new_tokens=1)])) == [(11,)]
    assert len(started) == 2


def test_a_process_that_was_killed_fails_the_call_that_waits_for_it(started: list[Any]) -> None:
    running = engine()
    running.generate([encoded([10], max_new_tokens=1)])
    dies = SimpleNamespace(engine_dead=False)
    started[0].process = {"outputs_queue": Queue(), "resources": dies}
    killed = threading.Timer(0.05, lambda: setattr(dies, "engine_dead", True))
    killed.start()
    with pytest.raises(CallFailed) as failed:
        running.generate([encoded([10], max_new_tokens=1)])
    assert failed.value.error.scope == "batch"
    assert made(running.generate([encoded([10], max_new_tokens=1)])) == [(11,)]


def test_an_engine_found_dead_when_a_row_is_queued_fails_the_call(started: list[Any]) -> None:
    running = engine()
    running.generate([encoded([10], max_new_tokens=1)])
    started[0].dies = True
    with pytest.raises(CallFailed):
        running.generate([encoded([10], max_new_tokens=1), encoded([11], max_new_tokens=1)])
    assert started[0].stopped


def test_whatever_a_step_raises_fails_the_call_under_its_incident(
    started: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM in this process raises what its own code raises: an IndexError of a model's layer, for
    one.
    """
    running = engine()
    running.generate([encoded([10], max_new_tokens=1)])
    waiting = events_of(running, [encoded([10], max_new_tokens=4)])
    next(waiting)
    started[0].step_raises = IndexError("list index out of range")
    with pytest.raises(CallFailed) as failed:
        running.generate([encoded([10], max_new_tokens=1)])
    with pytest.raises(CallFailed) as also:
        next(waiting)
    error = failed.value.error
    seen = (type(error), error.message, error == also.value.error)
    assert seen == (pg.BackendFailed, "IndexError: list index out of range", True)
    (logged,) = [record for record in caplog.records if error.incident in record.getMessage()]
    assert logged.exc_info
    assert made(running.generate([encoded([10], max_new_tokens=1)])) == [(11,)]
    assert len(started) == 2


def test_calls_beside_the_event_loop_get_it_too(started: list[Any]) -> None:
    running = engine()
    running.generate([encoded([10], max_new_tokens=1)])
    started[0].step_raises = IndexError("list index out of range")

    async def waits() -> Any:
        return [slot async for slot in aevents(running, [encoded([10], max_new_tokens=1)])]

    with pytest.raises(CallFailed, match="IndexError"):
        asyncio.run(waits())


def test_whatever_adding_a_row_raises_fails_that_row(
    started: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    running = engine()
    running.generate([encoded([10], max_new_tokens=1)])
    started[0].add_raises = {20: AssertionError("no placeholder"), 30: IndexError("out of range")}
    slots = running.generate([encoded([first], max_new_tokens=1) for first in (10, 20, 30, 40)])
    assert [pg.is_ok(slot) for slot in slots] == [True, False, False, True]
    errors = [slot.failure() for slot in slots if not pg.is_ok(slot)]
    assert [
        (type(error), error.scope) for error in errors if isinstance(error, pg.BackendFailed)
    ] == [(pg.BackendFailed, "row")] * 2
    assert len(started[0].aborted) == 2
    assert all(
        any(error.incident in record.getMessage() for record in caplog.records) for error in errors
    )


def test_a_clean_close_is_no_incident(started: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    running = engine()
    running.generate([encoded([10], max_new_tokens=1)])
    running.close()
    stream = events_of(running, [encoded([10], max_new_tokens=4)])
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    running.close()
    assert [one.stopped for one in started] == [True, True]
    assert not caplog.records


def test_an_engine_that_is_closed_while_a_call_runs_fails_the_call(
    started: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    running = engine()
    stream = events_of(running, [encoded([10], max_new_tokens=4)])
    next(stream)
    running.close()
    with pytest.raises(CallFailed, match="closed while the call ran") as failed:
        next(stream)
    assert [failed.value.error.incident in record.getMessage() for record in caplog.records] == [
        True
    ]


def test_an_engine_that_cannot_even_be_shut_down_is_left(started: list[Any]) -> None:
    running = engine()
    running.generate([encoded([10], max_new_tokens=1)])
    started[0].step_raises, started[0].shutdown_raises = (
        IndexError("no"),
        RuntimeError("not this either"),
    )
    with pytest.raises(CallFailed, match="IndexError"):
        running.generate([encoded([10], max_new_tokens=1)])
    assert made(running.generate([encoded([10], max_new_tokens=1)])) == [(11,)]


def test_a_stream_that_is_left_ends_its_rows_and_closing_stops_the_engine(
    started: list[Any],
) -> None:
    running = engine()
    stream = events_of(running, [encoded([10], max_new_tokens=4), encoded([20], max_new_tokens=4)])
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert started[0].live == {}
    running.close()
    assert (started[0].stopped, running.loaded) == (True, False)


def test_a_plugin_of_its_own_halts_a_row(started: list[Any]) -> None:
    halting = engine().with_plugin(
        Plugin(name="once", start=lambda: None, feed=lambda state, text: (state, len(text)))
    )
    assert made(halting.generate([encoded([40], max_new_tokens=9)])) == [(41,)]


def test_hf_hooks_are_refused_before_anything_loads(started: list[Any]) -> None:  # K3
    with pytest.raises(pg.UnsupportedPlugin):
        pg.attach(
            pg.backends.vllm("embedded"), Plugin(name="mine", logits_processor=lambda context: None)
        )
    assert started == []


# K2
def test_a_configuration_with_a_fallback_is_the_fallback_of_its_two_routes(
    started: list[Any],
) -> None:
    config = pg.ModelLoadConfig(
        model="embedded", backend="vllm", fallback_backend="hf", variant="text"
    )
    with pg.backends.load(config) as both:
        assert both.name == "fallback(vllm, hf)"
    with pytest.raises(pg.InvalidField, match="takes another engine than the first one, 'hf'"):
        pg.backends.load(pg.ModelLoadConfig(model="embedded", backend="hf", fallback_backend="hf"))


def test_images_of_models_with_sizes_of_their_own_go_elsewhere(
    started: list[Any], tmp_path: Path
) -> None:
    load = pg.ModelLoadConfig(model=str(write_model(tmp_path / "model", "llava")), backend="vllm")
    error = (
        VLLMEngine(load)
        .prepare_image(ImageSource(data=image_file()), VlmPreprocessOptions(), 0)
        .failure()
    )
    assert isinstance(error, pg.UnsupportedMultimodal)
    assert "tiles or has a size of its own" in error.message
    assert started == []


def test_a_row_comes_whole_where_nobody_waits_for_its_tokens(started: list[Any]) -> None:
    running = engine()
    plain, stopped = (
        encoded([10], max_new_tokens=5, logprobs=True),
        encoded([20], max_new_tokens=5, stop=("no such words",)),
    )
    slots = running.generate([plain, stopped])
    assert made(slots) == [(11, 12, 13, 14, 15), (21, 22, 23, 24, 25)]
    assert [entry.token_id for entry in slots[0].unwrap().logprobs] == [11, 12, 13, 14, 15]
    assert started[0].outputs == 1 + 5  # a stop string is looked for in every output

    streamed = list(events_of(running, [plain]))
    assert [event.token_ids for event in streamed if isinstance(event, TokensMade)] == [
        (11,),
        (12,),
        (13,),
        (14,),
        (15,),
    ]
    assert [event.slot for event in streamed if isinstance(event, RowDone)] == slots[:1]


# one of them ends vLLM for all
def test_ids_that_the_model_does_not_have_never_reach_vllm(started: list[Any]) -> None:
    running = engine()
    size = running.capabilities.vocab_size
    assert size is not None
    stop = pg.StopOptions(stop_token_ids=(size,))
    slots = running.generate(
        [
            encoded([size], max_new_tokens=1),
            encoded([10], max_new_tokens=1),
            encoded([20], max_new_tokens=1, stop=stop),
        ]
    )
    assert [type(slot.failure()) for slot in (slots[0], slots[2])] == [pg.InvalidRequest] * 2
    assert made(slots[1:2]) == [(11,)]
