"""The vLLM engine on the real vLLM."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from returns.result import Failure
from support.models import FAMILIES
from support.small_tokenizers import longer_without_space

import pipegen as pg
from pipegen.backends.vllm import vllm_engine
from pipegen.engines.capabilities import ENGINES, FEATURES
from pipegen.engines.plugin import Plugin
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import merge, options_from
from pipegen.testing import conformance
from pipegen.testing.ask import LENGTH, PROMPTS, chat, greedy
from pipegen.testing.image_files import image_file

MODELS = ("embedded", *FAMILIES)


@pytest.fixture(scope="module")
def route(request: pytest.FixtureRequest, vllm_of: Callable[..., Any]) -> Iterator[pg.Route]:
    with vllm_of(request.param, whole_text=True) as opened:
        yield opened


@pytest.mark.parametrize("route", MODELS, indirect=True)
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_every_model_conforms(check: conformance.Check, route: pg.Route) -> None:
    check(route)


@pytest.mark.parametrize("route", ["embedded"], indirect=True)
def test_a_spelling_that_vllm_itself_would_leave_is_barred(route: pg.Route) -> None:
    word, token = longer_without_space(route.engine.tokenizer)
    free, barred = (
        pg.run(route, [chat("Hi")], greedy(logit_bias={token: 100}, **more))[0].unwrap()
        for more in ({}, {"bad_words": [word]})
    )
    assert {*free.token_ids} == {token}
    assert token not in barred.token_ids


@pytest.mark.parametrize("route", MODELS, indirect=True)
def test_a_plugin_halts_a_row_at_the_very_token(route: pg.Route) -> None:
    free = pg.run(route, [chat("Hi")], _on())[0].unwrap()
    halt = Plugin(name="first", start=lambda: None, feed=lambda state, text: (state, len(text)))
    watched = pg.attach(route, halt)
    result = pg.run(watched, [chat("Hi")], _on())[0].unwrap()
    assert (result.finish.value, result.stop) == ("plugin", "first")
    assert result.token_ids == free.token_ids[: result.completion_tokens]
    # Before it there was nothing to show: special tokens are hidden, and bytes that no character
    # completes wait for the next ones.
    tokenizer = route.engine.tokenizer
    before = [
        token_id
        for token_id in result.token_ids[:-1]
        if token_id not in tokenizer.special_tokens.values()
    ]
    assert tokenizer.decode(before).strip().strip("\ufffd") == ""


@pytest.mark.parametrize("route", ["qwen3"], indirect=True)
def test_calls_that_are_awaited_together_share_the_steps_of_the_engine(
    route: pg.Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [pg.run(route, [chat(text)], _on()) for text in PROMPTS]
    engine = route.engine._core.running().engine  # type: ignore[attr-defined]
    plain, steps = engine.step, itertools.count()
    monkeypatch.setattr(engine, "step", lambda: (next(steps), plain())[1])

    async def together() -> Any:
        return await asyncio.gather(*(pg.arun(route, [chat(text)], _on()) for text in PROMPTS))

    assert asyncio.run(together()) == wanted
    assert next(steps) < 2 * LENGTH  # alone they take that many times the number of them


def _on(**more: Any) -> pg.GenerationOptions:
    return greedy(stop=pg.StopOptions(ignore_eos=True, **more))


# K3
def test_hf_only_plugins_are_refused_before_anything_loads(model_of: Callable[[str], str]) -> None:
    opened = pg.backends.vllm(model_of("qwen3"))
    with pytest.raises(pg.UnsupportedPlugin):
        pg.attach(opened, Plugin(name="mine", logits_processor=lambda context: None))
    assert not opened.engine.loaded  # type: ignore[attr-defined]


# K1, K2
def test_images_fall_back_and_texts_stay(
    vllm_of: Callable[..., Any], model_of: Callable[[str], str]
) -> None:
    image = image_file(width=64, height=64)
    requests = [
        chat("Hi"),
        pg.VlmGenerationRequest(prompt="What is it?", images=[image]),
        chat("Count."),
    ]
    with (
        vllm_of("qwen3_vl", variant="text") as fast,
        pg.backends.hf(model_of("qwen3_vl"), dtype="float32") as safe,
    ):
        alone = pg.run(fast, requests, greedy(max_new_tokens=4))
        assert [type(slot.failure()) if isinstance(slot, Failure) else None for slot in alone] == [
            None,
            pg.UnsupportedMultimodal,
            None,
        ]
        both = pg.run(
            pg.fallback(fast, safe, when=pg.UnsupportedMultimodal),
            requests,
            greedy(max_new_tokens=4),
        )
        assert [slot.unwrap().route for slot in both] == ["vllm", "hf", "vllm"]
        assert [type(error) for error in both[1].unwrap().tried] == [pg.UnsupportedMultimodal]


# K4
def test_both_routes_fail_and_the_history_is_kept(
    vllm_of: Callable[..., Any], model_of: Callable[[str], str]
) -> None:
    asked = pg.VlmGenerationRequest(prompt="What is it?", images=[image_file(width=64, height=64)])
    with (
        vllm_of("qwen3_vl", variant="text") as fast,
        pg.backends.hf(model_of("qwen3_vl"), variant="text") as safe,
    ):
        error = pg.run(pg.fallback(fast, safe, when=pg.UnsupportedMultimodal), [asked])[0].failure()
    assert [(type(each), each.message.split()[0]) for each in (*error.earlier, error)] == [
        (pg.UnsupportedMultimodal, "vLLM"),
        (pg.UnsupportedMultimodal, "Hugging"),
    ]


@pytest.mark.parametrize("route", ["embedded"], indirect=True)
def test_json_is_halted_where_it_closes_in_any_company(route: pg.Route) -> None:  # K5, K7
    shapes = (Path(__file__).parents[2] / "docs" / "examples" / "shapes.png").read_bytes()
    ask = pg.VlmGenerationRequest(prompt="Return JSON.", images=[shapes])
    requests: list[Any] = [
        ask,
        *(chat(text) for text in PROMPTS),
        ask,
        *(chat(text) for text in PROMPTS),
    ][:8]
    options = merge(pg.GenerationOptions(max_new_tokens=160), _on())
    with pg.backends.hf("embedded", dtype="float32") as other:
        watched, reference = (
            pg.attach(each, pg.plugins.balanced_json()) for each in (route, other)
        )
        results, wanted = (
            [slot.unwrap() for slot in pg.run(each, requests, options)]
            for each in (watched, reference)
        )
        alone = [pg.run(watched, [request], options)[0].unwrap() for request in requests]
    assert (
        [result.token_ids for result in results]
        == [result.token_ids for result in alone]
        == [result.token_ids for result in wanted]
    )
    assert [result.finish for result in results] == [result.finish for result in wanted]
    assert (results[0].finish, results[0].stop) == (pg.Finish.PLUGIN, "balanced_json")
    assert {len(found["bbox_2d"]) for found in json.loads(results[0].text)["objects"]} == {4}


def held() -> int:
    """The bytes of all tensors that are alive."""
    import torch

    gc.unfreeze()  # vLLM hides from it what it has started with
    gc.collect()
    storages = (
        thing.untyped_storage()
        for thing in gc.get_objects()
        if type(thing) in (torch.Tensor, torch.nn.Parameter)
    )
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def test_memory_comes_back_and_the_engine_starts_again(vllm_of: Callable[..., Any]) -> None:
    cache, before = 64 << 20, held()
    with vllm_of("qwen3", kv_cache_memory_bytes=cache) as opened:
        first = pg.run(opened, [chat("Hi")], _on())
        assert held() - before > cache
        opened.engine.close()
        assert not opened.engine.loaded  # type: ignore[attr-defined]
        assert held() - before < cache / 16
        again = pg.run(opened, [chat("Hi")], _on())
    with vllm_of("qwen3") as fresh:
        assert pg.run(fresh, [chat("Hi")], _on()) == again == first


def test_a_clean_close_is_no_incident(
    vllm_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with vllm_of("qwen3") as opened:
        assert pg.is_ok(pg.run(opened, [chat("Hi")], _on())[0])
        for _ in pg.stream(opened, [chat("Hi")], _on()):
            break
    assert not [record.getMessage() for record in caplog.records if record.name == "pipegen"]


def test_one_image_too_many_is_refused_beforehand(vllm_of: Callable[..., Any]) -> None:
    with vllm_of("qwen3_vl", limit_mm_per_prompt={"image": 1}) as opened:
        images = [image_file(width=64, height=64), image_file(width=32, height=64)]
        slots = pg.run(
            opened,
            [pg.VlmGenerationRequest(prompt="a", images=images[:count]) for count in (1, 2)],
            greedy(max_new_tokens=2),
        )
        assert isinstance(slots[1].failure(), pg.UnsupportedMultimodal)
        assert len(slots[0].unwrap().image_grid_thw) == 1


COMPACT = {"backend": "xgrammar", "disable_any_whitespace": True}
"""Another library than pipegen's. Between the parts of JSON stands no white space, in which a model
as small as these would lose itself.
"""


def test_answers_have_the_form_that_was_asked_beside_rows_that_are_free(
    vllm_of: Callable[..., Any],
) -> None:
    properties = {"name": {"type": "string", "maxLength": 8}, "seen": {"type": "boolean"}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    forms: list[dict[str, Any]] = [
        {},
        {"json_schema": schema},
        {"regex": "[a-c]{4}( [0-9]+,){2}"},
        {"choice": ("red", "dark blue")},
        {"json_schema": {"type": "no"}},
    ]
    requests = [
        chat(
            "Count from 1 to 12.",
            greedy(max_new_tokens=60, structured=pg.StructuredOptions(**form)),
        )
        for form in forms
    ]
    with vllm_of("embedded", engine_kwargs={"structured_outputs_config": COMPACT}) as opened:
        slots = pg.run(opened, requests)
        free = pg.run(opened, [chat("Count from 1 to 12.", greedy(max_new_tokens=60))])
        again = pg.run(
            opened, [chat("Count from 1 to 12.", slot.unwrap().options) for slot in slots[:4]]
        )
    assert slots[0] == free[0]
    assert again == slots[:4]  # C8
    found = json.loads(slots[1].unwrap().text)
    assert {name: type(value) for name, value in found.items()} == {"name": str, "seen": bool}
    assert re.fullmatch("[a-c]{4}( [0-9]+,){2}", slots[2].unwrap().text)
    assert slots[3].unwrap().text in ("red", "dark blue")
    assert [slot.unwrap().finish for slot in slots[1:4]] == [pg.Finish.EOS] * 3
    assert isinstance(slots[4].failure(), pg.UnsupportedOption)
    assert slots[4].failure().option == "json_schema"


BARE = """
{%- for message in messages if message.content is string -%}{{- message.content -}}
{%- else -%}{%- for part in messages[0].content -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text -}}
{%- endfor -%}{%- endfor -%}"""
"""A template that writes nothing but what was said and shown."""
BESIDE: dict[str, dict[str, object]] = {
    **{name: {"temperature": 1.0} for name in ("top_p", "top_k", "min_p", "seed")},
    "top_logprobs": {"logprobs": True},
    "on_overflow": {"max_new_tokens": 100_000},
}
"""What an option needs beside it to be tried."""
TRIED = {
    name: options_from(
        {**BESIDE.get(name, {}), name: BARE if name == "template" else entry.row.trial}
    )
    for name, entry in OPTIONS.items()
    # these take tools, or an adapter (see test_lora.py), too
    if name not in ("adapter", "tool_choice")
}
"""One try of each option that differs from what is neutral."""


# In one process, closing one vLLM ends them all (they share its parallel groups): whoever uses this
# opens no other.
@pytest.fixture(scope="module")
def vision(vllm_of: Callable[..., Any]) -> Iterator[pg.Route]:
    with vllm_of("qwen3_vl") as opened:
        yield opened


@pytest.mark.parametrize("option", sorted(TRIED))
@pytest.mark.parametrize("kind", ["text", "image"])
def test_the_table_says_what_the_engine_does(option: str, kind: str, vision: pg.Route) -> None:
    """Each option is honoured, or refused before the call, as the table says."""
    said = [{"role": "user", "content": "Hi there"}]
    if option == "continue_final_message":
        said.append({"role": "assistant", "content": "Yes"})
    request: Any = pg.TextGenerationRequest(messages=said)
    if kind == "image":
        parts = [
            {"type": "image", "image": image_file(width=64, height=64)},
            {"type": "text", "text": "Hi there"},
        ]
        request = pg.VlmGenerationRequest(messages=[{"role": "user", "content": parts}, *said[1:]])
    options = merge(TRIED[option], pg.GenerationOptions(max_new_tokens=6))
    slot = pg.run(vision, [request], options)[0]
    taken = option in ENGINES["vllm"] or option in (
        "samples",
        "max_prompt_tokens",
        "on_overflow",
        "use_generation_config",
    )
    # no engine scores a prompt with images
    if taken and (kind, option) != ("image", "prompt_logprobs"):
        assert not isinstance(slot, Failure), slot
    else:
        assert isinstance(slot.failure(), pg.UnsupportedOption)
        assert slot.failure().option == option


def test_the_features_of_the_table_are_those_that_are_tested() -> None:
    assert {name for name in FEATURES if name in ENGINES["vllm"]} == {
        "images",
        "repeatable",
        "stream",
        "token_ids",
        "videos",
        "watch",
    }


@pytest.mark.parametrize("temperature", [0.001, 3.0])
def test_a_temperature_that_vllm_would_change_or_refuse_is_refused(
    temperature: float, vision: pg.Route
) -> None:
    slots = pg.run(
        vision,
        [chat("Hi", pg.GenerationOptions(temperature=temperature)), chat("Hi")],
        pg.GenerationOptions(max_new_tokens=2),
    )
    assert isinstance(slots[0].failure(), pg.UnsupportedOption)
    assert slots[1].unwrap().completion_tokens >= 1


def test_an_engine_that_died_fails_every_slot_with_one_incident_and_starts_again(
    vision: pg.Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    def dies() -> Any:
        raise EngineDeadError

    first = pg.run(vision, [chat("Hi")], _on())
    monkeypatch.setattr(vision.engine._core.running().engine, "step", dies)  # type: ignore[attr-defined]
    errors = [slot.failure() for slot in pg.run(vision, [chat("Hi"), chat("Count.")], _on())]
    assert [(type(error), error.scope) for error in errors] == [(pg.BackendFailed, "batch")] * 2
    assert len({error.incident for error in errors}) == 1
    assert pg.run(vision, [chat("Hi")], _on()) == first


def test_what_the_models_own_code_raises_fails_every_slot_with_one_incident_and_the_next_call_runs(
    vision: pg.Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process it comes out of vLLM's step as it is."""
    from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration as Model

    first = pg.run(vision, [chat("Hi")], _on())
    with monkeypatch.context() as broken:
        broken.setattr(Model, "compute_logits", lambda *_, **__: list[Any]().pop())
        errors = [slot.failure() for slot in pg.run(vision, [chat("Hi"), chat("Count.")], _on())]
    assert [(type(error), error.scope, error.message.split(":")[0]) for error in errors] == [
        (pg.BackendFailed, "batch", "IndexError")
    ] * 2
    assert len({error.incident for error in errors}) == 1
    assert pg.run(vision, [chat("Hi")], _on()) == first


