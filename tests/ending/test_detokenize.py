"""Ids become text, one by one: by tokenizers of the `tokenizers` library made on the spot."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pipegen.ending import detokenize
from pipegen.ending.detokenize import Detokenizer, ids_behind, own_text, spell
from pipegen.testing.texts import AWKWARD
from pipegen.testing.toy import ToyTokenizer

TOY = ToyTokenizer()
REPLACEMENT = "\ufffd"


class Real:
    """A tokenizer of the `tokenizers` library, as the stages see it."""

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer
        self.calls: list[int] = []

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return {
            token.content: token_id
            for token_id, token in self.inner.get_added_tokens_decoder().items()
            if token.special
        }

    @property
    def control_tokens(self) -> Mapping[str, int]:
        return {
            token.content: token_id
            for token_id, token in self.inner.get_added_tokens_decoder().items()
        }

    @property
    def vocab_size(self) -> int:
        return int(self.inner.get_vocab_size())

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.inner.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, text: str, *, first: bool) -> tuple[int, ...]:
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int]) -> str:
        self.calls.append(len(token_ids))
        return str(self.inner.decode(list(token_ids), skip_special_tokens=False))


CORPUS = [
    "the quick brown fox, the lazy dog and the hen",
    "one two  three\n\nfour\tfive",
    "你好 日本語 €uro é",
    "😀👩‍👩‍👧‍👦",
] * 3


def byte_level() -> Any:
    tk = pytest.importorskip("tokenizers")
    tokenizer = tk.Tokenizer(tk.models.BPE())
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tk.decoders.ByteLevel()
    trainer = tk.trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=sorted(tk.pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback(*, metaspace: bool) -> Any:
    """As Llama 2's (spaces replaced, one stripped from the whole), or with a Metaspace decoder (one
    stripped from the first token).
    """
    tk = pytest.importorskip("tokenizers")
    characters = ["▁", *"abcdefghijklmnopqrstuvwxyz,", "é"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("▁", "▁")]
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *characters,
        *("".join(pair) for pair in merges),
    ]
    vocab = {token: place for place, token in enumerate(tokens)}
    tokenizer = tk.Tokenizer(
        tk.models.BPE(
            vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    if metaspace:
        tokenizer.pre_tokenizer = tk.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = tk.decoders.Sequence(
            [tk.decoders.ByteFallback(), tk.decoders.Metaspace(prepend_scheme="first", split=False)]
        )
    else:
        d, n = tk.decoders, tk.normalizers
        tokenizer.normalizer = n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")])
        tokenizer.decoder = d.Sequence(
            [d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)]
        )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def unigram() -> Any:
    tk = pytest.importorskip("tokenizers")
    pieces = [
        ("<unk>", 0.0),
        ("▁", -2.0),
        ("▁the", -3.0),
        ("▁a", -3.0),
        *((letter, -5.0) for letter in "abcdefghijklmnopqrstuvwxyz,é"),
    ]
    tokenizer = tk.Tokenizer(
        tk.models.Unigram(
            pieces + [(f"<0x{byte:02X}>", -10.0) for byte in range(256)],
            unk_id=0,
            byte_fallback=True,
        )
    )
    tokenizer.pre_tokenizer = tk.pre_tokenizers.Metaspace()
    tokenizer.decoder = tk.decoders.Sequence([tk.decoders.ByteFallback(), tk.decoders.Metaspace()])
    return tokenizer


REAL = {
    "byte-level": byte_level,
    "byte fallback, one space stripped": lambda: byte_fallback(metaspace=False),
    "byte fallback, Metaspace": lambda: byte_fallback(metaspace=True),
    "Unigram": unigram,
}
WORDS = (
    *("the", " the", "  ", " a hen", "one\n", "你", "€", "é", "😀", "x😀😀y", "</s>", "<|im_end|>"),
    *("z", ",", "👩‍👩‍👧‍👦"),
)


def some_texts(count: int) -> list[str]:
    at_random = random.Random(5)
    # Unigram takes it for the byte, and then the text is no text any more
    literals = [literal for literal in AWKWARD if literal != "<0xE2>"]
    return [
        *literals,
        *(
            "".join(at_random.choices((*WORDS, *literals), k=at_random.randint(1, 12)))
            for _ in range(count)
        ),
    ]


@pytest.fixture(params=list(REAL))
def real(request: pytest.FixtureRequest) -> Real:
    return Real(REAL[request.param]())


class TestDetokenizer:
    def test_encoded_text_comes_out_as_the_decoded_whole(self, real: Real) -> None:
        for text in some_texts(150):
            ids = real.encode(text)
            detokenizer = Detokenizer(real)
            pieces = [detokenizer.feed(token_id) for token_id in ids]
            assert "".join((*pieces, detokenizer.finish())) == real.decode(ids), text
            assert REPLACEMENT in text or REPLACEMENT not in "".join(pieces)  # A15

    def test_text_cut_anywhere_comes_out_as_the_decoded_part(self, real: Real) -> None:
        for text in ("the 日本 hen", "a😀b", "<s> the", "  the", "é€ a"):
            ids = real.encode(text)
            for end in range(len(ids) + 1):
                pieces, whole = spell(real, ids[:end])[0], real.decode(ids[:end])
                assert (
                    pieces == whole
                    or pieces.rstrip(REPLACEMENT) == text[: len(pieces.rstrip(REPLACEMENT))]
                )

    def test_any_ids_of_a_byte_level_tokenizer_come_out_as_the_decoded_whole(self) -> None:
        real, at_random = Real(byte_level()), random.Random(6)
        for _ in range(300):
            ids = at_random.choices(range(real.vocab_size), k=at_random.randint(0, 60))
            assert spell(real, ids)[0] == real.decode(ids)

    def test_words_of_any_ids_keep_their_spaces(self, real: Real) -> None:
        at_random = random.Random(7)
        words = [
            token_id
            for token_id in range(real.vocab_size)
            if real.decode([token_id, token_id]).isascii()
        ]
        for _ in range(200):
            ids = at_random.choices(words, k=at_random.randint(0, 40))
            assert spell(real, ids)[0] == real.decode(ids)

    def test_a_good_character_stays_when_bad_bytes_follow_it_in_a_byte_fallback_run(self) -> None:
        real = Real(byte_fallback(metaspace=False))
        euro = [real.inner.token_to_id(f"<0x{byte:02X}>") for byte in "€".encode()]
        hen = real.encode("hen")
        # the decoder takes the character back
        assert real.decode([*euro, euro[0], *hen]) == 4 * REPLACEMENT + " hen"
        detokenizer = Detokenizer(real)
        assert [detokenizer.feed(token_id) for token_id in (*euro, euro[0])] == ["", "", "€", ""]
        assert "".join(map(detokenizer.feed, hen)) + detokenizer.finish() == REPLACEMENT + " hen"

    def test_the_decoded_window_does_not_grow_with_the_output(self, real: Real) -> None:
        ids = real.encode(" the hen 你好 😀 a," * 60)
        detokenizer = Detokenizer(real)
        real.calls.clear()
        for token_id in ids:
            detokenizer.feed(token_id)
        assert max(real.calls) <= 25
        assert len(real.calls) <= 2 * len(ids) + 2

    def test_what_is_remembered_of_pairs_of_tokens_changes_nothing(
        self, real: Real, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at_random = random.Random(8)
        rows = [real.encode(text) for text in some_texts(80)]
        rows += [
            tuple(at_random.choices(range(real.vocab_size), k=at_random.randint(0, 40)))
            for _ in range(80)
        ]

        def pieces() -> list[list[str]]:
            fed = []
            for ids in rows:
                detokenizer = Detokenizer(real)
                fed.append(
                    [*(detokenizer.feed(token_id) for token_id in ids), detokenizer.finish()]
                )
            return fed

        remembering = pieces()
        spelt = [spell(real, ids) for ids in rows]
        monkeypatch.setattr(detokenize, "_after", lambda *_: "")
        assert pieces() == remembering
        monkeypatch.setattr(detokenize, "_alone", lambda *_: REPLACEMENT)
        assert [spell(real, ids) for ids in rows] == spelt

    def test_tokens_met_before_are_not_decoded_again(self) -> None:
        real = Real(byte_level())
        ids = real.encode(" the hen" * 20)
        spell(real, ids)
        real.calls.clear()
        detokenizer = Detokenizer(real)
        assert "".join(map(detokenizer.feed, ids)) == " the hen" * 20
        assert sum(real.calls) <= 4 * len(set(ids))

    def test_bytes_that_never_become_a_character_do_not_grow_the_window(self) -> None:
        toy = ToyTokenizer()
        assert spell(toy, [0xFF] * 500)[0] == 500 * REPLACEMENT
        detokenizer = Detokenizer(toy)
        pieces = [detokenizer.feed(token_id) for token_id in TOY.encode(40 * REPLACEMENT + "a")]
        assert pieces[-1].endswith("a")
        assert "".join(pieces) == 40 * REPLACEMENT + "a"

    def test_tokens_that_straddle_characters_are_decoded_in_bounded_windows(self) -> None:
        first, middle, last = "日".encode(), "本".encode(), "語".encode()
        toy = ToyTokenizer(
            merges=(first[1:] + middle[:1], middle[1:] + first[:1], first[1:] + last[:1], "日")
        )
        ids = [first[0], *[256, 257] * 40, 258, *last[1:]]
        assert spell(toy, ids)[0] == toy.decode(ids) == 40 * "日本" + "日語"

    def test_tokens_without_text_are_no_context(self) -> None:
        real = Real(byte_fallback(metaspace=False))
        # models have more rows than their tokenizer has tokens; these decode to nothing
        unknown = real.vocab_size + 7
        the = real.inner.token_to_id("▁the")
        for ids in (
            [the, unknown, the],
            [unknown, the, the],
            [unknown] * 40 + [the, the],
            [the, *[unknown] * 40, the],
        ):
            assert spell(real, ids)[0] == real.decode(ids) == "the the"


@pytest.mark.parametrize(
    ("merges", "ids"),
    [
        (("yz",), (256,)),
        (("xy", "yz"), (257,)),  # behind another word, which the text does not merge with
        (("xy", ".y", "1y", "yz"), (259,)),  # by itself, as it merges with each word
    ],
)
def test_the_ids_of_a_text_behind_another_are_read_behind_a_word_that_it_does_not_merge_with(
    merges: tuple[str, ...], ids: tuple[int, ...]
) -> None:
    assert ids_behind(ToyTokenizer(merges=merges), "yz") == ids


class Merging:
    """It makes one token of any text, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.asked.append(text)
        return [hash(text)]


