"""`logprobs="processed"`: the log probabilities of the distribution that was sampled from; and as
many of the likeliest tokens as are asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

import pipegen as pg
from pipegen.cli import main
from pipegen.engines.plugin import Plugin

MODEL = Path(pg.__file__).parent / "embedded" / "weights"
PROMPTS = [{"prompt": text} for text in ("The cat", "Numbers: 1 2", "b", "What is 3 + 4?")]
CLOSE = 2e-5


@functools.cache
def embedded() -> pg.Route:
    return pg.backends.hf("embedded", dtype="float32")


@functools.cache
def reference() -> Any:
    return AutoModelForImageTextToText.from_pretrained(MODEL, dtype=torch.float32).eval()


def answers(pipe: Any = None, **options: Any) -> list[pg.GenerationResult]:
    asked = {"logprobs": "processed", "seed": 5, "max_new_tokens": 12, **options}
    return [slot.unwrap() for slot in pg.run(pipe or embedded(), PROMPTS, asked)]


def logits_of(result: pg.GenerationResult) -> torch.Tensor:
    """The logits before each generated token, by one pass over all ids."""
    prompt = len(result.prompt_token_ids)
    ids = torch.tensor([[*result.prompt_token_ids, *result.token_ids]])
    with torch.no_grad():
        logits: torch.Tensor = reference()(ids).logits[0, prompt - 1 : -1].float()
    return logits


def values(result: pg.GenerationResult) -> list[float]:
    return [token.logprob for token in result.logprobs or ()]


def expected(result: pg.GenerationResult, table: torch.Tensor) -> list[float]:
    chosen = torch.tensor([result.token_ids]).T
    return [float(value) for value in table.log_softmax(-1).gather(-1, chosen)[:, 0]]


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.6])
def test_they_are_those_of_the_logits_over_the_temperature(temperature: float) -> None:
    for result in answers(temperature=temperature):
        wanted = expected(result, logits_of(result) / temperature)
        assert values(result) == pytest.approx(wanted, abs=CLOSE)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_changes_the_distribution_they_are_the_raw_ones(temperature: float) -> None:
    processed, raw = (
        answers(temperature=temperature),
        answers(temperature=temperature, logprobs=True),
    )
    assert [one.token_ids for one in processed] == [one.token_ids for one in raw]
    for one, other in zip(processed, raw, strict=True):
        assert values(one) == pytest.approx(values(other), abs=CLOSE)


FILTERS: list[Mapping[str, Any]] = [
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"allowed_token_ids": tuple(range(40, 90))},
    {"no_repeat_ngram_size": 1},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_what_is_kept_sums_to_1_and_has_the_shares_of_the_tempered_logits(
    filters: Mapping[str, Any],
) -> None:
    size = reference().config.text_config.vocab_size
    for result in answers(temperature=0.7, top_logprobs=size, **filters):
        tempered = logits_of(result) / 0.7
        for token, row in zip(result.logprobs or (), tempered, strict=True):
            kept = [token_id for token_id, _ in token.top]
            assert token.token_id in kept and 0 < len(kept) < size
            assert math.fsum(math.exp(value) for _, value in token.top) == pytest.approx(
                1, abs=1e-5
            )
            shares = row[kept].log_softmax(-1)
            assert [value for _, value in token.top] == pytest.approx(shares.tolist(), abs=1e-4)
            assert dict(token.top)[token.token_id] == token.logprob


def test_a_filter_that_leaves_one_token_makes_it_certain() -> None:
    for result in answers(temperature=1.0, top_k=1, top_logprobs=3):
        assert values(result) == [0.0] * len(result.token_ids)
        assert all(len(token.top) == 1 for token in result.logprobs or ())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_penalties_and_biases_count(temperature: float) -> None:
    penalties = {"presence_penalty": 0.7, "frequency_penalty": 0.4, "logit_bias": {70: 3.0}}
    for result in answers(temperature=temperature, **penalties):
        table = logits_of(result)
        for place in range(len(result.token_ids)):
            table[place, 70] += 3.0
            for token_id in {*result.token_ids[:place]}:
                times = result.token_ids[:place].count(token_id)
                table[place, token_id] -= 0.7 + 0.4 * times
        wanted = expected(result, table / (temperature or 1.0))
        assert values(result) == pytest.approx(wanted, abs=1e-4)


def test_a_greedy_row_has_those_before_filters() -> None:
    plain, filtered = answers(temperature=0), answers(temperature=0, top_k=1, top_p=0.1, min_p=0.9)
    assert [values(one) for one in filtered] == [values(one) for one in plain]
    assert max(values(filtered[0])) < 0


def test_each_row_has_the_kind_that_it_asks_for_whatever_is_beside_it() -> None:
    kinds = ("raw", "processed", False, True, "processed", "raw")
    requests = [
        {
            "prompt": "The cat",
            "options": {"logprobs": kind, "temperature": heat, "top_k": 9, "seed": 3},
        }
        for kind, heat in zip(kinds, (0.5, 0.5, 0.9, 1.7, 1.7, 0.0), strict=True)
    ]
    together = [slot.unwrap() for slot in pg.run(embedded(), requests, {"max_new_tokens": 8})]
    alone = [
        pg.run(embedded(), [request], {"max_new_tokens": 8})[0].unwrap() for request in requests
    ]
    assert [one.logprobs is None for one in together] == [not kind for kind in kinds]
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert values(one) == pytest.approx(values(other), abs=CLOSE)
    assert values(together[0]) != pytest.approx(values(together[1]), abs=1e-2)


def test_the_form_of_an_answer_and_processors_of_plugins_count() -> None:
    for result in answers(temperature=1.0, choice=("no way", "never"), top_logprobs=50):
        assert all(
            math.fsum(math.exp(value) for _, value in token.top) == pytest.approx(1, abs=1e-5)
            for token in result.logprobs or ()
        )
    flat = Plugin(
        name="flat", logits_processor=lambda context: lambda ids, scores: torch.zeros_like(scores)
    )
    even = -math.log(reference().config.text_config.vocab_size)
    for result in answers(pg.attach(embedded(), flat), temperature=1.0):
        assert values(result) == pytest.approx([even] * len(result.token_ids), abs=CLOSE)


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def forced(**options: Any) -> pg.GenerationResult:
    asked = {"messages": [{"role": "user", "content": "Look."}], "tools": [LOOK]}
    return pg.run(embedded(), [asked], {"tool_choice": "look", "max_new_tokens": 40, **options})[
        0
    ].unwrap()


@pytest.mark.parametrize("top", [0, 1, 3])
def test_what_is_forced_has_as_many_likeliest_tokens_as_all_else(top: int) -> None:
    result = forced(logprobs=True, top_logprobs=top)
    assert result.forced and result.logprobs is not None
    assert {len(token.top) for token in result.logprobs} == {top}


def test_what_is_forced_is_certain_and_is_not_scored() -> None:
    result = forced(logprobs="processed", top_logprobs=1)
    assert result.forced and result.logprobs is not None
    for place in result.forced:
        token = result.logprobs[place]
        assert (token.token_id, token.logprob) == (result.token_ids[place], 0.0)
        assert token.top == ((token.token_id, 0.0),)


def test_a_rollout_names_the_distribution_and_holds_one_alone() -> None:
    turn = {"messages": [{"role": "user", "content": "Hi"}]}
    hot = {"temperature": 0.7, "seed": 1, "max_new_tokens": 6}
    first = pg.run(embedded(), [turn], {**hot, "logprobs": "processed"})[0].unwrap()
    assert (first.rollout.logprobs_of, first.rollout.logprobs) == (
        "processed",
        tuple(values(first)),
    )
    kinds = {}
    for kind in ("processed", "raw"):
        request = first.then("And?", options={**hot, "logprobs": kind})
        kinds[kind] = pg.run(embedded(), [request])[0].unwrap().rollout
    assert kinds["processed"].logprobs_of == "processed"
    assert kinds["processed"].logprobs is not None
    assert kinds["raw"].logprobs is None
    raw = pg.run(embedded(), [turn], {**hot, "logprobs": "raw"})[0].unwrap()
    assert raw.options.logprobs is True and raw.rollout.logprobs_of == "raw"


@pytest.mark.parametrize("count", [1, 32, "all"])
def test_as_many_of_the_likeliest_tokens_as_the_model_has(count: Any) -> None:
    count = reference().config.text_config.vocab_size if count == "all" else count
    for result in answers(logprobs=True, temperature=0.7, top_logprobs=count):
        table = logits_of(result).log_softmax(-1)
        for token, row in zip(result.logprobs or (), table, strict=True):
            assert len(token.top) == count
            best = row.topk(count).values
            assert [value for _, value in token.top] == pytest.approx(best.tolist(), abs=CLOSE)
            assert [float(row[token_id]) for token_id, _ in token.top] == pytest.approx(
                best.tolist(), abs=CLOSE
            )


def test_more_than_the_model_has_are_refused_by_name() -> None:
    size = reference().config.text_config.vocab_size
    (error, *_) = pg.run(embedded(), PROMPTS, {"top_logprobs": size + 1})
    assert isinstance(error.failure(), pg.UnsupportedOption)
    assert error.failure().option == "top_logprobs" and str(size) in error.failure().message


@pytest.mark.parametrize("count", [0, 1, 5, "all"])
def test_each_place_of_a_prompt_has_as_many_of_the_likeliest(count: Any) -> None:
    count = reference().config.text_config.vocab_size if count == "all" else count
    options = {"prompt_logprobs": True, "top_logprobs": count, "max_new_tokens": 0}
    for slot in pg.run(embedded(), [*PROMPTS, PROMPTS[0]], options):
        result = slot.unwrap()
        ids = torch.tensor([result.prompt_token_ids])
        with torch.no_grad():
            table = reference()(ids).logits[0, :-1].float().log_softmax(-1)
        first, *others = result.prompt_logprobs or ()
        assert first is None and len(others) == len(table)
        for token, row in zip(others, table, strict=True):
            best = row.topk(max(count, 1)).values.tolist()
            assert token is not None
            assert [value for _, value in token.top] == pytest.approx(best, abs=CLOSE)
            assert len(token.top_texts) == len(token.top)


def test_distributions_are_columns_of_lists(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, count in (("many", 32), ("none", None)):
        requests, out = tmp_path / "in.jsonl", tmp_path / f"{name}.parquet"
        requests.write_text('{"prompt": "The cat"}\n{"prompt": "b 1 2"}\n')
        options = ["--prompt-logprobs", "--top-logprobs", str(count)] if count else []
        command = ["generate", str(requests), "-o", str(out), "--model", "embedded"]
        with pytest.raises(SystemExit) as ended:
            main([*command, "--max-new-tokens", "6", *options])
        assert ended.value.code == 0
        table = parquet.read_table(out)
        for place, ids in (("", "token_ids"), ("prompt_", "prompt_token_ids")):
            rows = table[f"{place}top_logprobs"].to_pylist()
            if count is None:
                assert rows == [None, None]
                continue
            for row, tokens in zip(rows, table[ids].to_pylist(), strict=True):
                assert len(row["token_ids"]) == len(row["logprobs"]) == len(tokens)
                sizes = [*map(len, row["token_ids"])]
                assert sizes == [*map(len, row["logprobs"])]
                assert sizes == [0 if place and not at else 32 for at in range(len(tokens))]
                best = [values[0] for values in row["token_ids"] if values]
                assert place or best == tokens  # greedy
