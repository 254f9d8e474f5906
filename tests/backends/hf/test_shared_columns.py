"""Beginnings that rows share are held once and read once, and change no token."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import encoded
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from pipegen.backends.hf import attention, cache as caches, shared_columns
from pipegen.backends.hf.first_steps import WAYS
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.backends.hf.running_batch import RunningBatch
from pipegen.backends.hf.shared_columns import ColumnSpan, KeyValues, SharedKeys, shared_runs
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.option_groups import StopOptions
from pipegen.records.scores import ScoreInput

ON = StopOptions(ignore_eos=True)
HEAD, BRANCH = tuple(range(20, 120)), tuple(range(150, 199))


@pytest.fixture
def opened(folder_of: Callable[[str], Any]) -> Callable[..., HFEngine]:
    """A new engine of a family, which makes no steps to check itself unless it is asked to."""
    return lambda family="qwen3", size=8, self_check=False, **more: HFEngine(
        ModelLoadConfig(
            model=str(folder_of(family)),
            dtype="float32",
            batch_size=size,
            self_check=self_check,
            **more,
        )
    )


class Held:
    """What a step had: rows, the columns that each holds, and the runs that rows share."""

    def __init__(self, batch: RunningBatch) -> None:
        self.rows, self.width, self.shared = len(batch), batch.width, batch.shared
        chains = caches.chains_of(batch.cache)
        self.chains = [[run.end - run.first for run in chain] for chain in chains]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Held]]:
    """Every step of a running batch, before it is made."""
    seen, step = list[Held](), RunningBatch.step

    def watched(batch: RunningBatch, *args: Any, **more: Any) -> Any:
        seen.append(Held(batch))
        return step(batch, *args, **more)

    monkeypatch.setattr(RunningBatch, "step", watched)
    return seen


def some(chance: random.Random, count: int) -> tuple[int, ...]:
    return tuple(chance.randrange(20, 200) for _ in range(count))


def row(ids: tuple[int, ...], **more: Any) -> Any:
    return encoded(ids, **{"max_new_tokens": 9, "stop": ON, "logprobs": True, **more})


def check(slots: Any, expected: Any) -> None:
    """The ids are the same, and the log probabilities within 2e-5."""
    for slot, other in zip(slots, expected, strict=True):
        one, two = slot.unwrap(), other.unwrap()
        assert one.token_ids == two.token_ids
        assert [token.logprob for token in one.logprobs] == pytest.approx(
            [token.logprob for token in two.logprobs], abs=2e-5
        )


# --- the attention
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["flash", "plain", "plain, in pieces"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("masked", ["", "bool", "float"])
def test_attention_in_parts_is_that_over_whole_rows(
    kernel: str,
    dtype: torch.dtype,
    heads: tuple[int, int],
    queries: int,
    masked: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance, rows, own = torch.Generator().manual_seed(0), 4, 7
    size = 8 if kernel == "flash" else 6  # values of another size have no kernel

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=chance).to(dtype)

    if kernel == "plain, in pieces":
        monkeypatch.setattr(shared_columns, "_SCORES", 4 * 4 * 7)
    query = random(rows, heads[0], queries, 8)
    key, value = random(rows, heads[1], own, 8), random(rows, heads[1], own, size)
    root, branch = (
        (random(heads[1], count, 8), random(heads[1], count, size)) for count in (11, 5)
    )
    parts = [(*root, None), (*branch, torch.tensor([3, 1]))]
    mask = torch.ones(rows, 1, queries, own, dtype=torch.bool).tril(own - queries)
    if masked:  # the columns on the left are padding
        mask &= (torch.arange(own) >= torch.tensor([0, 2, 1, 0])[:, None])[:, None, None]
    whole_mask = torch.cat([torch.ones(rows, 1, queries, 16, dtype=torch.bool), mask], dim=-1)
    whole_mask[[0, 2], ..., 11:16] = False
    whole_key, whole_value = (
        torch.cat([first.expand(rows, -1, -1, -1), second.expand(rows, -1, -1, -1), last], dim=2)
        for first, second, last in zip(root, branch, (key, value), strict=True)
    )
    module = torch.nn.Module()
    module.num_key_value_groups = heads[0] // heads[1]  # type: ignore[assignment]
    expected, _ = sdpa_attention_forward(
        module, query, whole_key, whole_value, whole_mask, scaling=0.3
    )
    given = None if not masked else mask
    if masked == "float":
        given = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)
    shared = SharedKeys(parts)
    seen, weights = attention.grouped_sdpa(
        module, query, shared.beside(key), value, given, scaling=0.3
    )
    assert weights is None and shared.read
    assert (seen.shape, seen.dtype) == (expected.shape, dtype)
    assert torch.allclose(seen, expected, atol=0.03 if dtype == torch.bfloat16 else 2e-6)


def test_a_query_that_sees_nothing_of_its_own_columns_gives_numbers() -> None:
    query, key = torch.randn(1, 2, 2, 8), torch.randn(1, 2, 3, 8)
    mask = torch.tensor([[False] * 3, [True] * 3])[None, None]
    for value in (torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 6)):
        shared = SharedKeys([(key[0], value[0], None)])
        assert shared_columns.attend(query, key, value, mask, None, shared).isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "size", "masked", "flash"),
    [
        (torch.bfloat16, 8, False, True),
        (torch.float16, 8, False, True),
        (torch.bfloat16, 8, True, False),
        (torch.bfloat16, 6, False, False),
        (torch.float32, 8, False, False),
    ],
)
def test_a_gpu_reads_what_is_shared_by_its_flash_attention(
    dtype: torch.dtype, size: int, masked: bool, flash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors without numbers show which operator a GPU runs, and the shapes that it gives."""

    def in_half_precision(asked: Any) -> bool:
        return asked.query.dtype in {torch.float16, torch.bfloat16}

    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", in_half_precision)
    with FakeTensorMode():
        query, key = (torch.empty(1, 2, n, size, dtype=dtype, device="cuda") for n in (12, 5))
        mask = torch.empty(1, 1, 1, 5, dtype=dtype, device="cuda") if masked else None
        assert (shared_columns._kernel(query, key, key, mask) is not None) == flash
        if flash:
            out, sums = shared_columns._with_sums(query, key, key, mask, 0.3)
            assert (out.shape, sums.shape) == ((1, 2, 12, size), (1, 2, 12))
            assert out.dtype == sums.dtype == torch.float32


