"""Answers that have a form, on the Hugging Face engine: each row follows its own grammar, whatever
becomes of its batch.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import FAMILIES, encoded

import pipegen as pg
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.core.distribution import install_hint
from pipegen.engines.plugin import Plugin
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.results import Encoded
from pipegen.testing.ask import PROMPTS, chat, greedy

pytest.importorskip("llguidance")

WORDS = ("yes", "no way", "no")
REGEX = r"[A-Z][a-z]{2,9}( [0-9]{1,3},){1,4}"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y z"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMS: tuple[dict[str, Any], ...] = (
    {"choice": WORDS},
    {"regex": REGEX},
    {"json_schema": SCHEMA},
    {},
)
LENGTH = 48
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def has_form(text: str, form: dict[str, Any]) -> bool:
    """Whether a whole answer has the form."""
    if "json_schema" in form:
        found = json.loads(text)
        return (
            list(found) == ["a", "b"]
            and isinstance(found["a"], int)
            and found["a"] <= 99
            and found["b"] in ("x", "y z")
        )
    return (
        text in WORDS
        if "choice" in form
        else re.fullmatch(form.get("regex", "(?s).*"), text) is not None
    )


def rows(count: int, **more: Any) -> list[Encoded]:
    """Rows of all forms, and free ones among them; every second one samples."""
    asked = [{"structured": FORMS[at % 4]} if FORMS[at % 4] else {} for at in range(count)]
    drawn = [
        {"temperature": 1.2, "seed": at, "top_p": 0.95} if at % 2 else {"temperature": 0.0}
        for at in range(count)
    ]
    return [
        encoded(
            [60 + at, *range(70, 72 + at % 9)],
            max_new_tokens=LENGTH,
            logprobs=True,
            **asked[at],
            **drawn[at],
            **more,
        )
        for at in range(count)
    ]


def ids(slots: Any) -> list[tuple[int, ...]]:
    return [slot.unwrap().token_ids for slot in slots]


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3", "mistral"])
def test_every_row_has_its_own_form_and_free_rows_are_as_without(
    family: str, engine_of: Callable[[str], Any]
) -> None:
    engine, batch = engine_of(family), rows(12)
    assert family in FAMILIES
    slots = engine.generate(batch)
    for slot, row, form in zip(slots, batch, FORMS * 3, strict=True):
        raw = slot.unwrap()
        if form and raw.token_ids[-1] in engine.eos_token_ids:
            assert has_form(engine.tokenizer.decode(raw.token_ids[:-1]), form)
        elif form:
            assert (len(raw.token_ids), row.options.structured.choice) == (LENGTH, None)
        assert len(raw.logprobs) == len(raw.token_ids)
        assert engine.generate([row])[0].unwrap().token_ids == raw.token_ids
    free = batch[3::4]
    assert ids(engine.generate(free)) == ids(slots[3::4])


def test_rows_that_take_the_places_of_others_begin_at_the_beginning_of_their_forms(
    folder_of: Callable[[str], Path], engine_of: Callable[[str], Any]
) -> None:
    narrow = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3")), dtype="float32", batch_size=3))
    batch = rows(16)
    assert ids(narrow.generate(batch)) == ids(engine_of("qwen3").generate(batch))


@pytest.mark.parametrize("at", [1, 2, 5, 11])
def test_forms_go_on_from_where_they_were_when_the_memory_is_full(
    at: int, engine: Any, forwards: Any
) -> None:
    expected, passes = ids(engine.generate(rows(8))), list[int]()

    def full_once(count: int) -> None:
        passes.append(count)
        if len(passes) == at + 1:
            raise FULL

    forwards(full_once)
    assert ids(engine.generate(rows(8))) == expected


def test_forms_go_on_where_a_row_becomes_long_and_is_read_again(
    engine_of: Callable[[str], Any],
) -> None:
    engine = engine_of("phi3_longrope")
    # long from 65 tokens on
    long = encoded(
        [(7 * place) % 250 + 3 for place in range(60)],
        max_new_tokens=LENGTH,
        structured={"regex": "([0-9]{3}-){3}"},
    )
    (alone,) = engine.generate([long])
    text = engine.tokenizer.decode(alone.unwrap().token_ids[:-1])
    assert re.fullmatch("([0-9]{3}-){3}", text)
    assert ids(engine.generate([*rows(4), long]))[-1] == alone.unwrap().token_ids


def test_samples_each_have_the_form() -> None:
    with pg.backends.hf("embedded") as route:
        drawn = greedy(
            temperature=3.0,
            seed=1,
            samples=12,
            structured=pg.StructuredOptions(choice=("red", "dark blue", "x")),
        )
        (slot,) = pg.run(route, [chat("Hi", drawn)])
        texts = [sample.text for sample in slot.unwrap().samples]
    assert set(texts) <= {"red", "dark blue", "x"}
    assert len(texts) == 12
    assert len(set(texts)) > 1


def test_logprobs_are_the_models_own_and_a_stop_cuts_the_form(engine: Any) -> None:
    form = {"regex": "[a-z]{6}"}
    free, formed = engine.generate(
        [
            encoded([60, 70], max_new_tokens=1, logprobs=True, top_logprobs=5, **more)
            for more in ({}, {"structured": form})
        ]
    )
    # of the whole vocabulary
    assert formed.unwrap().logprobs[0].top == free.unwrap().logprobs[0].top
    (whole,) = engine.generate([encoded([60, 70], max_new_tokens=9, structured=form)])
    text = engine.tokenizer.decode(whole.unwrap().token_ids[:-1])
    (cut,) = engine.generate(
        [encoded([60, 70], max_new_tokens=9, structured=form, stop=(text[2:4],))]
    )
    assert len(cut.unwrap().token_ids) < len(whole.unwrap().token_ids)


def test_no_row_ends_before_its_least_length_and_one_that_can_neither_end_nor_go_on_fails(
    engine: Any,
) -> None:
    least = {"max_new_tokens": 40, "min_new_tokens": 12}
    slots = engine.generate(
        [
            encoded([60], structured=form, **least)
            for form in ({"regex": "[a-z]{1,99}"}, {"choice": ("no",)})
        ]
    )
    assert len(slots[0].unwrap().token_ids) > 12
    assert isinstance(slots[1].failure(), pg.UnsupportedOption)
    assert slots[1].failure().option == "choice"
    assert "can neither end here nor go on" in slots[1].failure().message


def test_what_else_limits_the_tokens_limits_the_form_too(engine: Any) -> None:
    letters = [engine.tokenizer.encode(letter)[-1] for letter in "ab"]
    ends = tuple(engine.eos_token_ids)
    form = {"regex": "[a-z]{4}"}
    allowed, none = engine.generate(
        [
            encoded([60], max_new_tokens=9, structured=form, allowed_token_ids=(*kept, *ends))
            for kept in (letters, ())
        ]
    )
    assert re.fullmatch("[ab]{4}", engine.tokenizer.decode(allowed.unwrap().token_ids[:-1]))
    assert none.failure().option == "regex"

    def forbids(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(-1, torch.tensor(letters), torch.inf)

    plugged = engine.with_plugin(Plugin(name="mine", logits_processor=lambda context: forbids))
    (slot,) = plugged.generate([encoded([60], max_new_tokens=9, structured={"regex": "[c-z]{4}"})])
    # a plugin cannot break the form
    assert re.fullmatch("[c-z]{4}", engine.tokenizer.decode(slot.unwrap().token_ids[:-1]))


BAD: tuple[tuple[dict[str, Any], str], ...] = (
    ({"regex": "("}, "regex cannot be compiled: unclosed group"),
    ({"regex": "a(?=b)"}, "regex cannot be compiled: look-around"),
    ({"json_schema": {"type": "no"}}, "json_schema cannot be compiled: Invalid type: no"),
    (
        {"json_schema": {"properties": {"a": {"anyOf": [{"type": ["integer", 3]}]}}}},
        "json_schema cannot be compiled: Invalid type: 3",
    ),
    (
        {"json_schema": {"not": {"type": "string"}}},
        'json_schema cannot be compiled: Unimplemented keys: ["not"]',
    ),
    ({"json_schema": {"$ref": "http://a.b/c"}}, "json_schema cannot be compiled: Resource"),
    (
        {"json_schema": {"minimum": 5, "maximum": 4, "type": "integer"}},
        "json_schema cannot be compiled: Unsatisfiable",
    ),
    (
        {"regex": "a", "stop": pg.StopOptions(ignore_eos=True)},
        "Hugging Face transformers does not honour ignore_eos=True with regex",
    ),
)


def test_a_form_that_cannot_be_compiled_fails_its_own_slot_before_weights_load(
    folder_of: Callable[[str], Path],
) -> None:
    engine = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3")), dtype="float32"))
    bad = [
        encoded(
            [60],
            max_new_tokens=4,
            **(
                {"structured": form}
                if "stop" not in form
                else {"structured": {"regex": "a"}, "stop": form["stop"]}
            ),
        )
        for form, _ in BAD
    ]
    slots = engine.generate(bad)
    assert not engine.loaded
    for slot, (form, words) in zip(slots, BAD, strict=True):
        assert isinstance(slot.failure(), pg.UnsupportedOption)
        assert slot.failure().message.startswith(words)
        assert slot.failure().option == ("ignore_eos" if "stop" in form else next(iter(form)))
    assert [
        pg.is_ok(slot) for slot in engine.generate([bad[0], encoded([60], max_new_tokens=2)])
    ] == [False, True]


@pytest.mark.parametrize("text", ["e\u0301", "e\u0301a"])
def test_text_that_the_tokenizer_composes_is_refused_before_the_run_and_composed_is_taken(
    text: str, engine: Any
) -> None:
    def forms(text: str) -> list[dict[str, Any]]:
        return [
            {"choice": (text, "xy")},
            {"regex": text},
            {"json_schema": {"const": text}},
            {"json_schema": {"properties": {text: {"type": "null"}}, "required": [text]}},
        ]

    for form in forms(text):
        (slot,) = engine.generate([encoded([60], max_new_tokens=30, structured=form)])
        error = slot.failure()
        assert isinstance(error, pg.UnsupportedOption)
        assert (error.option, r"e\u0301" in error.message) == (next(iter(form)), True)
        assert "the model's tokenizer changes it" in error.message
    composed = unicodedata.normalize("NFC", text)
    rows = [encoded([60], max_new_tokens=30, structured=form) for form in forms(composed)[1:3]]
    for slot in engine.generate(rows):
        assert composed in engine.tokenizer.decode(slot.unwrap().token_ids)


def test_a_form_that_is_too_large_fails_its_row_alone(engine: Any) -> None:
    forms: tuple[dict[str, Any], ...] = ({"structured": {"regex": "((a{1000}){1000}){1000}"}}, {})
    slots = engine.generate([encoded([60], max_new_tokens=30, **form) for form in forms])
    assert isinstance(slots[0].failure(), pg.UnsupportedOption)
    assert (
        slots[0].failure().message
        == "regex cannot be compiled: lexer error: too many expressions constructed"
    )
    assert slots[1] == engine.generate([encoded([60], max_new_tokens=30)])[0]


def test_a_model_without_an_end_token_says_so_and_takes_one_from_the_options(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(engine._checkpoint), "eos_token_ids", ())
    special = next(iter(engine.tokenizer.special_tokens.values()))
    slots = engine.generate(
        [
            encoded([60], max_new_tokens=4, structured={"choice": ("no",)}, **more)
            for more in ({}, {"stop": pg.StopOptions(stop_token_ids=(special,))})
        ]
    )
    assert "the model has no end token" in slots[0].failure().message
    assert slots[1].unwrap().token_ids[-1] == special


def test_without_llguidance_it_is_said_what_to_install(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    slots = engine.generate(
        [
            encoded([60], max_new_tokens=4, structured={"choice": ("no",)}),
            encoded([60], max_new_tokens=2),
        ]
    )
    assert install_hint("structured") in slots[0].failure().message
    assert pg.is_ok(slots[1])


def test_a_tokenizer_that_llguidance_cannot_read_fails_the_row(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.computing.grammars.clear()

    def refuses(*args: Any, **more: Any) -> Any:
        raise ValueError("can't determine decoder type")

    monkeypatch.setattr("llguidance.LLTokenizer", refuses)
    (slot,) = engine.generate([encoded([60], max_new_tokens=4, structured={"choice": ("no",)})])
    assert (
        "llguidance cannot use the model's tokenizer: ValueError: can't determine decoder type"
        in slot.failure().message
    )
    assert slot.failure().option == "choice"


def test_the_grammars_go_when_the_engine_closes(folder_of: Callable[[str], Path]) -> None:
    engine = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3")), dtype="float32"))
    row = encoded([60], max_new_tokens=9, structured={"choice": WORDS})
    first = ids(engine.generate([row]))
    assert engine.computing.grammars._compiled.cache_info().currsize == 1
    engine.close()
    assert engine.computing.grammars._tokenizer is None
    assert engine.computing.grammars._compiled.cache_info().currsize == 0
    assert ids(engine.generate([row])) == first


def test_forms_stream() -> None:
    with pg.backends.hf("embedded") as route:
        requests = [
            chat(text, greedy(structured=pg.StructuredOptions(json_schema=SCHEMA)))
            for text in PROMPTS
        ]
        streamed = dict.fromkeys(range(len(requests)), "")
        for event in pg.stream(route, requests):
            streamed[event.index] += getattr(event, "text", "")
        assert list(streamed.values()) == [slot.unwrap().text for slot in pg.run(route, requests)]
