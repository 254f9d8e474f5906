"""The Hugging Face engine: what each row of a call gets back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image
from returns.result import Success
from support.calls import events as events_of
from support.models import encoded
from support.rows import FAMILY, PROMPTS, ids, raws, sampled

from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.core.errors import BackendFailed, CallFailed, InvalidRequest
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import Engine, RowDone, TokensMade
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import StopOptions
from pipegen.records.option_table import DEFAULTS
from pipegen.records.results import Encoded
from pipegen.testing.image_files import image_file


def rows_with_images(engine: Any) -> list[Encoded]:
    """Rows without, with one and with two images of several sizes."""
    mark, rows = engine._checkpoint.image_token_id, []
    for sizes in ([], [(40, 70)], [(96, 64), (33, 120)], [], [(128, 128)]):
        images = [
            engine.prepare_image(
                ImageSource(data=image_file(width=w, height=h)), DEFAULTS.preprocess, 0
            ).unwrap()
            for w, h in sizes
        ]
        prompt = [token for image in images for token in (90, *[mark] * image.tokens, 91)] + [
            70 + len(rows),
            71,
        ]
        rows.append(encoded(prompt, images=images, max_new_tokens=5 + 4 * len(rows)))
    return rows


def test_it_is_an_engine_whose_light_facts_need_no_weights(engine_of: Callable[[str], Any]) -> None:
    engine: Engine = engine_of("qwen3_vl").with_plugin(Plugin(name="nothing"))
    engine.close()
    assert engine.name == "hf"
    assert engine.capabilities.context_length == 512
    assert "images" in engine.capabilities.honours
    assert engine.image_placeholder == "<|image_pad|>"
    assert engine.bos_token is None
    assert [engine.tokenizer.decode([token]) for token in engine.eos_token_ids] == ["<|im_end|>"]
    assert engine.renderer.template is not None
    assert (
        engine.prepare_image(ImageSource(data=image_file()), DEFAULTS.preprocess, 0).unwrap().grid
        is not None
    )
    assert not engine.loaded


def test_a_text_model_says_why_it_takes_no_images(engine: Any) -> None:
    assert "images" not in engine.capabilities.honours
    assert engine.capabilities.reason == "qwen3 is a text model"


def test_no_rows_need_no_weights(engine_of: Callable[[str], Any]) -> None:  # B3
    engine = engine_of("llama")
    engine.close()
    assert engine.generate([]) == []
    assert not engine.loaded


@FAMILY
# B1, B7
def test_rows_of_any_length_get_what_they_get_alone(
    family: str, engine_of: Callable[[str], Any]
) -> None:
    engine = engine_of(family)
    inputs = [encoded(prompt, max_new_tokens=4 + 9 * at) for at, prompt in enumerate(PROMPTS)]
    together = ids(engine, inputs)
    assert together == [ids(engine, [one])[0] for one in inputs]
    assert ids(engine, inputs[::-1]) == together[::-1]


def test_images_and_texts_in_one_batch_get_what_they_get_alone(
    engine_of: Callable[[str], Any],
) -> None:
    engine = engine_of("qwen3_vl")
    inputs = rows_with_images(engine)
    assert ids(engine, inputs) == [ids(engine, [one])[0] for one in inputs]


def test_rows_with_images_get_the_ids_of_generate(engine_of: Callable[[str], Any]) -> None:
    engine = engine_of("qwen3_vl")
    model, processor, mark = (
        engine.computing.loaded(),
        engine._checkpoint.image_processor,
        engine._checkpoint.image_token_id,
    )
    inputs = rows_with_images(engine)
    for row, answer in zip(inputs, ids(engine, inputs), strict=True):
        prompt = torch.tensor([row.prompt.token_ids])
        image_files = [
            Image.frombytes("RGB", (image.width, image.height), image.rgb)
            for image in row.prompt.images
        ]
        more = (
            {
                **processor(image_files, return_tensors="pt"),
                "mm_token_type_ids": (prompt == mark).long(),
            }
            if image_files
            else {}
        )
        settings = {
            "do_sample": False,
            "max_new_tokens": row.options.max_new_tokens,
            "eos_token_id": list(engine.eos_token_ids),
            "pad_token_id": 0,
        }
        whole = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings, **more)
        assert answer == tuple(whole[0, prompt.shape[1] :].tolist())


def test_images_are_seen(engine_of: Callable[[str], Any]) -> None:
    engine = engine_of("qwen3_vl")
    mark = engine._checkpoint.image_token_id
    images = [
        engine.prepare_image(
            ImageSource(data=image_file(width=64, height=64, mode=mode)), DEFAULTS.preprocess, 0
        ).unwrap()
        for mode in ("RGB", "L")
    ]
    first, second = ids(
        engine, [encoded([*[mark] * 4, 70], images=[image], max_new_tokens=8) for image in images]
    )
    assert first != second


def test_a_prompt_without_room_for_its_images_fails_alone(engine_of: Callable[[str], Any]) -> None:
    engine = engine_of("qwen3_vl")
    bad, good = engine.generate(
        [
            encoded([engine._checkpoint.image_token_id, 70], max_new_tokens=2),
            encoded([70], max_new_tokens=2),
        ]
    )
    assert isinstance(bad.failure(), InvalidRequest)
    assert len(good.unwrap().token_ids) == 2


def test_finished_rows_leave_the_batch(engine: Any, forwards: Any) -> None:
    sizes = forwards()
    engine.generate(
        [
            encoded(prompt, max_new_tokens=count, stop=StopOptions(ignore_eos=True))
            for prompt, count in zip(PROMPTS, (2, 2, 5, 3), strict=True)
        ]
    )
    assert sizes == [4, 4, 2, 1, 1]


def test_with_a_cache_that_cannot_be_cut_finished_rows_ride_on_unheeded(
    engine: Any, forwards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.hf import running_batch as batches
    from pipegen.backends.hf.scheduler import ModelTraits

    inputs = [
        encoded(
            range(60 + at, 66 + at),
            max_new_tokens=2 + 3 * at,
            logprobs=True,
            repetition_penalty=1.2,
        )
        for at in range(4)
    ]
    expected = engine.generate(inputs)
    monkeypatch.setattr(batches, "can_drop_rows", lambda name, state, rope: False)
    monkeypatch.setattr(engine.computing, "traits", ModelTraits(checked=True))
    sizes = forwards()
    assert [raw.token_ids for raw in raws(engine, inputs)] == [
        slot.unwrap().token_ids for slot in expected
    ]
    assert set(sizes) == {4}


def test_with_a_cache_that_cannot_be_cut_only_rows_of_one_length_are_read_together(
    engine: Any, forwards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What such layers make of padding is not known."""
    from pipegen.backends.hf import running_batch as batches
    from pipegen.backends.hf.scheduler import ModelTraits

    inputs = [
        encoded(range(first, 65), max_new_tokens=3, stop=StopOptions(ignore_eos=True))
        for first in (60, 61)
    ] + [encoded(range(70, 75), max_new_tokens=3, stop=StopOptions(ignore_eos=True))]
    expected = ids(engine, inputs)
    monkeypatch.setattr(batches, "can_drop_rows", lambda name, state, rope: False)
    monkeypatch.setattr(engine.computing, "traits", ModelTraits(checked=True))
    sizes = forwards()
    assert ids(engine, inputs) == expected
    assert sizes == [3, 2, 2, 2, 1, 1, 1]  # the first pass found it out


