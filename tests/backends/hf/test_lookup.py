"""A guess at what follows saves passes, and changes no token, whatever it is."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.models import FAMILIES, encoded

import pipegen as pg
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.backends.hf.lookup import MOST, Lookup
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.option_groups import StopOptions
from pipegen.testing.image_files import image_file

ON = StopOptions(ignore_eos=True)
TOKENS = 40
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": True, "top_logprobs": 2},
    {"temperature": 1.3, "seed": 5},
    {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3, "seed": 3},
    {"frequency_penalty": 1.0, "no_repeat_ngram_size": 3},
    {"min_new_tokens": 9, "stop": StopOptions()},
)


@pytest.fixture(scope="module")
def opened(folder_of: Callable[[str], Any]) -> Callable[[str], HFEngine]:
    return functools.cache(
        lambda family: HFEngine(
            ModelLoadConfig(model=str(folder_of(family)), dtype="float32", batch_size=4)
        )
    )


def asked(words_of: int, **options: Any) -> Any:
    chance = random.Random(words_of)
    words = [tuple(chance.randrange(20, 200) for _ in range(5)) for _ in range(3)]
    return encoded(
        sum((chance.choice(words) for _ in range(12)), ()),
        **{"max_new_tokens": TOKENS, "stop": ON, **options},
    )


def answer(engine: HFEngine, question: Any) -> Any:
    (slot,) = engine.generate([question])
    return slot.unwrap()


def none(self: Lookup, ids: Sequence[int], most: int) -> tuple[int, ...]:
    return ()


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "greedy")
@pytest.mark.parametrize("family", FAMILIES)
def test_no_guess_changes_a_token(
    family: str,
    options: dict[str, Any],
    opened: Callable[[str], HFEngine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, question = opened(family), asked(1, **options)
    guessed = answer(engine, question)
    monkeypatch.setattr(Lookup, "guess", none)
    plain = answer(engine, question)
    chance, made = random.Random(0), plain.token_ids

    def some(self: Lookup, ids: Sequence[int], most: int) -> tuple[int, ...]:
        done = len(ids) - len(question.prompt.token_ids)
        right = made[done : done + chance.randint(0, 6)]
        return tuple(
            [*right, *(chance.randrange(20, 200) for _ in range(chance.randint(0, 4)))][:most]
        )

    monkeypatch.setattr(Lookup, "guess", some)
    for other in (guessed, answer(engine, question)):
        assert other.token_ids == plain.token_ids
        assert dataclasses.replace(other, logprobs=plain.logprobs) == plain
        if options.get("logprobs"):
            assert [one.logprob for one in other.logprobs] == pytest.approx(
                [one.logprob for one in plain.logprobs], abs=1e-4
            )


def test_right_guesses_save_passes_and_are_counted(
    opened: Callable[[str], HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, question = opened("qwen3"), asked(2)
    made = answer(engine, question).token_ids
    before = engine.work.steps, engine.work.row_steps
    monkeypatch.setattr(
        Lookup,
        "guess",
        lambda self, ids, most: made[len(ids) - len(question.prompt.token_ids) :][: min(most, 3)],
    )
    guessed, right = engine.work.guessed_tokens, engine.work.right_guesses
    assert answer(engine, question).token_ids == made
    assert engine.work.steps - before[0] == -(-(TOKENS - 1) // 4)
    assert engine.work.row_steps - before[1] == TOKENS - 1  # the first token comes with the prompt
    assert (
        engine.work.guessed_tokens - guessed
        == engine.work.right_guesses - right
        == TOKENS - 1 - (engine.work.steps - before[0])
    )


def test_a_row_beside_others_is_not_guessed_for(
    opened: Callable[[str], HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    monkeypatch.setattr(Lookup, "guess", lambda self, ids, most: rows.append(len(ids)) or ())
    engine = opened("llama")
    engine.generate([asked(3), asked(4)])
    assert not rows
    engine.generate([asked(3), asked(4, max_new_tokens=9)])
    assert len(rows) == TOKENS - 9


@pytest.mark.parametrize("family", ["gemma2", "falcon_h1"])
def test_a_cache_that_forgets_is_not_guessed_for(
    family: str, opened: Callable[[str], HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Lookup, "guess", lambda self, ids, most: pytest.fail("what is wrong could not be cut off")
    )
    assert len(answer(opened(family), asked(5)).token_ids) == TOKENS


def test_images_streams_plugins_and_forms_take_guesses(
    opened: Callable[[str], HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = [
        {"type": "image", "image": image_file()},
        {"type": "text", "text": "word word word word"},
    ]
    request: dict[str, Any] = {"messages": [{"role": "user", "content": content}]}

    def ends(context: pg.plugins.RowContext) -> Any:
        return lambda ids, scores: ids.shape[1] >= context.prompt_length + 21

    plugin = pg.plugins.Plugin(name="ends", stopping_criteria=ends)
    ways: list[dict[str, Any]] = [
        {"max_new_tokens": TOKENS, "ignore_eos": True},
        {"max_new_tokens": TOKENS, "regex": "(ab|cd){6,12}"},
    ]
    with pg.route(opened("qwen3_vl")) as route:
        halted = pg.attach(route, plugin)
        for options in ways:
            seen = []
            for guess in (Lookup.guess, none):
                monkeypatch.setattr(Lookup, "guess", guess)
                *deltas, done = pg.stream(route, [request], options)
                results = [
                    slot.unwrap()
                    for slot in (
                        *pg.run(route, [request], options),
                        *pg.run(halted, [request], options),
                        done.slot,
                    )
                ]
                assert "".join(delta.text for delta in deltas) == results[2].text
                seen.append([(result.token_ids, result.finish, result.text) for result in results])
            assert seen[0] == seen[1]


def test_the_longest_guess_follows_right_ones() -> None:
    lookup, ids = Lookup(), [5, 6] * 40
    sizes = []
    for _ in range(4):
        sizes.append(len(lookup.guess(ids, 99)))
        lookup.right(sizes[-1])
    assert sizes == [4, 9, MOST, MOST]
    lookup.right(0)
    assert lookup.guess(ids, 99) == (5,)
    assert lookup.guess(ids, 0) == ()
