"""Prompts that begin alike: the shared part is read once, and the ids stay what they are without
it.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.calls import events as events_of
from support.models import encoded
from support.talks import broken_prefixes, greedy, held, parted
from support.vision_models import IMAGE_FAMILIES

import pipegen as pg
from pipegen.backends.hf import cache as caches
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.backends.hf.prefix_tree import common
from pipegen.engines.protocol import RowDone
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import StopOptions
from pipegen.records.option_table import DEFAULTS
from pipegen.testing.image_files import image_file

ON = StopOptions(ignore_eos=True)
Tree = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def opened(folder_of: Callable[[str], Any]) -> Callable[..., HFEngine]:
    """A new engine of a family, with as many rows side by side and as much memory for prefixes as
    set.
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
        held.untyped_storage().nbytes()
        for node in engine.computing.prefixes._tree._nodes
        for held in node.part.columns
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
    limit = whole.computing.prefixes.bytes // 2
    engine = opened(prefix_memory_bytes=limit)
    for seed in range(6):
        prompts = tree(seed, branches=1)
        assert ids(engine, prompts) == ids(whole, prompts)
        assert engine.computing.prefixes.bytes == bytes_of(engine) <= limit
    assert engine.computing.prefixes.bytes


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


def turn(ids: tuple[int, ...], **more: Any) -> Any:
    return encoded(ids, **{"max_new_tokens": 9, "stop": ON, **more})


def answers(engine: HFEngine, inputs: list[Any]) -> list[tuple[int, ...]]:
    """The ids of the rows, prompts and answers."""
    return [
        (*one.prompt.token_ids, *slot.unwrap().token_ids)
        for one, slot in zip(inputs, engine.generate(inputs), strict=True)
    ]


def read(engine: HFEngine, inputs: list[Any]) -> tuple[list[tuple[int, ...]], int, int]:
    """The rows' ids, and how many tokens of prompts were read for them, in how many passes."""
    before = engine.work
    rows, work = answers(engine, inputs), engine.work
    return rows, work.prompt_tokens - before.prompt_tokens, work.passes - before.passes


def test_the_next_turn_reads_what_is_new_and_the_last_token(
    opened: Callable[..., HFEngine],
) -> None:
    engine, whole = opened(), opened(prefix_memory_bytes=0)
    ids = tuple(range(40, 90))
    for words in ((), (30, 31, 32), (33, 34), (35, 36, 37, 38)):
        rows, tokens, _ = read(engine, [turn((*ids, *words))])
        assert tokens == (len(words) + 1 if words else 50)
        assert rows == answers(whole, [turn((*ids, *words))])
        ids = rows[0]


def test_a_branch_reads_what_comes_after_its_fork(opened: Callable[..., HFEngine]) -> None:
    engine = opened()
    (ids,) = answers(engine, [turn(tuple(range(40, 90)), max_new_tokens=30)])
    branches = [turn((*ids[:fork], 30 + fork % 5, 29)) for fork in (40, 57, 70, 79)]
    rows, tokens, passes = read(engine, branches)
    assert (tokens, passes) == (8, 1)
    assert rows == answers(opened(prefix_memory_bytes=0), branches)
    assert read(engine, branches[:1]) == (rows[:1], 1, 1)


def test_conversations_of_any_lengths_go_on_in_one_pass(opened: Callable[..., HFEngine]) -> None:
    engine, chance = opened(), random.Random(0)
    prompts = [tuple(chance.randrange(20, 200) for _ in range(40 + 20 * at)) for at in range(8)]
    rows = answers(engine, [turn(ids) for ids in prompts])
    inputs = [turn((*ids, *range(30, 31 + at))) for at, ids in enumerate(rows)]
    after, tokens, passes = read(engine, inputs)
    assert (tokens, passes) == (sum(2 + at for at in range(8)), 1)
    assert after == answers(opened(prefix_memory_bytes=0), inputs)


