"""Ids become text: by the toy tokenizer, and by tokenizers of the `tokenizers` library made on the
spot.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pipegen.records.options import DecodeOptions, GenerationOptions, StopOptions, resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Decoded, Encoded, Finish, Prompt, Raw, TokenLogprob
from pipegen.stages.ending import decode_row
from pipegen.stages.parts import detokenize
from pipegen.stages.parts.detokenize import Detokenizer, spell
from pipegen.testing.texts import AWKWARD
from pipegen.testing.toy import ToyTokenizer

TOY = ToyTokenizer()
IM_START, IM_END, END_OF_TEXT = (
    TOY.special_tokens[token] for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
)
REPLACEMENT = "\ufffd"


def raw(token_ids: Sequence[int], options: GenerationOptions | None = None, **how: Any) -> Raw:
    prompt = Prompt(token_ids=(65,), compact_token_ids=(65,))
    encoded = Encoded(
        request=TextGenerationRequest(prompt="A"), options=resolve(options), prompt=prompt
    )
    return Raw(encoded=encoded, token_ids=tuple(token_ids), **how)


def decoded(
    text: str, options: GenerationOptions | None = None, eos: Sequence[int] = (IM_END,), **how: Any
) -> Decoded:
    return decode_row(raw(TOY.encode(text), options, **how), TOY, eos).unwrap()


class TestDecode:
    def test_text_without_the_end_token_and_raw_text_with_it(self) -> None:
        row = decoded("hi<|im_end|>")
        assert (row.text, row.raw_text, row.finish, row.stop) == (
            "hi",
            "hi<|im_end|>",
            Finish.EOS,
            None,
        )
        assert (row.text_ends, row.raw_ends) == ((1, 2, 2), (1, 2, 12))

    def test_a_stop_token_is_reported_and_stays_in_raw_text(self) -> None:  # A7
        row = decoded("a.b", GenerationOptions(stop=StopOptions(stop_token_ids=(ord("."),))))
        assert (row.text, row.raw_text, row.finish, row.stop, row.raw.token_ids) == (
            "a",
            "a.",
            Finish.STOP_TOKEN,
            ord("."),
            (97, 46),
        )

    def test_an_end_token_of_id_0_counts(self) -> None:  # A8
        row = decode_row(raw((97, 0, 98)), TOY, (0,)).unwrap()
        assert (row.text, row.finish, row.raw.token_ids) == ("a", Finish.EOS, (97, 0))

    @pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>"])
    def test_all_end_tokens_of_the_checkpoint_count(self, token: str) -> None:  # A8
        assert decoded(f"a{token}b", eos=(IM_END, END_OF_TEXT)).raw_text == f"a{token}"

    def test_a_stop_that_is_a_special_token_is_named_as_it_was_written(self) -> None:  # A9
        row = decoded(
            "a<|im_end|>b",
            GenerationOptions(stop=StopOptions(stop=("<|im_end|>",), stop_token_ids=(IM_END,))),
        )
        assert (row.text, row.raw_text, row.finish, row.stop) == (
            "a",
            "a<|im_end|>",
            Finish.STOP_TOKEN,
            "<|im_end|>",
        )

    def test_whitespace_at_both_ends_is_kept(self) -> None:  # A10
        assert decoded(" a \n<|im_end|>").text == " a \n"

    def test_an_ending_token_is_no_text_even_where_special_tokens_are_shown(self) -> None:
        row = decoded(
            "<|im_start|>a<|im_end|>",
            GenerationOptions(decode=DecodeOptions(skip_special_tokens=False)),
        )
        assert (row.text, row.text_ends) == ("<|im_start|>a", (12, 13, 13))

    def test_special_tokens_in_the_middle_are_invisible_and_added_ones_are_not(self) -> None:
        row = decoded("a<|im_start|><think>b")
        assert (row.text, row.raw_text) == ("a<think>b", "a<|im_start|><think>b")

    def test_ignored_end_tokens_end_nothing(self) -> None:
        row = decoded(
            "a<|im_end|>b", GenerationOptions(max_new_tokens=3, stop=StopOptions(ignore_eos=True))
        )
        assert (row.text, row.finish) == ("ab", Finish.LENGTH)

    def test_an_end_token_within_min_new_tokens_does_not_end(self) -> None:  # A19
        row = decoded("a<|im_end|>b<|im_end|>c", GenerationOptions(min_new_tokens=2))
        assert (row.text, row.finish, len(row.raw.token_ids)) == ("ab", Finish.EOS, 4)

    def test_the_ending_eos_is_counted_once_and_padding_after_it_never(self) -> None:  # A18
        row = decoded("ab" + 4 * "<|im_end|>")
        assert (row.raw.token_ids, row.raw_text) == ((97, 98, IM_END), "ab<|im_end|>")

    def test_an_id_that_only_pads_elsewhere_is_kept_in_the_middle(self) -> None:  # A18
        assert decoded("a<|endoftext|>b<|im_end|>").raw_text == "a<|endoftext|>b<|im_end|>"

    def test_ids_beyond_the_limit_are_dropped_with_their_logprobs(self) -> None:
        logprobs = tuple(
            TokenLogprob(token_id=token_id, logprob=-1.0, text=chr(token_id))
            for token_id in TOY.encode("abc")
        )
        row = decoded("abc", GenerationOptions(max_new_tokens=2), logprobs=logprobs)
        assert (row.text, row.finish, row.raw.logprobs) == ("ab", Finish.LENGTH, logprobs[:2])

    def test_log_probabilities_say_the_texts_of_their_tokens(self) -> None:
        given = (
            TokenLogprob(token_id=0xC3, logprob=-1.0, top=((97, -1.0), (257, -2.0))),
            TokenLogprob(token_id=0xA9, logprob=-1.0),
        )
        row = decoded("é", logprobs=given)
        assert row.raw.logprobs is not None
        assert [(one.text, one.top_texts) for one in row.raw.logprobs] == [
            ("\ufffd", ("a", "<|im_end|>")),
            ("\ufffd", ()),
        ]

    def test_how_rows_end_that_no_token_ended(self) -> None:
        assert decoded("ab", aborted=True).finish is Finish.ABORTED
        assert (decoded("ab", halted="json").finish, decoded("ab", halted="json").stop) == (
            Finish.PLUGIN,
            "json",
        )
        assert decoded("ab").finish is Finish.ABORTED
        assert decoded("ab", GenerationOptions(max_new_tokens=2)).finish is Finish.LENGTH
        assert decoded("a<|im_end|>", aborted=True).finish is Finish.EOS
        assert (
            decoded("abc", GenerationOptions(max_new_tokens=2), halted="json").finish
            is Finish.LENGTH
        )

    def test_no_ids_are_no_text(self) -> None:
        row = decoded("")
        assert (row.text, row.raw_text, row.text_ends, row.raw_ends) == ("", "", (), ())
        assert decoded("<|im_end|>").text_ends == (0,)

    def test_output_that_ends_inside_a_character_shows_it(self) -> None:  # A15
        row = decode_row(raw((97, 0xE2, 0x82)), TOY, ()).unwrap()
        assert (row.text, row.text_ends) == (f"a{REPLACEMENT}", (1, 1, 1))

    def test_options_must_be_resolved(self) -> None:
        prompt = Prompt(token_ids=(65,), compact_token_ids=(65,))
        encoded = Encoded(
            request=TextGenerationRequest(prompt="A"), options=GenerationOptions(), prompt=prompt
        )
        with pytest.raises(ValueError, match="resolve"):
            decode_row(Raw(encoded=encoded, token_ids=(1,)), TOY)


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
    "the",
    " the",
    "  ",
    " a hen",
    "one\n",
    "你",
    "€",
    "é",
    "😀",
    "x😀😀y",
    "</s>",
    "<|im_end|>",
    "z",
    ",",
    "👩‍👩‍👧‍👦",
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
