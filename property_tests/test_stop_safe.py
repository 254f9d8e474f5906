"""A search for stops that skips tokens ends like one that looks at each; with tokenizers of all
common families.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from pipegen.backends.checkpoint.tokenizers import HFTokenizer
from pipegen.ending.stop_safe import StopSafeTokens
from pipegen.ending.stop_scan import cut
from pipegen.ending.stop_state import TokenFold, feed_each
from pipegen.records.option_groups import DecodeOptions, StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Encoded, Prompt, Raw
from pipegen.stages.ending import decode_row, end_row
from pipegen.testing.texts import stop_tuples, texts, token_ids, toy_tokenizers
from pipegen.testing.toy import ToyTokenizer

WORDS = (
    *("a", "b", "c", "ab", "bc", "abc", "cab", "e", "\u0301", "é", "好", "👍", "🏽", "n't", "'s"),
    *("do", "not", ".", ",", "?", "!", "-", "\n", "\n\n", "\ufffd", "x y"),
)
SPECIAL = ("<s>", "</s>", "<|pad|>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in (*b"ab \n", *"é好👍".encode(), 0xFF))
SPACED = (*WORDS, *(f"▁{word}" for word in WORDS), "▁", "▁▁", "▁▁a", "a▁", "a▁b")
REPLACE = decoders.Replace("▁", " ")


def _byte_level(text: bytes) -> str:
    """Bytes as byte-level BPE writes them in its vocabulary."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in plain]
    return "".join(chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in text)


def _words(tokens: Sequence[str]) -> Any:
    return models.WordLevel(
        {token: number for number, token in enumerate(dict.fromkeys(("<unk>", *tokens)))}, "<unk>"
    )


