"""Greedy ids of the Hugging Face engine in float32 are those of transformers' own `generate`;
sampling has the distribution of its warpers; a result does not depend on its batch.
"""

from __future__ import annotations

import functools
import itertools
import math
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")

import transformers  # noqa: E402
from returns.result import Success  # noqa: E402
from support.models import FAMILIES, HYBRIDS, encoded, write_model  # noqa: E402

from pipegen.backends.hf.hf_engine import HFEngine  # noqa: E402
from pipegen.backends.hf.hf_rows import SPARE, HFRow, group_size  # noqa: E402
from pipegen.backends.hf.hf_sampling import draw, narrow, penalise  # noqa: E402
from pipegen.engines.settings import ModelLoadConfig  # noqa: E402
from pipegen.records.messages import ImageSource  # noqa: E402
from pipegen.records.option_groups import StopOptions  # noqa: E402
from pipegen.records.option_records import GenerationOptions  # noqa: E402
from pipegen.records.option_table import DEFAULTS  # noqa: E402
from pipegen.records.options import resolve  # noqa: E402
from pipegen.records.results import Encoded, PreparedImage  # noqa: E402
from pipegen.testing.image_files import image_file  # noqa: E402
from pipegen.testing.toy import ToyTokenizer  # noqa: E402

FEW = settings(max_examples=max(3, settings().max_examples // 12))
"""For laws of which each example runs a model several times."""


@functools.cache
def engine(family: str, batch_size: int | None = None) -> Any:
    with tempfile.TemporaryDirectory() as root:
        made = HFEngine(
            ModelLoadConfig(
                model=str(write_model(Path(root) / family, family)),
                dtype="float32",
                batch_size=batch_size,
            )
        )
        _ = (
            made.computing.loaded(),
            made.eos_token_ids,
            cast("Any", made.tokenizer).raw,
            made.image_placeholder and made._checkpoint.image_spec,
        )
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
        stop=StopOptions(
            stop=choose(st.sampled_from([(), ("e",), ("th", "a b")])),
            ignore_eos=choose(st.booleans()),
        ),
    )


# --- the plan
# ------------------------------------------------------------------------------------------------------------------------------------------

PROMPTS = st.lists(st.integers(1, 300), max_size=20)


def plan(prompts: list[int], rows: int, tokens: int | None = None) -> list[list[int]]:
    """The lengths of prompts, in the groups in which they are read."""
    left, groups = prompts, list[list[int]]()
    while left:
        size = group_size(left, rows, tokens)
        groups, left = [*groups, left[:size]], left[size:]
    return groups


@given(PROMPTS, st.integers(1, 7), st.none() | st.integers(1, 900))
def test_a_plan_holds_every_prompt_exactly_once_in_groups_that_fit(
    lengths: list[int], rows: int, tokens: int | None
) -> None:
    groups = plan(lengths, rows, tokens)
    assert [length for group in groups for length in group] == lengths
    for group in groups:
        assert 1 <= len(group) <= rows
        assert tokens is None or len(group) == 1 or len(group) * max(group) <= tokens
        assert len(group) * max(group) - sum(group) <= max(SPARE, sum(group) // 4)


@given(PROMPTS, st.integers(1, 7))
def test_a_group_ends_only_where_one_more_row_would_not_do(lengths: list[int], rows: int) -> None:
    groups = plan(lengths, rows)
    for group, after in itertools.pairwise(groups):
        prompts = [*group, after[0]]
        assert len(group) == rows or len(prompts) * max(prompts) - sum(prompts) > max(
            SPARE, sum(prompts[:-1]) // 4
        )


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.integers(1, 300),
            st.sampled_from([None, None, (1, 2, 2), (1, 8, 8)]),
        ),
        max_size=20,
    )
)
def test_the_longest_answers_go_first_then_the_longest_prompts_with_their_images(
    costs: list[tuple[int, int, tuple[int, int, int] | None]],
) -> None:
    made: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for answer, prompt, grid in costs:
        images = (
            []
            if grid is None
            else [PreparedImage(width=1, height=1, rgb=bytes(3), digest="", grid=grid, tokens=1)]
        )
        row = HFRow(
            0, encoded([3] * prompt, images=images, max_new_tokens=answer), ToyTokenizer(), (), ()
        )
        made.append((row.order, (answer, prompt + math.prod(grid or (0,)))))
    assert [cost for _, cost in sorted(made, key=lambda pair: pair[0])] == sorted(
        (cost for _, cost in made), reverse=True
    )


