"""Words that an answer may not have, as sequences of token ids."""

from __future__ import annotations

import pytest

from pipegen.answer.barred import barred_after, barred_in, spellings
from pipegen.testing.toy import ToyTokenizer


class AtTheStart(ToyTokenizer):
    """Has a token for a word at the start of a text, which stands for a space and the word."""

    def encode(self, text: str) -> tuple[int, ...]:
        return (200,) if text == "no" else super().encode(text)

    def encode_plain(self, text: str, *, first: bool) -> tuple[int, ...]:
        return (200,) if text == " no" else super().encode_plain(text, first=first)


class AfterASpace(ToyTokenizer):
    """Has a token for a space and a word."""

    def encode_plain(self, text: str, *, first: bool) -> tuple[int, ...]:
        return (201,) if text == " no" else super().encode_plain(text, first=first)


def test_a_word_with_a_space_before_it_may_be_another_token() -> None:
    assert spellings(("no",), AfterASpace()) == spellings((" no",), AfterASpace())
    assert spellings(("no",), AfterASpace()) == ((110, 111), (201,))


def test_a_word_has_the_spellings_with_a_space_and_without_it_however_it_is_given() -> None:
    toy = ToyTokenizer()
    assert spellings(("no",), toy) == spellings((" no",), toy) == ((110, 111),)
    assert spellings(("no", " no", "no"), toy) == spellings(("no",), toy)
    assert spellings(("no",), AtTheStart()) == ((200,), (110, 111))
    assert spellings((), toy) == ()


@pytest.mark.parametrize(
    ("ids", "barred"),
    [((), [9]), ((7,), [9, 8]), ((7, 7), [9, 8]), ((7, 5), [9]), ((7, 7, 8), [9])],
)
def test_the_last_token_of_a_spelling_is_barred_after_the_others(
    ids: tuple[int, ...], barred: list[int]
) -> None:
    assert barred_after(ids, ((9,), (7, 8))) == barred


def test_the_first_spelling_in_an_answer_is_found_where_it_ends() -> None:
    assert barred_in((7, 7, 8, 9), ((9,), (7, 8))) == 2
    assert barred_in((7, 9, 8), ((7, 8),)) is None
    assert barred_in((), ((7,),)) is None