FAMILIES: Mapping[str, Callable[[], tuple[Any, Any]]] = {
    "byte-level": lambda: (
        _words(
            [
                _byte_level(text)
                for word in WORDS
                for text in (
                    word.encode(),
                    f" {word}".encode(),
                    word.encode()[:1],
                    word.encode()[1:],
                )
                if text
            ]
        ),
        decoders.ByteLevel(),
    ),
    "metaspace": lambda: (_words(SPACED), decoders.Metaspace()),
    "metaspace, always": lambda: (_words(SPACED), decoders.Metaspace(prepend_scheme="never")),
    "unigram": lambda: (
        models.Unigram([(token, -1.0) for token in dict.fromkeys(("<unk>", *SPACED))], unk_id=0),
        decoders.Metaspace(),
    ),
    "wordpiece": lambda: (
        _words([*WORDS, *(f"##{word}" for word in WORDS)]),
        decoders.WordPiece(cleanup=True),
    ),
    "wordpiece, as it stands": lambda: (
        _words([*WORDS, *(f"##{word}" for word in WORDS)]),
        decoders.WordPiece(cleanup=False),
    ),
    "byte-fallback": lambda: (
        _words([*SPACED, *BYTES]),
        decoders.Sequence([REPLACE, decoders.ByteFallback(), decoders.Fuse()]),
    ),
    "byte-fallback, stripped": lambda: (
        _words([*SPACED, *BYTES]),
        decoders.Sequence(
            [REPLACE, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
    ),
}
OTHERS: Mapping[str, Callable[[], tuple[Any, Any]]] = {
    "the end is stripped": lambda: (
        _words(SPACED),
        decoders.Sequence([REPLACE, decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    ),
    "word ends": lambda: (
        _words([*WORDS, *(f"{word}</w>" for word in WORDS)]),
        decoders.BPEDecoder(),
    ),
    "repeated tokens are one": lambda: (
        _words(WORDS),
        decoders.CTC(pad_token="-", word_delimiter_token=","),
    ),
    "replaced over tokens": lambda: (
        _words(WORDS),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
    ),
}


@functools.cache
def tokenizer_of(family: str) -> HFTokenizer:
    model, decoder = {**FAMILIES, **OTHERS}[family]()
    made = Tokenizer(model)
    made.decoder = decoder
    made.add_special_tokens(list(SPECIAL))
    made.add_tokens(["<think>"])
    fast: Any = PreTrainedTokenizerFast  # not annotated
    return HFTokenizer(fast(tokenizer_object=made))


class EveryToken:
    """A tokenizer that cannot tell what a token adds by itself, so that every token is looked
    at.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._own = tokenizer
        self.special_tokens, self.control_tokens, self.vocab_size = (
            tokenizer.special_tokens,
            tokenizer.control_tokens,
            tokenizer.vocab_size,
        )
        self.encode, self.encode_plain, self.decode = (
            tokenizer.encode,
            tokenizer.encode_plain,
            tokenizer.decode,
        )


@functools.cache
def every_token(family: str) -> EveryToken:
    return EveryToken(tokenizer_of(family))


STOPS = st.one_of(
    st.text("abc ", min_size=1, max_size=8),
    st.lists(
        st.sampled_from(
            ["a", "b", "e", "\u0301", "é", "好", "👍", "🏽", " ", "\n", ".", "\ufffd", "<think>"]
        ),
        min_size=1,
        max_size=3,
    ).map("".join),
    st.sampled_from(
        ["<s>", "a<s>", " do", " don't", "n't", "abcabcabcabcabcabcabcabc", " a b c a b c", "▁"]
    ),
)


@st.composite
def rows_of(draw: st.DrawFn, family: str) -> tuple[GenerationOptions, tuple[int, ...]]:
    """Ids of a few tokens, in which stops stand that begin and end anywhere in a token, and
    options.
    """
    tokenizer = tokenizer_of(family)
    few = draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=4))
    ids = tuple(draw(st.lists(st.sampled_from(few), max_size=16)))
    hidden = set(tokenizer.special_tokens.values()) if draw(st.booleans()) else set()
    text = f" {tokenizer.decode([token_id for token_id in ids if token_id not in hidden])} "
    planted = st.builds(
        lambda start, length: text[start : start + length],
        st.one_of(st.just(0), st.integers(0, len(text) - 1)),
        st.integers(1, 10),
    )
    stops = draw(st.lists(st.one_of(planted, planted, STOPS), max_size=3))
    return draw(options_of(stops, len(ids))), ids


@st.composite
def options_of(draw: st.DrawFn, stops: Sequence[str], count: int) -> GenerationOptions:
    most = draw(st.integers(1, count + 3))
    return resolve(
        GenerationOptions(
            max_new_tokens=most,
            min_new_tokens=draw(st.one_of(st.just(0), st.integers(0, most))),
            stop=StopOptions(stop=tuple(stops), ignore_eos=draw(st.booleans())),
            decode=DecodeOptions(skip_special_tokens=draw(st.booleans())),
        )
    )


def ends_alike(
    tokenizer: Any,
    looking: Any,
    options: GenerationOptions,
    eos: tuple[int, ...],
    ids: Sequence[int],
) -> None:
    """The row with stop_safe tokens ends as one that looks at each does, token by token, and as the
    same row judged whole.
    """
    fed, stepped, all_of_them = (
        TokenFold(options, one, eos, text=False) for one in (tokenizer, tokenizer, looking)
    )
    for token_id in ids:
        fed.feed(token_id)
        feed_each((stepped,), (token_id,))
        all_of_them.feed(token_id)
        for one in (fed, stepped):
            assert (one.finish, one.stop, one.count) == (
                all_of_them.finish,
                all_of_them.stop,
                all_of_them.count,
            )
    for one in (fed, stepped, all_of_them):
        one.close()
    assert (
        (fed.finish, fed.stop, fed.count)
        == (stepped.finish, stepped.stop, stepped.count)
        == (all_of_them.finish, all_of_them.stop, all_of_them.count)
    )
    encoded = Encoded(
        request=TextGenerationRequest(prompt="A"),
        options=options,
        prompt=Prompt(token_ids=(1,), compact_token_ids=(1,)),
    )
    raw = Raw(encoded=encoded, token_ids=tuple(ids))
    # what the ending token adds is taken off the text where that is known
    assert decode_row(raw, tokenizer, eos) == decode_row(raw, looking, eos)
    judged = end_row(raw, tokenizer, eos).unwrap()
    assert (fed.finish, fed.stop, tuple(fed.token_ids)) == (
        judged.finish,
        judged.stop,
        judged.raw.token_ids,
    )


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
@given(data=st.data())
def test_a_row_that_skips_stop_safe_tokens_ends_as_one_that_looks_at_each(
    family: str, data: st.DataObject
) -> None:
    tokenizer = tokenizer_of(family)
    options, ids = data.draw(rows_of(family))
    ends_alike(tokenizer, every_token(family), options, (tokenizer.special_tokens["</s>"],), ids)


@given(st.lists(STOPS, max_size=3), st.data())
def test_so_it_does_where_stops_are_planted_and_characters_split(
    stops: list[str], data: st.DataObject
) -> None:
    tokenizer = data.draw(
        toy_tokenizers(*(stop for stop in stops if stop not in ToyTokenizer().special_tokens))
    )
    ids = data.draw(token_ids(tokenizer, *stops, max_pieces=16))
    options = data.draw(options_of(stops, len(ids)))
    ends_alike(
        tokenizer, EveryToken(tokenizer), options, (tokenizer.special_tokens["<|im_end|>"],), ids
    )


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
def test_a_piece_is_what_the_token_adds_after_any_text(family: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(family)
    one = st.integers(0, tokenizer.vocab_size - 1)
    before, token_id = data.draw(st.lists(one, min_size=1, max_size=6)), data.draw(one)
    text, piece = tokenizer.decode(before), tokenizer.piece(token_id)
    if text and piece is not None:
        assert tokenizer.decode([*before, token_id]) == text + piece


@given(stop_tuples(min_size=1), texts(), texts().filter(bool))
@example(("abc",), "a", "bcd")
@example(("abc", "b"), "", "xbx")
def test_a_stop_safe_token_completes_no_stop_and_any_other_does_after_some_text(
    stops: tuple[str, ...], before: str, piece: str
) -> None:
    class OneToken(ToyTokenizer):
        def piece(self, token_id: int) -> str | None:
            return piece

    completes = [
        text
        for text in (before, *(stop[:length] for stop in stops for length in range(len(stop))))
        if (end := cut(text + piece, stops, after=len(text)).end) is not None and end > len(text)
    ]
    assert StopSafeTokens(OneToken(), stops, frozenset(), frozenset()).takes(0) == (not completes)


@pytest.mark.parametrize("family", FAMILIES)
def test_ordinary_tokens_of_the_common_families_are_stop_safe(family: str) -> None:
    tokenizer = tokenizer_of(family)
    row = TokenFold(
        resolve(GenerationOptions(stop=("\nEND",), max_new_tokens=9)), tokenizer, (), text=False
    )
    ordinary = [
        token_id
        for token_id in range(tokenizer.vocab_size)
        if tokenizer.decode((token_id,)).strip() in ("a", "ab", "cab", "好", "👍")
    ]
    row.feed(ordinary[0])
    feed_each((row,), ordinary[1:2])
    assert ordinary
    assert all(row.feed(token_id) == "" and token_id in row.stop_safe for token_id in ordinary[2:6])
    assert (row.finish, row.count) == (None, min(6, len(ordinary)))


@pytest.mark.parametrize("family", OTHERS)
def test_where_a_tokenizer_is_not_known_to_work_token_by_token_no_token_is_stop_safe(
    family: str,
) -> None:
    tokenizer = tokenizer_of(family)
    assert {tokenizer.piece(token_id) for token_id in range(tokenizer.vocab_size)} == {None}


@pytest.mark.parametrize("family", ["byte-fallback", "byte-fallback, stripped"])
def test_a_byte_hangs_on_the_bytes_before_it_so_it_has_no_piece(family: str) -> None:
    tokenizer = tokenizer_of(family)
    numbers = range(tokenizer.vocab_size)
    broken = [number for number in numbers if tokenizer.decode((number,)) == "\ufffd"]
    spelled = [number for number in numbers if tokenizer.decode((number,)) == "a"]
    swallowed = [
        number
        for number in spelled
        if any(tokenizer.decode((before, number)) == "\ufffd\ufffd" for before in broken)
    ]
    assert len(swallowed) == 1
    assert tokenizer.piece(swallowed[0]) is None
