"""The prefix cache changes no text; for random turns, branches, images and samplings it keeps to
its memory limit.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")

from support.models import encoded, write_model  # noqa: E402

from pipegen.backends.hf.hf_engine import HFEngine  # noqa: E402
from pipegen.backends.hf.prefix_tree import Marked, PrefixTree, common  # noqa: E402
from pipegen.engines.settings import ModelLoadConfig  # noqa: E402
from pipegen.records.messages import ImageSource  # noqa: E402
from pipegen.records.option_groups import StopOptions  # noqa: E402
from pipegen.records.option_table import DEFAULTS  # noqa: E402
from pipegen.records.results import Encoded, PreparedImage  # noqa: E402
from pipegen.testing.image_files import image_file  # noqa: E402

FEW = settings(max_examples=max(3, settings().max_examples // 12))
"""For laws of which each example runs a model several times."""


@functools.cache
def engine(family: str, memory: int | None = None) -> Any:
    with tempfile.TemporaryDirectory() as root:
        folder = str(write_model(Path(root) / family, family))
        load = ModelLoadConfig(
            model=folder, dtype="float32", batch_size=3, prefix_memory_bytes=memory
        )
        made = HFEngine(load)
        _ = (
            made.computing.loaded(),
            made.eos_token_ids,
            cast("Any", made.tokenizer).raw,
            made.image_placeholder and made._checkpoint.image_spec,
        )
        # beginnings of few tokens are shared too, so that short rows show everything
        shares = made.computing.prefixes
        shares._least, shares._saved, shares._held = 2, 6, 2
    return made


@functools.cache
def images() -> tuple[PreparedImage, ...]:
    sizes = ((32, 32), (64, 40), (32, 32))
    sources = [
        ImageSource(data=image_file(width=width, height=height, mode=mode))
        for (width, height), mode in zip(sizes, ("RGB", "RGB", "L"), strict=True)
    ]
    return tuple(
        engine("qwen3_vl", 0).prepare_image(source, DEFAULTS.preprocess, 0).unwrap()
        for source in sources
    )


Turn = tuple[tuple[int, ...], tuple[PreparedImage, ...]]
START: Turn = (), ()


@st.composite
def new_turns(choose: st.DrawFn, *, with_images: bool) -> Turn:
    """What a user adds: words, and at times an image before them."""
    ids = [*choose(st.lists(st.integers(20, 26), min_size=1, max_size=9))]
    if not with_images or not choose(st.booleans()):
        return tuple(ids), ()
    image = choose(st.sampled_from(images()))
    mark = engine("qwen3_vl", 0)._checkpoint.image_token_id
    return (*ids[:2], *[mark] * image.tokens, *ids), (image,)


def media(family: str) -> set[int | None]:
    """The placeholders of images and videos."""
    checkpoint = engine(family, 0)._checkpoint
    return {checkpoint.image_token_id, checkpoint.videos.token_id}


def cut(ids: tuple[int, ...], of: tuple[PreparedImage, ...], length: int) -> Turn:
    """The beginning of a turn, and the images in it; an image that is not whole is left out."""
    begun = ids[:length]
    pieces, whole = begun.count(engine("qwen3_vl", 0)._checkpoint.image_token_id or -1), 0
    while whole < len(of) and pieces >= of[whole].tokens:
        pieces, whole = pieces - of[whole].tokens, whole + 1
    return begun[: len(begun) - pieces], of[:whole]


def row(data: st.DataObject, ended: list[Turn], *, with_images: bool) -> Encoded:
    """A new prompt, the next turn of one that has ended, or a branch from within one."""
    how = data.draw(st.sampled_from(["new", "next", "next", "branch", "same"]))
    ids, of = START if how == "new" or not ended else data.draw(st.sampled_from(ended))
    if how == "branch":
        ids, of = cut(ids, of, data.draw(st.integers(0, len(ids))))
    more, images_of = (
        ((), ()) if how == "same" and ids else data.draw(new_turns(with_images=with_images))
    )
    return encoded(
        (*ids, *more),
        images=(*of, *images_of),
        max_new_tokens=data.draw(st.integers(1, 9)),
        temperature=data.draw(st.sampled_from([0.0, 0.0, 1.5])),
        seed=data.draw(st.integers(0, 99)),
        logprobs=True,
        stop=StopOptions(stop_token_ids=data.draw(st.sampled_from([(), tuple(range(3, 60))]))),
    )


def check(data: st.DataObject, family: str, limit: float) -> None:
    own, plain = engine(family), engine(family, 0)
    own.computing.prefixes.clear()
    own.computing.prefixes._tree.limit = limit
    ended: list[Turn] = []
    for _ in range(data.draw(st.integers(2, 4))):
        count = data.draw(st.integers(1, 5))
        inputs = [row(data, ended, with_images=family == "qwen3_vl") for _ in range(count)]
        before = own.work
        for given_, slot, whole in zip(
            inputs, own.generate(inputs), plain.generate(inputs), strict=True
        ):
            answer, expected = slot.unwrap(), whole.unwrap()
            assert answer.token_ids == expected.token_ids
            numbers = [[one.logprob for one in raw.logprobs] for raw in (answer, expected)]
            assert numbers[0] == pytest.approx(numbers[1], abs=2e-5)
            if not media(family) & {*answer.token_ids}:  # a sampled image has no pixels
                ended.append(((*given_.prompt.token_ids, *answer.token_ids), given_.prompt.images))
        work = own.work
        different = {(one.prompt.token_ids, one.prompt.images) for one in inputs}
        read = work.prompt_tokens - before.prompt_tokens
        shared = work.shared_tokens - before.shared_tokens
        assert read + shared >= sum(len(ids) for ids, _ in different)
        check_memory(own.computing.prefixes._tree)


def check_memory(tree: PrefixTree) -> None:
    """The bytes are those that the tensors hold, and within the limit."""
    held = [tensor for node in tree._nodes for tensor in node.part.columns]
    assert tree.bytes == sum(tensor.untyped_storage().nbytes() for tensor in held) <= tree.limit


@FEW
@given(data=st.data(), limit=st.sampled_from([2000, 30_000, 2**30]))
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_vl"])
def test_the_text_of_turns_and_branches_does_not_depend_on_what_stays(
    family: str, limit: int, data: st.DataObject
) -> None:
    check(data, family, limit)


@FEW
@given(data=st.data(), limit=st.sampled_from([3000, 2**30]))
@pytest.mark.parametrize("family", ["mistral", "gemma3", "gemma2", "cohere2"])
def test_nor_where_layers_see_a_window(family: str, limit: int, data: st.DataObject) -> None:
    check(data, family, limit)


@FEW
@given(data=st.data())
@pytest.mark.parametrize("family", ["lfm2", "qwen3_next", "falcon_h1"])
def test_nor_where_layers_keep_states_which_are_not_shared(
    family: str, data: st.DataObject
) -> None:
    check(data, family, 2**30)
    assert engine(family).work.shares_nothing
    assert not engine(family).computing.prefixes.bytes


@FEW
@given(data=st.data())
@pytest.mark.parametrize(
    "family", ["phi3_longrope", "llama_dynamic", "llama_linear", "llama_yarn", "ministral3"]
)
def test_nor_where_positions_are_scaled(family: str, data: st.DataObject) -> None:
    check(data, family, 2**30)


# --- the tree
# ----------------------------------------------------------------------------------------------------------------------------------------

SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


def columns_of(ids: tuple[int, ...], first: int, end: int) -> list[Any]:
    """Columns that tell of all the tokens up to them, so that one of another sequence shows."""
    told = [hash(ids[: place + 1]) % 9973 for place in range(first, end)]
    numbers = torch.tensor(told, dtype=torch.float32)
    return [numbers.repeat(2, 1)[:, :, None].clone(), -numbers[None, :, None].repeat(1, 1, 3)]


def joined(tree: PrefixTree, marked: Marked, length: int) -> Iterator[Any]:
    begun = tree.beginning(marked, length)
    assert begun.length == sum(count for _, count in begun.parts) == length
    for index in range(2):
        yield torch.cat([part.columns[index][:, :count] for part, count in begun.parts], dim=1)


@given(
    st.lists(st.tuples(SEQUENCES, st.booleans()), max_size=25),
    st.sampled_from([0, 100, 300, 10_000]),
)
def test_a_tree_gives_back_what_was_put_and_keeps_to_its_limit(
    changes: list[tuple[tuple[int, ...], bool]], limit: int
) -> None:
    tree = PrefixTree(limit)
    last: tuple[int, ...] = ()
    for ids, puts in changes:
        marked = Marked(ids)
        if puts:
            positions = torch.tensor([[len(ids)]])
            stays = tree.put(marked, functools.partial(columns_of, ids), positions, size=20)
            assert stays == (tree.length_of(Marked((*ids, 9))) == len(ids))
            last = ids if stays else last
        length = tree.length_of(marked)
        # what was put last is there
        assert length >= min(common(ids, last), len(ids) - 1)
        if length:
            for seen, expected in zip(
                joined(tree, marked, length), columns_of(ids, 0, length), strict=True
            ):
                assert torch.equal(seen, expected)
            assert tree.beginning(marked, length).positions is None  # as many as tokens
            last = ids[:length]
        check_memory(tree)


@given(st.lists(SEQUENCES, min_size=1, max_size=20))
def test_the_oldest_of_a_tree_goes_first(sequences: list[tuple[int, ...]]) -> None:
    room = 20 * (len(sequences[-1]) + len(sequences[0]))  # bytes of so many tokens
    tree = PrefixTree(room)
    for ids in sequences:
        tree.put(
            Marked(ids), functools.partial(columns_of, ids), torch.tensor([[len(ids)]]), size=20
        )
    # nodes above others are newer than these
    order = {node: number for number, node in enumerate(tree._nodes)}
    for node, number in order.items():
        assert node.parent is tree._root or order[node.parent] > number  # type: ignore[index]
        assert node.parent.children[node.ids[0]] is node  # type: ignore[union-attr]