def test_a_row_that_vllm_refuses_fails_alone(
    vision: pg.Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = vision.engine._core.running().engine  # type: ignore[attr-defined]
    plain, seen = engine.add_request, itertools.count()

    def add_request(*arguments: Any, **more: Any) -> Any:
        if next(seen) == 1:
            raise ValueError("not this one")
        return plain(*arguments, **more)

    monkeypatch.setattr(engine, "add_request", add_request)
    slots = pg.run(vision, [chat("Hi"), chat("Count."), chat("Tell.")], _on())
    # rows are handed over in an order of their prompts
    (refused,) = [slot.failure() for slot in slots if isinstance(slot, Failure)]
    assert "not this one" in refused.message


def test_a_stream_that_is_left_ends_its_rows(vision: pg.Route) -> None:
    for _ in pg.stream(vision, [chat("Hi"), chat("Count.")], _on()):
        break
    gc.collect()
    assert not vision.engine._core.running().engine.has_unfinished_requests()  # type: ignore[attr-defined]
    assert pg.is_ok(pg.run(vision, [chat("Hi")], _on())[0])


@pytest.mark.parametrize("route", ["qwen3"], indirect=True)
def test_rows_are_fed_between_the_steps_of_the_engine(
    route: pg.Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        chat(text, greedy(max_new_tokens=limit, stop=pg.StopOptions(ignore_eos=True)))
        for limit in (2, 30, 4, 3, 2)
        for text in PROMPTS
    ]
    engine = route.engine._core.running().engine  # type: ignore[attr-defined]
    plain, steps = engine.step, itertools.count()
    monkeypatch.setattr(engine, "step", lambda: (next(steps), plain())[1])
    whole = pg.run(route, requests)
    at_once = next(steps)
    assert tuple(pg.imap(route, requests, in_flight=8)) == whole
    assert next(steps) - at_once <= 2.5 * at_once
    slots: Any = pg.imap(route, requests)
    next(slots)
    slots.close()
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("route", ["qwen3"], indirect=True)
def test_rows_that_end_by_stop_strings_make_room_for_those_that_wait(route: pg.Route) -> None:
    """Several times as many rows as vLLM runs side by side: it brings no last output of those that
    pipegen ends.
    """
    text = pg.run(route, [chat(PROMPTS[0], _on())])[0].unwrap().text
    slots = pg.run(route, [chat(PROMPTS[0], greedy(stop=(text[3:5],)))] * 60)
    assert {slot.unwrap().stop for slot in slots} == {text[3:5]}
    assert not route.engine._core.running().engine.has_unfinished_requests()  # type: ignore[attr-defined]


def test_an_engine_that_dies_while_it_is_fed_fails_what_is_in_flight_and_the_rest_goes_on(
    vision: pg.Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    engine = vision.engine._core.running().engine  # type: ignore[attr-defined]
    plain, steps = engine.step, itertools.count()

    def dying() -> Any:
        if next(steps) == 3:
            raise EngineDeadError
        return plain()

    monkeypatch.setattr(engine, "step", dying)
    slots = list(
        pg.imap(vision, [chat(f"Say {number}", _on()) for number in range(12)], in_flight=4)
    )
    lost = [slot.failure() for slot in slots if not pg.is_ok(slot)]
    assert 1 <= len(lost) <= 4
    assert len({error.incident for error in lost}) == 1
    assert all(isinstance(error, pg.BackendFailed) for error in lost)


def test_the_order_of_requests_lets_a_small_prefix_cache_serve_more_of_them(
    vllm_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 beginnings of two blocks come in turn, and the cache holds few of them."""
    requests = [
        {
            "prompt_token_ids": [300 + number % 16] * 256 + [20 + number],
            "options": {"max_new_tokens": 4, "ignore_eos": True},
        }
        for number in range(192)
    ]
    cached, slots = list[int](), list[Any]()
    for ordered in (True, False):
        if not ordered:
            monkeypatch.setattr(vllm_engine, "_beginning", lambda row: ())
        with vllm_of(
            "embedded", max_num_seqs=32, max_model_len=512, kv_cache_memory_bytes=8 << 20
        ) as route:
            pg.run(route, requests[:1])
            engine = route.engine._core.running().engine
            outputs, plain = list[Any](), engine.step
            monkeypatch.setattr(
                engine,
                "step",
                lambda plain=plain, outputs=outputs: (outputs.append(plain()), outputs[-1])[1],
            )
            slots.append(list(pg.imap(route, requests)))
            cached.append(
                sum(
                    output.num_cached_tokens
                    for step in outputs
                    for output in step
                    if output.finished
                )
            )
    assert slots[0] == slots[1]
    assert cached[0] > 2 * cached[1]
