"""Laws of the Hugging Face engine: its plan of batches, its sampling, and its ids beside those of transformers' own `generate`."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")

import transformers  # noqa: E402
from returns.result import Success  # noqa: E402

from pipegen.backends.hf.engine import HFEngine  # noqa: E402
from pipegen.backends.hf.plan import halves, plan  # noqa: E402
from pipegen.backends.hf.sampling import draw, penalise, probabilities  # noqa: E402
from pipegen.options import GenerationOptions, StopOptions, resolve  # noqa: E402
from pipegen.records import Encoded, ModelLoadConfig  # noqa: E402
from pipegen.testing.models import FAMILIES, encoded, write_model  # noqa: E402

FEW = settings(max_examples=max(5, settings().max_examples // 12))
"""For laws of which each example runs a model several times."""


@functools.cache
def engine(family: str) -> Any:
    with tempfile.TemporaryDirectory() as root:
        made = HFEngine(ModelLoadConfig(model=str(write_model(Path(root) / family, family)), dtype="float32"))
        _ = made._weights.model(), made.eos_token_ids, made.tokenizer
    return made


@st.composite
def rows(draw_one: st.DrawFn) -> Encoded:
    """A row with any options that change what is generated."""
    choose = draw_one
    return encoded(
        choose(st.lists(st.integers(3, 400), min_size=1, max_size=20)),
        max_new_tokens=choose(st.integers(1, 12)),
        temperature=choose(st.sampled_from([0.0, 0.0, 0.6, 1.0, 2.0])),
        seed=choose(st.integers(0, 2**63 - 1)),
        top_k=choose(st.sampled_from([0, 0, 1, 5])),
        top_p=choose(st.sampled_from([1.0, 1.0, 0.8])),
        min_p=choose(st.sampled_from([0.0, 0.0, 0.1])),
        repetition_penalty=choose(st.sampled_from([1.0, 1.0, 1.3, 0.8])),
        presence_penalty=choose(st.sampled_from([0.0, 0.0, 1.0])),
        frequency_penalty=choose(st.sampled_from([0.0, 0.0, -0.5])),
        no_repeat_ngram_size=choose(st.sampled_from([0, 0, 2])),
        stop=StopOptions(stop=choose(st.sampled_from([(), ("e",), ("th", "a b")])), ignore_eos=choose(st.booleans())),
    )


# --- the plan ------------------------------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 30)), st.integers(1, 7))
def test_a_plan_holds_every_position_exactly_once_in_groups_that_fit(lengths: list[int], batch_size: int) -> None:
    groups = plan(lengths, batch_size)
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    assert all(1 <= len(group) <= batch_size for group in groups)
    assert len(groups) == -(-len(lengths) // batch_size)


@given(st.lists(st.integers(1, 30)), st.integers(1, 7))
def test_answers_in_the_order_of_a_plan_go_back_to_their_positions(lengths: list[int], batch_size: int) -> None:
    order = [position for group in plan(lengths, batch_size) for position in group]
    answers = {position: lengths[position] for position in order}
    assert [answers[position] for position in range(len(lengths))] == lengths
    assert [lengths[position] for position in order] == sorted(lengths, reverse=True)


@given(st.lists(st.integers(), min_size=1))
def test_halves_are_the_group_in_two_parts_and_the_smaller_is_no_less_than_half(group: list[int]) -> None:
    parts = halves(group)
    assert [position for part in parts for position in part] == group
    assert max(map(len, parts)) <= (len(group) + 1) // 2


# --- sampling ------------------------------------------------------------------------------------------------------------------------------------------

SCORES = st.lists(st.integers(-40, 40), min_size=6, max_size=6, unique=True).map(lambda numbers: [0.53 * number for number in numbers])
"""Apart from each other, so that no score sits on a threshold to the last bit."""


@given(SCORES, st.floats(0.1, 3), st.integers(0, 8), st.floats(0.05, 1), st.floats(0, 1))
def test_the_distribution_is_that_of_transformers_warpers(scores: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """In vLLM's order: temperature, min_p, top_k, top_p."""
    warpers: list[Any] = [transformers.TemperatureLogitsWarper(temperature), transformers.MinPLogitsWarper(min_p)]
    warpers += [transformers.TopKLogitsWarper(top_k)] if top_k else []
    warpers += [transformers.TopPLogitsWarper(top_p)] if top_p < 1 else []
    table = torch.tensor([scores], dtype=torch.float64)
    option = resolve(GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p))
    expected = functools.reduce(lambda left, warper: warper(None, left), warpers, table).softmax(-1)
    assert torch.allclose(probabilities(table, [option]), expected, atol=1e-9)


@given(SCORES, st.lists(st.integers(0, 5), min_size=1), st.floats(0.2, 3))
def test_the_repetition_penalty_is_transformers_own(scores: list[float], sequence: list[int], penalty: float) -> None:
    expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([sequence]), torch.tensor([scores]))
    seen = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, torch.tensor(sequence), True)
    ours = penalise(torch.tensor([scores]), seen, torch.zeros(1, 6), [resolve(GenerationOptions(repetition_penalty=penalty))])
    assert torch.allclose(ours, expected)


@given(st.lists(SCORES, min_size=1, max_size=5), st.data())
def test_a_rows_distribution_does_not_depend_on_the_rows_beside_it(table: list[list[float]], data: st.DataObject) -> None:
    options = [data.draw(rows()).options for _ in table]
    options = [
        resolve(GenerationOptions(temperature=option.temperature or 1.0, top_k=option.top_k, top_p=option.top_p, min_p=option.min_p)) for option in options
    ]
    together = probabilities(torch.tensor(table), options)
    for at, (scores, option) in enumerate(zip(table, options, strict=True)):
        assert torch.allclose(together[at], probabilities(torch.tensor([scores]), [option])[0], atol=1e-6)


@given(st.lists(st.integers(0, 9), min_size=1).filter(any), st.floats(0, 1, exclude_max=True))
def test_a_token_is_drawn_where_the_summed_probabilities_pass_the_number(weights: list[int], uniform: float) -> None:
    chances = torch.tensor([weights], dtype=torch.float64) / sum(weights)
    token = int(draw(chances, [uniform]).item())
    assert weights[token] > 0
    assert sum(weights[:token]) / sum(weights) <= uniform + 1e-9
    assert sum(weights[: token + 1]) / sum(weights) >= uniform - 1e-9


# --- the engine ----------------------------------------------------------------------------------------------------------------------------------------


@FEW
@given(prompts=st.lists(st.lists(st.integers(3, 400), min_size=1, max_size=24), min_size=1, max_size=5), count=st.integers(1, 16))
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_ids_are_those_of_generate_at_batch_1(family: str, prompts: list[list[int]], count: int) -> None:  # B7
    own = engine(family)
    answers = own.generate([encoded(prompt, max_new_tokens=count) for prompt in prompts])
    model = own._weights.model()
    for prompt, slot in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt])
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, eos_token_id=list(own.eos_token_ids), pad_token_id=0
        )
        assert slot.unwrap().token_ids == tuple(whole[0, len(prompt) :].tolist())


@FEW
@given(batch=st.lists(rows(), min_size=2, max_size=6), data=st.data())
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_a_row_gets_what_it_gets_alone_in_any_batch_and_any_order(family: str, batch: list[Encoded], data: st.DataObject) -> None:  # B6, B7, B8
    own = engine(family)
    order = data.draw(st.permutations(range(len(batch))))
    together = own.generate([batch[at] for at in order])
    for at, slot in zip(order, together, strict=True):
        assert slot == own.generate([batch[at]])[0]
        assert isinstance(slot, Success)