# --- sampling
# ------------------------------------------------------------------------------------------------------------------------------------------

SCORES = st.lists(st.integers(-40, 40), min_size=6, max_size=6, unique=True).map(
    lambda numbers: [0.53 * number for number in numbers]
)
"""Apart from each other, so that no score sits on a threshold to the last bit."""


@given(SCORES, st.floats(0.1, 3), st.integers(0, 8), st.floats(0.05, 1), st.floats(0, 1))
def test_the_distribution_is_that_of_transformers_warpers(
    scores: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """In vLLM's order: temperature, min_p, top_k, top_p."""
    warpers: list[Any] = [
        transformers.TemperatureLogitsWarper(temperature),
        transformers.MinPLogitsWarper(min_p),
    ]
    warpers += [transformers.TopKLogitsWarper(top_k)] if top_k else []
    warpers += [transformers.TopPLogitsWarper(top_p)] if top_p < 1 else []
    table = torch.tensor([scores], dtype=torch.float64)
    option = resolve(
        GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    )
    expected = functools.reduce(lambda left, warper: warper(None, left), warpers, table).softmax(-1)
    assert torch.allclose(narrow(table, [option]).softmax(-1), expected, atol=1e-9)


@given(SCORES, st.lists(st.integers(0, 5), min_size=1), st.floats(0.2, 3))
def test_the_repetition_penalty_is_transformers_own(
    scores: list[float], sequence: list[int], penalty: float
) -> None:
    expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([sequence]), torch.tensor([scores])
    )
    seen = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, torch.tensor(sequence), True)
    ours = penalise(
        torch.tensor([scores]),
        seen,
        torch.zeros(1, 6),
        [resolve(GenerationOptions(repetition_penalty=penalty))],
    )
    assert torch.allclose(ours, expected)


@given(st.lists(SCORES, min_size=1, max_size=5), st.data())
def test_a_rows_distribution_does_not_depend_on_the_rows_beside_it(
    table: list[list[float]], data: st.DataObject
) -> None:
    options = [data.draw(rows()).options for _ in table]
    options = [
        resolve(
            GenerationOptions(
                temperature=option.temperature or 1.0,
                top_k=option.top_k,
                top_p=option.top_p,
                min_p=option.min_p,
            )
        )
        for option in options
    ]
    together = narrow(torch.tensor(table), options).softmax(-1)
    for at, (scores, option) in enumerate(zip(table, options, strict=True)):
        alone = narrow(torch.tensor([scores]), [option])[0].softmax(-1)
        assert torch.allclose(together[at], alone, atol=1e-6)


@given(st.lists(st.integers(0, 9), min_size=1).filter(any), st.floats(0, 1, exclude_max=True))
def test_a_token_is_drawn_where_the_summed_probabilities_pass_the_number(
    weights: list[int], uniform: float
) -> None:
    chances = torch.tensor([weights], dtype=torch.float64) / sum(weights)
    token = int(draw(chances, [uniform]).item())
    assert weights[token] > 0
    assert sum(weights[:token]) / sum(weights) <= uniform + 1e-9
    assert sum(weights[: token + 1]) / sum(weights) >= uniform - 1e-9


# --- the engine
# ----------------------------------------------------------------------------------------------------------------------------------------


