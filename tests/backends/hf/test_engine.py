"""The Hugging Face engine: what each row of a call gets back."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from PIL import Image
from returns.result import Success

from pipegen.backends.base import Engine, RowDone, StreamBackend, TokensMade
from pipegen.errors import BackendFailed, CallFailed, InvalidRequest
from pipegen.messages import ImageSource
from pipegen.options import DEFAULTS, StopOptions
from pipegen.plugins.plugin import Plugin
from pipegen.records import Encoded, Raw
from pipegen.stages.decode import decode
from pipegen.stages.stop import stop
from pipegen.testing.models import FAMILIES, encoded
from pipegen.testing.pictures import picture

PROMPTS = ([70, 71, 72], [80, 81, 82, 83, 84], [90], [60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71])
FAMILY = pytest.mark.parametrize("family", FAMILIES)


def raws(engine: Any, inputs: Sequence[Encoded]) -> list[Raw]:
    return [slot.unwrap() for slot in engine.generate(inputs)]


def ids(engine: Any, inputs: Sequence[Encoded]) -> list[tuple[int, ...]]:
    return [raw.token_ids for raw in raws(engine, inputs)]


def ended(engine: Any, raw: Raw) -> tuple[str, Any]:
    decoded = decode(raw, engine.tokenizer, engine.eos_token_ids).bind(lambda read: stop(read, engine.tokenizer)).unwrap()
    return decoded.finish.value, decoded.stop


def forcing(at: int, token_id: int) -> Plugin:
    """Makes `token_id` the row's token number `at` (counted from 0)."""

    def processor(context: Any) -> Any:
        def process(sequence: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if sequence.shape[1] - context.prompt_length == at:
                scores = torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([token_id]), 0.0)
            return scores

        return process

    return Plugin(name="forcing", logits_processor=processor)


def rows_with_pictures(engine: Any) -> list[Encoded]:
    """Rows without, with one and with two pictures of several sizes."""
    mark, rows = engine._checkpoint.image_token_id, []
    for sizes in ([], [(40, 70)], [(96, 64), (33, 120)], [], [(128, 128)]):
        images = [engine.prepare_image(ImageSource(data=picture(width=w, height=h)), DEFAULTS.preprocess, 0).unwrap() for w, h in sizes]
        prompt = [token for image in images for token in (90, *[mark] * image.tokens, 91)] + [70 + len(rows), 71]
        rows.append(encoded(prompt, images=images, max_new_tokens=5 + 4 * len(rows)))
    return rows


def test_it_is_an_engine_whose_light_facts_need_no_weights(engine_of: Callable[[str], Any]) -> None:
    engine: Engine = engine_of("qwen3_vl").with_plugin(Plugin(name="nothing"))
    engine.close()
    assert isinstance(engine, StreamBackend)
    assert engine.name == "hf"
    assert engine.capabilities.context_length == 512
    assert "images" in engine.capabilities.honours
    assert engine.image_placeholder == "<|image_pad|>"
    assert engine.bos_token is None
    assert [engine.tokenizer.decode([token]) for token in engine.eos_token_ids] == ["<|im_end|>"]
    assert engine.renderer.template is not None
    assert engine.prepare_image(ImageSource(data=picture()), DEFAULTS.preprocess, 0).unwrap().grid is not None
    assert not engine.loaded


def test_a_text_model_says_why_it_takes_no_pictures(engine: Any) -> None:
    assert "images" not in engine.capabilities.honours
    assert engine.capabilities.reason == "qwen3 is a text model"


def test_no_rows_need_no_weights(engine_of: Callable[[str], Any]) -> None:  # B3
    engine = engine_of("llama")
    engine.close()
    assert engine.generate([]) == []
    assert not engine.loaded


@FAMILY
def test_rows_of_any_length_get_what_they_get_alone(family: str, engine_of: Callable[[str], Any]) -> None:  # B1, B7
    engine = engine_of(family)
    inputs = [encoded(prompt, max_new_tokens=4 + 9 * at) for at, prompt in enumerate(PROMPTS)]
    together = ids(engine, inputs)
    assert together == [ids(engine, [one])[0] for one in inputs]
    assert ids(engine, inputs[::-1]) == together[::-1]


