"""Prompts that begin alike: the shared part is read once, and the ids stay what they are without
it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from support.models import encoded
from support.vision_models import IMAGE_FAMILIES

import pipegen as pg
from pipegen.backends.hf.engine import HFEngine
from pipegen.backends.hf.prefix_tree import common
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.options import StopOptions
from pipegen.testing.image_files import image_file

ON = StopOptions(ignore_eos=True)
Tree = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def opened(folder_of: Callable[[str], Any]) -> Callable[..., HFEngine]:
    """A new engine of a family, with as many rows side by side and as much memory for prefixes as
    said.
    """
    return lambda family="qwen3", size=8, **more: HFEngine(
        ModelLoadConfig(model=str(folder_of(family)), dtype="float32", batch_size=size, **more)
    )


def tree(seed: int, *, branches: int = 3, rows: int = 4, least: int = 50) -> Tree:
    """Prompts that share a root, branches of it, and have own parts of different lengths."""
    chance = random.Random(seed)

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(chance.randrange(20, 200) for _ in range(chance.randint(low, high)))

    root, found = some(least, 2 * least), list[tuple[int, ...]]()
    for _ in range(branches):
        branch = root + some(least, 2 * least)
        found += [branch + some(1, 12) for _ in range(rows)]
    chance.shuffle(found)
    return found


def needed(prompts: Tree) -> int:
    """The tokens of these prompts, each beginning counted once."""
    return len({prompt[:length] for prompt in prompts for length in range(1, len(prompt) + 1)})


def inputs(prompts: Tree) -> list[Any]:
    return [
        encoded(prompt, max_new_tokens=4 + place % 3, stop=ON)
        for place, prompt in enumerate(prompts)
    ]


def bytes_of(engine: HFEngine) -> int:
    """What the tensors that stay hold."""
    return sum(
        held.untyped_storage().nbytes() for columns in engine._prefixes._tree for held in columns
    )


def ids(engine: HFEngine, prompts: Tree) -> list[Any]:
    return [slot.unwrap().token_ids for slot in engine.generate(inputs(prompts))]


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2", "mistral"])
@pytest.mark.parametrize("seed", range(4))
def test_ids_are_those_of_prompts_that_are_read_whole(
    family: str, seed: int, opened: Callable[..., HFEngine]
) -> None:
    prompts = tree(seed, branches=1 + seed % 3, rows=2 + seed)
    # wholly contained in others, and equal
    prompts += [prompts[0][:60], prompts[0], prompts[1][:-1]]
    assert ids(opened(family), prompts) == ids(opened(family, prefix_memory_bytes=0), prompts)


def test_each_branch_of_a_tree_is_read_once(opened: Callable[..., HFEngine]) -> None:
    engine, prompts = opened(size=16), tree(1, branches=5, rows=9)
    ids(engine, prompts)
    work = engine.work
    assert work.prompt_tokens <= 1.02 * needed(prompts)
    assert work.prompt_tokens + work.shared_tokens >= sum(map(len, prompts))
    assert work.shares_nothing == ""


def test_what_was_read_stays_for_later_calls_until_the_engine_is_closed(
    opened: Callable[..., HFEngine],
) -> None:
    engine, prompts = opened(), tree(2, branches=1, rows=6)
    ids(engine, prompts[:5])
    before = engine.work.prompt_tokens
    alone = ids(engine, prompts[5:])
    assert engine.work.prompt_tokens - before <= 12
    engine.close()
    before = engine.work.prompt_tokens
    assert ids(engine, prompts[5:]) == alone
    assert engine.work.prompt_tokens - before == len(prompts[5])


def test_what_is_kept_keeps_to_its_memory(opened: Callable[..., HFEngine]) -> None:
    whole = opened()
    for seed in range(6):
        ids(whole, tree(seed, branches=1))
    limit = whole._prefixes.bytes // 2
    engine = opened(prefix_memory_bytes=limit)
    for seed in range(6):
        prompts = tree(seed, branches=1)
        assert ids(engine, prompts) == ids(whole, prompts)
        assert engine._prefixes.bytes == bytes_of(engine) <= limit
    assert engine._prefixes.bytes


@pytest.mark.parametrize(
    "prompts",
    [
        [(30, 31, 32), (30, 31, 33)],
        tree(0, branches=1, rows=1),
        [tuple(range(20, 60)), tuple(range(60, 110))],
    ],
)
def test_what_does_not_pay_is_not_shared(prompts: Tree, opened: Callable[..., HFEngine]) -> None:
    engine = opened()
    ids(engine, prompts)
    assert engine.work.shared_tokens == 0
    assert engine.work.prompt_tokens == sum(map(len, prompts))


@pytest.mark.parametrize("family", ["lfm2", "falcon_h1", "qwen3_next"])
def test_states_share_nothing_and_say_so(family: str, opened: Callable[..., HFEngine]) -> None:
    engine, prompts = opened(family), tree(3, branches=1)
    slots = ids(engine, prompts)
    assert (
        engine.work.shares_nothing
        == "the model's layers keep something else than columns, or place tokens by them"
    )
    assert slots == ids(opened(family, prefix_memory_bytes=0), prompts)
    assert opened(prefix_memory_bytes=0).work.shares_nothing == "prefix_memory_bytes is 0"


@pytest.mark.parametrize(
    "family", ["qwen3_vl", *sorted({*IMAGE_FAMILIES} - {"smolvlm", "mistral3"})]
)
def test_images_within_a_shared_beginning_are_read_once(
    family: str, opened: Callable[..., HFEngine]
) -> None:
    images = [image_file(mode=mode) for mode in ("RGB", "L")]
    long = "word " * 40

    def requests(image: Any) -> list[Any]:
        content: list[Any] = [{"type": "image", "image": image}]
        return [
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [*content, {"type": "text", "text": f"{long}{'x ' * number}?"}],
                    }
                ]
            }
            for number in range(4)
        ]

    asked = [*requests(images[0]), *requests(images[1])]
    options = pg.GenerationOptions(max_new_tokens=5, stop=ON)
    with (
        pg.route(opened(family)) as route,
        pg.route(opened(family, prefix_memory_bytes=0)) as plain,
    ):
        shared, whole = pg.run(route, asked, options), pg.run(plain, asked, options)
        assert [slot.unwrap().token_ids for slot in shared] == [
            slot.unwrap().token_ids for slot in whole
        ]
        work = route.engine.work  # type: ignore[attr-defined]
        assert (
            work.shared_tokens > 0
            or work.shares_nothing == "a prompt is longer than the model's sliding window"
        )


@pytest.mark.parametrize("seed", range(20))
def test_common_is_how_far_two_sequences_are_alike(seed: int) -> None:
    chance = random.Random(seed)
    one, other = (
        tuple(chance.randint(0, 1) for _ in range(chance.randint(0, 9))) for _ in range(2)
    )
    alike = next(
        (
            place
            for place, (left, right) in enumerate(zip(one, other, strict=False))
            if left != right
        ),
        min(len(one), len(other)),
    )
    assert common(one, other) == alike


def test_rows_that_wait_again_after_memory_ran_out_are_shared_too(
    opened: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    engine, prompts = opened(), tree(5, branches=2, rows=6)
    whole = ids(opened(prefix_memory_bytes=0), prompts)
    model, passes = engine._weights.model(), 0
    plain = model.forward

    def full(*args: Any, **kwargs: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes in (2, 5):
            raise torch.OutOfMemoryError("the memory is full")
        return plain(*args, **kwargs)

    full.__signature__ = __import__("inspect").signature(plain)  # type: ignore[attr-defined]
    monkeypatch.setattr(model, "forward", full)
    assert ids(engine, prompts) == whole
