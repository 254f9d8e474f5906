"""A cache that grows in place holds what transformers' own holds; whatever sequences come, go and
stay.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

torch = pytest.importorskip("torch")

from transformers import DynamicCache  # noqa: E402
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer  # noqa: E402

from pipegen.backends.hf import cache as caches  # noqa: E402

WINDOW = 5


def numbers() -> Iterator[float]:
    """Numbers that all differ, so that a column in a wrong place shows."""
    count = 0.0
    while True:
        count += 1
        yield count


def new_columns(fresh: Iterator[float], rows: int, columns: int) -> Any:
    return torch.tensor(
        [[[[next(fresh), 0.5] for _ in range(columns)] for _ in range(2)] for _ in range(rows)]
    )


def own_cache() -> Any:
    """transformers' own, of a layer with full attention and one with a sliding window."""
    full: Any = DynamicLayer  # not annotated
    cache: Any = DynamicCache()
    cache.layers = [full(), DynamicSlidingWindowLayer(WINDOW)]
    return cache


def updated(cache: Any, keys: Any) -> list[Any]:
    """What every layer lets attention see."""
    return [part for layer in cache.layers for part in layer.update(keys, -keys)]


def read(fresh: Iterator[float], rows: int, columns: int) -> Any:
    cache, keys = own_cache(), new_columns(fresh, rows, columns)
    updated(cache, keys)
    return cache


def written_into_the_room(layer: Any, keys: Any) -> None:
    """A step that is handed all of a layer's room, as compiled ones are: it holds the columns in
    sight, and zeros beside them.
    """
    width = layer.keys.shape[-2]
    whole, values, first = layer.room()
    for room, seen in ((whole, layer.keys), (values, layer.values)):
        assert torch.equal(room[..., first : first + width, :], seen)
        assert not room[..., :first, :].any()
        assert not room[..., first + width :, :].any()
    whole[..., first + width, :], values[..., first + width, :] = keys[..., 0, :], -keys[..., 0, :]
    layer.grow()


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(1, 4), st.booleans()),
        st.tuples(
            st.just("keep"), st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 3)
        ),
        st.tuples(
            st.just("put"),
            st.sets(st.integers(0, 9), min_size=1, max_size=3),
            st.integers(1, 9),
            st.integers(0, 3),
        ),
        st.tuples(st.just("join"), st.integers(1, 3), st.integers(1, 9)),
    ),
    max_size=12,
)


# columns of a row that has gone lie left of those in sight
@example([("step", 1, True), ("put", {0}, 1, 2), ("step", 1, True)], 2, 5, 3)
@given(CHANGES, st.integers(1, 3), st.integers(1, 9), st.integers(0, 3))
def test_a_cache_that_grows_in_place_holds_what_transformers_own_holds(
    changes: list[Any], rows: int, columns: int, spare: int
) -> None:
    fresh = numbers()
    own = read(fresh, rows, columns)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(caches, "SPARE", spare)
        ours = caches.growing(copy.deepcopy(own))
        for change, *how in changes:
            rows, width = own.layers[0].keys.shape[0], own.layers[0].keys.shape[-2]
            if change == "step":
                for _ in range(how[0]):
                    keys = new_columns(fresh, rows, 1)
                    if how[1]:
                        written_into_the_room(ours.layers[0], keys)
                        ours.layers[1].update(keys, -keys)
                        updated(own, keys)
                    else:
                        assert all(
                            torch.equal(seen, expected)
                            for seen, expected in zip(
                                updated(ours, keys), updated(own, keys), strict=True
                            )
                        )
            elif change == "keep":
                kept, width = [row % rows for row in how[0]], max(1, width - how[1])
                left, before = ours, [layer.keys.clone() for layer in ours.layers]
                own, ours = caches.selected(own, kept, width), caches.selected(ours, kept, width)
                # those that are left do not feel what the copies do
                updated(ours, new_columns(fresh, len(kept), 1))
                assert all(
                    torch.equal(layer.keys, expected)
                    for layer, expected in zip(left.layers, before, strict=True)
                )
                ours = caches.selected(left, kept, width)
            else:
                places = (
                    sorted({place % rows for place in how[0]})
                    if change == "put"
                    else list(range(rows, rows + how[0]))
                )
                other = read(fresh, len(places), how[1])
                width = max(how[1], width - how[2] if change == "put" else width)
                caches.put(own, places, copy.deepcopy(other), width)
                caches.put(ours, places, caches.growing(other), width)
            for mine, expected in zip(ours.layers, own.layers, strict=True):
                assert torch.equal(mine.keys, expected.keys)
                assert torch.equal(mine.values, expected.values)
                assert mine.get_seq_length() == expected.get_seq_length()


def test_steps_within_the_room_copy_nothing() -> None:
    fresh = numbers()
    cache = caches.growing(read(fresh, 2, 7))
    updated(cache, new_columns(fresh, 2, 1))
    places = set()
    for _ in range(caches.SPARE - 8):
        updated(cache, new_columns(fresh, 2, 1))
        places.add(tuple(layer.keys.untyped_storage().data_ptr() for layer in cache.layers))
    assert len(places) == 1