def test_models_that_make_other_keys_of_those_in_the_cache_share_nothing() -> None:
    from transformers.models.jetmoe.modeling_jetmoe import JetMoeForCausalLM
    from transformers.models.mllama.modeling_mllama import MllamaForCausalLM
    from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

    kinds: list[Any] = [JetMoeForCausalLM, MllamaForCausalLM, Qwen3ForCausalLM]
    assert [attention._changes_keys(kind) for kind in kinds] == [True, False, False]


def test_a_bias_of_each_head_is_refused() -> None:
    key = SharedKeys([]).beside(torch.zeros(1, 2, 3, 8))
    query, module = torch.zeros(1, 2, 1, 8), torch.nn.Module()
    with pytest.raises(ValueError, match="one mask for all heads"):
        attention.grouped_sdpa(module, query, key, key, torch.zeros(1, 2, 1, 3))


# --- what is shared
# --------------------------------------------------------------------------------------


def test_runs_are_shared_where_that_saves_columns() -> None:
    root, branch, own = KeyValues([]), KeyValues([]), KeyValues([])
    rows = [
        [(root, 100), (branch, 60)],
        [(root, 100), (branch, 60), (own, 900)],
        [(root, 100)],
        [(root, 70)],
        [],
    ]
    whole = [
        (ColumnSpan(root, 0, 70), ColumnSpan(root, 70, 100), ColumnSpan(branch, 0, 60)),
        (ColumnSpan(root, 0, 70), ColumnSpan(root, 70, 100), ColumnSpan(branch, 0, 60)),
        (ColumnSpan(root, 0, 70), ColumnSpan(root, 70, 100)),
        (ColumnSpan(root, 0, 70),),
        (),
    ]
    assert shared_runs(rows, least=32, saved=60) == whole
    # too few rows, but for what several rows had before
    assert root.several and branch.several and not own.several
    assert shared_runs(rows[:1], least=32, saved=60) == [
        (ColumnSpan(root, 0, 100), ColumnSpan(branch, 0, 60))
    ]
    assert shared_runs(rows[:1], least=80, saved=60) == [(ColumnSpan(root, 0, 100),)]
    assert shared_runs(rows[1:2], least=32, saved=60) == [
        (ColumnSpan(root, 0, 100), ColumnSpan(branch, 0, 60))
    ]
    # a run that is not shared ends what a row shares
    assert shared_runs([[(KeyValues([]), 9), (root, 100)]] * 2, least=32, saved=10) == [(), ()]