@st.composite
def mixes(choose: st.DrawFn) -> list[Encoded]:
    """Greedy rows of any lengths, some with the same prompt, some with a stop that their model may
    meet.
    """
    prompts = choose(
        st.lists(st.lists(st.integers(3, 400), min_size=1, max_size=24), min_size=1, max_size=4)
    )
    return [
        encoded(
            choose(st.sampled_from(prompts)),
            max_new_tokens=choose(st.integers(1, 16)),
            stop=StopOptions(
                stop=choose(st.sampled_from([(), ("e",), ("th", "a b")])),
                stop_token_ids=choose(st.sampled_from([(), tuple(range(3, 40))])),
            ),
        )
        for _ in range(choose(st.integers(1, 9)))
    ]


@FEW
@given(inputs=mixes(), size=st.sampled_from([2, 4]))
@pytest.mark.parametrize("family", [*FAMILIES, *HYBRIDS])
# B7
def test_greedy_ids_are_those_of_generate_at_batch_1_whoever_comes_and_goes(
    family: str, inputs: list[Encoded], size: int
) -> None:
    own = engine(family, size)
    before = own.work
    answers = own.generate(inputs)
    model = own.computing.loaded()
    for row, slot in zip(inputs, answers, strict=True):
        ids = torch.tensor([row.prompt.token_ids])
        settings_ = {
            "do_sample": False,
            "max_new_tokens": row.options.max_new_tokens,
            "eos_token_id": list(own.eos_token_ids),
            "pad_token_id": 0,
        }
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), **settings_)
        made = slot.unwrap().token_ids
        assert made == tuple(whole[0, ids.shape[1] :].tolist())[: len(made)]
        assert len(made) == whole.shape[1] - ids.shape[1] or row.options.stop != StopOptions(
            stop=(), stop_token_ids=()
        )
    work = own.work
    # the first token of a row comes out of reading its prompt
    needed = sum(len(slot.unwrap().token_ids) - 1 for slot in answers)
    assert (
        work.row_steps - before.row_steps
        == work.needed_row_steps - before.needed_row_steps
        == needed
    )
    assert work.prompt_tokens - before.prompt_tokens == sum(
        map(len, {row.prompt.token_ids for row in inputs})
    )


@FEW
@given(batch=st.lists(rows(), min_size=2, max_size=6), size=st.sampled_from([2, 4]), data=st.data())
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "qwen3_next"])
# B6, B7, B8
def test_a_row_gets_what_it_gets_alone_in_any_batch_and_any_order(
    family: str, batch: list[Encoded], size: int, data: st.DataObject
) -> None:
    own = engine(family, size)
    shuffled = data.draw(st.permutations(range(len(batch))))
    together = own.generate([batch[at] for at in shuffled])
    for at, slot in zip(shuffled, together, strict=True):
        assert slot == own.generate([batch[at]])[0]
        assert isinstance(slot, Success)


@functools.cache
def image_files() -> tuple[Any, ...]:
    sizes = ((32, 32), (64, 40), (100, 60))
    sources = [ImageSource(data=image_file(width=width, height=height)) for width, height in sizes]
    return tuple(
        engine("qwen3_vl", 2).prepare_image(source, DEFAULTS.preprocess, 0).unwrap()
        for source in sources
    )


@FEW
@given(data=st.data(), size=st.sampled_from([2, 4]))
def test_rows_with_images_come_and_go_too(data: st.DataObject, size: int) -> None:
    own = engine("qwen3_vl", size)
    mark = own._checkpoint.image_token_id

    def row() -> Encoded:
        images = data.draw(st.lists(st.sampled_from(image_files()), max_size=2))
        before = data.draw(st.lists(st.integers(60, 90), min_size=1, max_size=9))
        ids = [*before, *(token for image in images for token in (*[mark] * image.tokens, 70))]
        return encoded(ids, images=images, max_new_tokens=data.draw(st.integers(1, 12)))

    inputs = [row() for _ in range(data.draw(st.integers(2, 7)))]
    assert own.generate(inputs) == [own.generate([one])[0] for one in inputs]
