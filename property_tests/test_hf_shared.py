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

import pipegen as pg  # noqa: E402
from pipegen.backends.hf.hf_engine import HFEngine  # noqa: E402
from pipegen.backends.hf.hf_sampling import Sampler  # noqa: E402
from pipegen.backends.hf.running_batch import RunningBatch  # noqa: E402
from pipegen.backends.hf.scheduler import Schedule  # noqa: E402
from pipegen.engines.settings import ModelLoadConfig  # noqa: E402
from pipegen.records.option_groups import StopOptions  # noqa: E402
from pipegen.records.results import Encoded  # noqa: E402
from pipegen.records.scores import ScoreInput  # noqa: E402

FEW = settings(max_examples=max(3, settings().max_examples // 12))
"""For laws of which each example runs a model several times."""
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
SOME = st.lists(st.integers(20, 26), min_size=1, max_size=9).map(tuple)


@functools.cache
def engine(
    family: str, memory: int | None = None, size: int | None = 4, deterministic: bool = False
) -> Any:
    """An engine whose rows share beginnings of few tokens, so that short rows show everything."""
    with tempfile.TemporaryDirectory() as root:
        folder = str(write_model(Path(root) / family, family))
        made = HFEngine(
            ModelLoadConfig(
                model=folder,
                dtype="float32",
                batch_size=size,
                prefix_memory_bytes=memory,
                deterministic=deterministic,
            )
        )
        tokenizer: Any = made.tokenizer
        _ = made.computing.loaded(), made.eos_token_ids, tokenizer.raw
    for shares in (made.computing.prefixes, made.computing.scored_prefixes):
        shares._least, shares._saved, shares._held = 2, 4, 2
    made.computing.sharing = 2 * (size or 4)
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


class NeverEnds(BaseException):
    """More steps than the law allows."""


def failing(
    patched: pytest.MonkeyPatch, model: Any, place: str, most: int, error: Exception
) -> list[int]:
    """Let what handles more than so many rows there raise; how often it did."""
    raised = [0]

    def check(rows: int) -> None:
        if rows > most:
            raised[0] += 1
            raise error

    def watch(owner: Any, name: str, rows: Any) -> None:
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def watched(*args: Any, **more: Any) -> Any:
            check(rows(*args, **more))
            return plain(*args, **more)

        patched.setattr(owner, name, watched)

    if place == "model":
        watch(model, "forward", lambda **inputs: len(inputs["input_ids"]))
    elif place == "sampler":
        watch(Sampler, "choose", lambda sampler, logits: len(logits))
    else:
        watch(RunningBatch, "fork", lambda batch, copies, saved: sum(copies.values()))
        watch(RunningBatch, "copies", lambda batch, rows: len(rows))
        watch(RunningBatch, "put", lambda batch, places, other: len(batch) + len(other))
    return raised


@FEW
@given(data=st.data())
@pytest.mark.parametrize("error", [FULL, ValueError("raised by the model")], ids=["full", "raises"])
@pytest.mark.parametrize("place", ["model", "sampler", "cache"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
def test_each_row_ends_wherever_more_than_some_rows_fail(
    deterministic: bool, place: str, error: Exception, data: st.DataObject
) -> None:
    """In an answer, which is what it is without failures, or in a typed error; each step that
    does not fail brings a row a token, and few fail.
    """
    memory = data.draw(st.sampled_from([None, 0]))
    own = engine("qwen3", memory, None if deterministic else 4, deterministic)
    asked, most = data.draw(rows(data.draw(trees()))), data.draw(st.integers(0, 5))
    expected = own.generate(asked)
    tokens = sum(len(slot.unwrap().token_ids) for slot in expected)
    own.computing.prefixes.clear()
    step, steps = Schedule.step, [0]

    def counted(schedule: Schedule) -> Any:
        steps[0] += 1
        if steps[0] > tokens + 3 * len(asked):
            raise NeverEnds
        return step(schedule)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Schedule, "step", counted)
        raised = failing(patched, own.computing.loaded(), place, most, error)
        slots = own.generate(asked)
    own.computing.traits.max_tokens = None
    assert steps[0] - raised[0] <= tokens
    if most == 0 and place != "cache":
        assert {type(slot.failure()) for slot in slots} == {pg.BackendFailed}
    elif most > 0:
        same(slots, expected)
    event(f"steps that failed: {min(raised[0], 8)}")


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