def test_pictures_and_texts_in_one_batch_get_what_they_get_alone(engine_of: Callable[[str], Any]) -> None:
    engine = engine_of("qwen3_vl")
    inputs = rows_with_pictures(engine)
    assert ids(engine, inputs) == [ids(engine, [one])[0] for one in inputs]


def test_rows_with_pictures_get_the_ids_of_generate(engine_of: Callable[[str], Any]) -> None:
    engine = engine_of("qwen3_vl")
    model, processor, mark = engine._weights.model(), engine._checkpoint.image_processor, engine._checkpoint.image_token_id
    inputs = rows_with_pictures(engine)
    for row, answer in zip(inputs, ids(engine, inputs), strict=True):
        prompt = torch.tensor([row.prompt.token_ids])
        pictures = [Image.frombytes("RGB", (image.width, image.height), image.rgb) for image in row.prompt.images]
        more = {**processor(pictures, return_tensors="pt"), "mm_token_type_ids": (prompt == mark).long()} if pictures else {}
        settings = {"do_sample": False, "max_new_tokens": row.options.max_new_tokens, "eos_token_id": list(engine.eos_token_ids), "pad_token_id": 0}
        whole = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings, **more)
        assert answer == tuple(whole[0, prompt.shape[1] :].tolist())


def test_pictures_are_seen(engine_of: Callable[[str], Any]) -> None:
    engine = engine_of("qwen3_vl")
    mark = engine._checkpoint.image_token_id
    images = [engine.prepare_image(ImageSource(data=picture(width=64, height=64, mode=mode)), DEFAULTS.preprocess, 0).unwrap() for mode in ("RGB", "L")]
    first, second = ids(engine, [encoded([*[mark] * 4, 70], images=[image], max_new_tokens=8) for image in images])
    assert first != second


def test_a_prompt_without_room_for_its_pictures_fails_alone(engine_of: Callable[[str], Any]) -> None:
    engine = engine_of("qwen3_vl")
    bad, good = engine.generate([encoded([engine._checkpoint.image_token_id, 70], max_new_tokens=2), encoded([70], max_new_tokens=2)])
    assert isinstance(bad.failure(), InvalidRequest)
    assert len(good.unwrap().token_ids) == 2


def test_a_row_that_ends_early_has_its_own_count_and_no_padding(engine: Any) -> None:  # B2, A17
    plain = ids(engine, [encoded(prompt, max_new_tokens=30, stop=StopOptions(ignore_eos=True)) for prompt in PROMPTS])
    ends = [row[3] for row in plain]
    inputs = [encoded(prompt, max_new_tokens=30, stop=StopOptions(ignore_eos=True, stop_token_ids=(end,))) for prompt, end in zip(PROMPTS, ends, strict=True)]
    inputs[1] = encoded(PROMPTS[1], max_new_tokens=30, stop=StopOptions(ignore_eos=True))
    for at, raw in enumerate(raws(engine, inputs)):
        expected = plain[at] if at == 1 else plain[at][: plain[at].index(ends[at]) + 1]
        assert raw.token_ids == expected
        assert ended(engine, raw) == (("length", None) if at == 1 else ("stop_token", ends[at]))


def test_finished_rows_leave_the_batch(engine: Any, forwards: Any) -> None:
    sizes = forwards()
    engine.generate([encoded(prompt, max_new_tokens=count, stop=StopOptions(ignore_eos=True)) for prompt, count in zip(PROMPTS, (2, 2, 5, 3), strict=True)])
    assert sizes == [4, 4, 2, 1, 1]


