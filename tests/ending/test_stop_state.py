"""A row followed token by token: where it halts, and what may be shown when."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from pipegen.core.errors import PluginFailed, StageFailed
from pipegen.ending.stop_state import (
    Stripper,
    TextFold,
    TokenFold,
    ending_ids,
    feed_each,
    plan_of,
)
from pipegen.engines.plugin import Plugin
from pipegen.records.option_groups import DecodeOptions, StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.results import Finish
from pipegen.testing.toy import ToyTokenizer

TOY = ToyTokenizer(merges=("a\n\nb", "ST", "OP"))
IM_END = TOY.special_tokens["<|im_end|>"]


def follower(plugins: Sequence[Plugin] = (), *, text: bool = True, **options: Any) -> TokenFold:
    return TokenFold(resolve(GenerationOptions(**options)), TOY, (IM_END,), plugins, text=text)


def fed(row: TokenFold, text: str) -> list[str]:
    return [row.feed(token_id) for token_id in TOY.encode(text)]


class CountingTokenizer(ToyTokenizer):
    """Counts how often it is asked to decode."""

    def __init__(self) -> None:
        super().__init__()
        self.decodes = 0

    def decode(self, token_ids: Sequence[int]) -> str:
        self.decodes += 1
        return super().decode(token_ids)


class TestHalting:
    def test_it_halts_at_the_token_that_completes_a_stop(self) -> None:  # A5, A17
        row = follower(stop=("STOP",), max_new_tokens=200)
        seen = (fed(row, "aSTOPbc"), row.finish, row.stop, row.count)
        assert seen == (["a", "", "", "", ""], Finish.STOP_STRING, "STOP", 3)

    def test_stored_tokens_are_read_as_far_as_a_stop_may_reach_back(self) -> None:
        row = follower(stop=("END",), text=False)
        fed(row, "xEN")
        assert set(TOY.encode("EN")) <= row.stop_safe.keys()  # they are stored, and not read yet
        fed(row, "D")
        assert (row.finish, row.stop, row.count) == (Finish.STOP_STRING, "END", 4)

    @pytest.mark.parametrize(("least", "stop"), [(0, "\ufffd"), (1, None)])
    def test_a_stop_in_what_was_held_back_counts_as_its_token_does(
        self, least: int, stop: str | None
    ) -> None:
        row = follower(stop=("\ufffd",), min_new_tokens=least)
        row.feed(0xC3)  # the first byte of two
        assert row.finish is None
        row.close(aborted=True)
        assert row.stop == stop

    @pytest.mark.parametrize("text", ["abcd", "ab"])
    def test_it_runs_while_nothing_ends_it(self, text: str) -> None:
        row = follower(stop=("STOP",))
        fed(row, text)
        assert (row.finish, row.stop, row.count) == (None, None, len(text))

    def test_it_halts_at_end_and_stop_tokens(self) -> None:  # A7, A9
        for options, finish, stop in (
            ({}, Finish.EOS, None),
            ({"stop": ("<|im_end|>",)}, Finish.STOP_TOKEN, "<|im_end|>"),
            ({"stop": StopOptions(stop_token_ids=(IM_END,))}, Finish.STOP_TOKEN, IM_END),
        ):
            row = follower(**options)
            seen = (fed(row, "a<|im_end|>"), row.finish, row.stop, row.count)
            assert seen == (["a", ""], finish, stop, 2)

    def test_nothing_halts_it_within_min_new_tokens(self) -> None:  # A19
        row = follower(stop=("c",), min_new_tokens=5)
        assert "".join(fed(row, "abcd<|im_end|>dc")) == "abcdd"
        assert (row.finish, row.count) == (Finish.STOP_STRING, 7)

    def test_the_last_token_may_complete_a_stop(self) -> None:  # A13
        row = follower(stop=("bc",), max_new_tokens=3)
        assert (fed(row, "abc"), row.finish) == (["a", "", ""], Finish.STOP_STRING)

    def test_at_the_limit_it_ends_and_shows_what_it_held(self) -> None:
        row = follower(stop=("bcd",), max_new_tokens=3)
        assert (fed(row, "abc"), row.finish) == (["a", "", "bc"], Finish.LENGTH)

    def test_a_plugin_halts_it(self) -> None:
        brace = Plugin(
            name="brace",
            start=lambda: None,
            feed=lambda state, text: (state, 1 if "}" in text else None),
        )
        row = follower([brace], stop=("}}",))
        assert (fed(row, "a}b"), row.finish, row.stop) == (["a", "}", ""], Finish.PLUGIN, "brace")

    def test_a_plugin_that_fails_aborts_it(self) -> None:  # A11
        row = follower([Plugin(name="bad", start=lambda: 0, feed=lambda state, text: 1 // 0)])  # type: ignore[arg-type, return-value]
        assert (fed(row, "ab"), row.finish, row.count) == (["", ""], Finish.ABORTED, 1)
        assert isinstance(row.failure, PluginFailed)
        assert row.failure.plugin == "bad"

    def test_without_need_for_text_nothing_is_decoded(self) -> None:
        toy = CountingTokenizer()
        row = TokenFold(
            resolve(GenerationOptions(stop=("<|im_end|>",), max_new_tokens=5)),
            toy,
            (0,),
            text=False,
        )
        assert [row.feed(token_id) for token_id in b"abcde"] == [""] * 5
        assert (row.finish, toy.decodes) == (Finish.LENGTH, 0)

    def test_each_token_is_decoded_a_bounded_number_of_times(self) -> None:
        toy = CountingTokenizer()
        row = TokenFold(resolve(GenerationOptions(stop=("END",), max_new_tokens=4096)), toy)
        for token_id in b"abcd" * 1000:
            row.feed(token_id)
        assert toy.decodes <= 2 * 4000

    def test_without_need_for_text_a_token_is_decoded_once_however_often_it_comes(self) -> None:
        toy = CountingTokenizer()
        row = TokenFold(
            resolve(GenerationOptions(stop=("END",), max_new_tokens=4097)), toy, text=False
        )
        for token_id in b"abcd" * 1000:
            row.feed(token_id)
        assert (row.finish, row.count) == (None, 4000)
        assert toy.decodes <= 8

    def test_ids_that_the_tokenizer_has_no_memory_for_fail_the_row(self) -> None:
        class Full(ToyTokenizer):
            def decode(self, token_ids: Sequence[int]) -> str:
                raise MemoryError("full")

        row = TokenFold(resolve(GenerationOptions(max_new_tokens=5)), Full())
        assert (row.feed(97), row.finish, row.ending) == ("", Finish.ABORTED, None)
        assert isinstance(row.failure, StageFailed)
        assert row.failure.stage == "decode"
        assert row.failure.incident
        assert row.failure.message.startswith("the generated ids cannot be decoded: ")
        assert row.failure.message.endswith("MemoryError: full")
        assert (row.feed(98), row.close(), row.token_ids) == ("", "", [97])

    def test_a_tokenizer_that_fails_once_the_row_is_closed_fails_the_row(self) -> None:
        class Filling(ToyTokenizer):
            full = False

            def decode(self, token_ids: Sequence[int]) -> str:
                if self.full:
                    raise MemoryError("full")
                return super().decode(token_ids)

        toy = Filling()
        row = TokenFold(resolve(GenerationOptions(max_new_tokens=5)), toy)
        assert row.feed(97) == "a"
        toy.full = True
        assert (row.close(ended_by_plugin="json"), row.finish, row.ending) == (
            "",
            Finish.ABORTED,
            None,
        )
        assert isinstance(row.failure, StageFailed)
        assert row.failure.message.endswith("MemoryError: full")

    def test_options_must_be_resolved(self) -> None:
        with pytest.raises(ValueError, match="resolve"):
            TokenFold(GenerationOptions(), TOY)

    def test_ending_ids_are_what_it_halts_at(self) -> None:
        assert ending_ids(resolve(GenerationOptions(stop=("<|endoftext|>",))), TOY, (IM_END,)) == (
            IM_END,
            IM_END + 1,
        )


class TestShowing:
    def test_text_that_may_become_a_stop_waits(self) -> None:
        row = follower(stop=("STOP", "x<|image_pad|>y"))
        assert fed(row, "aSTaSx") == ["a", "", "STa", "", "S"]
        assert fed(row, "<|image_pad|>z") == ["", "xz"]
        assert fed(row, "x<|image_pad|>y") == ["", "", ""]
        assert (row.finish, row.stop) == (Finish.STOP_STRING, "x<|image_pad|>y")

    def test_of_two_stops_that_one_token_completes_the_first_to_complete_wins(self) -> None:
        toy = ToyTokenizer(merges=("bc",))
        for stops, shown, stop in (
            (("a<|image_pad|>b", "bc"), "", "a<|image_pad|>b"),
            (("a<|image_pad|>bc", "b"), "a", "b"),
            (("a<|image_pad|>bc", "bc"), "", "a<|image_pad|>bc"),
        ):
            row = TokenFold(resolve(GenerationOptions(stop=stops)), toy)
            assert ("".join(map(row.feed, toy.encode("a<|image_pad|>bc"))), row.stop) == (
                shown,
                stop,
            )

    def test_characters_are_shown_when_complete(self) -> None:  # A15
        assert fed(follower(), "é😀") == ["", "é", "", "", "", "😀"]

    def test_a_character_that_is_never_completed_is_shown_at_the_end(self) -> None:  # A15
        row = follower(max_new_tokens=2)
        assert [row.feed(97), row.feed(0xE2)] == ["a", "\ufffd"]
        row = follower()
        assert [row.feed(97), row.feed(0xE2), row.feed(IM_END)] == ["a", "", "\ufffd"]
        row = follower(stop=("<|image_pad|>\ufffd",))
        assert [
            row.feed(TOY.special_tokens["<|image_pad|>"]),
            row.feed(0xE2),
            row.feed(IM_END),
            row.finish,
        ] == ["", "", "", Finish.STOP_STRING]
        row = follower(stop=("a\ufffd",))
        seen = [row.feed(97), row.feed(0xE2), row.feed(IM_END), row.finish, row.stop]
        assert seen == ["", "", "", Finish.STOP_STRING, "a\ufffd"]

    def test_stripped_text_is_shown_without_the_whitespace_at_its_ends(self) -> None:
        row = follower(decode=DecodeOptions(strip_whitespace=True))
        assert fed(row, "  a b \n<|im_end|>") == ["", "", "a", "", " b", "", "", ""]

    def test_closing_shows_what_was_held_and_says_how_it_ended(self) -> None:
        for how, finish, stop in (
            ({}, Finish.ABORTED, None),
            ({"aborted": True}, Finish.ABORTED, None),
            ({"ended_by_plugin": "json"}, Finish.PLUGIN, "json"),
        ):
            row = follower(stop=("STOP",))
            assert fed(row, "aST") == ["a", ""]
            assert (row.close(**how), row.finish, row.stop) == ("ST", finish, stop)
            assert (row.close(), row.feed(97), row.count) == ("", "", 2)

    @pytest.mark.parametrize("text", [True, False])
    def test_a_stop_that_the_end_of_many_incomplete_characters_completes(self, text: bool) -> None:
        for waiting in range(1, 17):
            row = follower(stop=("x" + "\ufffd" * waiting,), text=text)
            row.take((*b"ax", *[0xFF] * waiting))
            row.close()
            assert (row.finish, row.stop) == (Finish.STOP_STRING, "x" + "\ufffd" * waiting)


class TestWholeRows:
    def test_a_row_that_has_ended_takes_no_more_text(self) -> None:
        fold = TextFold(("b",))
        assert [fold.feed_text("ab"), fold.feed_text("c"), fold.end(Finish.EOS)] == ["a", "", ""]
        assert (fold.finish, fold.stop, fold.length, fold.seen) == (Finish.STOP_STRING, "b", 1, 2)

    def test_ids_taken_at_once_end_where_they_end_one_by_one(self) -> None:
        for ids in ((97, 98), (97, IM_END, 98), (IM_END, 97, IM_END, 98), (97,) * 9):
            taken, stepped = (
                follower(max_new_tokens=5, min_new_tokens=1, text=False) for _ in "ab"
            )
            taken.take(ids)
            for token_id in ids:
                feed_each((stepped,), (token_id,))
            assert (taken.finish, taken.token_ids) == (stepped.finish, stepped.token_ids)
            assert taken.ending == stepped.ending

    def test_the_limit_must_be_known(self) -> None:
        open_ended = dataclasses.replace(resolve(GenerationOptions()), max_new_tokens=None)
        with pytest.raises(ValueError, match="resolve"):
            TokenFold(open_ended, TOY)


class TestWithoutText:
    """Nobody wants the text: most tokens are only stored."""

    @pytest.mark.parametrize(
        "stops",
        [("ab",), ("aab", "ba"), ("bbb",), ("abab", "b<|im_end|>"), ("a<|im_end|>",)],
        ids=str,
    )
    def test_a_row_ends_where_it_ends_with_text(self, stops: tuple[str, ...]) -> None:
        for ids in itertools.product((*b"abx", IM_END), repeat=5):
            for least in (0, 2):
                rows = [
                    follower(stop=stops, text=text, min_new_tokens=least, max_new_tokens=5)
                    for text in (True, False)
                ]
                shown = [[row.feed(token_id) for token_id in ids] for row in rows]
                ends = [(row.finish, row.stop, row.count) for row in rows]
                assert ends[0] == ends[1], ids
                assert shown[1] == [""] * 5

    def test_plugins_and_stops_in_raw_text_are_obeyed(self) -> None:
        halting = Plugin(
            name="p",
            start=lambda: None,
            feed=lambda state, text: (state, 1 if "b" in text else None),
        )
        for row in (follower((halting,), text=False), follower(stop=("b<|im_end|>",), text=False)):
            assert (row.reads, row.shown, dict(row.stop_safe)) == (True, "", {})
            for token_id in (*b"ab", IM_END):
                row.feed(token_id)
            assert (row.finish, row.stop) in (
                (Finish.PLUGIN, "p"),
                (Finish.STOP_STRING, "b<|im_end|>"),
            )

    def test_what_was_held_is_not_shown_at_the_end(self) -> None:
        row = follower(stop=("b<|im_end|>",), text=False)
        assert [row.feed(token_id) for token_id in b"ab"] + [row.close()] == [""] * 3

    def test_ids_taken_at_once_end_as_one_by_one(self) -> None:
        for ids in itertools.product((97, IM_END), repeat=5):
            for least, split in itertools.product((0, 1, 3), (0, 1, 2, 3)):
                rows = [
                    follower(text=False, min_new_tokens=least, max_new_tokens=4) for _ in range(2)
                ]
                for token_id in ids:
                    rows[0].feed(token_id)
                rows[1].take(ids[:split])
                rows[1].take(ids[split:])
                one, taken = [(row.finish, row.stop, row.token_ids) for row in rows]
                assert one == taken, (ids, least, split)


def test_a_row_takes_one_token_of_each_step() -> None:
    with pytest.raises(ValueError, match="argument"):
        feed_each([follower()], (97, 98))


def test_options_without_how_they_are_decoded_are_not_resolved() -> None:
    with pytest.raises(ValueError, match="resolve"):
        plan_of(dataclasses.replace(resolve(), decode=None), TOY)


def test_ids_that_the_model_cannot_generate_are_no_ends() -> None:
    assert ending_ids(resolve(), TOY, (256, 257, 258), 257) == (256,)


def test_space_within_is_kept_and_space_around_is_not() -> None:
    stripper = Stripper()
    assert [stripper.feed(piece) for piece in (" a ", " b", "c  ", " ")] == ["a", "  b", "c", ""]
    assert TextFold(()).feed_text(" a ") == " a "


def test_what_stands_before_a_stop_is_shown_though_a_longer_one_has_begun() -> None:
    fold = TextFold(("b",), ("ab<x>",))
    assert (fold.feed_text("ab", "ab"), fold.stop, fold.length) == ("a", "b", 1)