@pytest.mark.parametrize(
    ("after", "asked"),
    [("", ["x", "xb", ".", ".b", "1", "1b", "b"]), ("<c>", ["<c>", "<c>b", "b"])],
)
def test_the_words_before_a_text_are_tried_in_turn(after: str, asked: list[str]) -> None:
    tokenizer: Any = Merging()
    ids_behind(tokenizer, "b", **({"after": after} if after else {}))
    assert tokenizer.asked == asked


def test_hidden_ids_have_no_text_beside_whole_and_cut_characters() -> None:
    end = TOY.special_tokens["<|im_end|>"]
    assert spell(TOY, (97, end, 98), (end,)) == ("ab", (1, 1, 2))
    assert spell(TOY, (*"é".encode(), end, 97), (end,)) == ("éa", (0, 1, 1, 2))


def test_the_text_of_a_token_is_that_behind_others_where_the_tokenizer_knows_it() -> None:
    class Spaced(ToyTokenizer):
        def piece(self, token_id: int) -> str | None:
            return f" {chr(token_id)}"

    assert (own_text(Spaced(), 97), own_text(TOY, 97)) == (" a", "a")


@pytest.mark.parametrize("before", ["", "abcd"])
def test_sixteen_tokens_wait_for_a_character_and_the_next_ends_the_wait(before: str) -> None:
    detokenizer = Detokenizer(TOY)
    for token_id in TOY.encode(before):
        detokenizer.feed(token_id)
    waited = [detokenizer.feed(0xFF) for _ in range(17)]
    assert waited == [*[""] * 16, 14 * REPLACEMENT]  # three may be a character that is incomplete
    assert detokenizer.finish() == 3 * REPLACEMENT


def test_it_waits_while_a_character_is_incomplete() -> None:
    folded = Detokenizer(TOY)
    first, second = TOY.encode("é")
    folded.feed(first)
    assert folded.waits
    folded.feed(second)
    assert not folded.waits