def test_with_a_cache_that_cannot_be_cut_finished_rows_ride_on_unheeded(engine: Any, forwards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipegen.backends.hf import lane
    from pipegen.backends.hf.schedule import Found

    inputs = [sampled(at, max_new_tokens=2 + 3 * at, logprobs=True, repetition_penalty=1.2) for at in range(4)]
    expected = engine.generate(inputs)
    monkeypatch.setattr(lane, "can_drop_rows", lambda state, rope: False)
    monkeypatch.setattr(engine, "_found", Found())
    sizes = forwards()
    assert [raw.token_ids for raw in raws(engine, inputs)] == [slot.unwrap().token_ids for slot in expected]
    assert set(sizes) == {4}


def test_rows_whose_positions_a_model_keeps_to_itself_cannot_leave() -> None:
    from transformers import DynamicCache

    from pipegen.backends.hf.lane import can_drop_rows

    offsets, positions = torch.zeros(2, 1), torch.zeros(2, 1)
    state = {"past_key_values": DynamicCache(), "use_cache": True}
    assert can_drop_rows(state, None)
    assert not can_drop_rows(state, offsets)
    assert can_drop_rows({**state, "position_ids": positions}, offsets)
    assert not can_drop_rows({**state, "kept_of_each_row": positions}, None)


def test_rows_that_stay_together_bring_the_offsets_that_their_model_keeps(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipegen.backends.hf.lane import FixedLane

    model, own = engine._weights.model(), torch.ones(1, 1)
    monkeypatch.setattr(model.base_model, "rope_deltas", torch.zeros(1, 1), raising=False)  # of a call that ran meanwhile
    FixedLane(torch.tensor([[3, 4]]), own, {"use_cache": False}).step(model, torch.tensor([[5]]))
    assert model.base_model.rope_deltas is own


@FAMILY
def test_a_stop_string_over_several_tokens_halts_the_row_at_the_token_that_completes_it(family: str, engine_of: Callable[[str], Any]) -> None:  # A5, A13
    engine = engine_of(family)
    whole = raws(engine, [encoded(PROMPTS[0], max_new_tokens=24, stop=StopOptions(ignore_eos=True))])[0]
    read = decode(whole, engine.tokenizer).unwrap()
    wanted = read.text[read.text_ends[4] - 1 : read.text_ends[6]]
    made = next(count for count, end in enumerate(read.text_ends, 1) if end >= read.text.index(wanted) + len(wanted))
    halted = encoded(PROMPTS[0], max_new_tokens=24, stop=StopOptions(stop=(wanted,), ignore_eos=True))
    exact = encoded(PROMPTS[0], max_new_tokens=made, stop=StopOptions(stop=(wanted,), ignore_eos=True))
    for raw in raws(engine, [halted, encoded(PROMPTS[3], max_new_tokens=24), exact])[::2]:
        assert raw.token_ids == whole.token_ids[:made]
        assert ended(engine, raw) == ("stop_string", wanted)


def test_min_new_tokens_keeps_a_row_going(engine: Any) -> None:  # A19
    first = ids(engine, [encoded(PROMPTS[0], max_new_tokens=12, stop=StopOptions(ignore_eos=True))])[0]
    blocked = StopOptions(stop_token_ids=tuple(set(first[:3])), ignore_eos=True)
    early, late = raws(engine, [encoded(PROMPTS[0], max_new_tokens=12, stop=blocked), encoded(PROMPTS[0], max_new_tokens=12, min_new_tokens=6, stop=blocked)])
    assert len(early.token_ids) == 1
    assert len(late.token_ids) > 6
    assert not set(late.token_ids[:6]) & set(first[:3])


def test_a_stop_string_within_min_new_tokens_does_not_count(engine: Any) -> None:  # A19
    read = decode(raws(engine, [encoded(PROMPTS[0], max_new_tokens=12, stop=StopOptions(ignore_eos=True))])[0], engine.tokenizer).unwrap()
    stops = StopOptions(stop=(read.text[: read.text_ends[2]],), ignore_eos=True)
    assert len(ids(engine, [encoded(PROMPTS[0], max_new_tokens=12, min_new_tokens=5, stop=stops)])[0]) > 5


def test_every_end_token_of_the_checkpoint_ends_a_row_and_0_is_one(tmp_path: Any) -> None:  # A8
    from pipegen.backends.hf.engine import HFEngine
    from pipegen.records import ModelLoadConfig
    from pipegen.testing.models import write_model

    engine = HFEngine(ModelLoadConfig(model=str(write_model(tmp_path, eos_token_id=[0, 300]))))
    assert engine.eos_token_ids == (0, 300)
    for end in (0, 300):
        raw = raws(engine.with_plugin(forcing(3, end)), [encoded(PROMPTS[0], max_new_tokens=9), encoded(PROMPTS[1], max_new_tokens=2)])[0]
        assert len(raw.token_ids) == 4
        assert ended(engine, raw) == ("eos", None)


def test_an_end_token_that_is_also_the_pad_token_is_counted_once_and_kept(engine_of: Callable[[str], Any]) -> None:  # A18, B5
    engine = engine_of("llama")
    (end,) = engine.eos_token_ids
    assert engine._checkpoint.pad_token_id == end
    forced = engine.with_plugin(forcing(2, end))
    inputs = [encoded(PROMPTS[2], max_new_tokens=9), encoded(PROMPTS[3], max_new_tokens=9, stop=StopOptions(ignore_eos=True))]
    stopped, kept = ids(forced, inputs)
    assert stopped[-1] == end
    assert len(stopped) == 3
    assert kept[2] == end
    assert len(kept) == 9


def test_prompts_that_hold_the_pad_token_are_read_whole(engine_of: Callable[[str], Any]) -> None:
    engine = engine_of("llama")
    pad = engine._checkpoint.pad_token_id
    inputs = [encoded([pad, 70, pad, 71, pad], max_new_tokens=6), encoded([70, 71], max_new_tokens=6), encoded(PROMPTS[3], max_new_tokens=6)]
    assert ids(engine, inputs) == [ids(engine, [one])[0] for one in inputs]


def sampled(at: int, **more: Any) -> Encoded:
    return encoded(PROMPTS[at % 4], **{"temperature": 1.5, "max_new_tokens": 10, "seed": at, **more})


def test_a_seeded_row_does_not_depend_on_its_batch(engine: Any) -> None:  # B6
    rows = [sampled(at) for at in range(8)]
    together = ids(engine, rows)
    assert together == [ids(engine, [row])[0] for row in rows]
    assert ids(engine, rows[::-1]) == together[::-1]
    assert len(set(together)) == 8


def test_equal_prompts_differ_by_their_seeds_and_by_nothing_else(engine: Any) -> None:  # B6
    first, second, third = ids(engine, [sampled(0, seed=5), sampled(0, seed=6), sampled(0, seed=5)])
    assert first == third
    assert first != second


def test_each_token_takes_the_next_number_of_its_seeds_stream(engine: Any) -> None:
    flat = engine.with_plugin(Plugin(name="flat", logits_processor=lambda context: lambda ids, scores: torch.zeros_like(scores)))
    numbers, size = random.Random(7), engine._weights.model().config.vocab_size
    inputs = [sampled(0, temperature=1.0, seed=7, stop=StopOptions(ignore_eos=True)), sampled(1)]
    assert ids(flat, inputs)[0] == tuple(int(numbers.random() * size) for _ in range(10))


def test_rows_without_a_seed_are_drawn_anew(engine: Any) -> None:
    assert len(set(ids(engine, [sampled(0, seed=None, max_new_tokens=20) for _ in range(4)]))) == 4


def test_every_row_gets_its_own_options(engine: Any) -> None:  # B8
    rows = [
        sampled(0, temperature=0.0, max_new_tokens=3),
        sampled(0, top_k=1, max_new_tokens=7),
        sampled(1, top_p=0.3, temperature=0.7, repetition_penalty=1.3),
        sampled(2, min_p=0.2, presence_penalty=1.0, frequency_penalty=0.5, stop=StopOptions(stop=("e",))),
        sampled(3, no_repeat_ngram_size=2, min_new_tokens=4, logprobs=True),
        sampled(0, temperature=0.0, no_repeat_ngram_size=1, max_new_tokens=30),
    ]
    together = raws(engine, rows)
    assert [raw.token_ids for raw in together] == [ids(engine, [row])[0] for row in rows]
    assert together[0].token_ids == together[1].token_ids[:3]
    assert len({*PROMPTS[0], *together[5].token_ids}) == 3 + len(together[5].token_ids)
    assert [raw.logprobs is not None for raw in together] == [False, False, False, False, True, False]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 3, "repetition_penalty": 1.4}])
