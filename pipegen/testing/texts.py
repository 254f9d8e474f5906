"""Hypothesis strategies for text: awkward literals, planted stops, pieces, and token ids.

Random text rarely contains a random stop, so stops are planted, over an alphabet of three letters.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pipegen.testing.toy import ToyTokenizer

__all__ = [
    "AWKWARD",
    "awkward_texts",
    "chunkings",
    "planted_texts",
    "stop_tuples",
    "texts",
    "token_ids",
    "toy_tokenizers",
]

AWKWARD = (
    # scripts, composed and decomposed
    "é", "e\u0301", "ß", "İ", "Ω", "ж", "€", "你好", "日本語", "한국어", "ไทย", "क्षि",
    "שלום", "مرحبا", "\u202eabc\u202c",  # right to left, and the marks that force it
    # beyond 16 bits: joiners, flags, modifiers, the last character
    "😀", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "\U0001d4b3", "\U0010ffff",
    # a replacement character that was meant, and invisible ones
    "\ufffd", "\ufffd\ufffd", "\ufeff", "\u200b", "\u00a0", "\x00", "\x7f", "\u2028",
    " ", "  ", "\n", "\n\n", "\r\n", "\t", "▁", "Ġ",  # whitespace, and what tokenizers write for it
    # look-alikes of control tokens
    "<|im_end|>", "<|endoftext|>", "<|im_", "|>", "<s>", "</s>", "<think>", "[INST]", "<0xE2>", "##",
)  # fmt: skip
"""Literals that often break text code."""


def awkward_texts(max_pieces: int = 12) -> st.SearchStrategy[str]:
    """Awkward literals, letters, digits and spaces, joined."""
    return st.lists(st.sampled_from((*AWKWARD, *"abcABC 019.,")), max_size=max_pieces).map("".join)


def texts() -> st.SearchStrategy[str]:
    """Text of three letters, awkward text, or any text without surrogates."""
    return st.one_of(
        st.text("abc", max_size=24),
        awkward_texts(),
        st.text(st.characters(codec="utf-8"), max_size=24),
    )


def stop_tuples(min_size: int = 0, max_size: int = 4) -> st.SearchStrategy[tuple[str, ...]]:
    """Stops that overlap and contain each other, and some awkward ones."""
    stop = st.one_of(
        st.text("abc", min_size=1, max_size=4),
        st.text("abc", min_size=1, max_size=4),
        st.sampled_from(AWKWARD),
    )
    return st.lists(stop, min_size=min_size, max_size=max_size).map(tuple)


@st.composite
def planted_texts(draw: st.DrawFn, min_stops: int = 0) -> tuple[str, tuple[str, ...]]:
    """A text and stops, with the stops and their prefixes planted in the text."""
    stops = draw(stop_tuples(min_size=min_stops))
    pieces = [st.text("abc", max_size=5), st.sampled_from(AWKWARD)]
    if stops:
        any_stop = st.sampled_from(stops)
        pieces += [
            any_stop,
            st.builds(
                lambda stop, length: stop[: max(1, length % len(stop))],
                any_stop,
                st.integers(0, 40),
            ),
        ]
    return "".join(draw(st.lists(st.one_of(pieces), max_size=8))), stops


@st.composite
def chunkings(draw: st.DrawFn, whole: Any) -> list[Any]:
    """The pieces of a string or a tuple, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=len(whole) + 2)))
    return [
        whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)
    ]


@st.composite
def toy_tokenizers(draw: st.DrawFn, *more: str) -> ToyTokenizer:
    """Toy tokenizers whose merges are letters, awkward literals, parts of characters, and the
    strings in `more`.
    """
    awkward = st.sampled_from([literal.encode() for literal in AWKWARD])
    part = st.builds(
        lambda literal, start, length: literal[start : start + length],
        awkward,
        st.integers(0, 3),
        st.integers(2, 5),
    )
    merge = st.one_of(
        st.text("abc", min_size=2, max_size=4).map(str.encode),
        awkward,
        part,
        *([st.sampled_from(more).map(str.encode)] if more else []),
    )
    controls = [token.encode() for token in ToyTokenizer().control_tokens]
    merges = draw(
        st.lists(
            merge.filter(lambda token: len(token) > 1 and token not in controls),
            max_size=8,
            unique=True,
        )
    )
    return ToyTokenizer(merges=merges)


@st.composite
def token_ids(
    draw: st.DrawFn, tokenizer: ToyTokenizer, *planted: str, max_pieces: int = 8
) -> tuple[int, ...]:
    """Ids as a model may generate them: awkward text, the `planted` strings, control tokens, and
    random ids.
    """
    text = st.one_of(st.sampled_from((*AWKWARD, *planted)), st.text("abc", max_size=4)).map(
        tokenizer.encode
    )
    control = st.sampled_from(sorted(tokenizer.control_tokens.values())).map(
        lambda token_id: (token_id,)
    )
    anything = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=4).map(tuple)
    return tuple(
        token_id
        for piece in draw(st.lists(st.one_of(text, text, control, anything), max_size=max_pieces))
        for token_id in piece
    )