def test_rows_that_end_with_their_first_token_stay_too(opened: Callable[..., HFEngine]) -> None:
    engine = opened()
    (ids,) = answers(engine, [turn(tuple(range(40, 90)), max_new_tokens=1)])
    assert read(engine, [turn((*ids, 30, 31))])[1] == 3


def test_a_row_that_runs_alone_with_guesses_stays_as_far_as_it_was_right(
    opened: Callable[..., HFEngine],
) -> None:
    engine = opened()
    ids = tuple([50, 51, 52, 53] * 12)
    (ids,) = answers(engine, [turn(ids, max_new_tokens=60)])
    assert engine.work.guessed_tokens
    rows, tokens, _ = read(engine, [turn((*ids, 30, 31))])
    assert tokens == 3
    assert rows == answers(opened(prefix_memory_bytes=0), [turn((*ids, 30, 31))])


def test_the_oldest_goes_first_where_the_memory_is_full(opened: Callable[..., HFEngine]) -> None:
    engine, chance = opened(), random.Random(0)
    prompts = [tuple(chance.randrange(20, 200) for _ in range(50)) for _ in range(3)]
    first = answers(engine, [turn(prompts[0])])
    each = engine.computing.prefixes.bytes
    small = opened(prefix_memory_bytes=2 * each)
    rows = [answers(small, [turn(ids)])[0] for ids in prompts]
    assert rows[:1] == first
    assert small.computing.prefixes.bytes == bytes_of(small) == 2 * each
    assert read(small, [turn((*rows[1], 30))])[1] == 2
    assert read(small, [turn((*rows[0], 30))])[1] == len(rows[0]) + 1


def test_rows_longer_than_the_window_do_not_stay_and_work_says_so(
    opened: Callable[..., HFEngine],
) -> None:
    engine = opened("mistral")
    (ids,) = answers(engine, [turn(tuple(range(40, 90)))])
    assert engine.computing.prefixes.bytes == 0
    assert read(engine, [turn((*ids, 30))])[1] == len(ids) + 1
    assert engine.work.shares_nothing == "a prompt is longer than the model's sliding window"


def with_window(folder: Any, window: int, made: Any) -> Any:
    """A copy of the model whose sliding window has so many tokens."""
    shutil.copytree(folder, made)
    file = made / "config.json"
    config = json.loads(file.read_text())
    for part in (config, config.get("text_config", {})):
        if part.get("sliding_window"):
            part["sliding_window"] = window
    file.write_text(json.dumps(config))
    return made


@pytest.mark.parametrize("family", ["mistral", "gemma3", "cohere2"])
def test_conversations_that_grow_beyond_the_window_are_those_that_are_read_whole(
    family: str, folder_of: Callable[[str], Any], tmp_path: Path
) -> None:
    folder = with_window(folder_of(family), 80, tmp_path / family)
    kept, whole = (
        HFEngine(ModelLoadConfig(model=str(folder), dtype="float32", prefix_memory_bytes=limit))
        for limit in (None, 0)
    )
    chance = random.Random(0)
    rows = [tuple(chance.randrange(20, 200) for _ in range(36 + 6 * at)) for at in range(5)]
    shared = []
    for number in range(6):
        words = [tuple(chance.randrange(20, 200) for _ in range(2 + at)) for at in range(5)]
        asked = [turn((*ids, *new)) for ids, new in zip(rows, words, strict=True)]
        before = kept.work.shared_tokens
        # together, and each alone
        rows = answers(kept, asked) if number % 2 else [answers(kept, [one])[0] for one in asked]
        shared.append(kept.work.shared_tokens - before)
        assert rows == answers(whole, asked)
    assert shared[0] == 0 < shared[1] and all(len(ids) > 100 for ids in rows)
    assert kept.work.shares_nothing == "a prompt is longer than the model's sliding window"
    # a branch of a row that has grown beyond the window, behind what stayed of it
    fork = [turn((*ids[:50], 30, 31)) for ids in rows]
    before = kept.work.shared_tokens
    assert answers(kept, fork) == answers(whole, fork)
    assert kept.work.shared_tokens > before
    long = [turn((*ids[:50], *range(20, 120))) for ids in rows]
    assert answers(kept, long) == answers(whole, long)