def test_logprobs_are_the_models_own_whatever_the_options(options: dict[str, Any], engine: Any) -> None:  # A20
    end = engine.eos_token_ids[0]
    forced = engine.with_plugin(forcing(5, end))
    raw = raws(forced, [encoded(PROMPTS[0], max_new_tokens=9, logprobs=True, top_logprobs=3, seed=1, **options), encoded(PROMPTS[3], max_new_tokens=2)])[0]
    with torch.no_grad():
        logits = engine._weights.model()(torch.tensor([[*PROMPTS[0], *raw.token_ids]])).logits[0].float().log_softmax(-1)
    assert raw.logprobs is not None
    assert [entry.token_id for entry in raw.logprobs] == list(raw.token_ids)
    assert raw.token_ids[-1] == end
    for place, entry in enumerate(raw.logprobs, len(PROMPTS[0]) - 1):
        best = logits[place].topk(3)
        assert entry.logprob == pytest.approx(logits[place, entry.token_id].item(), abs=1e-4)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_stream_tells_of_every_token_and_gives_the_slots_of_the_batch(engine: Any) -> None:
    inputs = [sampled(at, max_new_tokens=3 + at) for at in range(5)]
    made: dict[int, list[int]] = {row: [] for row in range(5)}
    done = {}
    for event in engine.stream(inputs):
        assert event.row not in done
        if isinstance(event, TokensMade):
            made[event.row] += event.token_ids
        else:
            done[event.row] = event.slot
    assert [done[row] for row in range(5)] == engine.generate(inputs)
    assert [tuple(made[row]) for row in range(5)] == ids(engine, inputs)


