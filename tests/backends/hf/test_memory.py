"""Running out of memory: batches are split, rows keep what they have made, and what is given back
is really gone.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.calls import events as events_of
from support.models import encoded

from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.backends.hf.load import is_out_of_memory
from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.core.slots import is_ok
from pipegen.engines.protocol import TokensMade
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.option_groups import StopOptions

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def rows(count: int, **options: Any) -> list[Any]:
    """Rows that sample, each with its own seed and length."""
    shared = {
        "temperature": 1.5,
        "max_new_tokens": 12,
        "logprobs": True,
        "repetition_penalty": 1.2,
        "stop": StopOptions(ignore_eos=True),
        **options,
    }
    return [encoded([60 + at, *range(70, 72 + at)], seed=at, **shared) for at in range(count)]


def max_cached_tokens(most: int, error: RuntimeError = FULL) -> Callable[[int], None]:
    def check(count: int) -> None:
        if count > most:
            raise error

    return check


@pytest.mark.parametrize(
    ("most", "error"),
    [
        (1, FULL),
        (3, FULL),
        (7, FULL),
        (2, RuntimeError("DefaultCPUAllocator: not enough memory")),
        (2, torch.OutOfMemoryError()),
    ],
    ids=["1", "3", "7", "2 on a CPU", "2 without a word"],
)
def test_a_batch_that_does_not_fit_is_split_until_it_does(
    most: int, error: RuntimeError, engine: Any, forwards: Any
) -> None:
    expected = engine.generate(rows(8))
    sizes = forwards(max_cached_tokens(most, error))
    answers = engine.generate(rows(8))
    assert [slot.unwrap().token_ids for slot in answers] == [
        slot.unwrap().token_ids for slot in expected
    ]
    assert max(sizes) <= most


def test_a_row_that_does_not_fit_alone_fails_alone(
    engine: Any, forwards: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def too_long_for_memory(count: int) -> None:
        if count > 1 or engine.length > 9:
            raise FULL

    model = engine.computing.loaded()
    plain = model.prepare_inputs_for_generation

    def prepare(input_ids: torch.Tensor, **kwargs: Any) -> Any:
        engine.length = input_ids.shape[1]
        return plain(input_ids, **kwargs)

    model.prepare_inputs_for_generation = prepare
    try:
        forwards(too_long_for_memory)
        short, long, other = engine.generate(
            [
                encoded([70, 71], max_new_tokens=3),
                encoded(range(70, 90), max_new_tokens=3),
                encoded([72], max_new_tokens=3),
            ]
        )
    finally:
        del model.prepare_inputs_for_generation
    assert is_ok(short)
    assert is_ok(other)
    error = long.failure()
    assert isinstance(error, BackendFailed)
    assert (error.backend, error.scope, error.retryable) == ("hf", "row", True)
    assert "out of memory" in error.message
    assert error.incident in caplog.text


@pytest.mark.parametrize("at", range(1, 12, 3))
def test_rows_go_on_from_where_they_were(at: int, engine: Any, forwards: Any) -> None:
    expected = engine.generate(rows(4))
    passes = []

    def full_once(count: int) -> None:
        passes.append(count)
        if len(passes) == at + 1:
            raise FULL

    sizes = forwards(full_once)
    made: dict[int, list[int]] = {row: [] for row in range(4)}
    slots = {}
    for event in events_of(engine, rows(4)):
        if isinstance(event, TokensMade):
            made[event.row] += event.token_ids
        else:
            slots[event.row] = event.slot
    assert [tuple(made[row]) for row in range(4)] == [slot.unwrap().token_ids for slot in expected]
    for row, slot in enumerate(expected):
        assert slots[row].unwrap().token_ids == slot.unwrap().token_ids
        assert [entry.logprob for entry in slots[row].unwrap().logprobs] == pytest.approx(
            [entry.logprob for entry in slot.unwrap().logprobs], abs=1e-4
        )
    assert len(sizes) == at + 2 * (12 - at)  # no step is run twice


def test_rows_that_were_finished_before_are_kept(engine: Any, forwards: Any) -> None:
    passes = []

    def full_later(count: int) -> None:
        passes.append(count)
        if len(passes) > 3:
            raise FULL

    forwards(full_later)
    inputs = [
        encoded([70, 71], max_new_tokens=2),
        encoded([72, 73], max_new_tokens=9, stop=StopOptions(ignore_eos=True)),
    ]
    short, long = engine.generate(inputs)
    assert len(short.unwrap().token_ids) == 2
    assert isinstance(long.failure(), BackendFailed)


def test_weights_that_do_not_fit_fail_the_call(
    folder_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.hf import load

    tries = []

    def full(checkpoint: Any) -> Any:
        tries.append(1)
        raise FULL

    monkeypatch.setattr(load, "load_model", full)
    with pytest.raises(CallFailed, match="the weights do not fit"):
        HFEngine(ModelLoadConfig(model=str(folder_of("qwen3")))).generate(rows(4))
    assert tries == [1]


def test_a_row_whose_plugin_fails_in_the_step_that_fills_the_memory_is_told_of(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.hf.hf_sampling import Sampler
    from pipegen.engines.plugin import Plugin

    def failing(context: Any) -> Any:
        if context.prompt_length == 4:
            return lambda ids, scores: None
        return lambda ids, scores: scores

    plain, passes = Sampler._reported, []

    def reported(self: Sampler, *args: Any) -> Any:
        passes.append(1)
        if len(passes) == 1:
            raise FULL
        return plain(self, *args)

    expected = engine.generate(rows(4))
    monkeypatch.setattr(Sampler, "_reported", reported)
    answers = engine.with_plugin(Plugin(name="failing", logits_processor=failing)).generate(rows(4))
    assert [is_ok(slot) for slot in answers] == [True, False, True, True]
    assert [slot.unwrap().token_ids for slot in answers if is_ok(slot)] == [
        slot.unwrap().token_ids for at, slot in enumerate(expected) if at != 1
    ]


def test_images_ride_along_when_a_batch_is_split(
    engine_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.records.messages import ImageSource
    from pipegen.records.option_table import DEFAULTS
    from pipegen.testing.image_files import image_file

    engine = engine_of("qwen3_vl")
    mark = engine._checkpoint.image_token_id
    images = [
        engine.prepare_image(
            ImageSource(data=image_file(width=40 + 30 * at, height=64)), DEFAULTS.preprocess, 0
        ).unwrap()
        for at in range(3)
    ]
    inputs = [
        encoded([*[mark] * image.tokens, 70 + at], images=[image], max_new_tokens=6)
        for at, image in enumerate(images)
    ]
    expected = engine.generate(inputs)
    model, passes = engine.computing.loaded(), []
    plain = model.model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        passes.append(1)
        if len(passes) == 3:
            raise FULL
        return plain(*args, **kwargs)

    monkeypatch.setattr(model.model, "forward", forward)
    assert engine.generate(inputs) == expected


def test_a_released_model_is_really_gone_and_loads_again(folder_of: Callable[[str], Any]) -> None:
    engine = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3")), dtype="float32"))
    first = engine.generate([encoded([70, 71], max_new_tokens=4)])
    gone = weakref.ref(engine.computing.loaded())
    weight = weakref.ref(engine.computing.loaded().lm_head.weight)
    engine.close()
    gc.collect()
    assert gone() is None
    assert weight() is None
    assert not engine.loaded
    assert engine.generate([encoded([70, 71], max_new_tokens=4)]) == first
    engine.close()
    engine.close()


@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl", "gemma3", "falcon_h1"])
def test_a_model_that_is_released_goes_without_a_garbage_collection(
    family: str, folder_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = HFEngine(ModelLoadConfig(model=str(folder_of(family)), dtype="float32"))
    collections: list[int] = []
    gc.disable()
    try:
        engine.generate([encoded([70, 71], max_new_tokens=4, temperature=1.0, seed=1)])
        modules = [weakref.ref(module) for module in engine.computing.loaded().modules()]
        with monkeypatch.context() as patched:
            patched.setattr(gc, "collect", lambda: collections.append(1))
            engine.close()
    finally:
        gc.enable()
    assert not any(module() for module in modules)
    assert not collections


def test_a_model_that_holds_itself_is_released_by_a_garbage_collection(
    folder_of: Callable[[str], Any],
) -> None:
    engine = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3")), dtype="float32"))
    model = engine.computing.loaded()
    model.model.norm.holds = model.forward  # as the hooks of accelerate do
    gone = weakref.ref(model)
    del model
    engine.close()
    assert gone() is None


def test_only_a_lack_of_memory_is_one() -> None:
    with pytest.raises(RuntimeError) as real:
        torch.empty(10**15)
    assert is_out_of_memory(real.value)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
