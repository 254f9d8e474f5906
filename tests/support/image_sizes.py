"""Hypothesis strategies for sizes of images, pixel budgets, and damaged image files."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pipegen.testing.image_files import image_file


def sides(most: int = 20_000) -> SearchStrategy[tuple[int, int]]:
    """Sizes (width, height): ordinary ones, tiny ones, and strips as far as the aspect limit and
    beyond.
    """
    ordinary = st.tuples(st.integers(1, most), st.integers(1, most))
    strips = st.tuples(st.integers(1, 99), st.integers(1, most)).flatmap(
        lambda size: st.sampled_from((size, (size[1], size[0])))
    )
    round_ones = st.tuples(
        *(
            st.sampled_from((14, 16, 27, 28, 29, 31, 32, 33, 224, 336, 448, 768, 1024, 1080, 1920))
            for _ in range(2)
        )
    )
    return st.one_of(ordinary, strips, round_ones)


def budgets() -> SearchStrategy[tuple[int, int]]:
    """Pairs (min_pixels, max_pixels): those of checkpoints, wide ones, narrow ones, and some below
    one token.
    """
    real = st.sampled_from(
        ((3136, 1_003_520), (65_536, 16_777_216), (9216, 16_384), (65_536, 786_432), (784, 784))
    )
    narrow = st.integers(1, 2_000_000).flatmap(
        lambda low: st.tuples(st.just(low), st.integers(low, low + low // 3))
    )
    wide = st.integers(1, 1_000_000).flatmap(
        lambda low: st.tuples(st.just(low), st.integers(low, 64 * low))
    )
    return st.one_of(real, wide, narrow)


def mangled() -> SearchStrategy[bytes]:
    """Image files with some bytes changed, dropped or added, most of them near the beginning."""
    whole = [image_file(name, orientation=6) for name in ("PNG", "JPEG", "WEBP", "TIFF")] + [
        image_file(name) for name in ("GIF", "BMP", "PPM")
    ]
    edit = st.tuples(
        st.one_of(st.integers(0, 120), st.integers(0, 5000)),
        st.sampled_from(("change", "drop", "add")),
        st.binary(min_size=1, max_size=4),
    )

    def edited(data: bytes, edits: list[tuple[int, str, bytes]]) -> bytes:
        for index, kind, new in edits:
            at = index % max(1, len(data))
            data = (
                data[:at]
                + (b"" if kind == "drop" else new)
                + data[at + (0 if kind == "add" else len(new)) :]
            )
        return data

    return st.builds(edited, st.sampled_from(whole), st.lists(edit, max_size=6))