def test_more_rows_than_a_batch_holds_come_back_in_order(folder_of: Callable[[str], Any]) -> None:
    from pipegen.backends.hf.engine import HFEngine
    from pipegen.records import ModelLoadConfig

    small = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3")), dtype="float32", batch_size=3))
    inputs = [sampled(at) for at in range(8)]
    assert ids(small, inputs) == [ids(small, [one])[0] for one in inputs]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl"])
def test_streams_on_one_model_may_take_turns(family: str, engine_of: Callable[[str], Any]) -> None:
    engine = engine_of(family)
    inputs = rows_with_pictures(engine) if family == "qwen3_vl" else [sampled(at) for at in range(5)]
    expected = engine.generate(inputs)
    streams = [engine.stream(inputs[:3]), engine.stream(inputs[3:])]
    done: dict[tuple[int, int], Any] = {}
    while streams_left := [at for at in (0, 1) if len([1 for which, _ in done if which == at]) < (3, 2)[at]]:
        for at in streams_left:
            event = next(streams[at])
            if isinstance(event, RowDone):
                done[at, event.row] = event.slot
    assert [done[key] for key in sorted(done)] == expected


def test_threads_share_a_model(engine: Any) -> None:
    inputs = [sampled(at, max_new_tokens=16) for at in range(6)]
    expected, answers = engine.generate(inputs), {}
    threads = [threading.Thread(target=lambda at=at: answers.setdefault(at, engine.generate([inputs[at]])[0])) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[at] for at in range(6)] == expected


def test_logits_that_are_no_numbers_fail_their_row_alone(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = engine._weights.model()
    plain = model.lm_head.forward

    def spoiled(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = plain(hidden)
        if len(logits) == 2:
            logits[1] = torch.nan
        return logits

    monkeypatch.setattr(model.lm_head, "forward", spoiled)
    for temperature in (0.0, 1.0):
        good, bad = engine.generate([encoded([70, 71], max_new_tokens=3, temperature=temperature), encoded([70], max_new_tokens=3, temperature=temperature)])
        assert isinstance(good, Success)
        assert isinstance(bad.failure(), BackendFailed)
        assert bad.failure().scope == "row"


def test_a_failed_device_fails_the_call(engine: Any, forwards: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(rows: int) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    forwards(broken)
    with pytest.raises(CallFailed) as failed:
        engine.generate([encoded([70]), encoded([71])])
    error = failed.value.error
    assert isinstance(error, BackendFailed)
    assert (error.backend, error.scope) == ("hf", "batch")
    assert error.incident in caplog.text


def test_a_bug_comes_through(engine: Any, forwards: Any) -> None:
    def broken(rows: int) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    forwards(broken)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        engine.generate([encoded([70])])


def test_nothing_is_printed_or_logged(folder_of: Callable[[str], Any], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    from pipegen.backends.hf.engine import HFEngine
    from pipegen.records import ModelLoadConfig

    for family in ("gemma3", "qwen3_vl"):
        engine = HFEngine(ModelLoadConfig(model=str(folder_of(family))))
        engine.generate([encoded([70], max_new_tokens=3, temperature=0.5), encoded([70, 71], max_new_tokens=3)])
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