def test_rows_hold_what_they_share_once(opened: Callable[..., HFEngine], steps: list[Held]) -> None:
    chance = random.Random(0)
    rows = [row(HEAD + some(chance, 3 + at)) for at in range(6)]
    check(opened().generate(rows), opened(prefix_memory_bytes=0).generate(rows))
    shared, copied = steps[: len(steps) // 2], steps[len(steps) // 2 :]
    assert {(held.rows, held.shared) for held in shared} == {(6, 100)}
    assert [held.width for held in shared] == [8 + at for at in range(len(shared))]
    assert copied[0].width == 108 and not any(held.chains for held in copied)


def test_several_beginnings_a_tree_of_them_and_none_run_in_one_batch(
    opened: Callable[..., HFEngine], steps: list[Held]
) -> None:
    chance = random.Random(1)
    engine, plain = opened(size=16), opened(size=16, prefix_memory_bytes=0)
    prompts = [
        *(HEAD + BRANCH + BRANCH + some(chance, 2 + at) for at in range(4)),
        *(HEAD + some(chance, 40 + at) for at in range(3)),
        *(BRANCH * 3 + some(chance, 5) for _ in range(3)),
        some(chance, 12),
        some(chance, 30),
    ]
    rows = [row(ids, max_new_tokens=20 + at % 4) for at, ids in enumerate(prompts)]
    check(engine.generate(rows), plain.generate(rows))
    chains = max((held.chains for held in steps), key=lambda chains: sum(map(bool, chains)))
    assert sorted(sum(map(bool, chain)) for chain in chains)[-4:] == [2, 2, 2, 2]
    assert {sum(chain) for chain in chains} == {0, 100, 147, 198}


def test_a_row_that_comes_later_shares_what_others_hold(
    opened: Callable[..., HFEngine], steps: list[Held]
) -> None:
    chance = random.Random(2)
    # five rows in four slots: the fifth is alone in its pass
    rows = [
        row(HEAD + some(chance, 5), max_new_tokens=6 + 9 * (at > 0), temperature=1.0, seed=at)
        for at in range(5)
    ]
    engine = opened(size=4)
    check(engine.generate(rows), opened(prefix_memory_bytes=0).generate(rows))
    own = [held for held in steps if held.chains]
    assert max(held.shared for held in own) == 100 and max(held.width for held in own) < 30
    later = [row(HEAD + some(chance, 7))]
    del steps[:]
    check(engine.generate(later), opened(prefix_memory_bytes=0).generate(later))
    assert steps[0].chains == [[100]]


def test_samples_of_one_prompt_hold_it_once(
    opened: Callable[..., HFEngine], steps: list[Held]
) -> None:
    rows = [row(HEAD, temperature=1.5, seed=at, max_new_tokens=3 + at) for at in range(12)]
    check(opened().generate(rows), opened(prefix_memory_bytes=0).generate(rows))
    held = [held for held in steps if held.chains]
    assert all(held.shared == 99 and held.width <= 16 for held in held) and held
    # and a beginning below it
    del steps[:]
    prompts = [HEAD + BRANCH + (at,) for at in (30, 31, 32)]
    rows = [row(ids, temperature=1.5, seed=at) for ids in prompts for at in range(5)]
    check(opened(size=15).generate(rows), opened(prefix_memory_bytes=0).generate(rows))
    assert steps[0].chains


@pytest.mark.parametrize("family", ["mistral", "gemma3", "cohere2"])
def test_a_window_that_covers_the_beginning_shares_it_until_a_row_outgrows_it(
    family: str,
    folder_of: Callable[[str], Any],
    tmp_path: Path,
    steps: list[Held],
) -> None:
    folder = tmp_path / family
    shutil.copytree(folder_of(family), folder)
    config = json.loads((folder / "config.json").read_text())
    config["sliding_window"] = 120
    (folder / "config.json").write_text(json.dumps(config))
    shared, plain = (
        HFEngine(
            ModelLoadConfig(
                model=str(folder), dtype="float32", self_check=False, prefix_memory_bytes=limit
            )
        )
        for limit in (None, 0)
    )
    chance = random.Random(3)
    rows = [row(HEAD + some(chance, 4 + at), max_new_tokens=4 + 9 * at) for at in range(4)]
    check(shared.generate(rows), plain.generate(rows))
    chained = [bool(held.chains) for held in steps]
    assert chained[0]
    assert chained.index(False) > 3  # then a row is longer than the window
    samples = [row(HEAD, temperature=1.5, seed=at, max_new_tokens=40) for at in range(6)]
    check(shared.generate(samples), plain.generate(samples))


def test_continuations_of_one_context_share_its_columns(
    opened: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, widths = random.Random(4), list[int]()
    contexts = [HEAD + some(chance, 40), HEAD + some(chance, 70), some(chance, 90)]
    rows = [
        ScoreInput(encoded=row(ids), continuation=some(chance, 2 + at))
        for ids in contexts
        for at in range(4)
    ]
    beside = SharedKeys.beside

    def watched(keys: SharedKeys, own: torch.Tensor) -> torch.Tensor:
        widths.append(own.shape[-2])
        return beside(keys, own)

    monkeypatch.setattr(SharedKeys, "beside", watched)
    engine = opened()
    scores = engine.computing.scores([*enumerate(rows)])
    assert widths and max(widths) < 75
    copying = opened()
    copying.computing.scored_prefixes._held = float("inf")
    before = len(widths)
    expected = copying.computing.scores([*enumerate(rows)])
    assert len(widths) == before
    for at in range(len(rows)):
        one, two = scores[at].unwrap(), expected[at].unwrap()
        assert one.logprobs == pytest.approx(two.logprobs, abs=2e-5)
        assert [token for token, _ in one.likeliest] == [token for token, _ in two.likeliest]


def test_what_was_generated_behind_a_shared_beginning_stays_when_that_has_gone(
    opened: Callable[..., HFEngine],
) -> None:
    engine, chance = opened(), random.Random(5)
    rows = [row(HEAD + some(chance, 3 + at)) for at in range(4)]
    step = RunningBatch.step

    def forgetting(batch: RunningBatch, *args: Any, **more: Any) -> Any:
        engine.computing.prefixes._tree.clear()
        return step(batch, *args, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunningBatch, "step", forgetting)
        answers = [slot.unwrap().token_ids for slot in engine.generate(rows)]
    turns = [
        row((*one.prompt.token_ids, *ids, 30, 31)) for one, ids in zip(rows, answers, strict=True)
    ]
    before = engine.work.prompt_tokens
    check(engine.generate(turns), opened(prefix_memory_bytes=0).generate(turns))
    assert engine.work.prompt_tokens - before == 3 * 4


def test_a_model_that_does_not_read_what_is_shared_is_an_error(
    opened: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row((*HEAD, at)) for at in range(30, 34)]
    monkeypatch.setattr(SharedKeys, "beside", lambda shared, keys: keys)
    with pytest.raises(RuntimeError, match="has not read the keys and values that rows share"):
        opened().generate(rows)
    # the check of first steps finds that, and transformers' attention shares nothing
    assert opened().check() == WAYS[1]


def test_the_check_of_first_steps_finds_a_wrong_sum_of_parts(
    opened: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    lerp = torch.lerp
    monkeypatch.setattr(torch, "lerp", lambda own, part, weight: lerp(own, part, weight / 2))
    assert opened().check() == WAYS[1]


def test_compiled_steps_and_other_attention_share_nothing_in_their_rows(
    opened: Callable[..., HFEngine], steps: list[Held]
) -> None:
    assert opened(compile=True).computing.prefixes._held == float("inf")
    rows = [row((*HEAD, at)) for at in range(30, 34)]
    check(opened(attn_implementation="eager").generate(rows), opened().generate(rows))
    assert [bool(held.chains) for held in steps] == [False] * 8 + [True] * 8


def test_as_many_rows_run_as_the_memory_takes_of_what_they_hold(
    opened: Callable[..., HFEngine], steps: list[Held]
) -> None:
    chance = random.Random(6)
    engine, plain = opened(), opened(prefix_memory_bytes=0)
    rows = [row(HEAD + some(chance, 5)) for _ in range(8)]
    check(engine.generate(rows), plain.generate(rows))
    del steps[:]
    engine.computing.traits.max_tokens = plain.computing.traits.max_tokens = 8 * 20
    check(engine.generate(rows), plain.generate(rows))
    assert max(held.rows for held in steps if held.chains) == 8
    assert max(held.rows for held in steps if not held.chains) == 1


@pytest.mark.parametrize(
    ("size", "head", "new", "most"),
    [
        (None, HEAD, 9, {64}),
        (None, HEAD, 120, range(50, 58)),  # they end at many columns of their own
        (32, HEAD, 9, {32}),
        (None, (), 9, {32}),
    ],
    ids=["by default", "rows that grow long", "a batch_size", "nothing shared"],
)
def test_more_rows_run_where_they_hold_no_more_columns_than_rows_that_share_nothing(
    opened: Callable[..., HFEngine],
    steps: list[Held],
    size: int | None,
    head: tuple[int, ...],
    new: int,
    most: Collection[int],
) -> None:
    chance = random.Random(7)
    rows = [row(head + some(chance, 5), max_new_tokens=new) for _ in range(70)]
    answers = opened(size=size).generate(rows)
    assert max(held.rows for held in steps) in most
    columns = [held.rows * held.width + held.shared for held in steps]
    assert max(columns) <= 32 * (len(head) + 5 + new)
    check(answers, opened(size=size, prefix_memory_bytes=0).generate(rows))


def test_rows_that_the_model_raises_for_fail_alone_where_more_rows_run(
    opened: Callable[..., HFEngine],
) -> None:
    engine, sizes = opened(size=None), list[int]()

    def embed(module: Any, given: Any) -> None:
        if given[0].shape[1] == 1:
            sizes.append(len(given[0]))
            raise ValueError("a fault of the model")

    with engine.computing.loaded().get_input_embeddings().register_forward_pre_hook(embed):
        slots = engine.generate([row(HEAD, temperature=1.5, seed=at) for at in range(64)])
    assert sizes[0] == 64 and min(sizes) == 1
    assert all("a fault of the model" in str(slot.failure()) for slot in slots)
