"""How rows end: ids to text, the cut, where each stop is looked for, and what ends a row first."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from returns.result import Success

import pipegen as pg
from pipegen.core.errors import MalformedResponse, PluginFailed
from pipegen.core.slots import Slot
from pipegen.ending.stop_scan import Cut, StopScanner, cut
from pipegen.ending.stop_state import TokenFold, ending_ids, plan_of, text_offset
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import RowDone, TokensMade
from pipegen.records.fields import unchecked_replace
from pipegen.records.option_groups import DecodeOptions, StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Decoded, Encoded, Ending, Finish, Prompt, Raw, TokenLogprob
from pipegen.stages.ending import decode_row, end_row, stop_row
from pipegen.testing.fake import FakeEngine
from pipegen.testing.toy import ToyTokenizer

TOY = ToyTokenizer(merges=("a\n\nb", "ST", "OP", "xSTOP", "}STOP"))
IM_END, IMAGE_PAD = TOY.special_tokens["<|im_end|>"], TOY.special_tokens["<|image_pad|>"]
PLAIN = ToyTokenizer()
PLAIN_END, PLAIN_TEXT_END = (PLAIN.special_tokens[end] for end in ("<|im_end|>", "<|endoftext|>"))
REPLACEMENT = "\ufffd"


def judged(
    text: str | Sequence[int],
    options: GenerationOptions | None = None,
    plugins: Sequence[Plugin] = (),
    tokenizer: ToyTokenizer = TOY,
    **how: Any,
) -> Slot[Decoded]:
    ids = tokenizer.encode(text) if isinstance(text, str) else tuple(text)
    encoded = Encoded(
        request=TextGenerationRequest(prompt="STO"),
        options=resolve(options),
        prompt=Prompt(token_ids=(83,), compact_token_ids=(83,)),
    )
    return end_row(Raw(encoded=encoded, token_ids=ids, **how), tokenizer, (IM_END,), plugins)


def ended(
    text: str | Sequence[int], *stops: str, **more: Any
) -> tuple[str, Finish, str | int | None, int]:
    row = judged(text, GenerationOptions(stop=stops, **more)).unwrap()
    return row.text, row.finish, row.stop, len(row.raw.token_ids)


class TestCut:
    @pytest.mark.parametrize("stops", [("END", "STOP"), ("STOP", "END")])
    # A1
    def test_the_stop_that_completes_first_wins_in_either_order(
        self, stops: tuple[str, ...]
    ) -> None:
        assert cut("abcSTOPdEND", stops) == Cut("abc", "STOP", 7)

    def test_a_stop_at_the_beginning_leaves_nothing(self) -> None:  # A2
        assert cut("STOPx", ("STOP",)) == Cut("", "STOP", 4)

    def test_without_a_match_the_text_is_unchanged(self) -> None:  # A3
        assert cut("abc", ("STOP",)) == Cut("abc", None, None)
        assert cut(" abc\n", ()) == Cut(" abc\n", None, None)
        assert cut(" abc\n", ("STOP",)) == Cut(" abc\n", None, None)

    def test_earliest_completion_goes_before_earliest_start(self) -> None:  # A12
        assert cut("abcd", ("abcd", "bc")) == Cut("a", "bc", 3)

    @pytest.mark.parametrize("stops", [("bc", "abc"), ("abc", "bc")])
    def test_the_longest_of_those_that_complete_together_wins(self, stops: tuple[str, ...]) -> None:
        assert cut("xabc", stops) == Cut("x", "abc", 4)

    @pytest.mark.parametrize(
        ("after", "end"), [(0, 2), (1, 2), (2, 3), (3, 6), (5, 6), (6, None), (99, None)]
    )
    # A19
    def test_a_stop_that_completes_within_the_first_characters_does_not_count(
        self, after: int, end: int | None
    ) -> None:
        assert cut("aaabaa", ("aa",), after=after).end == end

    def test_a_bare_string_is_refused(self) -> None:  # A4
        with pytest.raises(TypeError, match="bare string 'END'"):
            cut("text", "END")
        with pytest.raises(TypeError, match="bare string 'END'"):
            StopScanner("END")

    @pytest.mark.parametrize(("stops", "error"), [(("a", ""), ValueError), (("a", 1), TypeError)])
    # A4
    def test_an_empty_or_foreign_stop_is_refused_by_its_position(
        self, stops: Any, error: type[Exception]
    ) -> None:
        with pytest.raises(error, match="position 1"):
            cut("text", stops)
        with pytest.raises(error, match="position 1"):
            StopScanner(stops)

    @pytest.mark.parametrize("stops", ["END", ("",), (1,)])
    def test_options_refuse_them_at_construction(self, stops: Any) -> None:  # A4
        with pytest.raises(ValueError, match=r"StopOptions\.stop takes"):
            StopOptions(stop=stops)


class TestPlan:
    def test_stops_are_looked_for_where_they_can_be_seen(self) -> None:  # A9
        stops = ("END", "<|im_end|>", "a<|im_end|>", "<|im_", "<think>")
        plan = plan_of(resolve(GenerationOptions(stop=stops)), TOY)
        assert plan.ids == {IM_END: (Finish.STOP_TOKEN, "<|im_end|>")}
        assert plan.raw == ("a<|im_end|>",)
        assert plan.text == ("END", "<|im_", "<think>")
        assert pickle.loads(pickle.dumps(plan)) == plan

    def test_where_a_stop_is_looked_for_does_not_depend_on_what_text_shows(self) -> None:
        for skips in (True, False):
            decode = DecodeOptions(skip_special_tokens=skips)
            options = resolve(GenerationOptions(stop=("END", "a<|im_end|>"), decode=decode))
            plan = plan_of(options, TOY)
            assert (plan.text, plan.raw) == (("END",), ("a<|im_end|>",))
            assert plan.hidden == (set(TOY.special_tokens.values()) if skips else set())

    def test_a_stop_token_goes_before_an_end_token_and_is_named_as_it_was_written(self) -> None:
        options = GenerationOptions(stop=StopOptions(stop=("<|im_end|>",), stop_token_ids=(7, 5)))
        assert plan_of(resolve(options), TOY, (0, 5, IM_END)).ids == {
            0: (Finish.EOS, None),
            5: (Finish.STOP_TOKEN, 5),
            7: (Finish.STOP_TOKEN, 7),
            IM_END: (Finish.STOP_TOKEN, "<|im_end|>"),
        }

    def test_without_stops_the_end_tokens_alone_end_a_row(self) -> None:
        plan = plan_of(resolve(GenerationOptions()), TOY, (7,))
        assert (plan.ids, plan.text, plan.raw) == ({7: (Finish.EOS, None)}, (), ())

    def test_rows_with_equal_stops_share_one_plan(self) -> None:
        plans = [
            plan_of(resolve(GenerationOptions(stop=("a",), seed=seed)), TOY) for seed in (1, 2)
        ]
        assert plans[0] is plans[1]

    def test_ending_ids_are_stop_ids_special_stops_and_end_tokens(self) -> None:
        options = GenerationOptions(
            stop=StopOptions(stop=("<|image_pad|>", "x"), stop_token_ids=(7,))
        )
        assert ending_ids(resolve(options), TOY, (0, IM_END)) == (0, 7, IM_END, IMAGE_PAD)
        ignoring = GenerationOptions(stop=StopOptions(stop_token_ids=(IM_END,), ignore_eos=True))
        assert ending_ids(resolve(ignoring), TOY, (0, IM_END)) == (IM_END,)

    def test_options_must_be_resolved(self) -> None:
        with pytest.raises(ValueError, match="resolve"):
            ending_ids(GenerationOptions(), TOY, ())


def raw(token_ids: Sequence[int], options: GenerationOptions | None = None, **how: Any) -> Raw:
    prompt = Prompt(token_ids=(65,), compact_token_ids=(65,))
    encoded = Encoded(
        request=TextGenerationRequest(prompt="A"), options=resolve(options), prompt=prompt
    )
    return Raw(encoded=encoded, token_ids=tuple(token_ids), **how)


def decoded(
    text: str,
    options: GenerationOptions | None = None,
    eos: Sequence[int] = (PLAIN_END,),
    **how: Any,
) -> Decoded:
    return decode_row(raw(PLAIN.encode(text), options, **how), PLAIN, eos).unwrap()


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
        row = decode_row(raw((97, 0, 98)), PLAIN, (0,)).unwrap()
        assert (row.text, row.finish, row.raw.token_ids) == ("a", Finish.EOS, (97, 0))

    @pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>"])
    def test_all_end_tokens_of_the_checkpoint_count(self, token: str) -> None:  # A8
        assert decoded(f"a{token}b", eos=(PLAIN_END, PLAIN_TEXT_END)).raw_text == f"a{token}"

    def test_a_stop_that_is_a_special_token_is_named_as_it_was_written(self) -> None:  # A9
        row = decoded(
            "a<|im_end|>b",
            GenerationOptions(stop=StopOptions(stop=("<|im_end|>",), stop_token_ids=(PLAIN_END,))),
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
        assert (row.raw.token_ids, row.raw_text) == ((97, 98, PLAIN_END), "ab<|im_end|>")

    def test_an_id_that_only_pads_elsewhere_is_kept_in_the_middle(self) -> None:  # A18
        assert decoded("a<|endoftext|>b<|im_end|>").raw_text == "a<|endoftext|>b<|im_end|>"

    def test_ids_beyond_the_limit_are_dropped_with_their_logprobs(self) -> None:
        logprobs = tuple(
            TokenLogprob(token_id=token_id, logprob=-1.0, text=chr(token_id))
            for token_id in PLAIN.encode("abc")
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
        assert (
            decoded("ab", ended_by_plugin="json").finish,
            decoded("ab", ended_by_plugin="json").stop,
        ) == (
            Finish.PLUGIN,
            "json",
        )
        assert decoded("ab").finish is Finish.ABORTED
        assert decoded("ab", GenerationOptions(max_new_tokens=2)).finish is Finish.LENGTH
        assert decoded("a<|im_end|>", aborted=True).finish is Finish.EOS
        assert (
            decoded("abc", GenerationOptions(max_new_tokens=2), ended_by_plugin="json").finish
            is Finish.LENGTH
        )

    def test_no_ids_are_no_text(self) -> None:
        row = decoded("")
        assert (row.text, row.raw_text, row.text_ends, row.raw_ends) == ("", "", (), ())
        assert decoded("<|im_end|>").text_ends == (0,)

    def test_output_that_ends_inside_a_character_shows_it(self) -> None:  # A15
        row = decode_row(raw((97, 0xE2, 0x82)), PLAIN, ()).unwrap()
        assert (row.text, row.text_ends) == (f"a{REPLACEMENT}", (1, 1, 1))

    def test_options_must_be_resolved(self) -> None:
        prompt = Prompt(token_ids=(65,), compact_token_ids=(65,))
        encoded = Encoded(
            request=TextGenerationRequest(prompt="A"), options=GenerationOptions(), prompt=prompt
        )
        with pytest.raises(ValueError, match="resolve"):
            decode_row(Raw(encoded=encoded, token_ids=(1,)), PLAIN)


class TestStop:
    def test_a_stop_over_two_tokens_ends_the_row_at_the_second(self) -> None:  # A5
        assert ended("abSTOPx", "STOP") == ("ab", Finish.STOP_STRING, "STOP", 4)

    def test_a_stop_inside_one_larger_token_leaves_what_is_before_it(self) -> None:  # A6
        row = judged("a\n\nb", GenerationOptions(stop=("\n",))).unwrap()
        assert (row.text, row.raw_text, row.stop, row.text_ends, row.raw_ends) == (
            "a",
            "a\n\nb",
            "\n",
            (1,),
            (4,),
        )

    def test_tokens_after_the_stop_are_dropped_with_their_logprobs(self) -> None:  # A17
        ids = TOY.encode("aSTOPx<|im_end|>")
        logprobs = tuple(
            TokenLogprob(token_id=token_id, logprob=-1.0, text=TOY.decode((token_id,)))
            for token_id in ids
        )
        row = judged(ids, GenerationOptions(stop=("STOP",)), logprobs=logprobs).unwrap()
        assert (row.raw.token_ids, row.raw.logprobs, row.raw_text, row.raw_ends) == (
            ids[:3],
            logprobs[:3],
            "aSTOP",
            (1, 3, 5),
        )
        assert row.text_ends == (1, 1, 1)

    def test_the_last_token_may_complete_a_stop(self) -> None:  # A13
        assert ended("abSTOP", "STOP", max_new_tokens=4) == ("ab", Finish.STOP_STRING, "STOP", 4)

    def test_of_a_visible_stop_and_one_with_a_special_token_the_longer_wins_where_both_complete(
        self,
    ) -> None:
        visible, mixed = "a" * 20 + "b", "<|image_pad|>b"
        assert ended("a" * 20 + mixed, visible, mixed)[::2] == ("", visible)
        assert ended("a" * 20 + mixed, visible[10:], mixed)[::2] == ("a" * 20, mixed)

    def test_only_generated_text_is_searched(self) -> None:  # A14
        assert ended("P<|im_end|>", "STOP") == ("P", Finish.EOS, None, 2)

    def test_an_unclosed_thinking_block_is_text_like_any_other(self) -> None:  # A16
        assert ended("<think>a\n\nSTOP", "STOP")[:3] == ("<think>a\n\n", Finish.STOP_STRING, "STOP")

    # A19
    def test_a_stop_within_min_new_tokens_is_ignored_and_the_same_one_after_them_ends(self) -> None:
        assert ended("abcdabcd", "c", min_new_tokens=5) == ("abcdab", Finish.STOP_STRING, "c", 7)
        assert ended("ab", "b", min_new_tokens=2, max_new_tokens=2) == (
            "ab",
            Finish.LENGTH,
            None,
            2,
        )
        assert ended("abc", "bc", min_new_tokens=2) == ("a", Finish.STOP_STRING, "bc", 3)

    def test_an_end_token_before_the_stop_ends_the_row(self) -> None:
        assert ended("a<|im_end|>STOP", "STOP") == ("a", Finish.EOS, None, 2)

    def test_an_aborted_row_whose_text_holds_the_stop_was_finished(self) -> None:
        assert (
            judged("aSTOP", GenerationOptions(stop=("STOP",)), aborted=True).unwrap().finish
            is Finish.STOP_STRING
        )

    def test_a_stop_around_a_special_token_is_found_in_raw_text_and_cut_from_text(self) -> None:
        assert ended("ab<|image_pad|>cd", "b<|image_pad|>c") == (
            "a",
            Finish.STOP_STRING,
            "b<|image_pad|>c",
            4,
        )
        assert ended("ab<|image_pad|>cd", "|><|image_pad|>", "<|image_pad|>c") == (
            "ab",
            Finish.STOP_STRING,
            "<|image_pad|>c",
            4,
        )
        assert ended("ab<|image_pad|>c", "b<|image_pad|>c", min_new_tokens=4) == (
            "abc",
            Finish.ABORTED,
            None,
            4,
        )

    def test_of_text_and_raw_text_the_stop_that_completes_first_wins_then_the_longest(self) -> None:
        assert ended("a<|image_pad|>bc", "a<|image_pad|>b", "c")[2] == "a<|image_pad|>b"
        assert ended("a<|image_pad|>bc", "a<|image_pad|>bc", "b")[2] == "b"
        assert ended("a<|image_pad|>bc", "a<|image_pad|>bc", "c")[2] == "a<|image_pad|>bc"
        toy = ToyTokenizer(merges=("bc",))
        one_token = GenerationOptions(stop=("a<|image_pad|>b", "bc"))
        assert (
            judged(toy.encode("a<|image_pad|>bc"), one_token, tokenizer=toy).unwrap().stop
            == "a<|image_pad|>b"
        )
        other = GenerationOptions(stop=("a<|image_pad|>bc", "b"))
        assert judged(toy.encode("a<|image_pad|>bc"), other, tokenizer=toy).unwrap().stop == "b"

    def test_a_stop_that_the_models_end_token_completes_is_found_in_raw_text(self) -> None:
        assert ended("ba<|im_end|>", "a<|im_end|>") == ("b", Finish.STOP_STRING, "a<|im_end|>", 3)

    def test_a_stop_token_is_judged_by_its_id_before_any_string(self) -> None:
        for before in ((), (98,), (98, 99)):
            row = judged(
                (*before, 97, IM_END),
                GenerationOptions(
                    stop=StopOptions(stop=("a<|im_end|>",), stop_token_ids=(IM_END,))
                ),
            ).unwrap()
            assert (row.text, row.finish, row.stop) == (
                bytes(before).decode() + "a",
                Finish.STOP_TOKEN,
                IM_END,
            )
        found = judged(
            (IMAGE_PAD, 97, IM_END),
            GenerationOptions(stop=StopOptions(stop=("<|image_pad|>a",), stop_token_ids=(IM_END,))),
        ).unwrap()
        assert (found.text, found.finish, found.stop) == ("", Finish.STOP_STRING, "<|image_pad|>a")

    def test_of_stops_that_complete_together_in_text_and_raw_text_the_longest_is_named(
        self,
    ) -> None:
        for stops in (("b", "<|image_pad|>b"), ("<|image_pad|>b", "b")):
            assert ended((97, IMAGE_PAD, 98), *stops) == (
                "a",
                Finish.STOP_STRING,
                "<|image_pad|>b",
                3,
            )

    # A19
    def test_a_stop_may_complete_with_the_very_first_character_and_just_after_min_new_tokens(
        self,
    ) -> None:
        assert ended((98, 99), "b") == ("", Finish.STOP_STRING, "b", 1)
        assert ended((97, 98, 99), "b", min_new_tokens=2, max_new_tokens=3) == (
            "abc",
            Finish.LENGTH,
            None,
            3,
        )
        assert ended((97, 98, 99), "c", min_new_tokens=2, max_new_tokens=3) == (
            "ab",
            Finish.STOP_STRING,
            "c",
            3,
        )

    def test_a_stop_that_only_the_end_of_the_output_completes_is_cut(self) -> None:
        row = judged((97, 0xE2), GenerationOptions(stop=("\ufffd",), max_new_tokens=2)).unwrap()
        assert (row.text, row.finish, row.stop) == ("a", Finish.STOP_STRING, "\ufffd")
        row = judged(
            (97, 0xE2), GenerationOptions(stop=("\ufffd",), min_new_tokens=2, max_new_tokens=2)
        ).unwrap()
        assert (row.text, row.finish, row.stop) == ("a\ufffd", Finish.LENGTH, None)

    def test_of_stops_that_the_end_token_completes_the_first_to_complete_wins(self) -> None:
        """It also completes the characters before it, in text and raw text alike."""
        ids = (97, 0xE2, 0xE2, IM_END)
        assert ended(ids, "\ufffd", "\ufffd\ufffd<|im_end|>")[::2] == ("a", "\ufffd")
        assert ended(ids, "a\ufffd", "\ufffd<|im_end|>")[::2] == ("", "a\ufffd")

    def test_offsets_in_raw_text_map_to_text(self) -> None:
        text_ends, raw_ends = (3, 3, 6), (3, 13, 16)
        assert [
            text_offset(raw, text_ends, raw_ends) for raw in (0, 2, 3, 7, 12, 13, 15, 16, 20)
        ] == [0, 2, 3, 3, 3, 3, 5, 6, 6]
        assert text_offset(0, (), ()) == 0


def halting(letter: str, name: str = "p", kept: Any = 1) -> Plugin:
    return Plugin(
        name=name,
        start=lambda: 0,
        feed=lambda seen, text: (seen + 1, kept if letter in text else None),
    )


def listening() -> tuple[Plugin, list[str]]:
    seen: list[str] = []

    def feed(state: None, text: str) -> tuple[None, None]:
        seen.append(text)
        return state, None

    return Plugin(name="listening", start=lambda: None, feed=feed), seen


class TestAnEndingOfAnEngine:
    """A row that its engine has ended at a stop, which a stage changes before `decode` or `stop`."""

    @pytest.mark.parametrize("before", ["decode", "stop"])
    @pytest.mark.parametrize(
        ("stops", "text", "stop"), [(("b",), "a", "b"), (("c",), "ab", "c"), ((), "abcd", None)]
    )
    def test_it_counts_for_its_own_options_alone(
        self, before: str, stops: tuple[str, ...], text: str, stop: str | None
    ) -> None:
        row = followed("abcd", ("b",))
        other = unchecked_replace(
            row.encoded, options=resolve(GenerationOptions(stop=stops, max_new_tokens=4))
        )
        if before == "decode":
            decoded = decode_row(unchecked_replace(row, encoded=other), PLAIN).unwrap()
        else:
            decoded = decode_row(row, PLAIN).unwrap()
            decoded = unchecked_replace(decoded, raw=unchecked_replace(decoded.raw, encoded=other))
        stopped = stop_row(decoded, PLAIN).unwrap()
        assert (stopped.text, stopped.stop) == (text, stop)

    def test_it_counts_for_its_own_ids_alone(self) -> None:
        row = followed("abcd", ("b",))
        moved = unchecked_replace(row, token_ids=(*b"xxab",))
        assert end_row(row, PLAIN).unwrap().text == "a"
        assert end_row(moved, PLAIN).unwrap().text == "xxa"


def followed(text: str, stops: tuple[str, ...]) -> Raw:
    """An answer with more ids than its row has, and how the row ended that an engine followed."""
    options = resolve(GenerationOptions(stop=stops, max_new_tokens=4))
    encoded = Encoded(
        request=TextGenerationRequest(prompt="A"),
        options=options,
        prompt=Prompt(token_ids=(65,), compact_token_ids=(65,)),
    )
    fold = TokenFold(options, PLAIN)
    ids = PLAIN.encode(text)
    fold.take(ids)
    ending = unchecked_replace(fold.ending, token_ids=ids)
    return Raw(encoded=encoded, token_ids=ids, ending=ending)


class TestPlugins:
    def test_a_plugin_halts_the_row_at_its_token(self) -> None:
        row = judged("ab}cd", plugins=[halting("}")]).unwrap()
        assert (row.text, row.finish, row.stop, row.raw_text) == ("ab}", Finish.PLUGIN, "p", "ab}")

    def test_it_may_halt_the_row_at_its_first_token(self) -> None:
        first = Plugin(name="first", start=int, feed=lambda state, new: (state, len(new)))
        row = judged((97, 98), plugins=(first,)).unwrap()
        assert (row.text, row.finish, row.stop, row.raw.token_ids) == (
            "a",
            Finish.PLUGIN,
            "first",
            (97,),
        )

    def test_it_says_how_much_of_the_token_belongs_to_the_answer(self) -> None:
        assert judged("ab}cd", plugins=[halting("}", kept=0)]).unwrap().text == "ab"

    def test_at_one_token_the_stop_string_goes_first(self) -> None:
        assert (
            judged("a}STOPx", GenerationOptions(stop=("STOP",)), [halting("}")]).unwrap().finish
            is Finish.STOP_STRING
        )
        assert (
            judged("a}bSTOPx", GenerationOptions(stop=("STOP",)), [halting("}")]).unwrap().text
            == "a}"
        )

    def test_of_several_the_first_in_order_is_named(self) -> None:
        assert (
            judged(
                "a}", plugins=[halting("x", "first"), halting("}", "second"), halting("}", "third")]
            )
            .unwrap()
            .stop
            == "second"
        )

    def test_it_halts_nothing_within_min_new_tokens(self) -> None:
        assert (
            judged("a}b}c", GenerationOptions(min_new_tokens=2), [halting("}")]).unwrap().text
            == "a}b}"
        )

    def test_it_sees_text_only_without_special_tokens_and_stops(self) -> None:
        watching, seen = listening()
        judged("a<|image_pad|>bSTOPx", GenerationOptions(stop=("STOP",)), [watching]).unwrap()
        assert seen == ["a", "b", "ST"]

    def test_it_sees_a_character_when_it_is_complete(self) -> None:  # A15
        watching, seen = listening()
        judged("é<|im_end|>", plugins=[watching]).unwrap()
        assert seen == ["é"]

    @pytest.mark.parametrize(
        "answer", [None, (1,), "xyz", ("s", "1"), ("s", True), ("s", -1), ("s", 2), ("s", 1.0)]
    )
    def test_an_answer_that_is_none_fails_the_row(self, answer: Any) -> None:  # A11
        error = judged(
            "a", plugins=[Plugin(name="bad", start=lambda: 0, feed=lambda state, text: answer)]
        ).failure()
        assert isinstance(error, PluginFailed)
        assert error.plugin == "bad"

    @pytest.mark.parametrize(
        "raised",
        [
            ValueError("no"),
            KeyError("no"),
            RuntimeError("no"),
            ZeroDivisionError("no"),
            RecursionError("no"),
        ],
    )
    def test_a_plugin_that_raises_fails_the_row(self, raised: Exception) -> None:  # A11
        def fail(*_: Any) -> Any:
            raise raised

        for plugin in (
            Plugin(name="bad", start=fail, feed=fail),
            Plugin(name="bad", start=lambda: 0, feed=fail),
        ):
            assert type(raised).__name__ in judged("a", plugins=[plugin]).failure().message

    def test_a_plugin_that_would_fail_after_the_end_has_not_failed(self) -> None:
        def feed(state: None, text: str) -> tuple[None, None]:
            assert "x" not in text
            return state, None

        assert (
            judged(
                "aSTOPx",
                GenerationOptions(stop=("STOP",)),
                [Plugin(name="p", start=lambda: None, feed=feed)],
            )
            .unwrap()
            .text
            == "a"
        )

    def test_an_interrupt_comes_through(self) -> None:
        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            judged("a", plugins=[Plugin(name="p", start=interrupted, feed=interrupted)])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda text: text[3:], "d "),
        (lambda text: f"Answer: {text}", "Answer: abcd "),
        (lambda text: "x STOP", "x "),
    ],
)
def test_a_stage_that_changes_the_length_of_the_text_leaves_ids_and_raw_text_whole(
    change: Callable[[str], str], text: str
) -> None:
    row = decoded("abcd STOP efgh", GenerationOptions(stop=("STOP",)))
    other = stop_row(unchecked_replace(row, text=change(row.text)), PLAIN).unwrap()
    assert (other.text, other.finish, other.stop) == (text, Finish.STOP_STRING, "STOP")
    assert (other.raw.token_ids, other.raw_text) == (row.raw.token_ids, row.raw_text)


def test_how_an_engine_ended_a_row_counts_for_these_very_texts_alone() -> None:
    options = GenerationOptions(stop=("STOP",))
    answer = raw(PLAIN.encode("abcd STOP"), options)
    ending = Ending(
        finish=Finish.STOP_STRING,
        stop="STOP",
        length=2,  # another than the rule's, so that it is seen which of the two counts
        token_ids=answer.token_ids,
        options=answer.encoded.options,
    )
    row = decode_row(unchecked_replace(answer, ending=ending), PLAIN, (PLAIN_END,)).unwrap()
    assert stop_row(row, PLAIN).unwrap().text == "ab"
    assert stop_row(unchecked_replace(row, text=row.text.upper()), PLAIN).unwrap().text == "ABCD "
    assert stop_row(unchecked_replace(row, text=f"x {row.text}"), PLAIN).unwrap().text == "x abcd "


@pytest.mark.parametrize("change", [lambda text: f"Answer: {text}", lambda text: text[3:]])
def test_a_stop_with_a_special_token_has_no_place_in_a_text_of_another_length(
    change: Callable[[str], str],
) -> None:
    row = decoded("abcd<|im_end|>efgh", GenerationOptions(stop=("d<|im_end|>e",)), eos=())
    error = stop_row(unchecked_replace(row, text=change(row.text)), PLAIN).failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == "stop"
    assert "the stop 'd<|im_end|>e' holds a special token" in error.message
    assert stop_row(unchecked_replace(row, text=row.text.upper()), PLAIN).unwrap().text == "ABC"
    free = decoded("abcd efgh", GenerationOptions(stop=("d<|im_end|>e",)))
    assert stop_row(unchecked_replace(free, text="Answer"), PLAIN).unwrap().text == "Answer"


def test_a_stage_that_keeps_the_length_of_the_text_has_its_ids_cut() -> None:
    row = decoded("abcd stop efgh", GenerationOptions(stop=("STOP",)))
    other = stop_row(unchecked_replace(row, text=row.text.upper()), PLAIN).unwrap()
    assert (other.text, other.raw_text) == ("ABCD ", "abcd stop")


class Giving(FakeEngine):
    """An engine that gives these ids, whatever they are, also while it streams."""

    ids: Any = ()

    def generate(self, inputs: Sequence[Encoded]) -> Any:
        return [Success(Raw(encoded=one, token_ids=self.ids)) for one in inputs]

    def stream(self, inputs: Sequence[Encoded]) -> Any:
        for row, slot in enumerate(self.generate(inputs)):
            for one in self.ids if isinstance(self.ids, tuple) else ():
                yield TokensMade(row=row, token_ids=(one,))
            yield RowDone(row=row, slot=slot)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, 2], "token_ids of type list, not a tuple"),
        (None, "token_ids of type NoneType, not a tuple"),
        ((65, "a"), "str among its token_ids, not int"),
        ((True,), "bool among its token_ids, not int"),
        ((0, 65, -1), "the token id -1, and the model has 262 ids"),
        ((65, 262), "the token id 262, and the model has 262 ids"),
    ],
)
def test_ids_that_no_model_has_are_a_malformed_answer(ids: Any, words: str) -> None:
    engine = Giving("a", name="mine")
    engine.capabilities = unchecked_replace(engine.capabilities, vocab_size=262)
    engine.ids = ids
    route, asked = pg.route(engine), [{"prompt": "a"}]
    (slot,) = pg.run(route, asked)
    error = slot.failure()
    assert isinstance(error, MalformedResponse)
    assert error.message == f"the answer of mine has {words}"
    assert error.hint.startswith("correct the engine")
    assert list(pg.stream(route, asked))[-1] == pg.Done(index=0, slot=slot)


def test_the_first_and_the_last_id_of_a_model_are_right() -> None:
    engine = Giving("a", name="mine")
    engine.capabilities = unchecked_replace(engine.capabilities, vocab_size=262)
    engine.ids = (0, 261)
    (slot,) = pg.run(pg.route(engine), [{"prompt": "a"}])
    assert slot.unwrap().token_ids == (0, 261)


def test_where_the_number_of_ids_is_not_known_none_is_below_zero() -> None:
    engine = Giving("a", name="mine")
    engine.ids = (-7,)
    (slot,) = pg.run(pg.route(engine), [{"prompt": "a"}])
    assert slot.failure().message == "the answer of mine has the token id -7"


@pytest.mark.parametrize("count", [0, 3, 5])
def test_log_probabilities_of_another_number_than_the_ids_are_a_malformed_answer(
    count: int,
) -> None:
    def with_logprobs(count: int) -> pg.Slot[pg.GenerationResult]:
        logprobs = (TokenLogprob(token_id=97, logprob=-1.0),) * count
        own = pg.pure("own", lambda raw: dataclasses.replace(raw, logprobs=logprobs))
        route = pg.route(FakeEngine("abcd")).insert(own, after="call")
        return pg.run(route, [{"prompt": "a"}])[0]

    assert pg.is_ok(with_logprobs(4))
    error = with_logprobs(count).failure()
    assert isinstance(error, MalformedResponse)
    assert f"{count} logprobs for 4 token_ids" in error.message
    assert "or your stage after it" in error.hint


def test_log_probabilities_of_the_prompt_take_a_pipe_that_asks_for_them() -> None:
    error = judged("ab", GenerationOptions(prompt_logprobs=True)).failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, error.message, error.hint) == (
        "prompt_logprobs",
        "prompt_logprobs takes a pipe that asks for them: none of its stages does",
        "pg.call(engine) asks for them; a stage of your own in its place sets Raw.prompt_logprobs",
    )


def test_log_probabilities_of_the_prompt_say_the_texts_of_their_tokens() -> None:
    entry = TokenLogprob(token_id=97, logprob=-1.0, top=((98, -2.0),))
    raw = judged("ab", GenerationOptions(prompt_logprobs=True), prompt_logprobs=(None, entry))
    first, second = raw.unwrap().raw.prompt_logprobs or ()
    assert (first, second) == (None, dataclasses.replace(entry, text="a", top_texts=("b",)))
