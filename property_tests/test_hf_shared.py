"""Sequences that share a prefix have in float32 the ids and logprobs of each alone; whichever
enters, leaves and ends, and however often memory is full.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings, strategies as st

torch = pytest.importorskip("torch")

from support.models import encoded, write_model  # noqa: E402

from pipegen.backends.hf.hf_engine import HFEngine  # noqa: E402
from pipegen.backends.hf.running_batch import RunningBatch  # noqa: E402
from pipegen.engines.settings import ModelLoadConfig  # noqa: E402
from pipegen.records.options import StopOptions  # noqa: E402
from pipegen.records.results import Encoded  # noqa: E402
from pipegen.records.scores import ScoreInput  # noqa: E402

FEW = settings(max_examples=max(5, settings().max_examples // 12))
"""For laws of which each example runs a model several times."""
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
SOME = st.lists(st.integers(20, 26), min_size=1, max_size=9).map(tuple)


@functools.cache
def engine(family: str, memory: int | None = None, size: int = 4) -> Any:
    """An engine whose rows share beginnings of few tokens, so that short rows show everything."""
    with tempfile.TemporaryDirectory() as root:
        folder = str(write_model(Path(root) / family, family))
        made = HFEngine(
            ModelLoadConfig(
                model=folder, dtype="float32", batch_size=size, prefix_memory_bytes=memory
            )
        )
        tokenizer: Any = made.tokenizer
        _ = made.computing.loaded(), made.eos_token_ids, tokenizer.raw
    for shares in (made.computing.prefixes, made.computing.scored_prefixes):
        shares._least, shares._saved, shares._held = 2, 4, 2
    made.computing.sharing = 2 * size
    return made


@st.composite
def trees(choose: st.DrawFn) -> list[tuple[int, ...]]:
    """Prompts of beginnings that stand on each other, or on nothing."""
    beginnings: list[tuple[int, ...]] = [()]
    for _ in range(choose(st.integers(1, 3))):
        beginnings.append((*choose(st.sampled_from(beginnings)), *choose(SOME)))
    return [
        (*choose(st.sampled_from(beginnings)), *choose(SOME))
        for _ in range(choose(st.integers(2, 7)))
    ]


@st.composite
def rows(choose: st.DrawFn, prompts: Sequence[tuple[int, ...]]) -> list[Encoded]:
    """Rows of these prompts, with samples of some of them."""
    return [
        encoded(
            ids,
            max_new_tokens=choose(st.integers(1, 12)),
            temperature=choose(st.sampled_from([0.0, 1.5])),
            seed=choose(st.integers(0, 99)),
            logprobs=True,
            stop=StopOptions(stop_token_ids=choose(st.sampled_from([(), tuple(range(3, 60))]))),
        )
        for ids in prompts
        for _ in range(choose(st.sampled_from([1, 1, 2, 5])))
    ]


def same(slots: Sequence[Any], expected: Sequence[Any]) -> None:
    for slot, other in zip(slots, expected, strict=True):
        one, two = slot.unwrap(), other.unwrap()
        assert one.token_ids == two.token_ids
        numbers = [[token.logprob for token in raw.logprobs] for raw in (one, two)]
        assert numbers[0] == pytest.approx(numbers[1], abs=2e-5)


@FEW
@given(data=st.data())
@pytest.mark.parametrize("family", ["qwen3", "llama", "mistral", "gemma3"])
def test_a_row_does_not_depend_on_who_shares_with_it(family: str, data: st.DataObject) -> None:
    own, plain = engine(family), engine(family, 0)
    own.computing.prefixes.clear()
    shared, prompts = [0], data.draw(trees())
    # steps of several rows at which the memory is full
    full = data.draw(st.sets(st.integers(0, 20), max_size=2))
    step, count = RunningBatch.step, iter(range(10**6))

    def watched(batch: RunningBatch, *args: Any, **more: Any) -> Any:
        shared[0] = max(shared[0], batch.shared)
        if len(batch) > 1 and next(count) in full:
            raise FULL
        return step(batch, *args, **more)

    for _ in range(2):
        asked = data.draw(rows(prompts))
        # each alone, by an engine that shares nothing
        expected = [plain.generate([one])[0] for one in asked]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(RunningBatch, "step", watched)
            slots = own.generate(asked)
        own.computing.traits.max_tokens = None
        same(slots, expected)
        # conversations that go on, together with new rows
        prompts = [
            (*one.prompt.token_ids, *slot.unwrap().token_ids, *data.draw(SOME))
            for one, slot in zip(asked[:4], slots[:4], strict=True)
        ] + data.draw(trees())
    event(f"tokens that rows shared: {min(shared[0], 8)}")


@FEW
@given(data=st.data())
@pytest.mark.parametrize("family", ["qwen3", "mistral"])
def test_the_scores_of_a_row_do_not_depend_on_who_shares_its_context(
    family: str, data: st.DataObject
) -> None:
    asked = [
        ScoreInput(encoded=encoded(ids, max_new_tokens=1), continuation=data.draw(SOME))
        for ids in data.draw(trees())
        for _ in range(data.draw(st.sampled_from([1, 2, 4])))
    ]
    own, alone = engine(family), engine(family, 0, 1)
    alone.computing.scored_prefixes._held = math.inf
    together = own.computing.scores([*enumerate(asked)])
    for place, row in enumerate(asked):
        scores, expected = together[place].unwrap(), alone.computing.scores([(0, row)])[0].unwrap()
        assert scores.logprobs == pytest.approx(expected.logprobs, abs=2e-5)
        assert [token for token, _ in scores.likeliest] == [
            token for token, _ in expected.likeliest
        ]