def test_rows_whose_positions_a_model_keeps_to_itself_cannot_leave() -> None:
    from transformers import DynamicCache

    from pipegen.backends.hf.running_batch import can_drop_rows

    offsets, positions = torch.zeros(2, 1), torch.zeros(2, 1)
    state = {"cache": DynamicCache(), "use_cache": True}
    assert can_drop_rows("cache", state, None)
    assert not can_drop_rows("cache", state, offsets)
    assert can_drop_rows("cache", {**state, "position_ids": positions}, offsets)
    assert not can_drop_rows("cache", {**state, "kept_of_each_row": positions}, None)


def test_rows_that_stay_together_bring_the_offsets_that_their_model_keeps(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.hf.running_batch import StaticBatch

    model, own = engine.computing.loaded(), torch.ones(1, 1)
    # of a call that ran meanwhile
    monkeypatch.setattr(model.base_model, "rope_deltas", torch.zeros(1, 1), raising=False)
    batch = StaticBatch(torch.tensor([[3, 4]]), own, None, {"use_cache": False})
    batch.step(model, torch.tensor([[5]]))
    assert model.base_model.rope_deltas is own


def test_prompts_that_hold_the_pad_token_are_read_whole(engine_of: Callable[[str], Any]) -> None:
    engine = engine_of("llama")
    pad = engine._checkpoint.pad_token_id
    inputs = [
        encoded([pad, 70, pad, 71, pad], max_new_tokens=6),
        encoded([70, 71], max_new_tokens=6),
        encoded(PROMPTS[3], max_new_tokens=6),
    ]
    assert ids(engine, inputs) == [ids(engine, [one])[0] for one in inputs]


def test_a_stream_tells_of_every_token_and_gives_the_slots_of_the_batch(engine: Any) -> None:
    inputs = [sampled(at, max_new_tokens=3 + at) for at in range(5)]
    made: dict[int, list[int]] = {row: [] for row in range(5)}
    done = {}
    for event in events_of(engine, inputs):
        assert event.row not in done
        if isinstance(event, TokensMade):
            made[event.row] += event.token_ids
        else:
            done[event.row] = event.slot
    assert [done[row] for row in range(5)] == engine.generate(inputs)
    assert [tuple(made[row]) for row in range(5)] == ids(engine, inputs)


def test_more_rows_than_a_batch_holds_come_back_in_order(folder_of: Callable[[str], Any]) -> None:
    from pipegen.backends.hf.hf_engine import HFEngine
    from pipegen.engines.settings import ModelLoadConfig

    small = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3")), dtype="float32", batch_size=3))
    inputs = [sampled(at) for at in range(8)]
    assert ids(small, inputs) == [ids(small, [one])[0] for one in inputs]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl"])
def test_streams_on_one_model_may_take_turns(family: str, engine_of: Callable[[str], Any]) -> None:
    engine = engine_of(family)
    inputs = rows_with_images(engine) if family == "qwen3_vl" else [sampled(at) for at in range(5)]
    expected = engine.generate(inputs)
    streams = [events_of(engine, inputs[:3]), events_of(engine, inputs[3:])]
    done: dict[tuple[int, int], Any] = {}
    while streams_left := [
        at for at in (0, 1) if len([1 for which, _ in done if which == at]) < (3, 2)[at]
    ]:
        for at in streams_left:
            event = next(streams[at])
            if isinstance(event, RowDone):
                done[at, event.row] = event.slot
    assert [done[key] for key in sorted(done)] == expected


def test_threads_share_a_model(engine: Any) -> None:
    inputs = [sampled(at, max_new_tokens=16) for at in range(6)]
    expected, answers = engine.generate(inputs), {}
    threads = [
        threading.Thread(
            target=lambda at=at: answers.setdefault(at, engine.generate([inputs[at]])[0])
        )
        for at in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[at] for at in range(6)] == expected


def test_logits_that_are_no_numbers_fail_their_row_alone(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = engine.computing.loaded()
    plain = model.lm_head.forward

    def spoiled(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = plain(hidden)
        if len(logits) == 2:
            logits[1] = torch.nan
        return logits

    monkeypatch.setattr(model.lm_head, "forward", spoiled)
    for temperature in (0.0, 1.0):
        good, bad = engine.generate(
            [
                encoded([70, 71], max_new_tokens=3, temperature=temperature),
                encoded([70], max_new_tokens=3, temperature=temperature),
            ]
        )
        assert isinstance(good, Success)
        assert isinstance(bad.failure(), BackendFailed)
        assert bad.failure().scope == "row"


def test_a_failed_device_fails_the_call(
    engine: Any, forwards: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(rows: int) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    forwards(broken)
    with pytest.raises(CallFailed) as failed:
        engine.generate([encoded([70]), encoded([71])])
    error = failed.value.error
    assert isinstance(error, BackendFailed)
    assert (error.backend, error.scope) == ("hf", "batch")
    assert error.incident in caplog.text


def test_nothing_is_printed_or_logged(
    folder_of: Callable[[str], Any],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from pipegen.backends.hf.hf_engine import HFEngine
    from pipegen.engines.settings import ModelLoadConfig

    for family in ("gemma3", "qwen3_vl"):
        engine = HFEngine(ModelLoadConfig(model=str(folder_of(family))))
        engine.generate(
            [encoded([70], max_new_tokens=3, temperature=0.5), encoded([70, 71], max_new_tokens=3)]
        )
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_subclass_may_have_its_own_name() -> None:
    class Mine(HFEngine):
        name = "mine"

    load = ModelLoadConfig(model="embedded")
    assert Mine(load).capabilities.honours == HFEngine(load).capabilities.honours