def test_rows_whose_cache_is_not_known_do_not_stay_and_work_says_so(
    opened: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tuple(range(40, 90))
    expected = answers(opened(), [turn(ids), turn(ids[:45])])
    monkeypatch.setattr(caches, "is_known", lambda cache: False)
    engine = opened()
    assert answers(engine, [turn(ids), turn(ids[:45])]) == expected
    assert read(engine, [turn((*expected[0], 30))])[1] == len(expected[0]) + 1
    assert engine.work.shares_nothing.startswith("the model's layers keep something else")


def test_positions_that_depend_on_the_length_share_nothing(
    opened: Callable[..., HFEngine],
) -> None:
    engine = opened("phi3_longrope")
    (ids,) = answers(engine, [turn(tuple(range(40, 80)))])
    assert read(engine, [turn((*ids, 30))])[1] == len(ids) + 1
    assert engine.work.shares_nothing == "the positions of a prompt depend on its length"


def test_of_conversations_that_wait_those_with_the_fewest_turns_go_on_first(
    opened: Callable[..., HFEngine],
) -> None:
    engine, chance = opened(size=1), random.Random(0)
    ids = [tuple(chance.randrange(20, 200) for _ in range(50)) for _ in range(4)]
    for number in (1, 2, 3):
        ids[number:] = answers(engine, [turn((*one, 30)) for one in ids[number:]])
    waiting = [turn((*one, 31)) for one in reversed(ids)]
    ended = [event.row for event in events_of(engine, waiting) if isinstance(event, RowDone)]
    assert ended == [3, 2, 1, 0]


def test_routes_with_plugins_go_on_with_what_the_engine_has_read() -> None:
    with pg.backends.hf("embedded", variant="text", dtype="float32") as route:
        engine: Any = route.engine
        result = pg.run(route, [{"prompt": "Hi " * 20, "options": {"max_new_tokens": 9}}])[0]
        ids = (*result.unwrap().prompt_token_ids, *result.unwrap().token_ids)
        before = engine.work.prompt_tokens
        other = pg.attach(route, pg.plugins.strip_prefix(("Assistant:",)))
        pg.run(other, [{"prompt_token_ids": (*ids, 300, 301), "options": {"max_new_tokens": 4}}])
        assert engine.work.prompt_tokens - before == 3


@pytest.mark.parametrize("family", ["qwen3_vl", "llava", "idefics3"])
def test_turns_after_an_image_read_what_is_new(
    family: str, opened: Callable[..., HFEngine]
) -> None:
    engine: Any = opened(family)
    whole = opened(family, prefix_memory_bytes=0)
    sources = [ImageSource(data=image_file(mode=mode)) for mode in ("RGB", "L")]
    images = [
        engine.prepare_image(source, DEFAULTS.preprocess, at).unwrap()
        for at, source in enumerate(sources)
    ]
    mark = engine._checkpoint.image_token_id
    assert mark is not None
    pieces = [tuple([mark] * image.tokens) for image in images]
    first = (*range(60, 95), *pieces[0], *range(60, 75))
    (ids,) = answers(engine, [turn(first, images=images[:1])])
    assert (ids,) == tuple(answers(whole, [turn(first, images=images[:1])]))
    rows, tokens, _ = read(engine, [turn((*ids, 61, 62), images=images[:1])])
    assert (rows, tokens) == (answers(whole, [turn((*ids, 61, 62), images=images[:1])]), 3)
    # another image in its place is another prompt
    other = turn((*range(60, 95), *pieces[1], *range(60, 75), 61), images=images[1:])
    rows_of_other, tokens, _ = read(engine, [other])
    assert rows_of_other == answers(whole, [other])
    assert tokens >= len(other.prompt.token_ids) - 35
    # a turn with a new image
    again = turn((*rows[0], 63, *pieces[1], 64, 65), images=images)
    seen, tokens, _ = read(engine, [again])
    assert seen == answers(whole, [again])
    grid = family == "qwen3_vl"
    new = len(pieces[1]) + 4
    assert tokens == (new if grid else len(again.prompt.token_ids))
    assert read(engine, [turn((*seen[0], 66), images=images)])[1] == 2


def test_text_goes_on_before_a_place_where_only_images_fork(
    opened: Callable[..., HFEngine],
) -> None:
    engine: Any = opened("qwen3_vl")
    whole = opened("qwen3_vl", prefix_memory_bytes=0)
    images = [
        engine.prepare_image(
            ImageSource(data=image_file(mode=mode)), DEFAULTS.preprocess, at
        ).unwrap()
        for at, mode in enumerate(("RGB", "L"))
    ]
    pieces = [(engine._checkpoint.image_token_id,) * image.tokens for image in images]
    words = tuple(range(60, 95))
    between = (*words, *pieces[0], 61, 62)
    # the tree forks between the two images of the first prompt, where no position is known
    turns = [
        turn((*between, *pieces[1], 63, 64), images=images),
        turn((*between, 65, 66), images=images[:1]),
        turn((*words[:-1], 65)),
        turn((*words, 66, 67)),
    ]
    for one in turns:
        assert answers(engine, [one]) == answers(whole, [one])
    assert engine.work.shared_tokens > 0


@pytest.mark.parametrize("family", ["gemma3_vl", "qwen3_vl", "mistral"])
def test_conversations_with_images_are_those_that_are_read_whole(
    family: str, folder_of: Callable[[str], Any], tmp_path: Path
) -> None:
    folder = str(with_window(folder_of(family), 100, tmp_path / family))
    images = family != "mistral"
    with (
        pg.backends.hf(folder, dtype="float32") as kept,
        pg.backends.hf(folder, dtype="float32", prefix_memory_bytes=0) as whole,
    ):
        talks, others = (
            held(route, family, 5, greedy, turns=6, images=images, tools=False)
            for route in (kept, whole)
        )
        work = kept.engine.work  # type: ignore[attr-defined]
    assert parted(talks, others) == [] and broken_prefixes(talks) == []
    assert work.shared_tokens > 0 and sum(len(talk.results) for talk in talks) > 15


def test_what_stays_goes_first_where_the_memory_runs_out(
    opened: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    engine, prompts = opened(), tree(5, branches=2, rows=6)
    whole = ids(opened(prefix_memory_bytes=0), prompts)
    ids(engine, prompts)
    there = engine.computing.prefixes.bytes
    model = engine.computing.loaded()
    plain, left = model.prepare_inputs_for_generation, [True]

    def full(*args: Any, **kwargs: Any) -> Any:
        if left.pop() if left else False:
            raise torch.OutOfMemoryError("the memory is full")
        return plain(*args, **kwargs)

    monkeypatch.setattr(model, "prepare_inputs_for_generation", full)
    assert ids(engine, prompts) == whole
    # as many rows run as before, and half as much stays from then on
    assert engine.computing.traits.max_tokens is None
    assert 0 < engine.computing.prefixes.bytes <= there // 2


def test_beginnings_are_read_once_after_the_memory_ran_out_too(
    opened: Callable[..., HFEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    engine, prompts = opened(), tree(5, branches=1, rows=8, least=100)
    whole = ids(opened(prefix_memory_bytes=0), prompts)
    model, passes = engine.computing.loaded(), [0]
    plain = model.prepare_inputs_for_generation

    def full(*args: Any, **kwargs: Any) -> Any:
        passes[0] += 1
        if passes[0] == 2:  # a beginning was read, and stays
            raise torch.OutOfMemoryError("the memory is full")
        return plain(*args, **kwargs)

    monkeypatch.setattr(model, "prepare_inputs_for_generation", full)
    assert ids(engine, prompts) == whole
    assert engine.work.prompt_tokens <= 2 * needed(prompts)


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
    model, passes = engine.computing.loaded(), 0
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
